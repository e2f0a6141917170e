"""Published GPU figures from a TOML file, and an appliance of cards beside them.

The metrics are the published ones: latency is batch over throughput, energy tokens/s/W, space
tokens/s a transistor. A figure that the source does not state and that nothing follows for is None.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from elk_ir.errors import ElkError
from elk_ir.finite import is_finite
from elk_ir.northpole.mapping import Mapping as StageMapping
from elk_ir.northpole.pipeline import Run

BUNDLED = Path(__file__).parent / "gpus.toml"
"""The file that ships with the compiler."""

METRICS = ("tokens_per_s_per_w", "latency", "tokens_per_s_per_transistor")
"""What a published ratio may be of."""


@dataclass(frozen=True)
class Gpu:
    """A GPU: the power its board may take in W, and the transistors of its chip."""

    name: str
    board: str
    power_w: float
    transistors: float
    source: str


@dataclass(frozen=True)
class Row:
    """One point of a machine with `count` chips: `batch` users with a prompt each.

    Times are seconds, `tokens_per_s` counts generated tokens of all users, `power_w` is of the
    whole machine, and `power_is` says what it is. `derived`: from a published ratio, not stated.
    """

    machine: str
    count: int
    model: str
    precision: str
    batch: int | None
    prompt_tokens: int | None
    generated_tokens: int | None
    tokens_per_s: float | None
    latency_s: float | None
    power_w: float | None
    power_is: str
    transistors: float | None
    tokens_per_s_per_w: float | None
    source: str
    derived: bool = False

    @property
    def tokens_per_s_per_transistor(self) -> float | None:
        """The space metric."""
        return _over(self.tokens_per_s, self.transistors)


@dataclass(frozen=True)
class Missing:
    """A published figure that is not in the table, and why."""

    what: str
    why: str


@dataclass(frozen=True)
class GpuTable:
    """What a file of GPU figures says."""

    gpus: tuple[Gpu, ...]
    rows: tuple[Row, ...]
    missing: tuple[Missing, ...]


@dataclass(frozen=True)
class Compared:
    """A GPU's row beside an appliance: how many times better the appliance is in energy, latency
    and space (None: a figure is missing), and whether its model has a name that begins like the
    GPU's."""

    row: Row
    energy: float | None
    latency: float | None
    space: float | None
    same_model: bool


def _over(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a / b


# ---------------------------------------------------------------------- reading a file


LEAST = 1e-100
"""Smaller figures are none: what follows from them would not be finite."""


@dataclass(frozen=True)
class _Table:
    """One table of the file, for messages that say where they are from."""

    where: str
    fields: Mapping[str, Any]

    def text(self, name: str, default: str | None = None) -> str:
        value = self.fields.get(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, value, "a text")
        return value

    def number(self, name: str) -> float | None:
        value = self.fields.get(name)
        if value is None:
            return None
        if not is_finite(value) or not value > LEAST:
            raise self.wrong(name, value, "a number above 0")
        return float(value)

    def needed(self, name: str) -> float:
        value = self.number(name)
        if value is None:
            raise self.wrong(name, None, "a number above 0")
        return value

    def count(self, name: str) -> int | None:
        value = self.number(name)
        if value is not None and value != int(value):
            raise self.wrong(name, self.fields[name], "a whole number")
        return None if value is None else int(value)

    def wrong(self, name: str, value: object, wanted: str) -> ElkError:
        given = "is missing" if value is None else f"is {value!r}"
        return ElkError(f"{self.where}: {name} {given}, it must be {wanted}")

    def only(self, *names: str) -> None:
        unknown = sorted(set(self.fields) - set(names))
        if unknown:
            raise ElkError(
                f"{self.where}: unknown field {unknown[0]!r}", hint=f"known: {', '.join(names)}"
            )


_KINDS = ("gpu", "point", "ratio", "missing")


def load_gpus(path: str | Path | None = None) -> GpuTable:
    """The figures that ship with the compiler, and those of the file at `path` after them.

    Raises ElkError for a file that can't be read, and for a wrong or unknown field (naming file,
    table, field and value).
    """
    found = _read(BUNDLED, ())
    if path is None:
        return found
    own = _read(Path(path), found.gpus)
    return GpuTable(own.gpus, found.rows + own.rows, found.missing + own.missing)


def _read(path: Path, known: tuple[Gpu, ...]) -> GpuTable:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ElkError(f"{path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ElkError(f"{path}: not TOML: {error}") from error
    _Table(str(path), data).only(*_KINDS, "reference")
    gpus = {g.name: g for g in known}
    for table in _tables(path, data, "gpu"):
        gpu = _gpu(table)
        gpus[gpu.name] = gpu
    rows = [_point(t, gpus) for t in _tables(path, data, "point")]
    ratios = list(_tables(path, data, "ratio"))
    if ratios:
        reference = data.get("reference")
        if not isinstance(reference, dict):
            raise ElkError(f"{path}: [[ratio]] needs a [reference], the machine that is better")
        against = _Table(f"{path}: [reference]", reference)
        rows = [_derived(t, against, gpus) for t in ratios] + rows
    missing: list[Missing] = []
    for table in _tables(path, data, "missing"):
        table.only("what", "why")
        missing.append(Missing(table.text("what"), table.text("why")))
    return GpuTable(tuple(gpus.values()), tuple(rows), tuple(missing))


def _tables(path: Path, data: Mapping[str, Any], kind: str) -> Iterator[_Table]:
    entries = data.get(kind, [])
    if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
        raise ElkError(f"{path}: {kind} must be an array of tables, [[{kind}]]")
    for number, entry in enumerate(entries, 1):
        yield _Table(f"{path}: [[{kind}]] {number}", entry)


def _gpu(table: _Table) -> Gpu:
    table.only("name", "board", "power_w", "transistors", "source")
    return Gpu(
        table.text("name"),
        table.text("board", ""),
        table.needed("power_w"),
        table.needed("transistors"),
        table.text("source"),
    )


def _named(table: _Table, gpus: Mapping[str, Gpu]) -> Gpu:
    name = table.text("gpu")
    if name not in gpus:
        raise ElkError(
            f"{table.where}: there is no GPU {name!r}",
            hint=f"known: {', '.join(gpus)}; another one needs a [[gpu]] table",
        )
    return gpus[name]


def _point(table: _Table, gpus: Mapping[str, Gpu]) -> Row:
    """A stated point: of throughput, batch and latency, two give the third."""
    table.only(
        "gpu", "gpus", "model", "precision", "batch", "prompt_tokens", "generated_tokens",
        "tokens_per_s", "ms_per_token", "power_w", "source",
    )  # fmt: skip
    gpu, count = _named(table, gpus), table.count("gpus") or 1
    batch, rate, ms = (
        table.count("batch"),
        table.number("tokens_per_s"),
        table.number("ms_per_token"),
    )
    if rate is None and ms is None:
        raise table.wrong("tokens_per_s", None, "given, or ms_per_token")
    latency = ms / 1e3 if ms is not None else _over(batch, rate)
    if rate is None:
        rate = _over(batch, latency)
    power = table.number("power_w")
    stated = power is not None
    power = power if power is not None else gpu.power_w * count
    return Row(
        gpu.name,
        count,
        table.text("model"),
        table.text("precision", ""),
        batch,
        table.count("prompt_tokens"),
        table.count("generated_tokens"),
        rate,
        latency,
        power,
        "stated" if stated else "board limit",
        gpu.transistors * count,
        _over(rate, power),
        table.text("source"),
    )


def _derived(table: _Table, reference: _Table, gpus: Mapping[str, Gpu]) -> Row:
    """What a ratio says about the other machine: one metric of one of its points."""
    table.only("gpu", "metric", "factor", "at", "source")
    reference.only("model", "tokens_per_s", "batch", "power_w", "source")
    gpu, metric, factor = _named(table, gpus), table.text("metric"), table.needed("factor")
    rate, batch = reference.needed("tokens_per_s"), reference.needed("batch")
    row = Row(
        gpu.name, 1, reference.text("model"), "", None, None, None, None, None, None, "", None,
        None, f"{table.text('source')}, 1/{factor:g} at {table.text('at')}", derived=True,
    )  # fmt: skip
    if metric == "tokens_per_s_per_w":
        return replace(row, tokens_per_s_per_w=rate / reference.needed("power_w") / factor)
    if metric == "latency":
        return replace(row, latency_s=batch / rate * factor)
    raise ElkError(f"{table.where}: metric {metric!r}", hint=f"{METRICS[0]} or {METRICS[1]}")


# ---------------------------------------------------------------------- an appliance beside them


def row_of(mapping: StageMapping, run: Run) -> Row:
    """A simulated run of a mapped model under the same names."""
    return Row(
        mapping.chip.name,
        run.cards,
        mapping.network.name,
        mapping.precision.name,
        run.mini_batch,
        run.prompt_tokens,
        run.generated_tokens,
        run.tokens_per_s,
        run.latency_per_token_s,
        run.power_w,
        "measured, a card",
        float(mapping.chip.transistors_per_chip * run.cards),
        run.tokens_per_s_per_w,
        "simulated",
    )


def compare(ours: Row, rows: Sequence[Row]) -> tuple[Compared, ...]:
    """How many times better `ours` is than each of `rows`."""
    return tuple(
        Compared(
            row,
            _over(ours.tokens_per_s_per_w, row.tokens_per_s_per_w),
            _over(row.latency_s, ours.latency_s),
            _over(ours.tokens_per_s_per_transistor, row.tokens_per_s_per_transistor),
            ours.model.startswith(row.model),
        )
        for row in rows
    )


def compared_fields(compared: Sequence[Compared]) -> list[dict[str, Any]]:
    """The same for JSON: the fields of a row, and the factors as `better_…`."""
    return [
        asdict(c.row)
        | {
            "tokens_per_s_per_transistor": c.row.tokens_per_s_per_transistor,
            "same_model": c.same_model,
            "better_energy": c.energy,
            "better_latency": c.latency,
            "better_space": c.space,
        }
        for c in compared
    ]


def compared_lines(
    ours: Row, compared: Sequence[Compared], missing: Sequence[Missing] = ()
) -> Iterator[str]:
    """The comparison for people: `ours` first, then each GPU with `× better` of each metric."""
    yield (
        f"{'':<18} {'model':<11} {'type':<5} {'users':>5} {'tokens/s':>9} {'ms/token':>9}"
        f" {'tok/s/W':>8} {'tok/s/Gtr':>9}  {'energy':>7} {'latency':>7} {'space':>7}"
    )
    yield _row_line(ours)
    for c in compared:
        factors = " ".join(_cell(f, "{:.1f}×", 7) for f in (c.energy, c.latency, c.space))
        notes = [c.row.source]
        if c.row.derived:
            notes.insert(0, "derived")
        elif c.row.power_is != "stated":
            notes.append(f"W: {c.row.power_is}")
        if not c.same_model:
            notes.append("by its name another model")
        yield f"{_row_line(c.row)}  {factors}  {'; '.join(notes)}"
    for gap in missing:
        yield f"not here: {gap.what}: {gap.why}"


def _row_line(row: Row) -> str:
    name = f"{row.count} × {row.machine}" if row.count > 1 else row.machine
    latency = None if row.latency_s is None else row.latency_s * 1e3
    space = row.tokens_per_s_per_transistor
    return (
        f"{name:<18} {row.model[:11]:<11} {row.precision:<5} {_cell(row.batch, '{:d}', 5)}"
        f" {_cell(row.tokens_per_s, '{:,.0f}', 9)} {_cell(latency, '{:.3f}', 9)}"
        f" {_cell(row.tokens_per_s_per_w, '{:.3f}', 8)}"
        f" {_cell(None if space is None else space * 1e9, '{:.2f}', 9)}"
    )


def _cell(value: float | None, form: str, width: int) -> str:
    return f"{'–' if value is None else form.format(value):>{width}}"
