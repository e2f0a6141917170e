"""Bytes that the cores of a stage really hold, from the plans of the operators that read them.

`northpole-map-stages` counts before anything is placed; this counts what was placed. Elements have
the bits of their type where that is an integer, else those of the precision that the program is
meant for: weights of products, KV entries, and fp16 for everything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from elk_ir.dialects import northpole
from elk_ir.dialects.icca.attrs import HbmKind
from elk_ir.dialects.types import shape_dtype
from elk_ir.northpole.network import Precision
from elk_ir.northpole.place import where
from elk_ir.numerics.body import dtype_of
from elk_ir.plan.layout import Layout
from elk_ir.plan.sharding import Sharding, sharding

_INTEGERS = {"int8": 8, "uint8": 8, "int4": 4, "uint4": 4, "int2": 2, "uint2": 2, "bool": 1}


def bits_of(dtype: str) -> int:
    """Bits of an element as it is stored."""
    return _INTEGERS.get(dtype, 8 * dtype_of(dtype).itemsize)


@dataclass(frozen=True)
class Held:
    """A tensor's layer on the cores of a stage, in `layout`, for its reader's sharding."""

    tensor: str
    layer: int
    kind: HbmKind
    layout: Layout
    sharding: Sharding
    divided: int | None
    bits: int


def reader(value: SSAValue) -> tuple[northpole.ExecuteOp, int] | None:
    """The first operator that reads `value`, and as which operand."""
    for use in value.uses:
        if isinstance(use.operation, northpole.ExecuteOp):
            return use.operation, use.index
    return None


def shard(op: northpole.ExecuteOp) -> Sharding:
    """All layouts of a placed operator."""
    return sharding(op.operator(), op.partition())


def held_by(
    stage: northpole.StageOp,
    blocks: dict[str, northpole.BlockOp],
    kinds: dict[str, HbmKind],
    precision: Precision,
) -> Iterator[Held]:
    """What the cores of a stage keep, each (tensor, layer, layout) once."""
    seen: set[tuple[str, int, Layout]] = set()
    for call in stage.calls:
        block = blocks[call.block.root_reference.data]
        for op in northpole.contents(block.body):
            if not isinstance(op, northpole.ExecuteOp):
                continue
            for v, value in enumerate(op.ins):
                found = _held(op, v, value, call, kinds, precision, block.head is not None)
                if found is not None and (key := (found.tensor, found.layer, found.layout)) not in (
                    seen
                ):
                    seen.add(key)
                    yield found


def _held(
    op: northpole.ExecuteOp,
    v: int,
    value: SSAValue,
    call: northpole.CallOp,
    kinds: dict[str, HbmKind],
    precision: Precision,
    head: bool,
) -> Held | None:
    owner = value.owner
    if isinstance(owner, northpole.ResidentOp):
        name = owner.source.root_reference.data
    elif isinstance(owner, northpole.AppendOp):
        name = owner.state.root_reference.data
    else:
        return None
    layer = 0 if owner.layer is None else call.layer.value.data
    bits = bits_of(shape_dtype(value)[1])
    task = op.task.data
    if kinds[name] is HbmKind.STATE:
        bits = min(bits, precision.kv_bits)
    elif task.matrix is not None and v == 1:
        bits = min(bits, precision.head_bits if head else precision.weight_bits)
    else:
        bits = min(bits, 16)
    s = shard(op)
    return Held(name, layer, kinds[name], s.execute_layout(v), s, op.divided, bits)


def elements(layout: Layout) -> np.ndarray:
    """Elements of the tensor on each core of a layout: (cores,)."""
    if not layout.axes:
        return layout.held.reshape(layout.cores, -1).sum(axis=1)
    sizes = (layout.bounds[..., 1] - layout.bounds[..., 0]).prod(axis=-1)
    return sizes.reshape(layout.cores, -1).sum(axis=1)


def copies_of(program: northpole.ProgramOp) -> float:
    """How often the caches of a program are there: its users over those of the graph, which need
    not be a micro-batch of the map; at least one pass of the graph is."""
    return max(1.0, program.users.value.data / program.batch.value.data)


def core_bytes(
    stage: northpole.StageOp, held: Iterator[Held], cores: int, copies: float
) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of weights and constants, and of the states of all users (`copies`), on each core: two
    arrays (cards of the stage, cores)."""
    ways = len(stage.cards)
    fixed, states = np.zeros((ways, cores)), np.zeros((ways, cores))
    for each in held:
        card, core = where(each.sharding, ways, each.divided)
        size = np.ceil(elements(each.layout) * each.bits / 8)
        state = each.kind is HbmKind.STATE
        target, times = (states, copies) if state else (fixed, 1)
        if each.divided is None:
            target[:, core] += size * times
        else:
            target[card, core] += size * times
    return fixed, states


def working_bytes(op: northpole.ExecuteOp) -> int:
    """The most bytes that an operator takes on a core beside what stays there: operands that move,
    partial and gathered sums, results."""
    s = shard(op)
    operator = s.op
    total = 0
    for v, value in enumerate(op.ins):
        if isinstance(value.owner, northpole.ResidentOp | northpole.AppendOp):
            continue
        total += -(-s.execute_layout(v).elements * bits_of(operator.operands[v].dtype) // 8)
    for i, stat in enumerate(operator.stats):
        size = dtype_of(stat.dtype).itemsize
        total += size * s.stat_layout(i).elements
        if s.ways > 1:
            total += size * s.gathered_layout(i).elements
    for i, access in enumerate(operator.results):
        total += -(-s.result_layout(i).elements * bits_of(access.dtype) // 8)
    return total


def blocks_of(module: ModuleOp) -> dict[str, northpole.BlockOp]:
    """The blocks of a module by name."""
    return {op.sym_name.data: op for op in module.ops if isinstance(op, northpole.BlockOp)}


def tensors_of(module: ModuleOp) -> dict[str, northpole.TensorOp]:
    """The tensors of a module by name."""
    return {op.sym_name.data: op for op in module.ops if isinstance(op, northpole.TensorOp)}
