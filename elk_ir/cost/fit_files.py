"""Cost models as files: a text of LightGBM models, and a JSON sidecar beside it that explains it.

`model.txt` holds the trees of all kinds one after another, in LightGBM's own text format (each
starts with a line `tree`), so a file with one kind is a LightGBM model file. `model.json` names
the kinds, columns, ranges, errors and the source, the lines, and the SHA-256 of the text.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from elk_ir.cost.linear_tree import KINDS, LINE_KINDS, Errors, Fit
from elk_ir.errors import ElkError
from elk_ir.output import write_text

BASES = ("roofline", "ipu-mk2")
SHIPPED = Path(__file__).parent / "models" / "ipu-mk2.txt"
_FORMAT = 1
_LINES_ONLY = "# Lines only: their numbers are in the .json file beside this one.\n"


@dataclass(frozen=True)
class FitSet:
    """The fits of one device. `base` prices what has no fit and what is out of range."""

    name: str
    base: str
    source: str
    fits: tuple[Fit, ...]

    def of(self, kind: str) -> Fit | None:
        """The fit of a kind of tile or transfer, if there is one."""
        return next((f for f in self.fits if f.kind == kind), None)

    @property
    def text(self) -> str:
        """The text file of the set."""
        return "".join(f.text.rstrip("\n") + "\n" for f in self.fits if f.text) or _LINES_ONLY

    def __hash__(self) -> int:
        # Keys of plan caches: hashing megabytes of text each time would show.
        return hash((self.name, self.base, tuple((f.kind, f.rows, f.ranges) for f in self.fits)))


def sidecar_of(path: Path) -> Path:
    """The JSON file beside a model's text file."""
    return path.with_suffix(".json")


def describe(fits: FitSet) -> dict[str, Any]:
    """The sidecar as a JSON object."""
    return {
        "format": _FORMAT,
        "name": fits.name,
        "base": fits.base,
        "source": fits.source,
        "text_sha256": hashlib.sha256(fits.text.encode()).hexdigest(),
        "fits": [_fit_json(f) for f in fits.fits],
    }


def _fit_json(fit: Fit) -> dict[str, Any]:
    line = fit.kind in LINE_KINDS
    found: dict[str, Any] = {
        "kind": fit.kind,
        "form": "line" if line else "linear tree",
        "columns": list(fit.columns),
        "rows": fit.rows,
        "errors": asdict(fit.errors) | {"worst_at": dict(fit.errors.worst_at)},
        "ranges": {name: [least, most] for name, least, most in fit.ranges},
    }
    if line:
        return found | {"intercept_cycles": fit.intercept, "cycles_per_byte": fit.slope}
    return found | {
        "element_bytes": fit.element_bytes,
        "macs_per_cycle": fit.macs_per_cycle,
        "with_product": fit.with_product,
        "leaves": fit.leaves,
    }


def save_fits(fits: FitSet, path: Path) -> None:
    """Writes text and sidecar, each under a temporary name first. Raises ElkError if that fails."""
    sidecar = json.dumps(describe(fits), indent=1) + "\n"
    # The sidecar last: until it is there, the hash of the old one refuses the new text.
    for target, text in ((path, fits.text), (sidecar_of(path), sidecar)):
        write_text(target, text)


def load_fits(path: Path) -> FitSet:
    """The fits of a text file and its sidecar; read again only after they change.

    Raises ElkError for files that are missing, malformed or do not belong together.
    """
    stamps = []
    for file in (path, sidecar_of(path)):
        try:
            stat = file.stat()
        except OSError as error:
            raise ElkError(
                f"cannot read this file: {error.strerror}",
                where=str(file),
                hint="`elk profile fit DATA.csv -o model.txt` writes model.txt and model.json",
            ) from None
        stamps.append((stat.st_mtime_ns, stat.st_size))
    return _load(path, tuple(stamps))


@lru_cache(maxsize=16)
def _load(path: Path, stamps: tuple[tuple[int, int], ...]) -> FitSet:
    sidecar = sidecar_of(path)
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(sidecar.read_text(encoding="utf-8"))
    except OSError as error:
        raise ElkError(f"cannot read this file: {error.strerror}", where=str(path)) from None
    except (UnicodeDecodeError, ValueError) as error:
        raise ElkError(f"not a cost model: {error}", where=str(path)) from None
    if hashlib.sha256(text.encode()).hexdigest() != _text_field(data, "text_sha256", sidecar):
        raise ElkError(
            "this text is not the one that its .json file describes",
            where=str(path),
            hint="fit again with `elk profile fit`, or copy both files together",
        )
    trees = iter(re.split(r"(?m)^(?=tree$)", text)[1:])
    try:
        if data["format"] != _FORMAT or data["base"] not in BASES:
            raise ValueError(f"format {data['format']}, base {data['base']}")
        fits = tuple(_fit_of(entry, trees) for entry in data["fits"])
        return FitSet(str(data["name"]), data["base"], str(data["source"]), fits)
    except (KeyError, TypeError, ValueError, StopIteration) as error:
        raise ElkError(f"not a cost model's description: {error}", where=str(sidecar)) from None


def _text_field(data: Any, key: str, where: Path) -> str:
    value = data.get(key) if isinstance(data, dict) else None
    if not isinstance(value, str):
        raise ElkError(f"not a cost model's description: no '{key}'", where=str(where))
    return value


def _fit_of(entry: dict[str, Any], trees: Any) -> Fit:
    kind = entry["kind"]
    if kind not in KINDS or tuple(entry["columns"]) != KINDS[kind]:
        raise ValueError(f"kind '{kind}' with columns {entry['columns']}")
    e = entry["errors"]
    errors = Errors(e["median"], e["p90"], e["worst"], tuple(e["worst_at"].items()))
    ranges = tuple((n, float(a), float(b)) for n, (a, b) in entry["ranges"].items())
    if kind in LINE_KINDS:
        intercept, slope = float(entry["intercept_cycles"]), float(entry["cycles_per_byte"])
        return Fit(
            kind,
            KINDS[kind],
            int(entry["rows"]),
            ranges,
            errors,
            0,
            intercept=intercept,
            slope=slope,
        )
    return Fit(
        kind,
        KINDS[kind],
        int(entry["rows"]),
        ranges,
        errors,
        int(entry["element_bytes"]),
        float(entry["macs_per_cycle"]),
        bool(entry["with_product"]),
        int(entry["leaves"]),
        text=next(trees),
    )
