"""One point of a sweep as work that can be sent to another process, and what comes back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from elk_ir import __version__
from elk_ir.chips import Chip, load_chip
from elk_ir.errors import ChipError, ElkError, check_file_name
from elk_ir.explore.sweep import SETTINGS, Sweep, Times


@dataclass(frozen=True)
class Task:
    """A point. `key` identifies it by content: the
    sweep's name, settings, the chip's every field, the model's bytes
    and the compiler's version. `settings` is what the row shows. `group`: points of one group share
    plan fronts. `problem` is why it can't be computed, known beforehand; `chip` is then None."""

    key: str
    position: int
    settings: dict[str, Any]
    model: str
    chip: Chip | None
    group: str
    problem: str | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of a task: `result` (JSON) or `error`. The last two vary from run to run."""

    key: str
    result: dict[str, Any] | None
    error: str | None
    cpu_s: float
    peak_rss_bytes: int


def tasks_of(sweep: Sweep) -> list[Task]:
    """The points of a sweep in order. Raises ElkError if a model or a chip file does not exist:
    that is a mistake of the sweep, not a failure of a point."""
    return [_task(sweep, i, settings) for i, settings in enumerate(sweep.points())]


_FINDING = ("policy", "time_budget_s", "seed")
"""Settings of the search for a program. Points that differ in nothing else share everything that
comes before it, and policies begin with what others found."""


def dispatch_order(tasks: Sequence[Task]) -> list[Task]:
    """The tasks with those that share plans next to each other, and among these those that differ
    in nothing but the policy."""
    groups: dict[str, int] = {}
    machines: dict[str, int] = {}
    for task in tasks:
        groups.setdefault(task.group, task.position)
        machines.setdefault(machine_of(task), task.position)
    return sorted(tasks, key=lambda t: (groups[t.group], machines[machine_of(t)], t.position))


def machine_of(task: Task) -> str:
    """Equal for points that differ in nothing but the policy and its effort."""
    rest = {k: v for k, v in task.settings.items() if k not in _FINDING}
    return json.dumps(rest, sort_keys=True)


def dims_of(settings: Mapping[str, Any]) -> dict[str, int]:
    """The dimensions that a point binds."""
    return {k.removeprefix("dim."): v for k, v in settings.items() if k.startswith("dim.")}


def _task(sweep: Sweep, position: int, settings: Mapping[str, Any]) -> Task:
    model = _path(sweep.folder, settings["model"])
    digest = _digest(model)
    base = _base_chip(sweep.folder, settings["chip"])
    shown = dict(settings)
    chip: Chip | None = None
    problem: str | None = None
    try:
        changes = _changes(base, settings)
        shown |= changes
        chip = base.with_fields(changes) if changes else base
    except ChipError as error:
        problem = str(error)
        shown |= {k: f"x {v.factor:g}" for k, v in settings.items() if isinstance(v, Times)}
    identity = {
        "sweep": sweep.name,
        "version": __version__,
        "settings": shown,
        "model": digest,
        "chip": None if chip is None else chip.content_hash(),
    }
    key = _hash(identity)
    group = _group(chip, shown, digest) if chip is not None else key
    return Task(key, position, shown, str(model), chip, group, problem)


def _changes(base: Chip, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The chip's fields that a point sets. Raises ChipError for a field to multiply that the chip
    does not have."""
    known = {name: value for name, _, value in base.values()}
    changes: dict[str, Any] = {}
    for name, value in settings.items():
        if name in SETTINGS or name.startswith("dim."):
            continue
        if isinstance(value, Times):
            old = known.get(name)
            if not isinstance(old, int | float) or isinstance(old, bool):
                raise ChipError(f"chip '{base.name}' has no number '{name}' to multiply")
            new = old * value.factor
            value = round(new) if isinstance(old, int) else new
        changes[name] = value
    return changes


def _group(chip: Chip, settings: Mapping[str, Any], model: str) -> str:
    """What plan fronts depend on: the model at its dimensions, and some fields of the chip."""
    from elk_ir.cost.device import CoreRates
    from elk_ir.plan.batch import Machine

    return _hash(
        {
            "model": model,
            "dims": dims_of(settings),
            "kv": settings.get("kv_capacity"),
            "machine": repr(Machine.of(chip)),
            "rates": repr(CoreRates.of(chip)),
            "cost": chip.cost_model,
            "sram": chip.usable_sram_per_core_bytes,
        }
    )


def _hash(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _path(folder: Path, name: str) -> Path:
    """A path as the sweep file means it: relative to its folder."""
    check_file_name(name)
    return (folder / name).resolve()


@cache
def _base_chip(folder: Path, name: str) -> Chip:
    local = folder / name
    return load_chip(str(local) if name.endswith(".toml") and local.is_file() else name)


@cache
def _digest(model: Path) -> str:
    """SHA-256 of a model's file (weights in files of their own do not change its time)."""
    from elk_ir.frontend.load import refuse_device

    try:
        refuse_device(model)
        with model.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ElkError(
            f"the model of this sweep cannot be read: {reason}", where=str(model)
        ) from None
