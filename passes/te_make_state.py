"""`te-make-state`: KV caches that pass through the graph become state updated in place.

A cache that enters as an argument, grows by a concat and leaves as a result becomes a
`te.global state` and a `te.append`; argument and result disappear, their ONNX names stay in the
global. Keys and values that only leave (a prefill) become a state that is empty when a run starts.
A cache of fixed size of which rows are replaced (index_copy, scatter, where) becomes a state too:
its `te.load` is what it was, and a `te.update` writes the new rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    FunctionType,
    IntegerAttr,
    ModuleOp,
    StringAttr,
    i64,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass

from elk_ir.dialects.element_types import dense_from_array
from elk_ir.dialects.te import (
    AppendOp,
    AttentionOp,
    ConcatOp,
    ContractOp,
    GlobalKindAttr,
    LoadOp,
    MapOp,
    ScatterOp,
    SoftmaxOp,
    UpdateOp,
)
from elk_ir.dialects.te.interface import StructuredOp, dims_of, identity_map
from elk_ir.dialects.te.structure import GlobalKind
from elk_ir.dialects.types import tensor_type
from elk_ir.numerics.body import dtype_of, is_float
from elk_ir.passes.te_static_caches import RowUpdate, find_update, moved, replaced_row
from elk_ir.passes.te_support import (
    FREE_DOMAINS,
    add_global,
    dtype_of_value,
    erase_dead,
    fresh_symbol,
    functions,
    globals_of,
    new_global,
    owner,
    replace_value,
    shape_of,
    tensor_of,
    users,
)
from elk_ir.plan.domain import DimKind


@dataclass
class _Signature:
    """Arguments and results of a function, of which some are to be removed."""

    function: FuncOp

    def __post_init__(self) -> None:
        block = self.function.body.block
        last = block.last_op
        assert isinstance(last, ReturnOp)
        self.last = last
        self.gone_args: set[int] = set()
        self.gone_results: set[int] = set()

    def name(self, attrs: ArrayAttr[DictionaryAttr] | None, i: int, what: str) -> str:
        entry = None if attrs is None else attrs.data[i].data.get("onnx.name")
        return entry.data if isinstance(entry, StringAttr) else f"{what}{i}"

    def arg_name(self, i: int) -> str:
        return self.name(self.function.arg_attrs, i, "arg")

    def result_name(self, i: int) -> str:
        return self.name(self.function.res_attrs, i, "result")

    def results_of(self, value: SSAValue) -> list[int]:
        """Positions at which a value is returned."""
        return [i for i, v in enumerate(self.last.operands) if v is value]

    def update(self) -> None:
        """Remove what was marked."""
        function, block = self.function, self.function.body.block
        kept_args = [i for i in range(len(block.args)) if i not in self.gone_args]
        kept_results = [i for i in range(len(self.last.operands)) if i not in self.gone_results]
        for name, kept in (("arg_attrs", kept_args), ("res_attrs", kept_results)):
            attrs = function.properties.get(name)
            if isinstance(attrs, ArrayAttr):
                entries: list[Attribute] = [attrs.data[i] for i in kept]
                function.properties[name] = ArrayAttr(entries)
        returned = ReturnOp(*(self.last.operands[i] for i in kept_results))
        returned.location = self.last.location
        block.insert_op_before(returned, self.last)
        self.last.detach()
        self.last.erase()
        for i in sorted(self.gone_args, reverse=True):
            block.erase_arg(block.args[i])
        function.properties["function_type"] = FunctionType.from_lists(
            [a.type for a in block.args], [v.type for v in returned.operands]
        )


def _grown(op: Operation, signature: _Signature) -> tuple[int, int, int] | None:
    """(argument, result, axis) if `op` appends to an argument that is read nowhere else, and its
    result is returned."""
    if not isinstance(op, ConcatOp) or len(op.ins) != 2:
        return None
    past = op.ins[0]
    if not isinstance(past, BlockArgument) or not past.has_one_use():
        return None
    if past.block is not signature.function.body.block:
        return None
    returned = signature.results_of(op.outs[0])
    domain = op.domain.data
    axis = domain.results[0].index(next(a for a in domain.results[0] if _is_dim(a, op)))
    if len(returned) != 1 or domain.operands[0] != domain.results[0]:
        return None
    return past.index, returned[0], axis


def _is_dim(axis: object, op: ConcatOp) -> bool:
    return getattr(axis, "simple_dim", None) == op.dim.value.data


def kv_axis(value: SSAValue, limit: int = 64) -> int | None:
    """The axis of a key or value tensor along which attention runs: the one that is summed against
    softmax's result, or over which softmax runs after a product. None if it feeds no attention."""
    queue: list[tuple[SSAValue, dict[int, int]]] = [
        (value, {j: j for j in range(len(shape_of(value)))})
    ]
    for _ in range(limit):
        if not queue:
            return None
        current, axes = queue.pop(0)
        for op in users(current):
            if not isinstance(op, StructuredOp):
                continue
            found, following = _follow(op, current, axes)
            if found is not None:
                return found
            queue.extend(following)
    return None


def _follow(
    op: StructuredOp, value: SSAValue, axes: dict[int, int]
) -> tuple[int | None, list[tuple[SSAValue, dict[int, int]]]]:
    domain = op.domain.data
    position = list(op.ins).index(value)
    dims = {
        axis.simple_dim: axes[j]
        for j, axis in enumerate(domain.operands[position])
        if axis.simple_dim is not None and j in axes
    }
    reduced = [a for d, a in dims.items() if domain.dims[d].kind is DimKind.REDUCTION]
    if isinstance(op, AttentionOp | SoftmaxOp):
        return (reduced[0] if reduced else None), []
    if isinstance(op, ContractOp) and reduced and _from_softmax(op, value):
        return reduced[0], []
    if not isinstance(op, MapOp | ContractOp):
        return None, []
    following = [
        (
            result,
            {
                j: dims[axis.simple_dim]
                for j, axis in enumerate(written)
                if axis.simple_dim is not None and axis.simple_dim in dims
            },
        )
        for result, written in zip(op.outs, domain.results, strict=True)
    ]
    return None, [f for f in following if f[1]]


def _updates_argument(op: Operation, scattered: bool = False, depth: int = 6) -> bool:
    """Whether a value is an argument of the same shape (axes permuted or not) with some rows
    scattered into it: a static cache."""
    scattered = scattered or isinstance(op, ScatterOp)
    for value in op.operands:
        source = owner(value)
        if sorted(shape_of(value)) == sorted(shape_of(op.results[0])) and (
            scattered
            if source is None
            else depth > 0 and _updates_argument(source, scattered, depth - 1)
        ):
            return True
    return False


def _from_softmax(op: ContractOp, value: SSAValue) -> bool:
    for other in op.ins[:2]:
        current = other
        for _ in range(8):
            source = owner(current)
            if other is value or not isinstance(source, MapOp | SoftmaxOp):
                break
            if isinstance(source, SoftmaxOp):
                return True
            current = source.ins[-1]
    return False


@dataclass(frozen=True)
class TeMakeStatePass(ModulePass):
    """KV caches become state; `prefill=false` leaves caches alone that only leave the graph,
    `static=false` those of fixed size."""

    name = "te-make-state"

    prefill: bool = True
    static: bool = True

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrites `op` in place."""
        for function in functions(op):
            if function.sym_name.data == "main":
                _make_states(op, function, self.prefill, self.static)


def _make_states(module: ModuleOp, function: FuncOp, prefill: bool, static: bool) -> None:
    signature = _Signature(function)
    taken = {o.sym_name.data for o in module.ops if hasattr(o, "sym_name")}  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]

    def state(value: SSAValue, axis: int, length: int, inputs: list[str], result: int) -> str:
        name = signature.result_name(result)
        symbol = fresh_symbol(_symbol(name), taken)
        taken.add(symbol)
        op = new_global(
            symbol,
            kind=GlobalKindAttr(GlobalKind.STATE),
            type=value.type,
            axis=IntegerAttr(axis, i64),
            length=IntegerAttr(length, i64),
            inputs=ArrayAttr(StringAttr(n) for n in inputs) if inputs else None,
            outputs=ArrayAttr([StringAttr(name)]),
        )
        add_global(module, op)
        return symbol

    block = function.body.block
    for op in list(block.ops):
        if (found := _grown(op, signature)) is None:
            continue
        arg, result, axis = found
        past, entries = op.operands
        length = shape_of(past)[axis]
        symbol = state(op.results[0], axis, length, [signature.arg_name(arg)], result)
        append = AppendOp(entries, symbol, op.results[0].type)
        append.location = op.location
        block.insert_op_before(append, op)
        replace_value(op.results[0], append.result)
        op.detach()
        op.erase()
        signature.gone_args.add(arg)
        signature.gone_results.add(result)
    for argument in list(block.args) if static else ():
        for result, value in enumerate(signature.last.operands):
            update = (
                None
                if result in signature.gone_results or len(signature.results_of(value)) != 1
                else find_update(argument, value, globals_of(module))
            )
            if update is None:
                continue
            length = shape_of(argument)[update.axis]
            symbol = state(value, update.axis, length, [signature.arg_name(argument.index)], result)
            _update_rows(module, update, argument, value, symbol)
            signature.gone_args.add(argument.index)
            signature.gone_results.add(result)
            break
    if prefill:
        for i, value in enumerate(list(signature.last.operands)):
            source = owner(value)
            if (
                i in signature.gone_results
                or not isinstance(source, FREE_DOMAINS)
                or len(users(value)) < 2
                or len(signature.results_of(value)) != 1
                or not is_float(dtype_of_value(value))
                or _updates_argument(source)
                or (axis := kv_axis(value)) is None
            ):
                continue
            symbol = state(value, axis, 0, [], i)
            append = AppendOp(value, symbol, value.type)
            append.location = source.location
            block.insert_op_after(append, source)
            replace_uses_except(value, append.result, append)
            signature.gone_results.add(i)
    if signature.gone_results:
        signature.update()


def _update_rows(
    module: ModuleOp, update: RowUpdate, argument: BlockArgument, value: SSAValue, symbol: str
) -> None:
    """Put the state in the place of the argument, and write the rows of an update to it. What read
    `value` reads the updated cache on chip."""
    at, block = update.at, argument.block
    shape = shape_of(argument)
    load = LoadOp(symbol, argument.type)
    load.location = at.location
    block.insert_op_before(load, at)
    replace_value(argument, load.result)
    rows = moved(update.rows, (update.count,), at)
    wanted = (*shape[: update.axis], update.count, *shape[update.axis + 1 :])
    entries = moved(update.entries, wanted, at)
    new = UpdateOp(entries, symbol, rows)
    new.location = at.location
    if update.scatter is None or update.count != 1:
        block.insert_op_after(new, at)
        return
    kind = dtype_of_value(rows)
    numbers = dense_from_array(np.arange(shape[update.axis], dtype=dtype_of(kind)))
    type_ = tensor_type((shape[update.axis],), kind)
    table = globals_of(module)
    # All layers share the numbers of their rows, so that they can be rolled.
    name = next((n for n, op in table.items() if op.value == numbers and op.type == type_), None)
    if name is None:
        name = fresh_symbol(f"{symbol}.rows", table)
        weight = GlobalKindAttr(GlobalKind.WEIGHT)
        add_global(module, new_global(name, kind=weight, type=type_, value=numbers))
    count = LoadOp(name, type_)
    replaced = replaced_row(load.result, update, count.result)
    back = MapOp.move(
        replaced.outs[0],
        tensor_of(at.results[0]),
        dims_of(shape),
        identity_map(len(shape)),
        update.scatter,
    )
    block.insert_ops_after([count, replaced, new, back], at)
    for op in (count, replaced, back):
        op.location = at.location
    last = owner(value)
    if last is not at:
        replace_value(value, replaced.outs[0])
        replace_value(at.results[0], back.outs[0])
        erase_dead(last)
    else:
        replace_value(value, replaced.outs[0])
        erase_dead(back)
    erase_dead(at)


def replace_uses_except(value: SSAValue, new: SSAValue, kept: Operation) -> None:
    """Let all users of `value` but one use `new`."""
    value.replace_uses_with_if(new, lambda use: use.operation is not kept)


def _symbol(name: str) -> str:
    symbol = re.sub(r"[^0-9A-Za-z_.$]", "_", name)
    return symbol if symbol[:1].isalpha() or symbol[:1] == "_" else f"state_{symbol}"
