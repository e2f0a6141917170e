"""The NorthPole target: cards that hold everything, mapped before plans are chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from elk_ir.chips import Chip
from elk_ir.compiler import GPIPE, NORTHPOLE_OPTIONS
from elk_ir.errors import ElkError
from elk_ir.program import Program
from elk_ir.target import Target


class NorthpoleTarget(Target):
    """Stages of a pipeline over cards (docs/targets/northpole.md): nothing is fetched, so nothing
    is scheduled, and layers stay rolled, because a block is one program for all layers."""

    name = "northpole"
    updates_rows = False
    lowering = ("convert-icca-to-northpole", "northpole-verify-program")

    def check(self, chip: Chip) -> None:
        if chip.northpole is None:
            raise ElkError(
                f"chip {chip.name!r} is no NorthPole machine: it has no [northpole] section",
                hint="use northpole-16, northpole, or a file that extends one of them",
            )

    def passes(
        self, chip: Chip, policy: str | None, mapping: Mapping[str, str | int]
    ) -> tuple[str, ...]:
        if policy not in (None, GPIPE):
            raise ElkError(
                f"unknown policy {policy!r}", hint=f"the northpole target has one: {GPIPE}"
            )
        unknown = [name for name in mapping if name not in NORTHPOLE_OPTIONS]
        if unknown:
            raise ElkError(
                f"unknown mapping option {unknown[0]!r}",
                hint=f"the options are: {', '.join(NORTHPOLE_OPTIONS)}",
            )
        given = {"precision": "auto", **mapping}
        options = " ".join(f"{name}={value}" for name, value in given.items())
        return (
            f"northpole-map-stages{{{options}}}",
            "convert-te-to-icca",
            "northpole-place",
            *self.lowering,
        )

    def rolls_layers(self, chip: Chip) -> bool:
        return True

    def program_class(self) -> type[Program]:
        from elk_ir.targets.northpole.compiled import NorthpoleProgram

        return NorthpoleProgram

    def build_report(self, program: ModuleOp, module: ModuleOp, **about: Any) -> dict[str, Any]:
        from elk_ir.targets.northpole.compiled import build_northpole_report

        # Its operators are those of the cards, not the executes of icca.
        return build_northpole_report(program, module, [], target_name=self.name, **about)


NORTHPOLE = NorthpoleTarget()
