"""`elk chips [NAME|FILE.toml] [--json]`: what a chip is, in words and in derived peaks."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any


def add_parser(subparsers: Any) -> None:
    """Adds the command to what `ArgumentParser.add_subparsers()` returned."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "chips",
        help="list the chips, or explain one",
        description="Lists the built-in chips; with a name, or the path of a chip file, explains"
        " that chip in words and derived peaks. docs/chips.md has every field.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="a built-in chip or a .toml file")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(args: argparse.Namespace) -> int:
    """Prints the answer and returns the exit code. Raises ChipError for a chip that is no good."""
    name: str | None = args.name
    if args.json:
        result = _list_json() if name is None else _chip_json(name)
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
    else:
        sys.stdout.write(_list_text() if name is None else _chip_text(name))
    return 0


def _list_text() -> str:
    from elk_ir.chips import chip_names, load_chip

    width = max(map(len, chip_names()))
    lines = [f"{name:<{width}}  {load_chip(name).description}" for name in chip_names()]
    return "\n".join([*lines, "", "`elk chips NAME` explains one; so does a path to your own.", ""])


def _list_json() -> dict[str, Any]:
    from elk_ir.chips import chip_names, load_chip
    from elk_ir.chips.describe import peaks

    chips = map(load_chip, chip_names())
    return {
        "chips": [
            {"chip": chip.name, "description": chip.description, "derived": peaks(chip)}
            for chip in chips
        ]
    }


def _chip_text(name: str) -> str:
    from elk_ir.chips import load_chip
    from elk_ir.chips.describe import describe

    return describe(load_chip(name))


def _chip_json(name: str) -> dict[str, Any]:
    from elk_ir.chips import load_chip
    from elk_ir.chips.describe import peaks

    chip = load_chip(name)
    return {
        "chip": chip.name,
        "content_hash": chip.content_hash(),
        "fields": chip.to_dict(),
        "derived": peaks(chip),
    }
