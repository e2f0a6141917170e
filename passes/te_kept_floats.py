"""Which float32 tensors keep their precision when a module's floats become narrow.

A position of 2,049 is no fp16 number and one of 257 no bf16 number, and the cosine of a rounded
angle is that of another position. Three kinds of tensors stay float32:

- integers of 16 bits and more that are only cast (positions, lengths);
- what the argument of a sine, cosine or tangent, or a number that is cast to an integer, is
  computed from, up to the first operator that sums over something: a rotary angle is positions
  times frequencies, without a sum; what a product computes was rounded on its way anyway;
- steps of quantised tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue

from elk_ir.dialects.te import (
    AppendOp,
    ConcatOp,
    ContractOp,
    DequantizeOp,
    GatherOp,
    LoadOp,
    MapOp,
    QuantizeOp,
    ReduceOp,
    RepeatOp,
    ScanOp,
    ScatterOp,
    TopkOp,
    YieldOp,
)
from elk_ir.dialects.te.interface import StructuredOp
from elk_ir.dialects.te.structure import GlobalKind
from elk_ir.dialects.types import shape_dtype
from elk_ir.numerics.body import Body, dtype_of, is_float, result_dtypes
from elk_ir.passes.te_support import globals_of, structured_ops, symbol_of
from elk_ir.plan.domain import DimKind, Phase

WIDE = "float32"

EXACT = frozenset({"sin", "cos", "tan"})
"""Functions whose argument is needed to its last digit before the point, however large it is."""


def is_wide(value: SSAValue) -> bool:
    """Whether a value is a static tensor of float32."""
    try:
        return shape_dtype(value)[1] == WIDE
    except ValueError:
        return False


def body_of(op: Operation) -> Body | None:
    """The body of a map or the epilogue of a product or reduction."""
    if isinstance(op, MapOp):
        return op.body.data
    if isinstance(op, ContractOp | ReduceOp) and op.epilogue is not None:
        return op.epilogue.data
    return None


def body_operands(op: StructuredOp) -> tuple[int, int]:
    """(first operand that the body reads, inputs of the body in front of it): an epilogue reads
    the reduced value first, then what is not a factor."""
    if isinstance(op, MapOp):
        return 0, 0
    if isinstance(op, ContractOp):
        return (2 if op.factors is None else op.factors.value.data), 1
    return 1, 1


def body_types(op: StructuredOp) -> list[str]:
    """Element types of the inputs of `body_of(op)`."""
    first, lead = body_operands(op)
    stats = [s.dtype for s in op.operator().stats[:lead]]
    return [*stats, *(shape_dtype(v)[1] for v in list(op.ins)[first:])]


def kept_floats(module: ModuleOp) -> set[SSAValue]:
    """The float32 tensors of a module that stay float32 (see the module's docstring)."""
    return _Kept(module).run()


class _Kept:
    """Values that are kept, and those whose producers are still to be looked at."""

    def __init__(self, module: ModuleOp) -> None:
        self.module, self.globals = module, globals_of(module)
        self.kept: set[SSAValue] = set()
        self.queue: list[SSAValue] = []

    def run(self) -> set[SSAValue]:
        for op in structured_ops(self.module):
            self.seed(op)
        while self.queue:
            self.trace(self.queue.pop())
        return self.kept

    def keep(self, *values: SSAValue) -> None:
        for value in values:
            if value not in self.kept and is_wide(value) and not self.stored(value):
                self.kept.add(value)
                self.queue.append(value)

    def stored(self, value: SSAValue) -> bool:
        """Whether a value is (a part of) a state, which is narrow in memory."""
        op = value.owner
        if isinstance(op, LoadOp):
            return self.globals[symbol_of(op)].kind.data is GlobalKind.STATE
        return isinstance(op, AppendOp)

    # ------------------------------------------------------------------ where it starts

    def seed(self, op: StructuredOp) -> None:
        if isinstance(op, QuantizeOp | DequantizeOp):
            self.keep(*list(op.ins)[1:])
            return
        body = body_of(op)
        if body is None:
            return
        types = result_dtypes(body, body_types(op))
        asked = [
            a
            for i in body.instrs
            for a in i.args
            if i.op in EXACT or (i.op == "cast" and _counts(i.dtype) and is_float(types[a]))
        ]
        self.keep_read(op, body, asked)
        first, lead = body_operands(op)
        if isinstance(op, MapOp):
            for result, value in zip(op.outs, body.results, strict=True):
                if _is_cast_count(body, value, types):
                    self.keep(result)
        elif lead and not is_float(types[0]):
            # The steps of integers; what else the epilogue reads is an activation.
            self.keep(*(v for v in list(op.ins)[first:] if isinstance(v.owner, LoadOp)))

    # ------------------------------------------------------------------ where it leads

    def trace(self, value: SSAValue) -> None:
        """Keep what a kept value is computed from."""
        if isinstance(value, BlockArgument):
            loop = value.block.parent_op()
            if isinstance(loop, RepeatOp):
                self.keep(*carried(loop, value.index - 1))
            return
        assert isinstance(value, OpResult)
        op = value.op
        if isinstance(op, RepeatOp):
            self.keep(*carried(op, value.index))
        elif isinstance(op, MapOp | ContractOp | ReduceOp):
            body = body_of(op)
            if body is not None:
                self.keep_read(op, body, [body.results[value.index]])
            elif not sums(op):
                self.keep(*factors(op))
        elif isinstance(op, GatherOp):
            self.keep(op.ins[0])
        elif isinstance(op, ConcatOp | ScatterOp | TopkOp | ScanOp):
            self.keep(*op.ins)

    def keep_read(self, op: StructuredOp, body: Body, values: Iterable[int]) -> None:
        """Keep what values of the body of `op` are computed from."""
        first, lead = body_operands(op)
        for i in inputs_read(body, values):
            if i >= lead:
                self.keep(op.ins[first + i - lead])
            elif not sums(op):
                self.keep(*factors(op))


def carried(loop: RepeatOp, i: int) -> tuple[SSAValue, ...]:
    """All that is carried value `i` of a loop: before it, in it, at its end and behind it."""
    block = loop.body.block
    last = block.last_op
    assert isinstance(last, YieldOp)
    return loop.inits[i], block.args[i + 1], last.values[i], loop.outs[i]


def factors(op: StructuredOp) -> list[SSAValue]:
    """The operands of the local phase."""
    operands = op.operator().operands
    return [v for v, a in zip(op.ins, operands, strict=True) if a.phase is Phase.LOCAL]


def sums(op: StructuredOp) -> bool:
    """Whether an operator combines several points into one."""
    return any(d.extent > 1 and d.kind is not DimKind.PARALLEL for d in op.domain.data.dims)


def inputs_read(body: Body, values: Iterable[int]) -> set[int]:
    """The inputs of a body that some of its values depend on."""
    found: set[int] = set()
    stack = list(values)
    while stack:
        i = stack.pop()
        if i in found:
            continue
        found.add(i)
        if i >= body.inputs:
            stack.extend(body.instrs[i - body.inputs].args)
    return {i for i in found if i < body.inputs}


def blocks(function: FuncOp) -> Iterator[Block]:
    """The block of a function and those of its loops, outer ones first."""
    yield function.body.block
    for op in function.walk():
        if isinstance(op, RepeatOp):
            yield op.body.block


def _counts(dtype: str | None) -> bool:
    """Whether a type holds indices and counts: integers of 16 bits and more."""
    return dtype is not None and dtype_of(dtype).kind in "iu" and dtype_of(dtype).itemsize > 1


def _is_cast_count(body: Body, value: int, types: list[str]) -> bool:
    """Whether a value of a body is an integer of 16 bits or more, cast to float32."""
    instr = body.instrs[value - body.inputs] if value >= body.inputs else None
    return (
        instr is not None
        and instr.op == "cast"
        and instr.dtype == WIDE
        and instr.args[0] < body.inputs
        and _counts(types[instr.args[0]])
    )
