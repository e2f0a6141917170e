"""IR surgery for schedules: put preloads where a schedule says, also across loop boundaries."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from xdsl.ir import Block, Operation, Region, SSAValue

from elk_ir.dialects.icca.attrs import HandleType
from elk_ir.dialects.icca.ops import (
    ExecuteOp,
    HbmOp,
    LayerOp,
    PreloadOp,
    RepeatOp,
    StoreOp,
    YieldOp,
)
from elk_ir.dialects.location import copy_location
from elk_ir.passes.icca_support import integer, layer_index, yield_of


def own_preloads(execute: ExecuteOp) -> list[PreloadOp]:
    """The preloads of an execute that are issued in its block, in the order of its operands."""
    block = execute.parent_block()
    found = {
        v.owner: None
        for v in execute.ins
        if isinstance(v.owner, PreloadOp) and v.owner.parent_block() is block
    }
    return list(found)


# ---------------------------------------------------------------------- within a block


def earliest_place(preload: PreloadOp, hbm: Mapping[str, HbmOp]) -> int:
    """How many executes of its block a preload must stay behind: those in front of the last store
    to what it reads. -1: no store is in its way, so it may also move an iteration ahead."""
    block = preload.parent_block()
    assert block is not None
    names = {preload.source.root_reference.data}
    if preload.rows is not None:
        names.add(preload.rows.root_reference.data)
    place, seen = -1, 0
    for op in block.ops:
        if op is preload:
            return place
        if isinstance(op, ExecuteOp):
            seen += 1
        elif isinstance(op, RepeatOp):
            inside = (o for o in op.walk() if isinstance(o, StoreOp))
            if any(o.target.root_reference.data in names for o in inside):
                place = seen
        elif isinstance(op, StoreOp) and op.target.root_reference.data in names:
            target = hbm.get(op.target.root_reference.data)
            length = None if target is None else integer(target.length)
            start = integer(op.start)
            if start is None or length is None or start < length:
                place = seen
    return place


def order_block(
    block: Block, places: Sequence[tuple[Operation, Sequence[PreloadOp | StoreOp]]]
) -> None:
    """Issue preloads and stores of `block`: those of each anchor right in front of it, in order.
    Constant layers move to the front of the block, so that they precede all who use them."""
    first = block.first_op
    for op in list(block.ops):
        if isinstance(op, LayerOp) and op is not first:
            assert first is not None
            op.detach()
            block.insert_op_before(op, first)
        elif isinstance(op, LayerOp):
            first = op.next_op
    for anchor, issued in places:
        for op in issued:
            op.detach()
            block.insert_op_before(op, anchor)


def stores_by_place(block: Block, executes: Sequence[ExecuteOp]) -> dict[int, list[StoreOp]]:
    """The stores of a block that follow executes of a run, by how many of these precede them."""
    numbers = {execute: i for i, execute in enumerate(executes)}
    found: dict[int, list[StoreOp]] = {}
    place: int | None = None
    for op in block.ops:
        if isinstance(op, ExecuteOp):
            place = numbers[op] + 1 if op in numbers else None
        elif isinstance(op, RepeatOp):
            place = None
        elif isinstance(op, StoreOp) and place is not None:
            found.setdefault(place, []).append(op)
    return found


def read_in(block: Block) -> frozenset[str]:
    """The HBM tensors that preloads of a block read, and those that name rows there."""
    found: set[str] = set()
    for op in block.walk():
        if isinstance(op, PreloadOp):
            found.add(op.source.root_reference.data)
        if isinstance(op, PreloadOp | StoreOp) and op.rows is not None:
            found.add(op.rows.root_reference.data)
    return frozenset(found)


def may_delay(store: StoreOp, hbm: Mapping[str, HbmOp], read: Container[str]) -> bool:
    """Whether a store may be issued later: no preload of its block reads what it writes, and no
    store takes rows from there. read: `read_in` of its block."""
    name = store.target.root_reference.data
    target = hbm.get(name)
    length = None if target is None else integer(target.length)
    start = integer(store.start)
    if start is not None and length is not None and start >= length:
        return True
    return name not in read


# ---------------------------------------------------------------------- an iteration ahead


def carry_preloads(
    loop: RepeatOp, ahead: Sequence[tuple[PreloadOp, ExecuteOp]]
) -> tuple[RepeatOp, list[PreloadOp], list[ExecuteOp]]:
    """Issue preloads of a loop's body one iteration ahead, each in front of the execute given with
    it, which must run after the one that consumes it.

    Preloads in front of the loop fill the handles of the first iteration, and the last iteration
    is peeled off behind the loop. Returns the loop, those preloads in the order of `ahead`, and the
    peeled executes in order.
    """
    block = loop.parent_block()
    body = loop.body.block
    assert block is not None
    first, count = loop.first.value.data, loop.count.value.data

    # The last iteration, before the body changes.
    last = Block(arg_types=[a.type for a in body.args])
    holder = Region(last)
    mapping: dict[SSAValue, SSAValue] = dict(zip(body.args, last.args, strict=True))
    # A preload of `ahead` may already stand behind its execute: it is copied first.
    early = [op for op in body.ops if isinstance(op, LayerOp)] + [p for p, _ in ahead]
    for op in [*early, *(op for op in body.ops if op not in set(early))]:
        copy = op.clone(mapping)
        last.add_op(copy)
        for old, new in zip(op.results, copy.results, strict=True):
            new.name_hint = old.name_hint
    twins = [mapping[preload.result].owner for preload, _ in ahead]

    prologue: list[PreloadOp] = []
    args: list[SSAValue] = []
    issued: list[SSAValue] = []
    for preload, before in ahead:
        prologue.append(_issue(preload, block, loop, first, None))
        arg = body.insert_arg(preload.result.type, len(body.args))
        arg.name_hint = preload.result.name_hint
        args.append(arg)
        issued.append(_issue(preload, body, before, 1, body.args[0]).result)
    for (preload, _), arg in zip(ahead, args, strict=True):
        preload.result.replace_all_uses_with(arg)
        preload.detach()
        preload.erase()
    old = yield_of(loop)
    ending = YieldOp(*old.values, *issued)
    copy_location(old, ending)
    body.insert_op_before(ending, old)
    old.detach()
    old.erase()
    inits = [*loop.inits, *(p.result for p in prologue)]
    new = RepeatOp(first, count - 1, inits, loop.detach_region(loop.body))
    copy_location(loop, new)
    block.insert_op_before(new, loop)
    for out, known in zip(new.outs, [*loop.outs, *args], strict=True):
        out.name_hint = known.name_hint

    counter = LayerOp(first + count - 1)
    copy_location(loop, counter)
    block.insert_op_before(counter, loop)
    kept = new.outs[: len(loop.outs)]
    for inner, outer in zip(last.args, [counter.result, *kept], strict=True):
        inner.replace_all_uses_with(outer)
    for twin, out in zip(twins, new.outs[len(kept) :], strict=True):
        assert isinstance(twin, PreloadOp)
        twin.result.replace_all_uses_with(out)
        twin.detach()
        twin.erase()
    ending = last.last_op
    assert isinstance(ending, YieldOp)
    for out, value in zip(loop.outs, list(ending.values), strict=True):
        out.replace_all_uses_with(value)
    ending.detach()
    ending.erase()
    peeled: list[ExecuteOp] = []
    for op in list(last.ops):
        op.detach()
        block.insert_op_before(op, loop)
        if isinstance(op, ExecuteOp):
            peeled.append(op)
    holder.erase()
    loop.detach()
    loop.erase()
    if not any(True for _ in counter.result.uses):
        counter.detach()
        counter.erase()
    return new, prologue, peeled


def _issue(
    preload: PreloadOp, block: Block, anchor: Operation, layer: int, base: SSAValue | None
) -> PreloadOp:
    """A copy of `preload` in front of `anchor`, for layer `base` + `layer`."""
    index, ahead = layer_index(preload.layer)
    counter: LayerOp | None = None
    if preload.layer is not None:
        # A constant layer stays what it is.
        counter = LayerOp(ahead) if index is None else LayerOp(layer + ahead, base)
        copy_location(preload, counter)
        block.insert_op_before(counter, anchor)
    assert isinstance(preload.result.type, HandleType)
    rows = None if preload.rows is None else preload.rows.root_reference.data
    new = PreloadOp(
        preload.source.root_reference.data,
        preload.result.type.tensor,
        None if counter is None else counter.result,
        rows,
    )
    copy_location(preload, new)
    new.result.name_hint = preload.result.name_hint
    block.insert_op_before(new, anchor)
    return new


def may_carry(preload: PreloadOp, loop: RepeatOp, hbm: Mapping[str, HbmOp]) -> bool:
    """Whether a preload of a loop's body can be issued an iteration ahead."""
    if loop.count.value.data < 2 or earliest_place(preload, hbm) >= 0:
        return False
    names = {preload.source.root_reference.data}
    if preload.rows is not None:
        names.add(preload.rows.root_reference.data)
    block = loop.body.block
    for op in block.ops:
        if isinstance(op, StoreOp) and op.target.root_reference.data in names:
            target = hbm.get(op.target.root_reference.data)
            length = None if target is None else integer(target.length)
            start = integer(op.start)
            follows = preload.layer is block.args[0] and op.layer is block.args[0]
            if not follows and (start is None or length is None or start < length):
                return False
    return True
