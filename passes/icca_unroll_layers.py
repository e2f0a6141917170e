"""`icca-unroll-layers`: loops whose bodies are several layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseIntOrFPElementsAttr,
    IntegerAttr,
    ModuleOp,
    SymbolRefAttr,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from elk_ir.dialects.element_types import array_from_dense, dense_from_array
from elk_ir.dialects.icca.attrs import HandleType
from elk_ir.dialects.icca.ops import (
    HbmOp,
    LayerOp,
    PreloadOp,
    ProgramOp,
    RepeatOp,
    StoreOp,
    YieldOp,
    new_block,
)
from elk_ir.dialects.location import copy_location
from elk_ir.dialects.weight import WeightAttr
from elk_ir.frontend.weights import every_layer
from elk_ir.passes.icca_support import hbm_tensors, layer_index, program_of, symbol, yield_of


@dataclass(frozen=True)
class IccaUnrollLayersPass(ModulePass):
    """Write the body of every layer loop out `factor` times.

        elk-opt model.mlir -p 'icca-unroll-layers{factor=2},icca-schedule{policy=elk-full}'

    A stacked tensor that such a loop reads or writes is split into `factor` stacks, since each copy
    of the body has layers of its own; layers that are left over follow the loop. A preload that the
    loop carries then has an address for each copy, so that fewer bytes may lie idle between them:
    `icca-schedule` unrolls by itself where it sees that. Loops of fewer layers stay, and loops that
    carry preloads or share tensors with those that stay. Invariant: the numbers. Fails if no loop
    is left to unroll.
    """

    name = "icca-unroll-layers"

    factor: int = 2

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.factor < 2:
            raise PassFailedException(f"icca-unroll-layers: factor is 2 or more, not {self.factor}")
        if not unroll_layers(op, self.factor):
            raise PassFailedException(
                f"icca-unroll-layers: no loop has {self.factor} layers or more and carries no"
                " preloads yet: unroll before preloads are carried"
            )


def unroll_layers(module: ModuleOp, factor: int) -> int:
    """Unroll the loops of a module that can be; how many these are."""
    program, hbm = program_of(module), hbm_tensors(module)
    loops = _unrollable(program, hbm, factor)
    names = {
        _tensor(op)
        for loop in loops
        for op in _layered(loop)
        if op.layer is not None and layer_index(op.layer)[0] is loop.body.block.args[0]
    }
    stacks = _split(module, hbm, names, factor)
    for op in list(_layered(program)):
        # What loops read is rewritten in the copies of their bodies.
        if _tensor(op) in stacks and op.layer is not None and layer_index(op.layer)[0] is None:
            _set_layer(op, op, stacks, layer_index(op.layer)[1], None, {})
    for loop in loops:
        _unroll(loop, factor, stacks)
    return len(loops)


Layered = PreloadOp | StoreOp


def _layered(inside: Operation) -> Iterator[Layered]:
    """The operations that move a layer of a stack, or a tensor without one."""
    return (op for op in inside.walk() if isinstance(op, PreloadOp | StoreOp))


def _tensor(op: Layered) -> str:
    return (op.source if isinstance(op, PreloadOp) else op.target).root_reference.data


def _unrollable(program: ProgramOp, hbm: Mapping[str, HbmOp], factor: int) -> list[RepeatOp]:
    """The loops that can be unrolled, together."""
    loops = [
        loop
        for loop in program.walk()
        if isinstance(loop, RepeatOp)
        and loop.count.value.data >= factor
        and not any(isinstance(op, RepeatOp) for op in loop.body.block.ops)
        and not any(isinstance(v.type, HandleType) for v in loop.inits)
    ]
    while True:
        counters = {loop.body.block.args[0] for loop in loops}
        # Tensors of which some layer is not known up to a multiple of the factor.
        kept = {op.rows.root_reference.data for op in _layered(program) if op.rows is not None}
        for op in _layered(program):
            base = None if op.layer is None else layer_index(op.layer)[0]
            if base is not None and base not in counters:
                kept.add(_tensor(op))
        left = [
            loop
            for loop in loops
            if all(
                op.layer is None or (_tensor(op) not in kept and _tensor(op) in hbm)
                for op in _layered(loop)
            )
        ]
        if len(left) == len(loops):
            return loops
        loops = left


# ---------------------------------------------------------------------- stacks


def _split(
    module: ModuleOp, hbm: Mapping[str, HbmOp], names: set[str], factor: int
) -> dict[str, list[str]]:
    """Stack k of a tensor has its layers k, k + factor, …; the names of these stacks."""
    found: dict[str, list[str]] = {}
    taken = set(hbm)
    for name, op in hbm.items():
        if name not in names:
            continue
        found[name] = [symbol(f"{name}.{k}", taken) for k in range(factor)]
        for k, new in enumerate(found[name]):
            module.body.block.insert_op_before(_every(op, new, k, factor), op)
        op.detach()
        op.erase()
    return found


def _every(op: HbmOp, name: str, first: int, step: int) -> HbmOp:
    """The stack `name` of the layers `first`, `first` + `step`, … of a stack."""
    layers = op.layers
    new = op.clone()
    properties: dict[str, Attribute] = {
        "sym_name": SymbolRefAttr(name).root_reference,
        "stack": IntegerAttr(len(range(first, layers, step)), i64),
    }
    for key in ("inputs", "outputs"):
        names = op.properties.get(key)
        if isinstance(names, ArrayAttr):
            properties[key] = ArrayAttr(names.data[first::step])
    for key in ("steps", "value"):
        value = op.properties.get(key)
        if isinstance(value, DenseIntOrFPElementsAttr):
            properties[key] = dense_from_array(array_from_dense(value)[first::step])
        elif isinstance(value, WeightAttr):
            properties[key] = WeightAttr.get(every_layer(value.to_ref(), layers, first, step))
    new.properties |= properties
    return new


def _set_layer(
    op: Layered,
    like: Layered,
    stacks: Mapping[str, list[str]],
    layer: int,
    counter: SSAValue | None,
    known: dict[int, SSAValue],
) -> None:
    """Let `op` move what `like` does of layer `layer` + factor · `counter`. known: layers of stacks
    that stand in front of `op`, by what is added to the counter."""
    names = stacks[_tensor(like)]
    rest, offset = layer % len(names), layer // len(names)
    target = SymbolRefAttr(names[rest])
    op.properties["source" if isinstance(op, PreloadOp) else "target"] = target
    index = known.get(offset, None if offset else counter)
    if index is None:
        new = LayerOp(offset, counter)
        copy_location(op, new)
        block = op.parent_block()
        assert block is not None
        block.insert_op_before(new, op)
        index = known[offset] = new.result
    assert op.layer is not None
    op.operands[list(op.operands).index(op.layer)] = index


# ---------------------------------------------------------------------- loops


def _unroll(loop: RepeatOp, factor: int, stacks: Mapping[str, list[str]]) -> None:
    body, block = loop.body.block, loop.parent_block()
    assert block is not None
    first, count = loop.first.value.data, loop.count.value.data
    turns = count // factor
    inside = new_block(body.args)
    values: list[SSAValue] = list(inside.args[1:])
    for k in range(factor):
        values = _copy(body, inside, values, stacks, first % factor + k, inside.args[0])
    ending = YieldOp(*values)
    copy_location(yield_of(loop), ending)
    inside.add_op(ending)
    new = RepeatOp(first // factor, turns, list(loop.inits), Region(inside))
    copy_location(loop, new)
    for out, old in zip(new.outs, loop.outs, strict=True):
        out.name_hint = old.name_hint
    outs: list[SSAValue] = list(new.outs)
    rest = Block()
    for layer in range(first + turns * factor, first + count):
        outs = _copy(body, rest, outs, stacks, layer, None)
    behind = list(rest.ops)
    for op in behind:
        op.detach()
    block.insert_ops_before([new, *behind], loop)
    for old, out in zip(loop.outs, outs, strict=True):
        old.replace_all_uses_with(out)
    loop.detach()
    loop.erase()


def _copy(
    body: Block,
    into: Block,
    values: list[SSAValue],
    stacks: Mapping[str, list[str]],
    layer: int,
    counter: SSAValue | None,
) -> list[SSAValue]:
    """A copy of `body`, at the end of `into`, for layer `layer` + factor · `counter` and carried
    `values`; what it yields."""
    mapping: dict[SSAValue, SSAValue] = dict(zip(body.args[1:], values, strict=True))
    known: dict[int, SSAValue] = {}
    for op in body.ops:
        if isinstance(op, YieldOp):
            return [mapping.get(v, v) for v in op.values]
        if isinstance(op, LayerOp) and layer_index(op.result)[0] is not None:
            continue
        new = op.clone(mapping)
        into.add_op(new)
        for old, result in zip(op.results, new.results, strict=True):
            result.name_hint = old.name_hint
        if isinstance(op, PreloadOp | StoreOp) and op.layer is not None:
            base, offset = layer_index(op.layer)
            if base is not None:
                assert isinstance(new, PreloadOp | StoreOp)
                _set_layer(new, op, stacks, layer + offset, counter, known)
    raise AssertionError("the body of a loop ends with icca.yield")
