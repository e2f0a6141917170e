"""A sweep file: which settings vary, and the points that follow. docs/explore.md has the format."""

from __future__ import annotations

import math
import random
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from elk_ir.errors import ElkError
from elk_ir.finite import is_finite

SETTINGS: dict[str, tuple[type, ...]] = {
    "model": (str,),
    "chip": (str,),
    "target": (str,),
    "policy": (str,),
    "kv_capacity": (int,),
    "time_budget_s": (int, float),
    "seed": (int,),
    "precision": (str,),
    "cards": (int,),
    "users": (int,),
    "route": (str,),
    "stages": (int,),
}
"""What is not a field of the chip, nor a dimension (`dim.NAME`), and its types."""

_SECTIONS = {"name", "description", "base", "axes", "together", "sample"}
_RANGE = {"from", "to", "steps", "scale", "integer"}
MAX_POINTS = 1_000_000

Value = str | int | float | bool


@dataclass(frozen=True)
class Times:
    """A value that is a multiple of what the point's chip file says."""

    factor: float


@dataclass(frozen=True)
class Range:
    """Numbers between two ends, both included; `steps` of them in a grid."""

    low: float
    high: float
    steps: int
    log: bool
    integer: bool

    def at(self, share: float) -> Value:
        """The number at `share` (0 to 1) of the way."""
        if self.log:
            value = self.low * (self.high / self.low) ** share
        else:
            value = self.low + (self.high - self.low) * share
        if self.integer:
            return round(value)
        # Ends are exact, whatever rounding does on the way.
        return self.low if share == 0.0 else self.high if share == 1.0 else value

    def grid(self) -> list[Value]:
        """The values of a grid, each once."""
        last = max(1, self.steps - 1)
        return list(dict.fromkeys(self.at(i / last) for i in range(self.steps)))


@dataclass(frozen=True)
class Axis:
    """One direction of the sweep: `names` take their values together, `rows` lists those; or one
    name takes numbers of a range."""

    names: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    range: Range | None = None

    def pick(self, share: float) -> dict[str, Any]:
        """The values at `share` (0 up to, not including, 1), for samples."""
        if self.range is not None:
            return {self.names[0]: self.range.at(share)}
        row = self.rows[min(int(share * len(self.rows)), len(self.rows) - 1)]
        return dict(zip(self.names, row, strict=True))


@dataclass(frozen=True)
class Sample:
    """Points drawn instead of a grid."""

    kind: str
    points: int
    seed: int


@dataclass(frozen=True)
class Sweep:
    """A sweep file. `folder` is where relative paths of models and chip files begin."""

    name: str
    description: str
    base: Mapping[str, Any]
    axes: tuple[Axis, ...]
    sample: Sample | None
    folder: Path

    def points(self) -> list[dict[str, Any]]:
        """The settings of every point in order, each once: the axes' product, the last one varying
        fastest, or the sample."""
        chosen = self._sampled() if self.sample is not None else self._grid()
        unique: dict[str, dict[str, Any]] = {}
        for each in chosen:
            settings = {**self.base, **each}
            unique.setdefault(repr(sorted(settings.items(), key=lambda i: i[0])), settings)
        return list(unique.values())

    def _grid(self) -> Iterator[dict[str, Any]]:
        for rows in product(*(axis.rows for axis in self.axes)):
            values: dict[str, Any] = {}
            for axis, row in zip(self.axes, rows, strict=True):
                values |= zip(axis.names, row, strict=True)
            yield values

    def _sampled(self) -> Iterator[dict[str, Any]]:
        assert self.sample is not None
        n, draw = self.sample.points, random.Random(self.sample.seed)
        columns: list[list[float]] = []
        for _ in self.axes:
            if self.sample.kind == "random":
                columns.append([draw.random() for _ in range(n)])
            else:
                # Latin hypercube: each of n equal slices of an axis holds exactly one point.
                strata = list(range(n))
                draw.shuffle(strata)
                columns.append([(k + draw.random()) / n for k in strata])
        for shares in zip(*columns, strict=True):
            values: dict[str, Any] = {}
            for axis, share in zip(self.axes, shares, strict=True):
                values |= axis.pick(share)
            yield values


def load_sweep(path: str | Path) -> Sweep:
    """The sweep in a TOML file. Raises ElkError naming the file and what is wrong with it."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ElkError(f"cannot read this sweep: {reason}", where=str(path)) from None
    return sweep_from_toml(text, str(path), path.parent)


def sweep_from_toml(text: str, where: str, folder: Path) -> Sweep:
    """The sweep that a TOML text describes. Raises ElkError; `where` names the text in messages."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ElkError(f"not valid TOML: {error}", where=where) from None
    try:
        return _sweep(data, folder, Path(where).stem)
    except ElkError as error:
        raise ElkError(error.what, where=where, details=error.details, hint=error.hint) from None


def _sweep(data: Mapping[str, Any], folder: Path, stem: str) -> Sweep:
    for key in data:
        if key not in _SECTIONS:
            raise ElkError(
                f"unknown section '{key}'", hint=f"a sweep has: {', '.join(sorted(_SECTIONS))}"
            )
    base = {name: _value(name, v) for name, v in _flat("base", data.get("base", {})).items()}
    axes = [_axis(name, spec) for name, spec in _flat("axes", data.get("axes", {})).items()]
    groups = data.get("together", [])
    if not isinstance(groups, list) or not all(isinstance(g, dict) for g in groups):
        raise ElkError("'together' must be tables: [[together]]")
    axes += [_group(_flat("together", group)) for group in groups]
    seen: set[str] = set()
    for name in (n for axis in axes for n in axis.names):
        if name in seen:
            raise ElkError(f"'{name}' is on two axes")
        seen.add(name)
    for needed in ("model", "chip"):
        if needed not in base and needed not in seen:
            raise ElkError(f"'{needed}' is missing", hint="give it under [base], or as an axis")
    sample = _sample(data.get("sample"))
    if sample is None:
        _check_grid(axes)
    name, description = data.get("name", stem), data.get("description", "")
    if not isinstance(name, str) or not isinstance(description, str):
        raise ElkError("'name' and 'description' must be texts")
    return Sweep(name, description, base, tuple(axes), sample, folder)


def _check_grid(axes: Sequence[Axis]) -> None:
    for axis in axes:
        if axis.range is not None and axis.range.steps < 2:
            raise ElkError(
                f"axis '{axis.names[0]}': a grid needs 'steps'",
                hint="give steps = N (2 or more), or a [sample]",
            )
    size = math.prod(len(axis.rows) for axis in axes)
    if size > MAX_POINTS:
        raise ElkError(
            f"the grid has {size:,} points; at most {MAX_POINTS:,} are allowed",
            hint="use fewer values, or draw a [sample]",
        )


def _flat(section: str, data: Any) -> dict[str, Any]:
    """Nested tables as dotted names; a table that describes values stays one."""
    if not isinstance(data, Mapping):
        raise ElkError(f"[{section}] must be a table")
    found: dict[str, Any] = {}

    def visit(prefix: str, table: Mapping[str, Any]) -> None:
        for key, value in table.items():
            if isinstance(value, Mapping) and not _describes_values(value):
                visit(f"{prefix}{key}.", value)
            elif prefix + key in found:
                raise ElkError(f"[{section}] has '{prefix}{key}' twice")
            else:
                found[prefix + key] = value

    visit("", data)
    return found


def _describes_values(table: Mapping[str, Any]) -> bool:
    return "times" in table or bool(table and set(table) <= _RANGE and "from" in table)


def _value(name: str, value: Any) -> Any:
    """A setting's value, checked as far as it can be without the chip."""
    if isinstance(value, Mapping) and set(value) == {"times"}:
        factor = value["times"]
        if name in SETTINGS or name.startswith("dim.") or not is_finite(factor):
            raise ElkError(f"'{name}': 'times' takes a number, and multiplies a field of the chip")
        return Times(float(factor))
    if isinstance(value, Times):
        return value
    if not isinstance(value, Value):
        raise ElkError(f"'{name}' = {value!r}: must be a number, a text or true/false")
    if isinstance(value, int | float) and not isinstance(value, bool) and not is_finite(value):
        raise ElkError(f"'{name}' = {value if isinstance(value, float) else '…'}: must be finite")
    kinds = SETTINGS.get(name, (int,) if name.startswith("dim.") else None)
    if kinds is not None and (not isinstance(value, kinds) or isinstance(value, bool)):
        wanted = "a text" if str in kinds else "an integer" if float not in kinds else "a number"
        raise ElkError(f"'{name}' = {value!r}: must be {wanted}")
    return value


def _values(name: str, spec: Any) -> list[Any]:
    """The values of a list, or of `{ times = [...] }`."""
    if isinstance(spec, Mapping) and set(spec) == {"times"} and isinstance(spec["times"], list):
        spec = [{"times": factor} for factor in spec["times"]]
    if not isinstance(spec, list) or not spec:
        raise ElkError(
            f"axis '{name}': must be a list of values, {{ from, to, steps }} or {{ times = [...] }}"
        )
    return [_value(name, v) for v in spec]


def _axis(name: str, spec: Any) -> Axis:
    if isinstance(spec, Mapping) and "from" in spec:
        span = _range(name, spec)
        return Axis((name,), tuple((_value(name, v),) for v in span.grid()), span)
    return Axis((name,), tuple((v,) for v in _values(name, spec)))


def _group(group: Mapping[str, Any]) -> Axis:
    columns = {name: _values(name, spec) for name, spec in group.items()}
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) != 1:
        shown = ", ".join(f"{n} has {k}" for n, k in lengths.items())
        raise ElkError(f"values of one [[together]] must be as many: {shown or 'it is empty'}")
    return Axis(tuple(columns), tuple(zip(*columns.values(), strict=True)))


def _range(name: str, spec: Mapping[str, Any]) -> Range:
    low, high, steps = spec.get("from"), spec.get("to"), spec.get("steps", 0)
    scale, integer = spec.get("scale", "linear"), spec.get("integer", name.startswith("dim."))
    if not is_finite(low) or not is_finite(high) or not low < high:
        raise ElkError(f"axis '{name}': 'from' and 'to' must be numbers, the first one smaller")
    if scale not in ("linear", "log") or not isinstance(integer, bool):
        raise ElkError(f"axis '{name}': scale is 'linear' or 'log', integer is true or false")
    if scale == "log" and low <= 0:
        raise ElkError(f"axis '{name}': a log scale must begin above 0")
    if not is_finite(high / low if scale == "log" else float(high) - float(low)):
        raise ElkError(f"axis '{name}': 'from' and 'to' are too far apart")
    if not isinstance(steps, int) or isinstance(steps, bool) or not 0 <= steps <= MAX_POINTS:
        raise ElkError(f"axis '{name}': steps must be a count, at most {MAX_POINTS:,}")
    return Range(low, high, steps, scale == "log", integer)


def _sample(data: Any) -> Sample | None:
    if data is None:
        return None
    if not isinstance(data, Mapping) or not set(data) <= {"kind", "points", "seed"}:
        raise ElkError("[sample] takes kind, points and seed")
    kind, points, seed = (
        data.get("kind", "latin-hypercube"),
        data.get("points"),
        data.get("seed", 0),
    )
    if kind not in ("random", "latin-hypercube"):
        raise ElkError(f"[sample] kind = {kind!r}: must be 'random' or 'latin-hypercube'")
    if not isinstance(points, int) or isinstance(points, bool) or not 0 < points <= MAX_POINTS:
        raise ElkError(f"[sample] points: must be a count, at most {MAX_POINTS:,}")
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise ElkError("[sample] seed: must be an integer")
    return Sample(kind, points, seed)
