"""Chips from TOML files: the built-in ones by name, the user's own by path.

A file may start from another with `extends = "NAME or PATH"` (a path is relative to the file that
names it): its tables are merged over the other's, field by field, and `hbm = "none"` drops a
section. `name` and `description` are never inherited.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard

from elk_ir import extensions
from elk_ir.chips.chip import Chip
from elk_ir.chips.sections import SECTIONS
from elk_ir.errors import ChipError, check_file_name

_FOLDER = Path(__file__).parent
_MOST_CHARACTERS = 1 << 20
"""Of a chip file. What it extends may be a device without an end."""
_OPTIONAL = ("hbm", "energy", "northpole")


@cache
def builtin_chips() -> tuple[str, ...]:
    """Names of the chips that ship with the compiler, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


def chip_names() -> tuple[str, ...]:
    """Every chip that has a name, sorted: the built-in ones and those of extensions."""
    return tuple(sorted({*builtin_chips(), *extensions.extensions(extensions.CHIPS)}))


def load_chip(name_or_path: str) -> Chip:
    """The chip with that name (built in, or of an extension), or described by the TOML file at that
    path.

    Raises ChipError: unknown name (with the closest ones), unreadable or malformed file (naming
    file, field, value, unit and allowed range).
    """
    check_file_name(name_or_path, ChipError)
    if name_or_path in builtin_chips():
        return _load_builtin(name_or_path)
    if not _is_path(name_or_path):
        brought = extensions.chip_file(name_or_path)
        if brought is not None:
            return _finish(_read(brought, ()), name_or_path, brought.name)
    path = Path(name_or_path)
    if _is_path(name_or_path) or path.is_file():
        return _finish(_read(path, ()), path.stem, str(path))
    raise _unknown(name_or_path)


def chip_from_toml(text: str, name: str) -> Chip:
    """The chip that a TOML text describes; `name` stands for the file in messages.

    `extends` may name a built-in chip, or a path relative to the working directory. Raises
    ChipError as `load_chip` does.
    """
    stem = Path(name).stem
    return _finish(_resolve(_parse(text, name), name, Path(), ()), stem, name)


@cache
def _load_builtin(name: str) -> Chip:
    path = _FOLDER / f"{name}.toml"
    return _finish(_read(path, ()), name, path.name)


def _is_path(text: str) -> bool:
    return text.endswith(".toml") or "/" in text or "\\" in text


def _unknown(name: str, where: str | None = None) -> ChipError:
    """No such chip: what it may have meant, and what there is."""
    known = chip_names()
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = "did you mean " + " or ".join(f"'{chip}'" for chip in close) + "?" if close else None
    return ChipError(
        f"unknown chip '{name}'",
        where=where,
        details=("there are: " + ", ".join(known),),
        hint=hint or "give one of these names, or the path of a chip file (.toml)",
    )


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        position = re.search(r" \(at line (\d+), column (\d+)\)$", message)
        if position is not None:
            where = f"{where}:{position[1]}:{position[2]}"
            message = message[: position.start()]
        raise ChipError(f"not valid TOML: {message}", where=where) from None


def _read(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    """A file's tables with everything it extends merged in."""
    where = path.name if path.parent == _FOLDER else str(path)
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MOST_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ChipError(f"cannot read this chip file: {reason}", where=where) from None
    if len(text) > _MOST_CHARACTERS:
        raise ChipError(f"a chip file of more than {_MOST_CHARACTERS:,} characters", where=where)
    data = _parse(text, where)
    _locate_cost_model(data, path.parent)
    return _resolve(data, where, path.parent, (*seen, path.resolve()))


def _locate_cost_model(data: dict[str, Any], folder: Path) -> None:
    """A fitted model's path is relative to the file that names it; made absolute, because programs
    carry their chip and are simulated from other folders."""
    model = data.get("cost_model")
    if isinstance(model, str) and "\0" in model:
        raise ChipError(f"cost_model = {model!r}: no file can have this name")
    if isinstance(model, str) and model.endswith(".txt"):
        data["cost_model"] = str((folder / model).resolve())


def _resolve(
    data: dict[str, Any], where: str, folder: Path, seen: tuple[Path, ...]
) -> dict[str, Any]:
    """Merges `data` over what it extends."""
    base_name = data.pop("extends", None)
    if base_name is None:
        return data
    if not isinstance(base_name, str):
        raise ChipError(
            f"extends = {base_name!r}: must be the name of a built-in chip or the path of a file",
            where=where,
        )
    if "\0" in base_name:
        raise ChipError(f"extends = {base_name!r}: no file can have this name", where=where)
    if base_name in builtin_chips():
        base_path = _FOLDER / f"{base_name}.toml"
    elif not _is_path(base_name) and (brought := extensions.chip_file(base_name)) is not None:
        base_path = brought
    elif _is_path(base_name):
        base_path = folder / base_name
    else:
        raise _unknown(base_name, f"{where}: extends")
    if base_path.resolve() in seen:
        chain = " -> ".join(path.name for path in (*seen, base_path))
        raise ChipError(f"extends goes in a circle: {chain}", where=where)
    base = _read(base_path, seen)
    base.pop("name", None)
    base.pop("description", None)
    return _merged(base, data)


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            value = {**old, **value}
        result[key] = value
    return result


def _finish(data: dict[str, Any], stem: str, where: str) -> Chip:
    """Checks the merged tables and fills in what may be left out."""
    data.setdefault("name", stem)
    for section in _OPTIONAL:
        if data.get(section) == "none":
            del data[section]
    for section in SECTIONS:
        if section in data and not isinstance(data[section], dict):
            other = ' (or = "none")' if section in _OPTIONAL else ""
            raise ChipError(
                f"{section} = {data[section]!r}: must be a table [{section}]{other}", where=where
            )
    _derive_sustained(data.get("hbm"))
    try:
        return Chip.from_dict(data)
    except ChipError as error:
        problems = (error.what, *error.details)
        if len(problems) == 1:
            raise ChipError(problems[0], where=where, hint=error.hint) from None
        raise ChipError(
            f"{len(problems)} things are wrong with this chip", where=where, details=problems
        ) from None


def _derive_sustained(hbm: dict[str, Any] | None) -> None:
    """A file may state the peak and the refresh instead of the sustained bandwidth."""
    if hbm is None or "bandwidth_bytes_per_s" in hbm:
        return
    peak = hbm.get("peak_bandwidth_bytes_per_s")
    interval = hbm.get("refresh_interval_s", 0)
    duration = hbm.get("refresh_duration_s", 0)
    # Anything else is left for the field checks to name.
    if _is_number(peak) and _is_number(interval) and _is_number(duration):
        loss = duration / interval if interval > 0 else 0.0
        hbm["bandwidth_bytes_per_s"] = peak * (1 - loss)


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
