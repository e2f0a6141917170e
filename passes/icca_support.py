"""What the icca passes share: building executes, layouts and offsets of values, program order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, cast

from xdsl.dialects.builtin import (
    DenseArrayBase,
    IntegerAttr,
    IntegerType,
    ModuleOp,
    StringAttr,
    TensorType,
    i64,
)
from xdsl.ir import BlockArgument, Operation, OpResult, Region, SSAValue
from xdsl.utils.exceptions import PassFailedException

from elk_ir.chips.chip import Chip
from elk_ir.dialects.chip import ChipAttr
from elk_ir.dialects.icca.attrs import HandleType, PlanAttr
from elk_ir.dialects.icca.ops import (
    DistributeOp,
    ExecuteOp,
    HbmOp,
    InsertOp,
    LayerOp,
    PreloadOp,
    ProgramOp,
    ReduceOp,
    RelayoutOp,
    RepeatOp,
    TileOp,
    YieldOp,
    new_block,
    offset_attr,
)
from elk_ir.dialects.location import copy_location
from elk_ir.dialects.te.interface import StructuredOp
from elk_ir.dialects.types import tensor_type
from elk_ir.plan.buffers import ExecBuffer, Source, execute_buffers, rotating_dims
from elk_ir.plan.domain import Phase
from elk_ir.plan.layout import Layout
from elk_ir.plan.plan import Plan, reduction_ways
from elk_ir.plan.sharding import Sharding, sharding


class Inserted:
    """Entries that an execute inserts into a preloaded state operand."""

    def __init__(self, value: SSAValue, axis: int, start: int):
        self.value, self.axis, self.start = value, axis, start


def build_execute(
    op: StructuredOp,
    operands: Sequence[SSAValue],
    inserted: Sequence[Inserted | None],
    label: str,
) -> ExecuteOp:
    """An icca.execute of `op` (cloned), its operands being handles or resident tensors."""
    entries = [i.value for i in inserted if i is not None]
    block = new_block([*operands, *entries])
    entry_args = iter(block.args[len(operands) :])
    staged: list[SSAValue] = []
    for arg, insert in zip(block.args[: len(operands)], inserted, strict=True):
        value: SSAValue = arg
        if insert is not None:
            step = InsertOp(next(entry_args), value, insert.axis, insert.start)
            block.add_op(step)
            value = step.result
        stage = DistributeOp(value) if isinstance(value.type, HandleType) else RelayoutOp(value)
        block.add_op(stage)
        staged.append(stage.result)
    inner = new_block(staged)
    inner.add_op(clone_onto(op, inner.args))
    operator = op.operator()
    if operator.stats:
        outs = [
            tensor_type((1, *(operator.extents[d] for d in s.dims)), s.dtype)
            for s in operator.stats
        ]
        tile = TileOp.create(operands=staged, result_types=outs, regions=[Region(inner)])
        extra = [
            v for v, a in zip(staged, operator.operands, strict=True) if a.phase is Phase.APPLY
        ]
        reduce = ReduceOp(
            operands=[list(tile.outs), extra], result_types=[[v.type for v in op.outs]]
        )
        block.add_ops([tile, reduce])
        results: Sequence[SSAValue] = reduce.outs
    else:
        outs = [v.type for v in op.outs]
        tile = TileOp.create(operands=staged, result_types=outs, regions=[Region(inner)])
        block.add_op(tile)
        results = tile.outs
    block.add_op(YieldOp(*results))
    execute = ExecuteOp(
        operands=[list(operands), entries],
        result_types=[[v.type for v in op.outs]],
        properties={"label": StringAttr(label)},
        regions=[Region(block)],
    )
    copy_location(op, execute, *block.ops)
    for old, new in zip(op.outs, execute.outs, strict=True):
        new.name_hint = old.name_hint
    return execute


def clone_onto(op: StructuredOp, operands: Sequence[SSAValue]) -> StructuredOp:
    """A copy of `op` that reads `operands`, even where `op` reads one value twice."""
    clone = op.clone()
    clone.operands = list(operands)
    return clone


def set_plan(execute: ExecuteOp, plan: Plan) -> None:
    """Give `execute` a plan; the leading axis of its partial statistics becomes the number of
    cores that a reduction is split over, and offsets of an older plan are dropped."""
    operator = execute.operator()
    execute.properties["plan"] = PlanAttr.of(operator, plan)
    clear_offsets(execute)
    tile, reduce = execute.tile, execute.reduce
    if reduce is None:
        return
    ways = reduction_ways(operator, plan)
    types = [
        tensor_type((ways, *(operator.extents[d] for d in s.dims)), s.dtype) for s in operator.stats
    ]
    if [v.type for v in tile.outs] == types:
        return
    new = TileOp.create(
        operands=list(tile.operands),
        result_types=types,
        properties=dict(tile.properties),
        regions=[tile.detach_region(tile.body)],
    )
    copy_location(tile, new)
    block = execute.body.block
    block.insert_op_before(new, tile)
    for old, value in zip(tile.outs, new.outs, strict=True):
        old.replace_all_uses_with(value)
    tile.detach()
    tile.erase()


def plan_of(execute: ExecuteOp) -> Plan:
    """The plan of an execute. Raises PassFailedException if it has none."""
    if execute.plan is None:
        raise PassFailedException(
            f"{execute.label.data} has no plan: run icca-schedule or icca-set-plan first"
        )
    return execute.plan.plan


def sharding_of(execute: ExecuteOp) -> Sharding:
    """All layouts of a planned execute."""
    return sharding(execute.operator(), plan_of(execute))


# ---------------------------------------------------------------------- values


def defining_execute(value: SSAValue) -> tuple[ExecuteOp, int]:
    """The execute whose result `value` is, looking through the carried values of loops."""
    while True:
        if isinstance(value, OpResult):
            owner = value.op
            if isinstance(owner, ExecuteOp):
                return owner, value.index
            if isinstance(owner, RepeatOp):
                value = owner.inits[value.index]
                continue
        elif isinstance(value, BlockArgument):
            parent = value.owner.parent_op()
            if isinstance(parent, RepeatOp) and value.index > 0:
                value = parent.inits[value.index - 1]
                continue
        raise PassFailedException(f"no execute defines the resident tensor {value.name_hint}")


def layout_of(value: SSAValue) -> Layout:
    """The layout in which a resident tensor lies on the chip."""
    execute, index = defining_execute(value)
    return sharding_of(execute).result_layout(index)


def defining_preloads(value: SSAValue) -> list[PreloadOp]:
    """The preloads that may have filled a handle: one, or several where a loop carries it."""
    found: list[PreloadOp] = []
    seen: set[SSAValue] = set()
    work = [value]
    while work:
        value = work.pop()
        if value in seen:
            continue
        seen.add(value)
        owner = value.owner
        if isinstance(owner, PreloadOp):
            found.append(owner)
        elif isinstance(owner, RepeatOp) and isinstance(value, OpResult):
            work.append(owner.inits[value.index])
            work.append(yield_of(owner).values[value.index])
        elif isinstance(value, BlockArgument):
            parent = value.owner.parent_op()
            if not isinstance(parent, RepeatOp):
                raise PassFailedException("a handle has no preload")
            work.append(parent.inits[value.index - 1])
            work.append(yield_of(parent).values[value.index - 1])
        else:
            raise PassFailedException("a handle has no preload")
    return found


def consumer_of(value: SSAValue) -> tuple[ExecuteOp, int]:
    """The execute that consumes a handle, and as which operand, through the values that loops
    carry."""
    work, seen = [value], set[SSAValue]()
    while work:
        value = work.pop()
        if value in seen:
            continue
        seen.add(value)
        for use in value.uses:
            op = use.operation
            if isinstance(op, ExecuteOp):
                return op, use.index
            loop = op.parent_op() if isinstance(op, YieldOp) else op
            if isinstance(loop, RepeatOp):
                work += [loop.body.block.args[use.index + 1], loop.outs[use.index]]
    raise PassFailedException("a preload has no execute that consumes it")


def yield_of(repeat: RepeatOp) -> YieldOp:
    """The terminator of a loop's body."""
    last = repeat.body.block.last_op
    assert isinstance(last, YieldOp)
    return last


def in_place(execute: ExecuteOp) -> tuple[bool, ...]:
    """For each operand, whether its producer's layout is already the execute-state.

    A rotating operand is never read in place: the ring would destroy it for later readers.
    """
    s = sharding_of(execute)
    return tuple(
        source is Source.RESIDENT
        and not rotating_dims(s, v)
        and layout_of(execute.ins[v]) == s.execute_layout(v)
        for v, source in enumerate(execute.sources)
    )


def buffers_of(execute: ExecuteOp) -> tuple[ExecBuffer, ...]:
    """Every buffer of a planned execute, sizes included."""
    return execute_buffers(execute.operator(), plan_of(execute), execute.sources, in_place(execute))


# ---------------------------------------------------------------------- offsets


def _array(attr: DenseArrayBase[Any] | None, size: int) -> list[int]:
    if attr is None:
        return [-1] * size
    return list(cast("DenseArrayBase[IntegerType]", attr).get_values())


def offset_of(execute: ExecuteOp, role: str, index: int) -> int | None:
    """The byte offset of one buffer of an execute, or None before allocation."""
    tile, reduce = execute.tile, execute.reduce
    if role == "preload":
        at = defining_preloads(execute.ins[index])[0].at
        return None if at is None else at.value.data
    if role == "execute":
        at = execute.staging(index).at
        return None if at is None else at.value.data
    if role == "landing":
        values = _array(tile.landing, len(tile.ins))
    elif role == "partial":
        values = _array(tile.at, len(tile.outs))
    elif role == "result" and reduce is None:
        values = _array(tile.at, len(tile.outs))
    else:
        assert reduce is not None
        attr = {"gathered": reduce.gathered, "merged": reduce.merged, "result": reduce.at}[role]
        values = _array(attr, len(reduce.outs if role == "result" else reduce.stats))
    return None if values[index] < 0 else values[index]


def set_offset(execute: ExecuteOp, role: str, index: int, offset: int) -> None:
    """Write the byte offset of one buffer into the IR."""
    tile, reduce = execute.tile, execute.reduce
    if role == "preload":
        for preload in defining_preloads(execute.ins[index]):
            preload.properties["at"] = offset_attr(offset)
    elif role == "execute":
        execute.staging(index).properties["at"] = offset_attr(offset)
    else:
        in_tile = role in ("landing", "partial") or reduce is None
        owner: Operation = tile if in_tile else _not_none(reduce)
        key = "at" if role in ("partial", "result") else role
        size = {
            "landing": len(tile.ins),
            "partial": len(tile.outs),
            "result": len(execute.outs),
        }.get(role, len(execute.operator().stats))
        attr = owner.properties.get(key)
        assert attr is None or isinstance(attr, DenseArrayBase)
        values = _array(attr, size)
        values[index] = offset
        owner.properties[key] = DenseArrayBase.from_list(i64, values)


def _not_none(reduce: ReduceOp | None) -> ReduceOp:
    assert reduce is not None
    return reduce


def clear_offsets(execute: ExecuteOp) -> None:
    """Forget where the buffers of an execute lie."""
    for op in execute.body.block.ops:
        for key in ("at", "landing", "gathered", "merged"):
            op.properties.pop(key, None)
    for value in execute.ins:
        if isinstance(value.type, HandleType):
            for preload in defining_preloads(value):
                preload.properties.pop("at", None)


# ---------------------------------------------------------------------- programs


def program_of(module: ModuleOp) -> ProgramOp:
    """The module's program. Raises PassFailedException if there is none."""
    for op in module.body.block.ops:
        if isinstance(op, ProgramOp):
            return op
    raise PassFailedException("the module has no icca.program: run convert-te-to-icca first")


def chip_of(module: ModuleOp) -> Chip:
    """The chip that the module is compiled for."""
    attr = module.attributes.get("icca.chip")
    if not isinstance(attr, ChipAttr):
        raise PassFailedException("the module names no chip (attribute icca.chip)")
    return attr.to_chip()


def executes(program: ProgramOp) -> Iterator[ExecuteOp]:
    """All executes, in program order, loop bodies once."""
    for op in program.walk():
        if isinstance(op, ExecuteOp):
            yield op


def hbm_tensors(module: ModuleOp) -> dict[str, HbmOp]:
    """The tensors in HBM, by symbol."""
    return {op.sym_name.data: op for op in module.body.block.ops if isinstance(op, HbmOp)}


def symbol(name: str, taken: set[str]) -> str:
    """A symbol name made from `name` that is not in `taken`; it is added there."""
    base = re.sub(r"[^A-Za-z0-9_$.\-]", "_", name) or "tensor"
    if not re.match(r"[A-Za-z_]", base):
        base = "_" + base
    candidate, n = base, 1
    while candidate in taken:
        candidate = f"{base}_{n}"
        n += 1
    taken.add(candidate)
    return candidate


def tensor_of(value: SSAValue) -> TensorType:
    """The tensor type of a resident tensor or of a handle."""
    type_ = value.type.tensor if isinstance(value.type, HandleType) else value.type
    assert isinstance(type_, TensorType)
    return type_


def layer_index(layer: SSAValue | None) -> tuple[SSAValue | None, int]:
    """A layer as the counter of a loop (None: a constant) and what is added to it."""
    offset = 0
    while layer is not None and isinstance(layer.owner, LayerOp):
        offset += layer.owner.offset.value.data
        layer = layer.owner.base_layer
    return layer, offset


def integer(attr: IntegerAttr | None) -> int | None:
    """The value of an optional integer property."""
    return None if attr is None else attr.value.data
