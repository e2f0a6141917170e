"""Measured tiles from CSV files: one row a measurement, extents (or bytes) and cycles.

Columns name the kind (docs/cost-model.md lists them); a `kind` column lets one file hold several,
each row then fills the columns of its kind.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from elk_ir.cost.linear_tree import KINDS, LEAST_ROWS, TREE_KINDS
from elk_ir.errors import ElkError


@dataclass(frozen=True)
class Measured:
    """Measurements of one kind: shapes (n, columns) and cycles (n,)."""

    kind: str
    shapes: np.ndarray
    cycles: np.ndarray


def read_measurements(path: Path, target: str = "cycles") -> tuple[Measured, ...]:
    """The measurements of a file, a kind each, in the order in which kinds first occur.

    Raises ElkError: unreadable file, missing column, a value that is no positive number (with its
    line), too few rows.
    """
    header, rows = _read(path)
    where = str(path)
    if target not in header:
        raise _missing(where, target, header)
    if "kind" not in header:
        kinds = {_kind_of(where, header): [line for line, _ in rows]}
    else:
        kinds = {}
        for line, row in rows:
            kind = row["kind"]
            if kind not in KINDS:
                raise ElkError(
                    f"kind '{kind}' is none that can be fitted",
                    where=f"{where}:{line}",
                    hint="kinds are " + ", ".join(KINDS),
                )
            kinds.setdefault(kind, []).append(line)
    by_line = dict(rows)
    found: list[Measured] = []
    for kind, lines in kinds.items():
        columns = KINDS[kind]
        for column in columns:
            if column not in header:
                raise _missing(where, column, header)
        if len(lines) < LEAST_ROWS:
            raise ElkError(
                f"{len(lines)} rows of kind '{kind}': a fit needs at least {LEAST_ROWS}",
                where=where,
            )
        table = np.asarray(
            [
                [_number(where, line, c, by_line[line][c]) for c in (*columns, target)]
                for line in lines
            ]
        )
        found.append(Measured(kind, table[:, :-1], table[:, -1]))
    return tuple(found)


def _read(path: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """Column names, and (line number, value by column) of every row that is not empty."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            header = [name.strip() for name in next(reader, [])]
            rows = []
            for values in reader:
                if not any(v.strip() for v in values):
                    continue
                if len(values) != len(header):
                    raise ElkError(
                        f"{len(values)} values, but {len(header)} columns",
                        where=f"{path}:{reader.line_num}",
                    )
                row = dict(zip(header, (v.strip() for v in values), strict=True))
                rows.append((reader.line_num, row))
    except OSError as error:
        raise ElkError(f"cannot read this file: {error.strerror}", where=str(path)) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ElkError(f"not a CSV file: {error}", where=str(path)) from None
    if not rows:
        raise ElkError("no measurements: a header and one row each are expected", where=str(path))
    return header, rows


def _kind_of(where: str, header: list[str]) -> str:
    """The kind whose columns the file has; transfers share theirs and need a `kind` column."""
    for kind, columns in TREE_KINDS.items():
        if set(columns) <= set(header):
            return kind
    closest = max(TREE_KINDS.values(), key=lambda c: len(set(c) & set(header)) / len(c))
    if not set(closest) & set(header):
        raise _missing(where, "kind", header)
    raise _missing(where, next(c for c in closest if c not in header), header)


def _missing(where: str, column: str, header: list[str]) -> ElkError:
    return ElkError(
        f"no column '{column}'",
        where=where,
        details=(
            "has: " + ", ".join(header),
            *(f"{kind}: {', '.join(columns)}, cycles" for kind, columns in KINDS.items()),
        ),
        hint="--target names the column of cycles; a column 'kind' tells several kinds apart",
    )


def _number(where: str, line: int, column: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ElkError(f"{column} = '{text}': must be a positive number", where=f"{where}:{line}")
    return value
