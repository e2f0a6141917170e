"""`verify_levels`: run a model at every level of the pipeline and name the first pass after which
the numbers change.

Each level has an evaluator of its own, so that a pass is judged by what it made and not by what the
passes behind it make of that: ONNX's evaluators for onnx, whole tensors for te and icca, the
virtual machine for the target. Addresses only exist in the target; if the virtual machine
disagrees, the same plans are lowered once more at addresses that can't overlap, which tells a
wrong address from a wrong lowering.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from elk_ir.compiler import (
    Report,
    Signature,
    Source,
    chip_of_module,
    context,
    floats_of_module,
    import_source,
    input_level,
    pipeline,
    resolve_chip,
    resolve_target,
    run_passes,
    signature_of,
    split_at,
    with_options,
)
from elk_ir.errors import CapacityError, ElkError
from elk_ir.numerics.compare import OutputError, coarsest, output_error
from elk_ir.numerics.tensors import check_inputs, random_inputs
from elk_ir.process import quiet_collector
from elk_ir.program import shaped_outputs
from elk_ir.target import BUILTIN, find_target, target_names
from elk_ir.weight_source import WeightSource

if TYPE_CHECKING:
    from elk_ir.chips import Chip

Arrays = Mapping[str, np.ndarray]

# A stage map beside a te function is no program: that has executes.
_PREFIX = {"ipu.": "ipu", "northpole.execute": "northpole", "icca.": "icca", "te.": "te"}


@dataclass(frozen=True)
class Check:
    """The numbers after one pass, against those of the imported model.

    `errors` has one entry an output; it is empty where the level could not be run at all, and
    `failure` then says why. `node` names the first ONNX node whose value differs, if that is known.
    """

    after: str
    level: str
    errors: tuple[OutputError, ...] = ()
    failure: str | None = None
    node: str | None = None

    @property
    def ok(self) -> bool:
        """Whether all outputs agree."""
        return self.failure is None and all(e.ok for e in self.errors)

    @property
    def max_abs_error(self) -> float:
        """The largest error of any output (infinite where the level could not be run)."""
        if self.failure is not None:
            return float("inf")
        return max((e.max_abs_error for e in self.errors), default=0.0)

    @property
    def worst(self) -> OutputError | None:
        """The output that is furthest off, relative to what is allowed."""
        return max(self.errors, key=_excess, default=None)


def _excess(error: OutputError) -> float:
    if error.max_abs_error == 0:
        return 0.0
    return error.max_abs_error / error.allowed if error.allowed else float("inf")


@dataclass(frozen=True)
class Verification:
    """All checks up to the first that disagrees, and the pass to blame for it (None: all agree)."""

    model: str
    chip: str
    checks: tuple[Check, ...]
    culprit: str | None

    @property
    def failed(self) -> Check | None:
        """The check that disagrees."""
        return next((c for c in self.checks if not c.ok), None)


def verify_levels(
    model: str | Path | bytes | Any,
    *,
    chip: str | Path | Chip,
    inputs: Arrays | None = None,
    random_inputs_seed: int = 0,
    random_weights: int | None = None,
    policy: str | None = None,
    target: str | None = None,
    dims: Mapping[str, int] | None = None,
    kv_capacity: int | None = None,
    attention_chunks: int | None = None,
    floats: str | None = None,
    mapping: Mapping[str, str | int] | None = None,
    expected: Arrays | None = None,
    passes: Sequence[ModulePass] | None = None,
    before_schedule: str | None = None,
    progress: Report | None = None,
) -> Verification:
    """Run `model` at every level on the same inputs; stops at the first that disagrees.

    inputs: by name; None makes them up from `random_inputs_seed`. `expected` outputs (from the
    framework that exported the model, say) check the import as well. `target`, `mapping`,
    `attention_chunks`, `floats`: as for `compile_model`; where floats were changed, levels are
    judged by the tolerance of their new type. `passes` replaces the pipeline;
    `before_schedule` is the text of passes that are added to it (`with_plans`). IR is judged from
    its te level on. Raises ElkError for what can't be compiled or run at the first level.
    """
    with quiet_collector():
        shapes = None if inputs is None else {n: np.shape(a) for n, a in inputs.items()}
        machine = resolve_chip(chip)
        module, source = import_source(
            model, machine, dims=dims, input_shapes=shapes, progress=progress
        )
        ctx = context()
        signature = signature_of(module)
        entry = input_level(module)
        if passes is None:
            passes = pipeline(
                machine,
                target=resolve_target(target, machine),
                policy=policy,
                kv_capacity=kv_capacity,
                attention_chunks=attention_chunks,
                floats=floats,
                mapping=mapping,
                source=entry,
            )
        if before_schedule is not None:
            passes = with_plans(passes, before_schedule)
        if entry == "linalg":
            # Nothing here executes linalg: what it was converted to is the reference.
            run_passes(ctx, module, passes[:1], model=source.name, progress=progress)
            passes = passes[1:]
        if inputs is None:
            inputs = random_inputs(signature.inputs, random_inputs_seed)
        else:
            inputs = check_inputs(inputs, signature.inputs)
        weights = WeightSource(source.base_dir, buffers=source.buffers, random_seed=random_weights)
        session = _Session(ctx, source, signature, inputs, weights, progress)
        return session.verify(module, passes, machine.name, expected)


def with_plans(passes: Sequence[ModulePass], text: str) -> tuple[ModulePass, ...]:
    """The passes with those of `text` in front of the schedule, which keeps the plans they set.

    `text` is as for `elk-opt -p`; it may be empty. Raises ElkError if it is wrong, or if nothing
    schedules (on chips without HBM).
    """
    from elk_ir.extensions import universe
    from elk_ir.pipelines import PIPELINES
    from elk_ir.tools.opt_pipeline import parse_passes

    given = parse_passes(text, universe().all_passes, PIPELINES, origin="before-schedule")
    front, rest = split_at(passes, _SCHEDULER)
    if not rest:
        raise ElkError(
            f"there is no {_SCHEDULER} to set plans for",
            hint="plans are set by hand on chips with HBM, for the target ipu",
        )
    return (*front, *given, with_options(rest[0], {"plans": "keep"}), *rest[1:])


@dataclass
class _Session:
    """What stays the same from level to level."""

    ctx: Context
    source: Source
    signature: Signature
    inputs: Arrays
    weights: WeightSource
    progress: Report | None
    precision: str = "float32"
    reference: Arrays | None = None

    def say(self, line: str) -> None:
        if self.progress is not None:
            self.progress(line)

    def verify(
        self,
        module: ModuleOp,
        passes: Sequence[ModulePass],
        chip: str,
        expected: Arrays | None,
    ) -> Verification:
        first = level_of(module)
        self.say(f"running the {first} level")
        self.precision = coarsest(t for t in (*_weight_types(module), *self._input_types()))
        reference = self.evaluate(module, first)
        checks: list[Check] = []
        if expected is not None:
            checks.append(self.compare("import", first, reference, expected))
        self.reference = reference
        labels = _labels(passes)
        for position, each in enumerate(passes):
            if checks and not checks[-1].ok:
                break
            before = module.clone()
            try:
                run_passes(self.ctx, module, [each], model=self.source.name, progress=self.progress)
            except ElkError as error:
                if not each.name.endswith(_VERIFIER) or position == 0:
                    raise
                level = level_of(module)
                checks.append(Check(labels[position - 1], level, failure=str(error)))
                break
            if each.name.endswith(_VERIFIER):
                continue  # it changes nothing
            level = level_of(module)
            self.precision = coarsest((self.precision, *_changed_floats(module)))
            self.say(f"running the {level} level after {each.name}")
            check = self.check(module, labels[position], level)
            if not check.ok:
                check = self.explain(check, before, module, labels[: position + 1], each)
            checks.append(check)
        failed = next((c for c in checks if not c.ok), None)
        return Verification(
            self.source.name, chip, tuple(checks), None if failed is None else failed.after
        )

    def _input_types(self) -> list[str]:
        return [s.dtype for s in self.signature.inputs]

    # ------------------------------------------------------------------ one level

    def check(self, module: ModuleOp, after: str, level: str) -> Check:
        """Run one level and compare; a level that can't be run is a check that fails."""
        assert self.reference is not None
        try:
            outputs = self.evaluate(module, level)
        except ElkError as error:
            return Check(after, level, failure=str(error))
        return self.compare(after, level, outputs, self.reference)

    def compare(self, after: str, level: str, actual: Arrays, expected: Arrays) -> Check:
        missing = [s.name for s in self.signature.outputs if s.name not in actual]
        if missing:
            return Check(after, level, failure=f"output {missing[0]!r} is not computed")
        return Check(
            after,
            level,
            tuple(
                output_error(s.name, np.asarray(actual[s.name]), expected[s.name], self.precision)
                for s in self.signature.outputs
                if s.name in expected
            ),
        )

    def evaluate(self, module: ModuleOp, level: str, *, sram_bytes: int | None = None) -> Arrays:
        """The outputs of a module at its level. Raises ElkError if it can't be run."""
        if level == "onnx":
            from elk_ir.numerics.onnx_eval import evaluate_onnx

            return evaluate_onnx(module, self.inputs, self.weights)
        if level == "te":
            from elk_ir.numerics.te_eval import evaluate_te

            return evaluate_te(module, self.inputs, load_weight=self.weights.load)
        if level == "icca":
            from elk_ir.numerics.icca_eval import evaluate_icca

            outputs = evaluate_icca(module, self.inputs, load_weight=self.weights.load)
            return shaped_outputs(outputs, self.signature)
        chip = chip_of_module(module)
        if level == "northpole":
            from elk_ir.targets.northpole.runtime import Appliance

            cards = Appliance(module, self.weights.load, chip, self.signature, micro_batches=1)
            cards.put(0, self.inputs)
            return cards.get(0)
        if level != "ipu":
            outputs = find_target(level).run(module, self.inputs, chip=chip, weights=self.weights)
            return shaped_outputs(outputs, self.signature)
        from elk_ir.targets.ipu.interpreter import Interpreter

        machine = Interpreter(
            module,
            lambda remote: self.weights.load(remote.value),
            cores=chip.cores,
            sram_bytes=sram_bytes or chip.usable_sram_per_core_bytes,
        )
        return shaped_outputs(machine.run(self.inputs), self.signature)

    # ------------------------------------------------------------------ who did it

    def explain(
        self,
        check: Check,
        before: ModuleOp,
        after: ModuleOp,
        labels: Sequence[str],
        last: ModulePass,
    ) -> Check:
        """The failed check with the pass to blame and, where it can be told, the node."""
        if check.level in ("te", "icca"):
            self.say("looking for the node")
            return replace(check, node=self.first_difference(before, after))
        allocator = next((n for n in reversed(labels) if n.startswith(_ALLOCATOR)), None)
        if allocator is not None and self.right_without_overlaps(before, last):
            # The addresses were wrong before, but nothing at the icca level reads them.
            return replace(check, after=allocator)
        return check

    def right_without_overlaps(self, allocated: ModuleOp, lowering: ModulePass) -> bool:
        """Whether the numbers are right once every buffer has an address of its own."""
        from elk_ir.passes.icca_liveness import liveness

        module = allocated.clone()
        try:
            end = 0
            for placed in liveness(module).placed:
                placed.place(end)
                end += -(-placed.buffer.size_bytes // 8) * 8
            run_passes(self.ctx, module, [lowering], model=self.source.name)
            assert self.reference is not None
            outputs = self.evaluate(module, level_of(module), sram_bytes=end)
            return self.compare("", "", outputs, self.reference).ok
        except (CapacityError, ElkError):
            return False

    def first_difference(self, before: ModuleOp, after: ModuleOp) -> str | None:
        """The first node, in program order, whose value no longer agrees with that of the level
        above; None if none of those that both levels compute differs."""
        from elk_ir.numerics.traces import trace_level

        try:
            old = trace_level(before, level_of(before), self.inputs, self.weights)
            new = trace_level(after, level_of(after), self.inputs, self.weights)
        except ElkError:
            return None
        known: dict[str, list[np.ndarray]] = {}
        for names, value in old:
            for name in names:
                known.setdefault(name, []).append(value)
        for names, value in new:
            same_shape = [
                v for name in names for v in known.get(name, ()) if v.shape == value.shape
            ]
            if same_shape and not any(
                output_error("", value, v, self.precision).ok for v in same_shape
            ):
                return names[0]
        return None


_ALLOCATOR = "icca-allocate"
_SCHEDULER = "icca-schedule"
_VERIFIER = "-verify-program"


def _labels(passes: Sequence[ModulePass]) -> list[str]:
    """The passes' names; the second run of one is `name#2`."""
    labels: list[str] = []
    for each in passes:
        before = sum(1 for label in labels if label.split("#")[0] == each.name)
        labels.append(f"{each.name}#{before + 1}" if before else each.name)
    return labels


def _changed_floats(module: ModuleOp) -> tuple[str, ...]:
    """The type that the float32 of a module was changed to, if it was."""
    from elk_ir.passes.te_change_floats import FLOATS

    floats = floats_of_module(module)
    return () if floats is None else (FLOATS[floats],)


def _weight_types(module: ModuleOp) -> list[str]:
    """Element types of the weights of a module of the onnx dialect."""
    from elk_ir.dialects.onnx import InitializerOp
    from elk_ir.dialects.types import shape_dtype

    return [
        shape_dtype(op.output)[1]
        for op in module.walk()
        if isinstance(op, InitializerOp) and _is_numeric(op)
    ]


def _is_numeric(op: Any) -> bool:
    from elk_ir.dialects.types import shape_dtype

    try:
        shape_dtype(op.output)
    except ValueError:
        return False
    return True


def level_of(module: ModuleOp) -> str:
    """The lowest level that a module has operations of: onnx, te, icca, or a target's."""
    prefixes = {f"{n}.": n for n in target_names() if n not in BUILTIN} | _PREFIX
    found: set[str] = set()
    for op in module.walk():
        for prefix, level in prefixes.items():
            if op.name.startswith(prefix):
                found.add(level)
        if "ipu" in found:
            break
    return next((level for level in prefixes.values() if level in found), "onnx")
