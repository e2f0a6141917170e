"""Rows of a file of results as tables: fields by name, pivots, CSV, and the front of the best."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from elk_ir.errors import UsageError
from elk_ir.explore.store import Row
from elk_ir.plan.pareto import pareto_mask

ALIASES = {"time": "time_s", "energy": "energy_j", "area": "area_proxy_mm2"}
ALIASES |= {"area-proxy": "area_proxy_mm2"}

MAXIMISED = ("tokens_per_s", "flops_per_s", "hbm_utilization", "network_utilization")
"""Fields of which more is better; of all others less is."""

FIELDS = ("time_s", "lower_bound_s", "hbm_utilization", "network_utilization", "energy_j")
"""What a table shows of a result, unless asked otherwise."""

Cell = str | int | float | bool | None


def flat(row: Row) -> dict[str, Cell]:
    """A row as one flat record: settings under their names, results under theirs (those of nested
    objects as `breakdown_s.overlapped`), `status` and `error`. A result that is called like a
    setting (`chip`, `model`) does not hide it."""
    found: dict[str, Cell] = dict(row.settings)
    for name, value in _leaves(row.result or {}):
        found.setdefault(name, value)
    return {**found, "status": row.status, "error": row.error}


def _leaves(value: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Cell]]:
    for name, item in value.items():
        if isinstance(item, Mapping):
            yield from _leaves(item, f"{prefix}{name}.")
        elif not isinstance(item, list):
            yield prefix + name, item


def varying(rows: Sequence[Row]) -> list[str]:
    """The settings that are not equal in all rows, in the order of the first row that has them."""
    names = dict.fromkeys(name for row in rows for name in row.settings)
    return [n for n in names if len({repr(row.settings.get(n)) for row in rows}) > 1]


def named(records: Sequence[Mapping[str, Cell]], field: str) -> str:
    """A field's full name. Raises UsageError if no record has it."""
    name = ALIASES.get(field, field)
    if any(name in record for record in records):
        return name
    known = sorted({n for record in records for n in record})
    raise UsageError(f"no row has a field {field!r}", hint="there are: " + ", ".join(known))


def pivot(
    records: Sequence[Mapping[str, Cell]], row: str, column: str, value: str
) -> tuple[list[Cell], list[Cell], list[list[Cell]]]:
    """(row labels, column labels, cells): `value` by two fields; None where there is no point. Of
    several points in a cell the least value is taken (the greatest of what is maximised). Raises
    UsageError for a field that does not exist."""
    row, column, value = (named(records, f) for f in (row, column, value))
    best = max if value in MAXIMISED else min
    cells: dict[tuple[Cell, Cell], Cell] = {}
    for record in records:
        found = record.get(value)
        if found is None or record.get("status") != "ok":
            continue
        place = (record.get(row), record.get(column))
        old = cells.get(place)
        cells[place] = found if old is None else best(old, found)  # type: ignore[type-var]
    rows = _ordered(r.get(row) for r in records)
    columns = _ordered(r.get(column) for r in records)
    return rows, columns, [[cells.get((a, b)) for b in columns] for a in rows]


def _ordered(values: Iterable[Cell]) -> list[Cell]:
    """Each value once: numbers ascending, texts as they come."""
    found = list(dict.fromkeys(values))
    if all(isinstance(v, int | float) for v in found):
        return sorted(found)  # type: ignore[type-var]
    return found


def on_front(records: Sequence[Mapping[str, Cell]], fields: Sequence[str]) -> list[bool]:
    """Which records no other beats in all of `fields`; one that failed, or lacks a field, is not on
    it. Raises UsageError for a field that does not exist, or holds no numbers."""
    names = [named(records, f) for f in fields]
    rows: list[int] = []
    values: list[list[float]] = []
    for i, record in enumerate(records):
        found = [record.get(n) for n in names]
        if record.get("status") != "ok" or None in found:
            continue
        for name, v in zip(names, found, strict=True):
            if not isinstance(v, int | float):
                raise UsageError(f"field {name!r} holds {v!r}: a front needs numbers")
        rows.append(i)
        values.append([-float(v) if n in MAXIMISED else float(v) for n, v in zip(names, found)])  # type: ignore[arg-type]  # noqa: B905
    mask = [False] * len(records)
    if rows:
        costs = np.asarray(values)
        for i, good in zip(rows, pareto_mask(costs), strict=True):
            # Of equal points the mask keeps the first; they are as good as each other.
            mask[i] = bool(good)
        kept = {tuple(costs[k]) for k, i in enumerate(rows) if mask[i]}
        for k, i in enumerate(rows):
            mask[i] = tuple(costs[k]) in kept
    return mask


def to_csv(records: Sequence[Mapping[str, Cell]]) -> str:
    """All records with all their fields; an empty cell where one has none."""
    names = list(dict.fromkeys(n for record in records for n in record))
    stream = io.StringIO()
    writer = csv.DictWriter(stream, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return stream.getvalue()
