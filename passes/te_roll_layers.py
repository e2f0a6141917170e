"""`te-roll-layers`: identical layers become one `te.repeat` over stacked weights and states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseIntOrFPElementsAttr,
    IntegerAttr,
    ModuleOp,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.passes import ModulePass

from elk_ir.dialects.element_types import array_from_dense, dense_from_array
from elk_ir.dialects.location import fuse_locations
from elk_ir.dialects.te import (
    AppendOp,
    GlobalOp,
    LoadOp,
    RepeatOp,
    UpdateOp,
    WeightAttr,
    YieldOp,
)
from elk_ir.dialects.te.structure import GlobalKind, new_repeat_body
from elk_ir.frontend.weights import stacked_ref
from elk_ir.passes.te_canonicalize import erase_dead_code
from elk_ir.passes.te_layers import (
    Layer,
    Signatures,
    layers_of,
    loopable,
    runs,
    same_layer,
    segment_keys,
    streams,
)
from elk_ir.passes.te_support import (
    add_global,
    fresh_symbol,
    functions,
    globals_of,
    new_global,
    symbol_of,
)

MAX_LOOPS = 16
MAX_STREAMS = 4
MAX_CANDIDATES = 64


@dataclass(frozen=True)
class TeRollLayersPass(ModulePass):
    """Roll runs of at least `min_layers` identical layers with weights of their own."""

    name = "te-roll-layers"

    min_layers: int = 2

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrites `op` in place."""
        for function in functions(op):
            for _ in range(MAX_LOOPS):
                if not _roll_once(op, function.body.block, max(2, self.min_layers)):
                    break
        erase_dead_code(op)


def _roll_once(module: ModuleOp, block: Block, minimum: int) -> bool:
    """Roll the most rewarding run of the block, if there is one."""
    signatures = Signatures()
    table = globals_of(module)
    for stream in streams(block, minimum)[:MAX_STREAMS]:
        keys = segment_keys(stream, signatures)
        for n, run in enumerate(runs(keys, stream.sizes, minimum)):
            if n >= MAX_CANDIDATES:
                break
            layers = layers_of(stream, run)
            first = layers[0]
            if not all(same_layer(first, layer, signatures, loopable) for layer in layers[1:]):
                continue
            stacks = _stacks(layers, table)
            if stacks is not None:
                _roll(module, block, layers, stacks, table)
                return True
    return False


Names = tuple[str, ...]


def _global_named(op: Operation) -> str | None:
    if isinstance(op, LoadOp):
        return symbol_of(op)
    return op.state.root_reference.data if isinstance(op, AppendOp | UpdateOp) else None


def _stacks(layers: Sequence[Layer], table: dict[str, GlobalOp]) -> dict[Names, GlobalOp] | None:
    """The stacked global for each group of globals that the layers read in the same place; None
    when some group can't be stacked, or the layers have no weights of their own."""
    stacks: dict[Names, GlobalOp] = {}
    states: set[str] = set()
    taken = set(table)
    for ops in zip(*(layer.ops for layer in layers), strict=True):
        names = tuple(name for op in ops if (name := _global_named(op)) is not None)
        if not names or names in stacks:
            continue
        members = [table[name] for name in names]
        if len(set(names)) == 1:
            if members[0].kind.data is GlobalKind.STATE:
                return None
            continue
        if members[0].kind.data is GlobalKind.STATE:
            # A state belongs to one layer.
            if len(set(names)) != len(names) or states & set(names):
                return None
            states.update(names)
        stacked = _stacked(members, fresh_symbol(_common_name(names), taken))
        if stacked is None:
            return None
        taken.add(stacked.sym_name.data)
        fuse_locations(members, stacked)
        stacks[names] = stacked
    weights = [s for s in stacks.values() if s.kind.data is GlobalKind.WEIGHT]
    return stacks if weights else None


def _common_name(names: Names) -> str:
    """The name without the layer's number: what all names start and end with."""
    first, last = min(names), max(names)
    head = 0
    while head < min(len(first), len(last)) and first[head] == last[head]:
        head += 1
    tail = 0
    while (
        tail < min(map(len, names)) - head
        and len({name[len(name) - tail - 1] for name in names}) == 1
    ):
        tail += 1
    prefix = names[0][:head].rstrip("._")
    suffix = names[0][len(names[0]) - tail :].lstrip("._")
    return f"{prefix}.{suffix}" if len(suffix) > 2 and prefix else names[0]


def _stacked(members: Sequence[GlobalOp], symbol: str) -> GlobalOp | None:
    """One global with the members as its layers."""
    first = members[0]
    if any(m.kind != first.kind or m.type != first.type or m.layers != 1 for m in members):
        return None
    properties: dict[str, Attribute | None] = {
        "kind": first.kind,
        "type": first.type,
        "stack": IntegerAttr(len(members), i64),
    }
    if first.kind.data is GlobalKind.STATE:
        if any(m.axis != first.axis or m.length != first.length for m in members):
            return None
        properties |= {"axis": first.axis, "length": first.length}
        for name in ("inputs", "outputs"):
            lists = [m.properties.get(name) for m in members]
            if all(lists):
                entries = [e for a in lists if isinstance(a, ArrayAttr) for e in a.data]
                properties[name] = ArrayAttr(entries)
            elif any(lists):
                return None
        return new_global(symbol, **properties)
    value = stacked_value([m.value for m in members])
    return None if value is None else new_global(symbol, **properties, value=value)


def stacked_value(values: Sequence[Attribute | None]) -> Attribute | None:
    """Weights or constants one behind another on a new first axis; None if they don't agree."""
    if all(isinstance(v, WeightAttr) for v in values):
        refs = [v.to_ref() for v in values if isinstance(v, WeightAttr)]
        stacked = stacked_ref(refs)
        return None if stacked is None else WeightAttr.get(stacked)
    if all(isinstance(v, DenseIntOrFPElementsAttr) for v in values):
        arrays = [array_from_dense(v) for v in values if isinstance(v, DenseIntOrFPElementsAttr)]
        return dense_from_array(np.stack(arrays))
    return None


def _roll(
    module: ModuleOp,
    block: Block,
    layers: Sequence[Layer],
    stacks: dict[Names, GlobalOp],
    table: dict[str, GlobalOp],
) -> None:
    first, last = layers[0], layers[-1]
    for stacked in stacks.values():
        add_global(module, stacked)
    body = new_repeat_body([first.entry])
    inside = body.block
    layer_arg, carried = inside.args
    layer_arg.name_hint = "layer"
    carried.name_hint = first.entry.name_hint
    values: dict[SSAValue, SSAValue] = {first.entry: carried}
    for ops in zip(*(layer.ops for layer in layers), strict=True):
        template = ops[0]
        names = tuple(name for op in ops if (name := _global_named(op)) is not None)
        stacked = stacks.get(names) if names else None
        if stacked is None:
            new = template.clone(values)
        elif isinstance(template, LoadOp):
            new = LoadOp(stacked.sym_name.data, template.result.type, layer_arg)
        elif isinstance(template, UpdateOp):
            entries = values.get(template.entries, template.entries)
            rows = values.get(template.rows, template.rows)
            new = UpdateOp(entries, stacked.sym_name.data, rows, layer_arg)
        else:
            assert isinstance(template, AppendOp)
            entries = values.get(template.entries, template.entries)
            symbol = stacked.sym_name.data
            new = AppendOp(entries, symbol, template.result.type, layer_arg)
        fuse_locations(ops, new)
        for old, result in zip(template.results, new.results, strict=True):
            values[old] = result
            result.name_hint = old.name_hint
        inside.add_op(new)
    inside.add_op(YieldOp(values[first.exit]))
    repeat = RepeatOp(len(layers), [first.entry], body)
    repeat.location = first.ops[0].location
    order = {op: i for i, op in enumerate(block.ops)}
    block.insert_op_after(repeat, max(last.ops, key=order.__getitem__))
    replace_value_outside(last, repeat.results[0])
    gone = sorted((op for layer in layers for op in layer.ops), key=order.__getitem__)
    for op in reversed(gone):
        op.detach()
        op.erase()
    for names, stacked in stacks.items():
        if stacked.kind.data is GlobalKind.STATE:
            for name in names:
                table[name].detach()
                table[name].erase()


def replace_value_outside(layer: Layer, new: SSAValue) -> None:
    """Let what reads a layer's exit behind it read `new`."""
    inside = set(layer.ops)
    new.name_hint = layer.exit.name_hint
    layer.exit.replace_uses_with_if(new, lambda use: use.operation not in inside)
