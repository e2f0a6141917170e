"""What a target is: passes from `icca` to its own IR, and what can be done with a program in it.

A target is an object of a subclass of `Target`. Those of this package are in `BUILTIN`; other
packages bring theirs as entry points of the group `elk_ir.targets` (docs/extending.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from elk_ir import extensions
from elk_ir.errors import ElkError, UsageError

if TYPE_CHECKING:
    import numpy as np
    from xdsl.dialects.builtin import ModuleOp

    from elk_ir.chips import Chip
    from elk_ir.program import Program
    from elk_ir.sim import SimResult
    from elk_ir.weight_source import WeightSource

Landing = Literal["early", "late"]

Runner = Callable[["Mapping[str, np.ndarray]"], "dict[str, np.ndarray]"]
"""From the inputs of a program to its outputs, by name."""

DEFAULT_POLICY = "search"
"""The best scheduling policy that is implemented: the fastest programs over the graphs we have."""

RESIDENT = "resident"
"""The policy of chips without HBM: all weights are on chip before a run starts."""

BUILTIN: dict[str, str] = {
    "ipu": "elk_ir.targets.ipu.target:IPU",
    "northpole": "elk_ir.targets.northpole.target:NORTHPOLE",
}
"""Targets of this package: `name: module:attribute`, imported on first use."""


class Target:
    """A machine that programs are lowered to. All methods have defaults; a target without `run`,
    say, can be compiled for and written, not run.

    name: what `--target` and `target=` take, the name of the level in a program, and the prefix of
    its IR's operations.
    lowering: the passes from a planned, scheduled and allocated `icca` program to its IR; the first
    one makes that IR. They keep the module's attributes, which name the chip.
    updates_rows: whether a program can store rows of a state where an index says that is known only
    at run time; if not, caches of fixed size stay inputs and outputs.
    emitter: the emitter (a registered xDSL target) that writes a program as text for the target's
    own tools, and the file's name; None without one.
    """

    name: str = ""
    lowering: tuple[str, ...] = ()
    updates_rows: bool = True
    emitter: tuple[str, str] | None = None

    def check(self, chip: Chip) -> None:
        """Raises ElkError for a chip that is no machine of this kind."""

    def passes(
        self, chip: Chip, policy: str | None, mapping: Mapping[str, str | int]
    ) -> tuple[str, ...]:
        """The passes from `te`, as `elk-opt -p` writes them; `convert-te-to-icca` and `lowering[0]`
        are among them. `mapping` are options of the target's own. Raises ElkError for a policy or
        an option that does not exist."""
        if mapping:
            raise ElkError(f"{', '.join(mapping)}: target {self.name!r} has no such option")
        return (*planned(chip, policy), *self.lowering)

    def rolls_layers(self, chip: Chip) -> bool:
        """Whether identical layers become one body that runs many times."""
        return chip.hbm is not None

    def program_class(self) -> type[Program]:
        """The kind of program that is compiled."""
        from elk_ir.program import Program

        return Program

    def build_report(self, program: ModuleOp, module: ModuleOp, **about: Any) -> dict[str, Any]:
        """`report.json` of a program, from its icca and its target's IR; `about` are the chip and
        what else `elk_ir.report_json.build_report` takes."""
        from elk_ir.report_json import build_report

        return build_report(program, module, target=self, **about)

    def fields(
        self, module: ModuleOp, chip: Chip, *, simulate: bool, tokens: int | None
    ) -> dict[str, Any]:
        """The fields of the report that the target's own IR determines (docs/commands.md): times,
        bytes moved, SRAM in use. `tokens` are what one run decodes, if it does."""
        return {}

    def run(
        self,
        module: ModuleOp,
        inputs: Mapping[str, np.ndarray],
        *,
        chip: Chip,
        weights: WeightSource,
        landing: Landing = "late",
    ) -> dict[str, np.ndarray]:
        """The outputs by name, computed by executing the target's IR; those of a state may come in
        its whole capacity. Raises ElkError for a program that breaks a rule of the machine."""
        raise UsageError(f"programs of target {self.name!r} can't be run here")

    def runner(
        self, module: ModuleOp, *, chip: Chip, weights: WeightSource, landing: Landing = "late"
    ) -> Runner:
        """`run` for many inputs, which may keep what does not depend on them. It is called by one
        thread at a time."""
        return partial(self.run, module, chip=chip, weights=weights, landing=landing)

    def simulate(self, module: ModuleOp, chip: Chip) -> SimResult:
        """How long a program takes on a chip. Raises ElkError."""
        raise UsageError(f"programs of target {self.name!r} are not simulated step by step")


def planned(chip: Chip, policy: str | None) -> tuple[str, ...]:
    """The passes from `te` to a planned, scheduled, allocated and verified `icca` program.

    On a chip without HBM everything is on chip before a run starts: instead of a policy there is
    one way, `resident`. Raises ElkError for an unknown policy.
    """
    from elk_ir.passes.icca_schedule import POLICIES

    known: Sequence[str] = tuple(POLICIES) if chip.hbm is not None else (RESIDENT,)
    policy = policy or (DEFAULT_POLICY if chip.hbm is not None else RESIDENT)
    if policy not in known:
        listed = ", ".join(known)
        raise ElkError(
            f"unknown policy {policy!r}", hint=f"the policies for {chip.name!r} are: {listed}"
        )
    schedule = f"icca-schedule{{policy={policy}}}" if chip.hbm else "icca-make-resident"
    return (
        "te-chunk-attention",
        "te-chunk-large",
        "convert-te-to-icca",
        schedule,
        "icca-allocate",
        "icca-verify-program",
    )


def target_names() -> tuple[str, ...]:
    """All targets, sorted: ours and those of extensions."""
    return tuple(sorted({*BUILTIN, *extensions.extensions(extensions.TARGETS)}))


def find_target(name: str) -> Target:
    """The target of that name. Raises ElkError if there is none or its extension is broken."""
    if name in BUILTIN:
        from elk_ir.universe import resolve

        return resolve(BUILTIN[name])
    entry = extensions.extensions(extensions.TARGETS).get(name)
    if entry is None:
        raise ElkError(
            f"unknown target {name!r}", hint=f"the targets are: {', '.join(target_names())}"
        )
    target = extensions.load(entry)
    if not isinstance(target, Target) or target.name != name or not target.lowering:
        raise ElkError(
            f"the extension {name!r} is no elk_ir.target.Target of that name with a lowering",
            where=f"entry point {entry.group}",
            hint=f"it names {entry.value}",
        )
    return target
