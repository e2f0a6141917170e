"""`convert-linalg-to-te`: upstream linalg on tensors becomes structured tensor expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.context import Context as XdslContext
from xdsl.dialects import tensor
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    I64,
    DenseArrayBase,
    DenseIntOrFPElementsAttr,
    IndexType,
    ModuleOp,
    NameLoc,
    StringAttr,
    TensorType,
    UnrealizedConversionCastOp,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.dialects.linalg.abstract_ops import (
    ConvOperation,
    LinalgStructuredOperation,
    NamedOperation,
    PoolingOperation,
)
from xdsl.dialects.linalg.ops import BroadcastOp, FillOp, IndexOp, MatmulOp, ReduceOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from elk_ir.dialects import te
from elk_ir.dialects.element_types import array_from_dense
from elk_ir.dialects.linalg import ContractionOp
from elk_ir.dialects.location import node_name, node_names
from elk_ir.dialects.te.attrs import Map
from elk_ir.dialects.te.interface import accumulator, domain_attr
from elk_ir.dialects.te.ops import Combiner, CombinerAttr, MapOp, reduction_neutral
from elk_ir.dialects.types import tensor_type
from elk_ir.numerics.body import Body, dtype_of
from elk_ir.numerics.scalars import BodyBuilder, Number, Scalar
from elk_ir.passes.convert_onnx_to_te import convert_function
from elk_ir.passes.linalg_bodies import (
    WIDENING,
    apply,
    constant_number,
    scalar_dtype,
    translate,
)
from elk_ir.passes.linalg_structure import Structure, identity, structure_of
from elk_ir.passes.onnx_lowerings import moves
from elk_ir.passes.onnx_lowerings.axes import Domain, scaled, total
from elk_ir.passes.onnx_lowerings.context import (
    Context,
    Unsupported,
    dtype_of_value,
    epilogue,
    static_type,
)
from elk_ir.passes.onnx_lowerings.products import contract
from elk_ir.plan.domain import AxisExpr

_COMBINERS = {
    "arith.addf": Combiner.SUM, "arith.addi": Combiner.SUM, "arith.andi": Combiner.MIN,
    "arith.maximumf": Combiner.MAX, "arith.maxsi": Combiner.MAX, "arith.minimumf": Combiner.MIN,
    "arith.minsi": Combiner.MIN, "arith.mulf": Combiner.PROD, "arith.muli": Combiner.PROD,
    "arith.ori": Combiner.MAX,
}  # fmt: skip
_MERGE = {Combiner.SUM: "add", Combiner.PROD: "mul", Combiner.MAX: "max", Combiner.MIN: "min"}
_PRODUCTS = frozenset({"arith.mulf", "arith.muli"})
_PREFIXES = ("linalg.", "tensor.", "arith.", "math.")


@dataclass(frozen=True)
class ConvertLinalgToTePass(ModulePass):
    """Lower linalg, tensor, arith and math operations on static tensors; report all that can't be,
    and then change nothing. Operations of te stay as they are.

    Sums of products become `te.contract`, other reductions `te.reduce`, everything elementwise
    `te.map`; what an accumulator starts from is dropped where it is neutral, and joins the
    epilogue elsewhere. Sums are accumulated in te's accumulator type (float32 for narrower floats)
    and rounded once. Constants become weights of the module.
    """

    name = "convert-linalg-to-te"

    def apply(self, ctx: XdslContext, op: ModuleOp) -> None:
        errors: list[str] = []
        symbols = {
            name.data
            for o in op.body.block.ops
            if isinstance(name := o.properties.get("sym_name"), StringAttr)
        }
        converted: list[tuple[FuncOp, FuncOp, Context]] = []
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and not function.is_declaration:
                context = Context(0, symbols)
                new = convert_function(function, context, errors, _lower_block)
                converted.append((function, new, context))
        if errors:
            count = f"{len(errors)} operation{'s' if len(errors) > 1 else ''}"
            raise PassFailedException("\n  ".join([f"{count} can't be lowered to te:", *errors]))
        for old, new, context in converted:
            block = op.body.block
            block.insert_ops_before(list(context.globals.values()), old)
            block.insert_op_before(new, old)
            block.erase_op(old)


def _lower_block(
    context: Context, block: Block, values: dict[SSAValue, SSAValue], errors: list[str]
) -> None:
    """Lower a function's body, extending `values`; appends a line to `errors` for each operation
    that can't be lowered, and stands in for its results."""
    lowering = _Lowering(context, values)
    for argument in block.args:
        try:
            static_type(argument.type)
        except Unsupported as error:
            errors.append(f"argument {argument.index}: {error}")
    for op in block.ops:
        if isinstance(op, ReturnOp):
            continue
        _name(op)
        context.current = op
        try:
            results = lowering.lower(op)
        except Unsupported as error:
            if not any(isinstance(values[v].owner, _StandIn) for v in op.operands if v in values):
                errors.append(f"{node_name(op)}: {op.name}: {error}")
            stand_in = _StandIn.create(operands=[], result_types=[r.type for r in op.results])
            context.emit(stand_in)
            results = stand_in.results
        for old, new in zip(op.results, results, strict=False):
            values[old] = new
            if new.name_hint is None:
                new.name_hint = old.name_hint
    last = block.last_op
    assert isinstance(last, ReturnOp)
    for i, value in enumerate(last.arguments):
        if value not in values:
            errors.append(f"result {i}: {value.type} is no tensor")
            stand_in = _StandIn.create(operands=[], result_types=[value.type])
            values[value] = context.emit1(stand_in)


def _name(op: Operation) -> None:
    """Where an operation has no name, its result's names what becomes of it."""
    hint = op.results[0].name_hint if op.results else None
    if hint is not None and not node_names(op):
        op.location = NameLoc(StringAttr(hint), op.location)


_StandIn = UnrealizedConversionCastOp


class _Lowering:
    """Lowers one function's operations; `numbers` are its scalar constants, `empty` the tensors
    whose elements are not defined."""

    def __init__(self, ctx: Context, values: dict[SSAValue, SSAValue]) -> None:
        self.ctx, self.values = ctx, values
        self.numbers: dict[SSAValue, Number] = {}
        self.empty: set[SSAValue] = set()

    def lower(self, op: Operation) -> Sequence[SSAValue]:
        """The te values of the results of one operation. Raises Unsupported."""
        scalars = [v for v in op.operands if not isinstance(v.type, TensorType)]
        if any(v not in self.numbers for v in scalars):
            raise Unsupported(_untensored(op, self.numbers))
        number = constant_number(op)
        if number is not None:
            self.numbers[op.results[0]] = number
            return ()
        handler = _HANDLERS.get(type(op))
        if handler is not None:
            return [handler(self, op)]
        if isinstance(op, LinalgStructuredOperation):
            return self.structured(op)
        if op.name.startswith("te."):
            return self.kept(op)
        if op.name == "arith.constant":
            return [self.constant(op)]
        if op.name.startswith(("arith.", "math.")):
            if not isinstance(op.results[0].type, TensorType):
                raise Unsupported("arithmetic on scalars (fold constants first)")
            return [self.elementwise(op)]
        known = "" if op.name.startswith(_PREFIXES) else ": not linalg on tensors, nor te"
        raise Unsupported(f"no lowering for this operation{known}")

    def tensor(self, value: SSAValue) -> SSAValue:
        """The te value of a tensor operand. Raises Unsupported if its elements are undefined."""
        if value in self.empty:
            raise Unsupported("it reads a tensor that was never written (tensor.empty)")
        return self.values[value]

    def kept(self, op: Operation) -> Sequence[SSAValue]:
        """An operation of te, as it is."""
        clone = op.clone(dict(self.values))
        self.ctx.emit(clone)
        return clone.results

    # ------------------------------------------------------------------ constants and moves

    def constant(self, op: Operation) -> SSAValue:
        """A constant tensor, which becomes a weight."""
        value = op.properties.get("value")
        if not isinstance(value, DenseIntOrFPElementsAttr):
            raise Unsupported(f"{type(value).__name__} is no constant whose elements are here")
        shape, _ = static_type(op.results[0].type)
        name = op.results[0].name_hint or "constant"
        return self.ctx.constant(np.broadcast_to(array_from_dense(value), shape), name)

    def undefined(self, op: Operation) -> SSAValue:
        """A tensor whose elements nothing may read; a constant stands in for it."""
        shape, dtype = static_type(op.results[0].type)
        self.empty.add(op.results[0])
        return moves.full(self.ctx, shape, 0, dtype)

    def fill(self, op: Operation) -> SSAValue:
        """A tensor of one number."""
        number = self.numbers.get(op.operands[0])
        if number is None:
            raise Unsupported("the value it fills with is not a constant")
        shape, dtype = static_type(op.results[0].type)
        return moves.full(self.ctx, shape, number, dtype)

    def elements(self, op: Operation) -> SSAValue:
        """A small tensor of scalar constants."""
        shape, dtype = static_type(op.results[0].type)
        numbers = [self.numbers[v] for v in op.operands]
        return self.ctx.constant(np.asarray(numbers).astype(dtype_of(dtype)).reshape(shape))

    def reshaped(self, op: Operation) -> SSAValue:
        """The same elements under another shape."""
        shape, _ = static_type(op.results[0].type)
        return moves.reshape(self.ctx, self.tensor(op.operands[0]), shape)

    def concatenated(self, op: Operation) -> SSAValue:
        """Tensors one after another."""
        assert isinstance(op, tensor.ConcatOp)
        parts = [self.tensor(v) for v in op.inputs]
        return moves.concatenate(self.ctx, parts, op.dim.value.data)

    def extracted(self, op: Operation) -> SSAValue:
        """A box of a tensor with constant bounds."""
        assert isinstance(op, tensor.ExtractSliceOp)
        value = self.tensor(op.source)
        starts = self.bounds(op.static_offsets, op.offsets)
        sizes = self.bounds(op.static_sizes, op.sizes)
        steps = self.bounds(op.static_strides, op.strides)
        extents, _ = static_type(op.source.type)
        if not len(starts) == len(sizes) == len(steps) == len(extents):
            raise Unsupported(f"its bounds are not those of {len(extents)} axes")
        for start, size, step, extent in zip(starts, sizes, steps, extents, strict=True):
            last = start + (size - 1) * step
            if size < 0 or (size and not (0 <= start < extent and 0 <= last < extent)):
                raise Unsupported(f"elements {start} to {last} of an axis of {extent}")
        domain = Domain()
        dims = domain.parallel(sizes)
        read = tuple(
            total(scaled(d, step), offset=start)
            for d, start, step in zip(dims, starts, steps, strict=True)
        )
        box = moves.move(self.ctx, value, sizes, domain, read, dims)
        return moves.reshape(self.ctx, box, static_type(op.result.type)[0])

    def bounds(self, static: DenseArrayBase[I64], given: Sequence[SSAValue]) -> tuple[int, ...]:
        """Offsets, sizes or strides, of which those that are not attributes are constants."""
        left = iter(given)
        return tuple(
            int(self.numbers[next(left)]) if n == DYNAMIC_INDEX else int(n)
            for n in static.get_values()
        )

    def broadcast(self, op: Operation) -> SSAValue:
        """A tensor repeated along new axes."""
        assert isinstance(op, BroadcastOp)
        value, added = self.tensor(op.input), set(op.dimensions.get_values())
        shape, dtype = static_type(op.results[0].type)
        write = identity(len(shape))
        read = tuple(axis for d, axis in enumerate(write) if d not in added)
        structure = Structure(shape, frozenset(), (read,), (write,))
        return self.map(structure, [value], Body(1, (), (0,)), [tensor_type(shape, dtype)])[0]

    # ------------------------------------------------------------------ structured operations

    def map(
        self,
        structure: Structure,
        operands: Sequence[SSAValue],
        body: Body,
        types: Sequence[TensorType],
    ) -> Sequence[SSAValue]:
        """A `te.map` over all loops."""
        domain = domain_attr(structure.dims, structure.reads, structure.writes)
        return self.ctx.emit(MapOp.of(operands, body, types, domain)).results

    def elementwise(self, op: Operation) -> SSAValue:
        """An arith or math operation on whole tensors."""
        shape, dtype = static_type(op.results[0].type)
        operands = [self.tensor(v) for v in op.operands]
        return self.ctx.map1(lambda b, *xs: apply(b, op, xs, dtype), *operands, shape=shape)

    def reduce(self, op: Operation) -> SSAValue:
        """`linalg.reduce`: one tensor combined over some of its axes."""
        assert isinstance(op, ReduceOp)
        gone = frozenset(op.dimensions.get_values())
        shape, _ = static_type(op.input.type)
        read = identity(len(shape))
        write = tuple(axis for d, axis in enumerate(read) if d not in gone)
        structure = Structure(shape, gone, (read,), (write,))
        return self.combined(structure, [op.input], op.init, op.region.block, op.results[0])

    def structured(self, op: LinalgStructuredOperation) -> Sequence[SSAValue]:
        """A linalg operation with maps, iterators and a region."""
        if not op.res:
            what = "it works on buffers (memref)" if op.outputs else "it has no result"
            raise Unsupported(f"{what}; hand in linalg on tensors")
        structure = structure_of(op)
        inputs, outputs = list(op.inputs), list(op.outputs)
        if not structure.reductions:
            return self.pointwise(op, structure)
        if len(outputs) != 1:
            raise Unsupported(f"a reduction with {len(outputs)} results")
        if isinstance(op, MatmulOp | ConvOperation | ContractionOp):
            return [self.product(structure, inputs, outputs[0], op.res[0])]
        if isinstance(op, NamedOperation) and not isinstance(op, PoolingOperation):
            raise Unsupported("no lowering for this operation")
        if isinstance(op, PoolingOperation):
            # The second input is the window, of which only the shape counts.
            structure = Structure(
                structure.extents, structure.reductions, structure.reads[:1], structure.writes
            )
            values = [self.tensor(inputs[0])]
            return [self.reduction(structure, values, Combiner.MAX, outputs[0], op.res[0])]
        return [self.combined(structure, inputs, outputs[0], op.body.block, op.res[0])]

    def body(
        self, structure: Structure, operands: Sequence[SSAValue], block: Block, stop: Operation
    ) -> tuple[BodyBuilder, list[SSAValue], list[Map], dict[SSAValue, Scalar]]:
        """A region as a body, up to `stop`: its builder, the values it reads and how, and what it
        computes. `operands` stand for the first block arguments; those filled with one number
        become constants, loop indices become operands."""
        reads = [*structure.reads, *structure.writes]
        used = [(i, v) for i, v in enumerate(operands) if block.args[i].uses]
        uniform = {
            i: self.numbers[v] if v in self.numbers else self.ctx.uniform(self.tensor(v))
            for i, v in used
        }
        kept = [(i, v) for i, v in used if uniform[i] is None]
        given = [self.values[v] for _, v in kept]
        maps = [reads[i] for i, _ in kept]
        indices = [op for op in block.ops if isinstance(op, IndexOp) and op.result.uses]
        for op in indices:
            d = op.dim.value.data
            given.append(self.ctx.constant(np.arange(structure.extents[d], dtype=np.int64)))
            maps.append((AxisExpr(((d, 1),)),))
        b = BodyBuilder([dtype_of_value(v) for v in given])
        sources = [*(block.args[i] for i, _ in kept), *(op.result for op in indices)]
        env: dict[SSAValue, Scalar] = dict(zip(sources, b.inputs, strict=True))
        for i, _ in used:
            number = uniform[i]
            if number is not None:
                env[block.args[i]] = b.const(number, scalar_dtype(block.args[i].type))
        return b, given, maps, translate(b, block, env, self.numbers, stop)

    def pointwise(self, op: LinalgStructuredOperation, structure: Structure) -> Sequence[SSAValue]:
        """An operation without reductions: one map; an output that its region reads is read."""
        block = op.body.block
        last = block.last_op
        assert last is not None
        operands = [*op.inputs, *op.outputs]
        b, given, maps, env = self.body(structure, operands, block, last)
        yielded = [env[v] for v in last.operands]
        types = [tensor_type(*static_type(r.type)) for r in op.res]
        structure = Structure(structure.extents, frozenset(), tuple(maps), structure.writes)
        return self.map(structure, given, b.finish(*yielded), types)

    def combined(
        self,
        structure: Structure,
        inputs: Sequence[SSAValue],
        init: SSAValue,
        block: Block,
        result: SSAValue,
    ) -> SSAValue:
        """A reduction whose region combines what it computes of the inputs with the output."""
        last = block.last_op
        assert last is not None
        root = last.operands[0].owner
        carried = block.args[-1]
        combiner = None if isinstance(root, Block) else _COMBINERS.get(root.name)
        if combiner is None or isinstance(root, Block) or carried not in root.operands:
            what = "a block argument" if isinstance(root, Block) else root.name
            raise Unsupported(
                f"its region yields {what}, not a sum, product, maximum or minimum with the"
                " output's element"
            )
        if len(list(carried.uses)) != 1:
            raise Unsupported("its region uses the output's element more than once")
        if root.name in ("arith.andi", "arith.ori") and scalar_dtype(carried.type) != "bool":
            raise Unsupported(f"{root.name} over integers")
        (inner,) = (v for v in root.operands if v is not carried)
        factors = _factors(inner, block)
        if combiner is Combiner.SUM and factors is not None and len(factors) > 1:
            picked = [inputs[i] for i in factors]
            if not any(v in self.numbers for v in picked):
                reads = tuple(structure.reads[i] for i in factors)
                narrowed = Structure(
                    structure.extents, structure.reductions, reads, structure.writes
                )
                return self.product(narrowed, picked, init, result)
        if isinstance(inner, BlockArgument) and inputs[inner.index] not in self.numbers:
            value, read = self.tensor(inputs[inner.index]), structure.reads[inner.index]
        else:
            value, read = self.inner(structure, inputs, block, root, inner)
        structure = Structure(structure.extents, structure.reductions, (read,), structure.writes)
        return self.reduction(structure, [value], combiner, init, result)

    def inner(
        self,
        structure: Structure,
        inputs: Sequence[SSAValue],
        block: Block,
        root: Operation,
        inner: SSAValue,
    ) -> tuple[SSAValue, Map]:
        """What a reduction combines, computed at every point of the loops."""
        outer = Structure(structure.extents, frozenset(), structure.reads, ())
        b, given, maps, env = self.body(outer, inputs, block, root)
        write = identity(len(structure.extents))
        dtype = scalar_dtype(inner.type)
        full = Structure(structure.extents, frozenset(), tuple(maps), (write,))
        type_ = tensor_type(structure.extents, dtype)
        return self.map(full, given, b.finish(env[inner]), [type_])[0], write

    def product(
        self, structure: Structure, factors: Sequence[SSAValue], init: SSAValue, result: SSAValue
    ) -> SSAValue:
        """A `te.contract`; an initial value that is not zero is added in its epilogue."""
        values = [self.tensor(v) for v in factors]
        shape, dtype = static_type(result.type)
        if accumulator(dtype_of_value(values[0])) != accumulator(dtype):
            values = [self.ctx.cast(v, dtype) for v in values]
        domain = Domain()
        domain.dims = list(structure.dims)
        (write,) = structure.writes
        extra, after = self.start(init, write, Combiner.SUM, dtype)
        pairs = list(zip(values, structure.reads, strict=True))
        return contract(self.ctx, domain, pairs, (shape, dtype, write), after, extra)

    def reduction(
        self,
        structure: Structure,
        values: Sequence[SSAValue],
        combiner: Combiner,
        init: SSAValue,
        result: SSAValue,
    ) -> SSAValue:
        """A `te.reduce`; an initial value that is not neutral is combined in its epilogue."""
        shape, dtype = static_type(result.type)
        if 0 in structure.extents:
            return self.tensor(init)
        (write,) = structure.writes
        extra, after = self.start(init, write, combiner, dtype)
        reads = [*structure.reads, *(read for _, read in extra)]
        op = te.ReduceOp.create(
            operands=[*values, *(v for v, _ in extra)],
            result_types=[tensor_type(shape, dtype)],
            properties={
                "domain": domain_attr(structure.dims, reads, [write]),
                "combiner": CombinerAttr(combiner),
            },
        )
        if after is not None:
            kind = dtype_of_value(values[0])
            if combiner in (Combiner.SUM, Combiner.PROD):
                kind = accumulator(kind)
            op.properties["epilogue"] = epilogue(
                [kind, *(dtype_of_value(v) for v, _ in extra)], after
            )
        return self.ctx.emit1(op)

    def start(
        self, init: SSAValue, read: Map, combiner: Combiner, dtype: str
    ) -> tuple[list[tuple[SSAValue, Map]], Callable[..., Scalar] | None]:
        """The operand and epilogue that an accumulator's initial value asks for."""
        value = self.tensor(init)
        uniform = self.ctx.uniform(value)
        if uniform is not None and uniform == _neutral(combiner, dtype):
            return [], None

        def after(b: BodyBuilder, reduced: Scalar, *first: Scalar) -> Scalar:
            start = first[0] if first else b.const(uniform or 0, dtype)
            wide = b.cast(start, reduced.dtype)
            return b.cast(b.apply(_MERGE[combiner], wide, reduced), dtype)

        return ([] if uniform is not None else [(value, read)]), after


def _neutral(combiner: Combiner, dtype: str) -> float:
    """What an initial value is if it does not count. The lowest float and -inf are not the same:
    an initial value of the former is kept."""
    return reduction_neutral(combiner, dtype)


def _factors(value: SSAValue, block: Block) -> list[int] | None:
    """The arguments of which a value is the product, widened or not; None for other values."""
    if isinstance(value, BlockArgument):
        return [value.index] if value.block is block else None
    op = value.owner
    if not isinstance(op, Operation) or op.parent is not block:
        return None
    if op.name in WIDENING and isinstance(op.operands[0], BlockArgument):
        return _factors(op.operands[0], block)
    if op.name not in _PRODUCTS:
        return None
    left, right = (_factors(v, block) for v in op.operands)
    return None if left is None or right is None else [*left, *right]


def _untensored(op: Operation, numbers: Mapping[SSAValue, Number]) -> str:
    """Why an operand can't be used."""
    for i, value in enumerate(op.operands):
        if not isinstance(value.type, TensorType) and value not in numbers:
            if isinstance(value.type, IndexType):
                return f"operand {i} is an index that is not a constant"
            return f"operand {i} is {value.type}: neither a tensor nor a scalar constant"
    return "its operands are no tensors"


_HANDLERS: dict[type[Operation], Callable[[_Lowering, Operation], SSAValue]] = {
    BroadcastOp: _Lowering.broadcast,
    FillOp: _Lowering.fill,
    ReduceOp: _Lowering.reduce,
    tensor.CastOp: _Lowering.reshaped,
    tensor.CollapseShapeOp: _Lowering.reshaped,
    tensor.ConcatOp: _Lowering.concatenated,
    tensor.EmptyOp: _Lowering.undefined,
    tensor.ExpandShapeOp: _Lowering.reshaped,
    tensor.ExtractSliceOp: _Lowering.extracted,
    tensor.FromElementsOp: _Lowering.elements,
    tensor.SplatOp: _Lowering.fill,
}
