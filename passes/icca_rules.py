"""The rules that every icca program obeys, as functions that list what breaks them.

Each function looks at one kind of rule and assumes that the earlier ones hold: `structure` (order,
handles, loops), `tensors` (HBM), `plans`, `memory` (bytes and addresses). docs/dialects/icca.md
states the rules in words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.dialects.builtin import IndexType, ModuleOp
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue
from xdsl.utils.exceptions import PassFailedException

from elk_ir.dialects.icca.attrs import HandleType, HbmKind
from elk_ir.dialects.icca.ops import (
    ExecuteOp,
    HbmOp,
    InsertOp,
    LayerOp,
    PreloadOp,
    ProgramOp,
    RepeatOp,
    StoreOp,
    YieldOp,
)
from elk_ir.dialects.ipu.attrs import LayoutAttr
from elk_ir.dialects.types import shape_dtype
from elk_ir.memory.check import check, peak
from elk_ir.numerics.body import dtype_of
from elk_ir.passes.icca_liveness import Liveness, Placed, liveness
from elk_ir.passes.icca_support import (
    chip_of,
    defining_preloads,
    executes,
    hbm_tensors,
    integer,
    layout_of,
    program_of,
    sharding_of,
    tensor_of,
    yield_of,
)
from elk_ir.plan.plan import plan_errors


@dataclass(frozen=True)
class Broken:
    """A rule that does not hold at `op`; `notes` say what to do about it."""

    op: Operation
    message: str
    notes: tuple[str, ...] = ()


def broken_rules(module: ModuleOp, allocated: bool | None = None) -> list[Broken]:
    """What is wrong with the module's program: everything of the first kind that is wrong.

    allocated: whether offsets must be there; None requires all of them as soon as one is there.
    """
    program = program_of(module)
    found = list(structure(program))
    found = found or list(tensors(module, program))
    found = found or list(plans(module, program))
    return found or list(memory(module, allocated))


# ---------------------------------------------------------------------- order, handles, loops


def structure(program: ProgramOp) -> Iterator[Broken]:
    """Definitions come before uses, handles are consumed once, loops carry what they may."""
    yield from _dominance(program.body.block, set())
    for op in program.walk():
        if isinstance(op, PreloadOp):
            yield from _consumed_once(op.result, op, f"the preload of {_symbol(op.source)}")
        elif isinstance(op, RepeatOp):
            yield from _loop(op)


def _dominance(block: Block, visible: set[SSAValue]) -> Iterator[Broken]:
    visible = visible | set(block.args)
    for op in block.ops:
        for value in op.operands:
            if value in visible:
                continue
            if isinstance(op, ExecuteOp) and isinstance(value.type, HandleType):
                source = value.owner.source if isinstance(value.owner, PreloadOp) else None
                what = "an operand" if source is None else _symbol(source)
                yield Broken(op, f'"{op.label.data}" executes before the preload of {what}')
            else:
                yield Broken(op, f"{_describe(op)} uses {_name(value)} before it is there")
        if isinstance(op, RepeatOp):
            yield from _dominance(op.body.block, visible)
        elif isinstance(op, ExecuteOp):
            yield from _isolated(op)
        visible |= set(op.results)


def _isolated(execute: ExecuteOp) -> Iterator[Broken]:
    for op in execute.body.walk():
        for value in op.operands:
            owner = value.owner
            inside = owner if isinstance(owner, Operation) else owner.parent_op()
            while inside is not None and inside is not execute:
                inside = inside.parent_op()
            if inside is None:
                yield Broken(
                    op,
                    f'"{execute.label.data}" reads {_name(value)}, which is not among its operands',
                )


def _consumed_once(value: SSAValue, op: Operation, what: str) -> Iterator[Broken]:
    """A handle has one use, in its own block: so each path consumes it exactly once."""
    uses = list(value.uses)
    if not uses:
        yield Broken(op, f"{what} is never consumed by an execute")
    elif len(uses) > 1:
        users = ", ".join(sorted(_describe(use.operation) for use in uses))
        yield Broken(
            op,
            f"{what} is consumed {len(uses)} times ({users})",
            ("a preload blocks exactly one execute: issue one for each",),
        )
    for use in uses:
        user = use.operation
        if isinstance(user, StoreOp):
            yield Broken(user, f"{what} is stored before an execute has waited for it")
        elif user.parent_block() is not _block_of(value):
            yield Broken(
                user,
                f"{what} is issued once but consumed in every iteration of a loop",
                ("carry the handle, or issue the preload inside of the loop",),
            )


def _loop(loop: RepeatOp) -> Iterator[Broken]:
    args, yielded = loop.body.block.args, yield_of(loop).values
    if loop.count.value.data < 1:
        yield Broken(loop, f"a loop of {loop.count.value.data} iterations")
    for i, (init, value) in enumerate(zip(loop.inits, yielded, strict=True)):
        arg, out = args[i + 1], loop.outs[i]
        if isinstance(init.type, HandleType):
            yield from _carried_handle(loop, i, init, arg, value, out)
            continue
        for what, one, block in (("enters with", init, None), ("yields", value, loop.body.block)):
            owner = one.owner
            if not isinstance(owner, ExecuteOp) or (
                block is not None and owner.parent_block() is not block
            ):
                yield Broken(
                    loop,
                    f"the loop {what} {_name(one)}, which no execute"
                    f"{' of its body' if block else ''} computes",
                    ("copy it: a carried value has an address of its own",),
                )
        for use in init.uses:
            if use.operation is not loop and not _before(use.operation, loop):
                yield Broken(
                    use.operation,
                    f"{_describe(use.operation)} reads {_name(init)}, which the loop that carries"
                    " it has overwritten",
                )
        writer = value.owner
        for use in arg.uses:
            user = use.operation
            if isinstance(writer, Operation) and user is not writer and _before(writer, user):
                yield Broken(
                    user,
                    f"{_describe(user)} reads the carried {_name(arg)} after {_describe(writer)}"
                    " has written its next value there",
                )


def _carried_handle(
    loop: RepeatOp, i: int, init: SSAValue, arg: SSAValue, value: SSAValue, out: SSAValue
) -> Iterator[Broken]:
    what = f"the carried handle {_name(arg)}"
    yield from _consumed_once(arg, loop, what)
    yield from _consumed_once(out, loop, f"the handle that leaves the loop as its result {i}")
    issue = value.owner
    if not isinstance(init.owner, PreloadOp):
        yield Broken(loop, f"{what} does not enter the loop from a preload")
    if not isinstance(issue, PreloadOp) or issue.parent_block() is not loop.body.block:
        yield Broken(loop, f"{what} is not issued again by a preload of the loop's body")
        return
    for use in arg.uses:
        user = use.operation
        if not isinstance(user, ExecuteOp):
            yield Broken(user, f"{what} is handed on without an execute consuming it")
        elif not _before(user, issue):
            yield Broken(
                issue,
                f"the preload of {_symbol(issue.source)} for the next iteration is issued before"
                f' "{user.label.data}" has consumed the last one: it would live for more than one'
                " iteration",
            )


# ---------------------------------------------------------------------- tensors in HBM


def tensors(module: ModuleOp, program: ProgramOp) -> Iterator[Broken]:
    """Preloads and stores name tensors that exist, in types and ranges that fit; HBM holds all."""
    chip, hbm = chip_of(module), hbm_tensors(module)
    total = sum(_bytes(op) for op in hbm.values())
    moves = [op for op in program.walk() if isinstance(op, PreloadOp | StoreOp)]
    # Without HBM the host fills the cores before the program starts and fetches what it stores.
    late = [op for op in moves if isinstance(op, PreloadOp) and op.init is None]
    if chip.hbm is None and late:
        yield Broken(
            late[0],
            f"chip {chip.name} has no HBM, but {_describe(late[0])} moves"
            f" {_symbol(late[0].source)} while the program runs",
            (
                f"{total:,} bytes of tensors would lie in HBM: schedule with icca-make-resident,"
                " or choose a chip that has it",
            ),
        )
        return
    if chip.hbm is not None and total > chip.hbm.capacity_bytes:
        largest = max(hbm.values(), key=_bytes)
        yield Broken(
            largest,
            f"the tensors in HBM take {total:,} bytes, chip {chip.name} has"
            f" {chip.hbm.capacity_bytes:,}",
            (f"the largest is @{largest.sym_name.data}, {_bytes(largest):,} bytes",),
        )
    written = {op.target.root_reference.data for op in moves if isinstance(op, StoreOp)}
    for name, tensor in hbm.items():
        if tensor.kind.data is HbmKind.OUTPUT and name not in written:
            yield Broken(tensor, f"the output @{name} is never stored")
    blank = {name for name, op in hbm.items() if op.kind.data is HbmKind.SCRATCH}
    for op in moves:
        if isinstance(op, PreloadOp):
            yield from _preload(op, hbm)
            for name in (op.source, op.rows):
                if name is not None and name.root_reference.data in blank:
                    yield Broken(op, f"{_describe(op)} reads {_symbol(name)} before it is stored")
        else:
            yield from _store(op, hbm)
            if op.rows is not None and op.rows.root_reference.data in blank:
                yield Broken(op, f"{_describe(op)} reads {_symbol(op.rows)} before it is stored")
            blank.discard(op.target.root_reference.data)
    for execute in executes(program):
        for op in execute.body.block.ops:
            if isinstance(op, InsertOp):
                yield from _insert(execute, op)


def _bytes(op: HbmOp) -> int:
    shape, dtype = shape_dtype(op.type)
    size = op.layers * dtype_of(dtype).itemsize
    for extent in shape:
        size *= extent
    return size


def _layer(op: PreloadOp | StoreOp, tensor: HbmOp) -> Iterator[Broken]:
    name = tensor.sym_name.data
    if op.layer is None:
        if tensor.stack is not None:
            yield Broken(op, f"{_describe(op)} does not say which of {tensor.layers} layers")
        return
    low, high = _range(op.layer)
    if low < 0 or high >= tensor.layers:
        yield Broken(
            op,
            f"{_describe(op)} reaches layers {low} to {high} of @{name}, which has {tensor.layers}",
        )


def _range(layer: SSAValue) -> tuple[int, int]:
    """The least and the largest value of a layer number."""
    if isinstance(layer.owner, LayerOp):
        low, high = (0, 0) if layer.owner.base_layer is None else _range(layer.owner.base_layer)
        offset = layer.owner.offset.value.data
        return low + offset, high + offset
    loop = layer.owner.parent_op() if isinstance(layer, BlockArgument) else None
    assert isinstance(loop, RepeatOp)
    first = loop.first.value.data
    return first, first + loop.count.value.data - 1


def _preload(op: PreloadOp, hbm: dict[str, HbmOp]) -> Iterator[Broken]:
    name = op.source.root_reference.data
    if (source := hbm.get(name)) is None:
        yield Broken(op, f"no tensor in HBM is called @{name}")
        return
    if source.kind.data is HbmKind.OUTPUT:
        yield Broken(op, f"@{name} is an output and holds nothing to preload")
    yield from _layer(op, source)
    shape, dtype = shape_dtype(tensor_of(op.result))
    wanted, source_dtype = shape_dtype(source.type)
    if op.rows is not None:
        rows = op.rows.root_reference.data
        if rows not in hbm:
            yield Broken(
                op,
                f"the rows @{rows} of the preload of @{name} are not in HBM",
                ("only a tensor in HBM can pick the rows of a preload: gather on chip instead",),
            )
            return
        picked, index_dtype = shape_dtype(hbm[rows].type)
        if dtype_of(index_dtype).kind not in "iu":
            yield Broken(op, f"@{rows} picks rows of @{name} but holds {index_dtype}")
        wanted = (*picked, *wanted[1:])
    axis, length = integer(source.axis), integer(source.length)
    if axis is not None and length is not None and len(shape) == len(wanted):
        if not length <= shape[axis] <= wanted[axis]:
            yield Broken(
                op,
                f"the preload of the state @{name} has {shape[axis]} entries; {length} are filled"
                f" of {wanted[axis]}",
            )
        wanted = (*wanted[:axis], shape[axis], *wanted[axis + 1 :])
    if (shape, dtype) != (wanted, source_dtype):
        yield Broken(
            op, f"the preload of @{name} is {dtype}{list(shape)}, not {source_dtype}{list(wanted)}"
        )


def _store(op: StoreOp, hbm: dict[str, HbmOp]) -> Iterator[Broken]:
    name = op.target.root_reference.data
    if (target := hbm.get(name)) is None:
        yield Broken(op, f"no tensor in HBM is called @{name}")
        return
    if target.kind.data in (HbmKind.INPUT, HbmKind.WEIGHT):
        yield Broken(op, f"@{name} is {target.kind.data} and may not be stored to")
    yield from _layer(op, target)
    shape, dtype = shape_dtype(op.source.type)
    wanted, target_dtype = shape_dtype(target.type)
    axis, start = integer(target.axis), integer(op.start)
    if axis is not None and start is not None and len(shape) == len(wanted):
        if start < 0 or start + shape[axis] > wanted[axis]:
            yield Broken(
                op,
                f"appends entries {start} to {start + shape[axis] - 1} to the state @{name}, which"
                f" has room for {wanted[axis]}",
                ("give the state a larger capacity",),
            )
        wanted = (*wanted[:axis], shape[axis], *wanted[axis + 1 :])
    elif op.rows is not None:
        rows = op.rows.root_reference.data
        if rows not in hbm:
            yield Broken(op, f"the rows @{rows} of the store to @{name} are not in HBM")
            return
        if axis is None:
            yield Broken(op, f"@{name} is no state: rows of it cannot be stored")
            return
        picked, index_dtype = shape_dtype(hbm[rows].type)
        if dtype_of(index_dtype).kind not in "iu" or len(picked) != 1:
            yield Broken(op, f"@{rows} picks rows of @{name} but is {index_dtype}{list(picked)}")
            return
        wanted = (*wanted[:axis], *picked, *wanted[axis + 1 :])
    if (shape, dtype) != (wanted, target_dtype):
        yield Broken(
            op,
            f"the store to @{name} is {dtype}{list(shape)}, not {target_dtype}{list(wanted)}",
        )


def _insert(execute: ExecuteOp, op: InsertOp) -> Iterator[Broken]:
    entries, _ = shape_dtype(op.entries.type)
    target, _ = shape_dtype(tensor_of(op.target))
    axis, start = op.axis.value.data, op.start.value.data
    if start < 0 or start + entries[axis] > target[axis]:
        yield Broken(
            op,
            f'"{execute.label.data}" inserts entries {start} to {start + entries[axis] - 1} into a'
            f" state operand of {target[axis]}",
        )


# ---------------------------------------------------------------------- plans


def plans(module: ModuleOp, program: ProgramOp) -> Iterator[Broken]:
    """Every execute has a legal plan; what loops carry has one layout."""
    cores = chip_of(module).cores
    planned = True
    for execute in executes(program):
        if execute.plan is None:
            planned = False
            yield Broken(
                execute,
                f'"{execute.label.data}" has no plan',
                ("run icca-schedule or icca-set-plan first",),
            )
            continue
        errors = plan_errors(execute.operator(), execute.plan.plan, cores)
        if errors:
            planned = False
            yield Broken(
                execute,
                f'the plan of "{execute.label.data}" is not legal: {errors[0]}',
                tuple(errors[1:]),
            )
    if not planned:
        return
    for op in program.walk():
        if not isinstance(op, RepeatOp):
            continue
        for i, (init, value) in enumerate(zip(op.inits, yield_of(op).values, strict=True)):
            if isinstance(init.type, HandleType):
                yield from _one_handle_layout(op, i)
            elif layout_of(init) != layout_of(value):
                yield Broken(
                    value.owner if isinstance(value.owner, Operation) else op,
                    f"the loop carries {_name(init)} in one layout and yields {_name(value)} in"
                    " another",
                    (
                        f"enters as {LayoutAttr(layout_of(init))}",
                        f"yielded as {LayoutAttr(layout_of(value))}",
                    ),
                )


def _one_handle_layout(loop: RepeatOp, i: int) -> Iterator[Broken]:
    layouts = []
    for value in (loop.body.block.args[i + 1], loop.outs[i]):
        for use in value.uses:
            if isinstance(use.operation, ExecuteOp):
                layout = sharding_of(use.operation).preload_layout(use.index)
                layouts.append((use.operation, layout))
    for execute, layout in layouts[1:]:
        if layout != layouts[0][1]:
            yield Broken(
                execute,
                f'"{execute.label.data}" consumes a carried preload in another preload-state than'
                f' "{layouts[0][0].label.data}" inside of the loop',
                ("the executes that consume one carried handle need the same plan",),
            )


# ---------------------------------------------------------------------- memory


def memory(module: ModuleOp, allocated: bool | None) -> Iterator[Broken]:
    """Live bytes fit each core; with offsets, no two live buffers share a byte."""
    program = program_of(module)
    try:
        live = liveness(module)
        offsets = {p.buffer.name: p.offset for p in live.placed}
        at, most, largest = peak(live.problem)
    except (PassFailedException, ValueError) as error:
        yield Broken(program, str(error))
        return
    if allocated is None:
        allocated = any(o is not None for o in offsets.values())
    owners = {p.buffer.name: p for p in live.placed}
    if most > live.problem.capacity_bytes and largest:
        yield Broken(
            owners[largest[0].name].uses[0][0],
            f"{most:,} bytes are live on each core during {_running(live, at)}, it has"
            f" {live.problem.capacity_bytes:,}",
            tuple(f"{b.size_bytes:,} bytes  {b.name}" for b in largest[:5]),
        )
    if not allocated:
        return
    complete = True
    for placed in live.placed:
        if (broken := _address(placed)) is not None:
            complete = False
            yield broken
    if not complete:
        return
    for violation in check(live.problem, {n: o for n, o in offsets.items() if o is not None}):
        execute = owners[violation.name].uses[0][0]
        note = (
            (f"during {_running(live, violation.time_range[0])}",) if violation.time_range else ()
        )
        yield Broken(execute, f'"{execute.label.data}": {violation}', note)


def _address(placed: Placed) -> Broken | None:
    """What is wrong with where one buffer lies, if anything."""
    execute = placed.uses[0][0]
    name, size = placed.buffer.name, placed.buffer.size_bytes
    offsets = {placed.offset}
    for user, use, i in placed.uses:
        if use == "preload":
            offsets |= {integer(p.at) for p in defining_preloads(user.ins[i])}
    if offsets == {None}:
        return Broken(
            execute,
            f'"{execute.label.data}": buffer {name} ({size:,} bytes) has no offset',
            ("run icca-allocate",),
        )
    if len(offsets) > 1 or -1 in offsets:
        return Broken(
            execute,
            f'"{execute.label.data}": buffer {name} ({size:,} bytes) has different offsets where it'
            " enters the loop, in it and behind it",
        )
    return None


def _running(live: Liveness, time: int) -> str:
    """The operation that runs at a point of time."""
    inside = [
        (start, op)
        for op, start in live.times.items()
        if start <= time and isinstance(op, ExecuteOp | PreloadOp | StoreOp)
    ]
    if not inside:
        return "the start of the program"
    return _describe(max(inside, key=lambda pair: pair[0])[1])


# ---------------------------------------------------------------------- words


def _block_of(value: SSAValue) -> Block | None:
    if isinstance(value, OpResult):
        return value.op.parent_block()
    assert isinstance(value, BlockArgument)
    return value.owner


def _before(a: Operation, b: Operation) -> bool:
    """Whether `a` comes before the operation of its block that is, or contains, `b`."""
    block, inner = a.parent_block(), b
    while inner.parent_block() is not block:
        parent = inner.parent_op()
        if parent is None:
            return True
        inner = parent
    assert block is not None
    return block.get_operation_index(a) < block.get_operation_index(inner)


def _symbol(ref: object) -> str:
    root = getattr(ref, "root_reference", None)
    return "@" + (root.data if root is not None else str(ref))


def _name(value: SSAValue) -> str:
    if isinstance(value.type, IndexType):
        return "the layer number"
    return f"%{value.name_hint}" if value.name_hint else "a value"


def _describe(op: Operation) -> str:
    match op:
        case ExecuteOp():
            return f'"{op.label.data}"'
        case PreloadOp():
            return f"the preload of {_symbol(op.source)}"
        case StoreOp():
            return f"the store to {_symbol(op.target)}"
        case YieldOp():
            return "the loop's yield"
        case RepeatOp():
            return "the loop"
        case _:
            return op.name
