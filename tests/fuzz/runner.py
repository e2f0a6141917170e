"""Runs one case through the compiler and compares every level with the reference."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from elk_ir.chips import Chip
from elk_ir.compiler import (
    Source,
    check_hbm,
    context,
    import_source,
    pipeline,
    run_passes,
    signature_of,
    split_at,
)
from elk_ir.errors import CapacityError, ElkError
from elk_ir.extensions import universe
from elk_ir.numerics.compare import OutputError, output_error
from elk_ir.program import shaped_outputs
from elk_ir.verify import with_plans
from elk_ir.weight_source import WeightSource

Arrays = Mapping[str, np.ndarray]
Compare = Callable[[Arrays], Sequence[OutputError]]
Plans = Callable[[ModuleOp], tuple[str, Counter[str]]]

POLICIES = ("basic", "static", "elk-dyn", "elk-full", "search")


@dataclass(frozen=True)
class Case:
    """What is run: a model (ONNX bytes, or te as text) with inputs, for a chip, under a policy or,
    where `plans` is not empty, under plans set by hand. All of it can be written to files."""

    model: onnx.ModelProto | str
    inputs: dict[str, np.ndarray]
    chip: Chip
    policy: str | None
    operators: Counter[str]
    plans: str = ""

    @property
    def size(self) -> int:
        """For choosing the smallest of several failing cases."""
        nodes = (
            self.model.count("\n") if isinstance(self.model, str) else len(self.model.graph.node)
        )
        return nodes * 100_000 + sum(a.size for a in self.inputs.values()) + self.chip.cores


class Defect(AssertionError):
    """A wrong number, a broken program or a crash, with the case that shows it."""

    def __init__(self, case: Case, what: str) -> None:
        self.case, self.what = case, what
        super().__init__(what)


@dataclass
class Tally:
    """What was run, for the table at the end."""

    cases: Counter[str] = field(default_factory=Counter)
    operators: Counter[str] = field(default_factory=Counter)
    te: Counter[str] = field(default_factory=Counter)
    plans: Counter[str] = field(default_factory=Counter)
    chips: Counter[str] = field(default_factory=Counter)
    policies: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        """Counts of another run."""
        for name, counter in vars(self).items():
            counter.update(getattr(other, name))


DEFECTS = ("internal error", "left an invalid program")


def is_defect(error: ElkError) -> bool:
    """Whether a message is of the compiler's making, not of the user's."""
    if isinstance(error, CapacityError) and error.needed_bytes <= error.available_bytes:
        return True
    return type(error).__name__ == "TrapError" or any(word in str(error) for word in DEFECTS)


def lacks_memory(error: ElkError) -> bool:
    """Whether a message says that a program does not fit the chip."""
    return isinstance(error, CapacityError) or " bytes of HBM, chip " in str(error)


def run_case(
    case: Case,
    compare: Compare,
    tally: Tally,
    *,
    plans: Plans | None = None,
    report: bool = False,
    supported: bool = False,
) -> str:
    """Compile, run every level, compare; returns "agrees" or "refused". Raises Defect.

    plans: draws plans for the unplanned program. report: also simulates and emits the program.
    supported: all operators are, so that only memory can be a reason to refuse it.
    """
    state = _Run(case, compare, tally, plans, report)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            outcome = state.run()
    except ElkError as error:
        # Whatever ran on the machine can be timed: a simulation has nothing to refuse.
        unexpected = state.stage == "simulating" or (supported and not lacks_memory(error))
        if is_defect(error) or unexpected:
            raise Defect(state.case, f"{state.stage}: {error}") from error
        tally.refusals[_reason(error)] += 1
        outcome = "refused"
    except Defect:
        raise
    except Exception as error:
        # What is looked for: an exception that no user should see.
        raise Defect(state.case, f"{state.stage}: {type(error).__name__}: {error}") from error
    tally.cases[outcome] += 1
    return outcome


def _reason(error: ElkError) -> str:
    """A refusal without names and numbers, to count its kind."""
    details = error.detail_lines()
    return _plain(error.what if len(details) != 1 else f"{error.what} {details[0]}")


def _plain(text: str) -> str:
    import re

    text = re.sub(r"tensor<[^>]*>", "tensor", text.split("\n")[0])
    text = re.sub(r"'[^']*'|@\S+", "'…'", text)
    return re.sub(r"[\d,.]*\d", "N", text)[:90]


@dataclass
class _Run:
    case: Case
    compare: Compare
    tally: Tally
    plans: Plans | None
    report: bool
    stage: str = "import"

    def run(self) -> str:
        case = self.case
        model = parsed(case.model) if isinstance(case.model, str) else case.model
        module, source = import_source(model, case.chip)
        signature = signature_of(module)
        weights = WeightSource(None, buffers=source.buffers)
        entry = "te" if isinstance(case.model, str) else "onnx"
        passes = pipeline(case.chip, policy=case.policy, source=entry)
        front, back = split_at(passes, "convert-te-to-icca")
        middle, last = split_at(back[1:], "convert-icca-to-ipu")
        self.apply(module, source, front)
        self.tally.te.update(op.name for op in module.walk() if op.name.startswith("te."))
        self.check("te", self.te(module, weights))
        self.apply(module, source, back[:1])
        check_hbm(module, case.chip)
        if self.plans is not None and case.chip.hbm is not None:
            middle = self.by_hand(module, middle)
        self.apply(module, source, middle)
        self.check("icca", self.icca(module, weights, signature))
        icca = module.clone()
        self.apply(module, source, last)
        outputs = [self.ipu(module, weights, signature, landing) for landing in ("early", "late")]
        for name, early in outputs[0].items():
            if early.tobytes() != outputs[1][name].tobytes():
                raise Defect(self.case, f"ipu: {name} depends on when preloads land")
        self.check("ipu", outputs[1])
        self.count(module)
        if self.report:
            self.simulate(icca, module, signature)
        return "agrees"

    def apply(self, module: ModuleOp, source: Source, passes: Sequence[ModulePass]) -> None:
        """Runs passes; a verifier that fails is a defect, whatever it says."""
        for each in passes:
            self.stage = each.name
            try:
                run_passes(context(), module, [each], model=source.name)
            except ElkError as error:
                if each.name.endswith("-verify-program"):
                    raise Defect(self.case, f"{each.name}: {error}") from error
                raise

    def by_hand(self, module: ModuleOp, passes: Sequence[ModulePass]) -> tuple[ModulePass, ...]:
        """The passes with plans set before the scheduler, which keeps them."""
        assert self.plans is not None
        self.stage = "drawing plans"
        text, features = self.plans(module)
        self.case = replace(self.case, plans=text or "none")
        self.tally.plans.update(features)
        return with_plans(passes, text)

    # ------------------------------------------------------------------ levels

    def te(self, module: ModuleOp, weights: WeightSource) -> Arrays:
        from elk_ir.numerics.te_eval import evaluate_te

        self.stage = "running te"
        return evaluate_te(module, self.case.inputs, load_weight=weights.load)

    def icca(self, module: ModuleOp, weights: WeightSource, signature: Any) -> Arrays:
        from elk_ir.numerics.icca_eval import evaluate_icca

        self.stage = "running icca"
        outputs = evaluate_icca(module, self.case.inputs, load_weight=weights.load)
        return shaped_outputs(outputs, signature)

    def ipu(self, module: ModuleOp, weights: WeightSource, signature: Any, landing: Any) -> Arrays:
        from elk_ir.targets.ipu.target import IPU

        self.stage = "running ipu"
        machine = IPU.machine(module, chip=self.case.chip, weights=weights, landing=landing)
        return shaped_outputs(machine.run(self.case.inputs), signature)

    def simulate(self, icca: ModuleOp, module: ModuleOp, signature: Any) -> None:
        """The report with its times, and the emitted text."""
        from io import StringIO

        from elk_ir.targets.ipu.target import IPU

        self.stage = "simulating"
        made = IPU.build_report(
            icca,
            module,
            chip=self.case.chip,
            model="fuzz",
            signature=signature,
            dims={},
            simulate=True,
        )
        if made["lower_bound_s"] > made["time_s"] * (1 + 1e-9):
            raise Defect(self.case, f"time {made['time_s']} below bound {made['lower_bound_s']}")
        self.stage = "emitting"
        from xdsl.utils.exceptions import DiagnosticException

        try:
            universe().all_targets["poplar-cpp"]()().emit(context(), module, StringIO())
        except (DiagnosticException, ElkError) as error:
            self.tally.refusals[f"(emitter only) {_plain(str(error))}"] += 1
        self.tally.cases["simulated"] += 1

    def check(self, level: str, outputs: Arrays) -> None:
        """Raises Defect where a level disagrees."""
        self.stage = f"comparing {level}"
        wrong = self.compare(outputs)
        if wrong:
            w = wrong[0]
            raise Defect(
                self.case,
                f"{level}: {w.name} {w.dtype}{list(w.shape)} is off by {w.max_abs_error:.3g},"
                f" {w.allowed:.3g} allowed",
            )
        self.tally.cases[f"checked at {level}"] += 1

    def count(self, module: ModuleOp) -> None:
        from fuzz.plans import program_features

        case, tally = self.case, self.tally
        tally.operators.update(case.operators.keys())
        tally.plans.update(program_features(module))
        tally.policies["by hand" if case.plans else case.policy or "resident"] += 1
        tally.chips.update(chip_features(case.chip))


def parsed(text: str) -> ModuleOp:
    """A te module from its text, verified."""
    from xdsl.parser import Parser

    module = Parser(context(), text).parse_module()
    module.verify()
    return module


def chip_features(chip: Chip) -> set[str]:
    """What is special about a chip."""
    found = {chip.network.topology, "one core" if chip.cores == 1 else "several cores"}
    found.add("no HBM" if chip.hbm is None else "HBM")
    if chip.usable_sram_per_core_bytes <= 8192:
        found.add("8 KiB a core or less")
    if chip.chips > 1:
        found.add("several chips")
    if chip.network.port_in_bytes_per_s <= 1e6:
        found.add("1 MB/s ports or slower")
    return found


def exact_comparison(wanted: Arrays) -> Compare:
    """Compares with the numbers of the same program on whole tensors."""

    def compare(outputs: Arrays) -> list[OutputError]:
        return [
            e
            for name, array in wanted.items()
            if not (e := output_error(name, outputs[name], array, "float32")).ok
        ]

    return compare
