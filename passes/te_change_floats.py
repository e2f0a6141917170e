"""`te-change-floats`: float32 tensors become fp16 or bf16 (docs/targets/poplar.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter
from xdsl.utils.exceptions import PassFailedException

from elk_ir.dialects import te
from elk_ir.dialects.element_types import array_from_dense, dense_from_array, element_type_name
from elk_ir.dialects.te.interface import StructuredOp
from elk_ir.dialects.te.ops import Combiner
from elk_ir.dialects.te.structure import GlobalKind
from elk_ir.dialects.types import element_type, shape_dtype, tensor_type
from elk_ir.passes.te_float_bodies import WIDE, casting_body, narrow_body
from elk_ir.passes.te_kept_floats import (
    blocks,
    body_of,
    body_operands,
    body_types,
    is_wide,
    kept_floats,
)
from elk_ir.passes.te_support import (
    add_global,
    dtype_of_value,
    fresh_symbol,
    functions,
    globals_of,
    new_global,
    retarget,
    shape_of,
    structured_ops,
    symbol_of,
)
from elk_ir.quant.integers import LARGEST, saturated

FLOATS = {"f16": "float16", "bf16": "bfloat16"}
"""What float32 can become, and the numpy names."""

ATTRIBUTE = "te.floats"
"""The module's attribute that says what its floats became."""

_FREE = (
    te.AttentionOp,
    te.ContractOp,
    te.DequantizeOp,
    te.MapOp,
    te.NormalizeOp,
    te.ReduceOp,
    te.ScanOp,
    te.SoftmaxOp,
)
"""Operators that compute in float32 and round once: operands and results may differ in type."""

_ALIKE = (te.ConcatOp, te.GatherOp, te.ScatterOp, te.TopkOp)
"""Operators that move elements: their floats have one type."""

_READERS = (te.ArgReduceOp, te.QuantizeOp)
"""Operators without float results, which read any float."""

_KNOWN = (
    *_FREE,
    *_ALIKE,
    *_READERS,
    te.AppendOp,
    te.LoadOp,
    te.RepeatOp,
    ReturnOp,
    te.UpdateOp,
    te.YieldOp,
)
"""What is rewritten; anything else (an operator of an extension) keeps float32."""


@dataclass(frozen=True)
class TeChangeFloatsPass(ModulePass):
    """Store and multiply float32 tensors as fp16 or bf16, accumulate in float32.

        elk-opt model.onnx -p 'convert-onnx-to-te,te-pipeline,te-change-floats{to=f16}'

    to: f16 or bf16. Only float32 changes: integers, truth values and other floats stay. Sums, the
    statistics of softmax and norms, and scalar bodies stay float32, with casts at their edges; so
    do positions and what the arguments of sine and cosine are computed from. Weights get a step of
    their recipe. States are narrow in HBM, and the host casts what enters and leaves; other inputs
    are cast on entry, and outputs are written as float32 by the operator that computes them where
    it can. Finite numbers that the type lacks become its largest: a mask of -3.4e38 stays finite.
    """

    name = "te-change-floats"

    to: str

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.to not in FLOATS:
            raise PassFailedException(
                f"float32 can't become {self.to!r}, but one of: {', '.join(FLOATS)}"
            )
        if _Changes(op, FLOATS[self.to]).run():
            op.attributes[ATTRIBUTE] = StringAttr(self.to)


@dataclass
class _Changes:
    """A module whose float32 becomes `dtype`. `kept` are the values that don't."""

    module: ModuleOp
    dtype: str
    kept: set[SSAValue] = field(default_factory=set[SSAValue])
    casts: dict[tuple[SSAValue, str], te.MapOp] = field(
        default_factory=dict[tuple[SSAValue, str], te.MapOp]
    )
    changed: bool = False

    def run(self) -> bool:
        """Rewrites the module; whether anything changed."""
        self.globals = globals_of(self.module)
        self.kept = kept_floats(self.module)
        for function in functions(self.module):
            self.keep_edges(function)
        large = self.store()
        self.bodies(large)
        for function in functions(self.module):
            for block in list(blocks(function)):
                self.block(block)
        return self.changed

    def keep_edges(self, function: FuncOp) -> None:
        """Keep outputs float32 where that costs nothing, and what operators that we do not know
        yield."""
        last = function.body.block.last_op
        assert isinstance(last, ReturnOp)
        for value in last.operands:
            if isinstance(value.owner, _FREE) and is_wide(value) and value.has_one_use():
                self.kept.add(value)
        for op in function.walk():
            if not isinstance(op, _KNOWN):
                self.kept.update(v for v in op.results if is_wide(v))

    def new_type(self, value: SSAValue) -> str:
        """The element type of a value as its users will read it."""
        dtype = dtype_of_value(value)
        return self.dtype if dtype == WIDE and value not in self.kept else dtype

    # ------------------------------------------------------------------ weights and states

    def store(self) -> set[SSAValue]:
        """Weights and states in the narrow type, beside the float32 weights that are still read;
        what is read of weights that had numbers beyond it."""
        loads: dict[str, list[te.LoadOp]] = {}
        for op in self.module.walk():
            if isinstance(op, te.LoadOp):
                loads.setdefault(symbol_of(op), []).append(op)
        large: set[SSAValue] = set()
        for symbol, source in list(self.globals.items()):
            if shape_dtype(source.type)[1] != WIDE:
                continue
            if source.kind.data is GlobalKind.STATE:
                self.state(source)
                continue
            narrow = [op for op in loads.get(symbol, ()) if op.result not in self.kept]
            if not narrow:
                continue
            made = source
            if len(narrow) < len(loads[symbol]):
                made = self.copied(source)
                for op in narrow:
                    retarget(op, made.sym_name.data)
            if self.weight(made):
                large.update(op.result for op in narrow)
        return large

    def state(self, op: te.GlobalOp) -> None:
        """A narrow state; a step of 1 makes the host cast at the program's edge."""
        op.properties["type"] = tensor_type(shape_dtype(op.type)[0], self.dtype)
        op.properties["steps"] = dense_from_array(np.ones(op.layers, np.float32))
        self.changed = True

    def copied(self, source: te.GlobalOp) -> te.GlobalOp:
        """A second weight, for what reads it in the narrow type."""
        symbol = fresh_symbol(f"{source.sym_name.data}.{_short(self.dtype)}", self.globals)
        made = new_global(
            symbol, kind=source.kind, type=source.type, stack=source.stack, value=source.value
        )
        made.location = source.location
        add_global(self.module, made)
        self.globals[symbol] = made
        return made

    def weight(self, op: te.GlobalOp) -> bool:
        """A weight becomes narrow; whether it is known to have numbers beyond the type."""
        self.changed = True
        op.properties["type"] = tensor_type(shape_dtype(op.type)[0], self.dtype)
        if isinstance(op.value, te.WeightAttr):
            op.properties["value"] = _with_cast(op.value, self.dtype)
            return False
        assert isinstance(op.value, DenseIntOrFPElementsAttr)
        array = array_from_dense(op.value)
        op.properties["value"] = dense_from_array(saturated(array, self.dtype))
        return bool((np.isfinite(array) & (np.abs(array) > LARGEST[self.dtype])).any())

    # ------------------------------------------------------------------ bodies

    def bodies(self, large: set[SSAValue]) -> None:
        """Casts at the edges of bodies, while all values still have the types that they had."""
        made: list[tuple[StructuredOp, str, te.BodyAttr]] = []
        for op in structured_ops(self.module):
            body = body_of(op)
            if body is None:
                continue
            first, lead = body_operands(op)
            operands = list(op.ins)[first:]
            before = body_types(op)
            after = [*before[:lead], *(self.new_type(v) for v in operands)]
            if isinstance(op, te.ReduceOp) and op.combiner.data in (Combiner.MAX, Combiner.MIN):
                after[0] = self.new_type(op.ins[0])
            results = [self.new_type(v) for v in op.outs]
            if after == before and results == [dtype_of_value(v) for v in op.outs]:
                continue
            marks = [False] * lead + [v in large for v in operands]
            new, flags = narrow_body(body, before, after, results, marks, self.dtype)
            large.update(v for v, flag in zip(op.outs, flags, strict=True) if flag)
            name = "body" if isinstance(op, te.MapOp) else "epilogue"
            made.append((op, name, te.BodyAttr(new)))
        for op, name, attr in made:
            op.properties[name] = attr

    # ------------------------------------------------------------------ values

    def retype(self, value: SSAValue, dtype: str) -> None:
        """Give a value another element type."""
        if dtype != dtype_of_value(value):
            Rewriter.replace_value_with_new_type(value, tensor_type(shape_of(value), dtype))
            self.changed = True

    def read(self, op: Operation, i: int, dtype: str) -> None:
        """Let `op` read its operand i as `dtype`: through a cast behind what makes it, if it has
        the other of the two types."""
        value = op.operands[i]
        if {dtype_of_value(value), dtype} == {WIDE, self.dtype}:
            op.operands[i] = self.cast(value, dtype).outs[0]

    def cast(self, value: SSAValue, dtype: str) -> te.MapOp:
        """The value as another float type, made right behind it and once."""
        if (value, dtype) in self.casts:
            return self.casts[value, dtype]
        type_ = tensor_type(shape_of(value), dtype)
        made = te.MapOp.elementwise([value], casting_body(dtype_of_value(value), dtype), type_)
        made.outs[0].name_hint = f"{value.name_hint or 'x'}_{_short(dtype)}"
        if isinstance(value, BlockArgument):
            place = value.block.first_op
            assert place is not None
            value.block.insert_op_before(made, place)
        else:
            place = value.owner
            assert isinstance(place, Operation) and place.parent is not None
            place.parent.insert_op_after(made, place)
        made.location = place.location
        self.casts[value, dtype] = made
        return made

    # ------------------------------------------------------------------ operations

    def block(self, block: Block) -> None:
        ops = list(block.ops)
        for arg in list(block.args):
            if not is_wide(arg) or arg in self.kept:
                continue
            if isinstance(block.parent_op(), te.RepeatOp):
                self.retype(arg, self.dtype)
            else:
                self.entry(arg)
        for op in ops:
            self.operation(op)

    def entry(self, arg: BlockArgument) -> None:
        """An input of the program is cast once; it is returned as it is."""
        uses = [u for u in arg.uses if not isinstance(u.operation, ReturnOp)]
        if uses:
            narrow = self.cast(arg, self.dtype).outs[0]
            self.changed = True
            for use in uses:
                use.operation.operands[use.index] = narrow

    def operation(self, op: Operation) -> None:
        """Retype the results of an operation whose operands have their new types."""
        wanted = [self.new_type(v) if is_wide(v) else "" for v in op.results]
        reads: Sequence[str] = [""] * len(op.operands)
        if isinstance(op, ReturnOp):
            function = op.parent_op()
            assert isinstance(function, FuncOp)
            reads = [_dtype(t) for t in function.function_type.outputs]
        elif isinstance(op, te.YieldOp):
            loop = op.parent_op()
            assert isinstance(loop, te.RepeatOp)
            reads = [_dtype(a.type) for a in loop.body.block.args[1:]]
        elif isinstance(op, te.RepeatOp):
            reads = wanted
        elif isinstance(op, te.AppendOp | te.UpdateOp):
            state = shape_dtype(self.globals[op.state.root_reference.data].type)[1]
            reads = [state if v is op.entries else "" for v in op.operands]
        elif isinstance(op, _ALIKE):
            reads = wanted[:1] * len(op.operands)
        elif not isinstance(op, _KNOWN):
            reads = [WIDE] * len(op.operands)
        for i, dtype in enumerate(reads):
            if dtype and _dtype(op.operands[i].type):
                self.read(op, i, dtype)
        for value, dtype in zip(list(op.results), wanted, strict=True):
            if dtype:
                self.retype(value, dtype)


def _dtype(type_: Attribute) -> str:
    """The element type of a static tensor, "" for anything else."""
    try:
        return shape_dtype(type_)[1]
    except ValueError:
        return ""


def _short(dtype: str) -> str:
    """f16 for float16."""
    return element_type_name(element_type(dtype))


def _with_cast(value: te.WeightAttr, dtype: str) -> te.WeightAttr:
    """The weight with a step that makes it narrow; in front of the one that stacks layers, so that
    one can be had without the others."""
    ref = value.to_ref()
    step = f"saturate {_short(dtype)}"
    steps = list(ref.recipe)
    at = len(steps) - 1 if steps and steps[-1].split()[0] == "stack" else len(steps)
    return te.WeightAttr.get(type(ref)(ref.parts, (*steps[:at], step, *steps[at:])))
