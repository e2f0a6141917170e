"""Static KV caches: arguments of which a graph replaces rows, and that it returns.

Exporters write them in three ways: ScatterElements or ScatterND along the cache's axis,
`index_copy` (the same between two transpositions), and `where(arange == position, new, old)`. All
of them become the old cache, the new rows, and the tensor that says which rows these are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, TensorType
from xdsl.ir import BlockArgument, Operation, SSAValue

from elk_ir.dialects.element_types import array_from_dense
from elk_ir.dialects.te import GlobalOp, LoadOp, MapOp, ScatterOp
from elk_ir.dialects.te.attrs import Domain, Map
from elk_ir.dialects.te.indexing import Update
from elk_ir.dialects.te.interface import dims_of, domain_attr, identity_map
from elk_ir.dialects.types import tensor_type
from elk_ir.passes.te_affine import Split, substitute_map
from elk_ir.passes.te_bodies import BodyGraph
from elk_ir.passes.te_support import (
    Expansion,
    Read,
    dtype_of_value,
    node_dims,
    owner,
    shape_of,
    symbol_of,
)
from elk_ir.plan.domain import AxisExpr, DimKind

CONST = AxisExpr()


@dataclass(frozen=True)
class RowUpdate:
    """Rows of a cache that a graph replaces.

    at: the operation that does. axis: of the cache, along which the rows lie. rows: their numbers,
    and how they are read by the place along that axis (dimension 0). entries: what they become, by
    the dimensions of the cache, that of `axis` being the place among the rows. count: rows.
    scatter: the result of a scatter that `at` is, as it is read by the cache's dimensions.
    """

    at: Operation
    axis: int
    count: int
    rows: Read
    entries: Read
    scatter: Map | None


def find_update(
    argument: BlockArgument, value: SSAValue, globals_: dict[str, GlobalOp]
) -> RowUpdate | None:
    """The update by which `value` is `argument` with some rows replaced, if it is that: of the
    argument's type, and nothing else reads the argument."""
    type_ = argument.type
    if not isinstance(type_, TensorType) or not type_.has_static_shape():
        return None  # convert-te-to-icca refuses it, with a message
    if value.type != type_ or not argument.has_one_use():
        return None
    rank = len(shape_of(argument))
    here = Expansion(Domain(dims_of(shape_of(argument)), (), (identity_map(rank),)))
    node = here.read(value, identity_map(rank))
    if isinstance(node, Split):
        return None
    if here.builder.nodes[node].op == "input":
        source, axes = here.tensors[node]
        op = owner(source)
        return _scattered(argument, op, axes) if isinstance(op, ScatterOp) else None
    op = owner(value)
    return None if op is None else _selected(argument, op, here, node, globals_)


# ---------------------------------------------------------------------- scatter, index_copy


def _scattered(argument: BlockArgument, op: ScatterOp, result: Map) -> RowUpdate | None:
    """`result`: how the cache's dimensions read the result of the scatter."""
    if op.update.data is not Update.SET:
        return None
    domain, shape = op.domain.data, shape_of(argument)
    inside = Expansion(domain)
    data = inside.read(op.ins[0], domain.operands[0])
    if isinstance(data, Split) or inside.tensors.get(data, (None, ()))[0] is not argument:
        return None
    if not all(r.has_one_use() for moved in inside.absorbed for r in moved.results):
        return None
    # Dimension of the scatter -> axis of the cache. Axes of one entry may have no dimension.
    axis_of = {a.simple_dim: i for i, a in enumerate(inside.tensors[data][1]) if shape[i] > 1}
    written = {
        a.simple_dim: expr.simple_dim
        for a, expr in zip(domain.results[0], result, strict=True)
        if expr != CONST and shape[expr.simple_dim or 0] > 1
    }
    rows = op.rows.value.data
    if None in axis_of or written != axis_of or rows not in axis_of:
        return None
    axis = axis_of[rows]
    places = {
        d
        for read in domain.operands[1:]
        for expr in read
        for d, _ in expr.terms
        if domain.dims[d].kind is DimKind.REDUCTION and domain.dims[d].extent > 1
    }
    count = int(np.prod([domain.dims[d].extent for d in places], dtype=np.int64))
    assign = {d: CONST for d in range(len(domain.dims))}
    along = {**assign, **{d: AxisExpr(((0, 1),)) for d in places}}
    everywhere = {d: AxisExpr(((j, 1),)) for d, j in axis_of.items() if d is not None and d != rows}
    everywhere = {**assign, **everywhere, **{d: AxisExpr(((axis, 1),)) for d in places}}
    picked = inside.read(op.ins[1], domain.operands[1])
    if isinstance(picked, Split) or picked not in inside.tensors or len(places) > 1:
        return None
    if inside.builder.nodes[picked].op != "input":
        return None
    index, axes = inside.tensors[picked]
    if any(domain.dims[d].extent > 1 and d not in places for e in axes for d, _ in e.terms):
        return None  # a row for each sequence, say
    return RowUpdate(
        op,
        axis,
        count,
        (index, substitute_map(axes, along)),
        (op.ins[2], substitute_map(domain.operands[2], everywhere)),
        result,
    )


# ---------------------------------------------------------------------- where


def _selected(
    argument: BlockArgument,
    at: Operation,
    here: Expansion,
    node: int,
    globals_: dict[str, GlobalOp],
) -> RowUpdate | None:
    graph, rank = here.builder, len(shape_of(argument))
    if graph.nodes[node].op != "select":
        return None
    condition, new, old = graph.nodes[node].args
    while graph.nodes[condition].op in ("not", "ne"):
        new, old = old, new
        if graph.nodes[condition].op == "ne":
            break
        condition = graph.nodes[condition].args[0]
    if graph.nodes[condition].op not in ("eq", "ne"):
        return None
    if here.tensors.get(old) != (argument, identity_map(rank)):
        return None
    for number, position in (
        graph.nodes[condition].args,
        graph.nodes[condition].args[::-1],
    ):
        axis = _counted(here, number, globals_)
        if axis is None or node_dims(graph, position) or axis in node_dims(graph, new):
            continue
        known = here.tensors.get(position)
        if known is None or graph.nodes[position].op != "input":
            continue
        here_axis = {j: AxisExpr(((j, 1),)) for j in range(rank)} | {axis: CONST}
        value, axes = here.operand(new, at)
        return RowUpdate(at, axis, 1, known, (value, substitute_map(axes, here_axis)), None)
    return None


def _counted(here: Expansion, node: int, globals_: dict[str, GlobalOp]) -> int | None:
    """The axis of the cache along which a node is 0, 1, 2, …."""
    graph = here.builder
    while graph.nodes[node].op == "cast":
        node = graph.nodes[node].args[0]
    if graph.nodes[node].op != "input" or node not in here.tensors:
        return None
    value, axes = here.tensors[node]
    varying = [(j, a) for j, a in enumerate(axes) if a != CONST]
    op = owner(value)
    if len(varying) != 1 or varying[0][1].simple_dim is None or not isinstance(op, LoadOp):
        return None
    constant = globals_[symbol_of(op)].value
    if not isinstance(constant, DenseIntOrFPElementsAttr):
        return None
    axis = varying[0][1].simple_dim
    numbers = array_from_dense(constant)
    extent = here.domain.dims[axis].extent
    if numbers.size != extent or (numbers.reshape(-1) != np.arange(extent)).any():
        return None
    return axis


# ---------------------------------------------------------------------- operations


def moved(read: Read, extents: Iterable[int], at: Operation) -> SSAValue:
    """A tensor of the given extents, read from another one, made in front of `at`; the other one
    itself where nothing moves."""
    value, axes = read
    shape = tuple(extents)
    if shape == shape_of(value) and all(
        a.simple_dim == j or (a == CONST and n == 1)
        for j, (a, n) in enumerate(zip(axes, shape, strict=True))
    ):
        return value
    made = MapOp.move(
        value,
        tensor_type(shape, dtype_of_value(value)),
        dims_of(shape),
        axes,
        identity_map(len(shape)),
    )
    made.location = at.location
    made.outs[0].name_hint = value.name_hint
    assert at.parent is not None
    at.parent.insert_op_before(made, at)
    return made.outs[0]


def replaced_row(old: SSAValue, update: RowUpdate, count: SSAValue) -> MapOp:
    """The cache `old` with the one row of an update replaced, as a choice at each element: an
    element less to keep than a scatter has, which counts updates. `count` holds 0, 1, 2, …."""
    shape, axis = shape_of(old), update.axis
    graph = BodyGraph()
    index, where = update.rows
    kind = dtype_of_value(index)
    inputs = [(old, kind_of) for kind_of in (dtype_of_value(old),)]
    inputs += [(update.entries[0], dtype_of_value(old)), (index, kind), (count, kind)]
    x, new, row, number = (graph.input(i, dtype) for i, (_, dtype) in enumerate(inputs))
    zero, extent = graph.const(0, kind), graph.const(shape[axis], kind)
    last = graph.emit("add", (row, extent))
    row = graph.emit("select", (graph.emit("lt", (row, zero)), last, row))
    chosen = graph.emit("select", (graph.emit("eq", (number, row)), new, x))
    body, order = graph.build([chosen], range(len(inputs)))
    assert list(order) == list(range(len(inputs)))
    assert isinstance(old.type, TensorType)
    at_axis = {j: AxisExpr(((j, 1),)) for j in range(len(shape))}
    maps = [
        identity_map(len(shape)),
        substitute_map(update.entries[1], at_axis | {axis: CONST}),
        tuple(CONST for _ in where),
        (AxisExpr(((axis, 1),)),),
    ]
    domain = domain_attr(dims_of(shape), maps, [identity_map(len(shape))])
    op = MapOp.of([value for value, _ in inputs], body, [old.type], domain)
    op.location = update.at.location
    return op
