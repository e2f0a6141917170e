"""Several chips: the report says how much crosses between them; the program moves as much."""

from __future__ import annotations

from math import prod

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block

import elk_ir
from elk_ir.dialects import ipu
from elk_ir.dialects.types import shape_dtype
from elk_ir.numerics.body import dtype_of
from elk_ir.plan.moves import moves


def model() -> onnx.ModelProto:
    """Two products, wide enough for a grid over all cores."""
    rng = np.random.default_rng(7)
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in (("w", (64, 96)), ("v", (96, 64)))
    ]
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["p"], name="first"),
            helper.make_node("MatMul", ["p", "v"], ["y"], name="second"),
        ],
        "two",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [16, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [16, 64])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def moved_bytes(module: ModuleOp, cores_per_chip: int) -> tuple[int, int]:
    """Bytes that a run moves from core to core, and from chip to chip, counted from the boxes."""
    variables = {op.sym_name.data: op for op in module.walk() if isinstance(op, ipu.VarOp)}
    total = crossed = 0

    def count(source: np.ndarray, target: np.ndarray, size: np.ndarray) -> None:
        nonlocal total, crossed
        total += int(size[source != target].sum())
        crossed += int(size[source // cores_per_chip != target // cores_per_chip].sum())

    def block(ops: Block, step: int) -> None:
        for op in ops.ops:
            if isinstance(op, ipu.RepeatOp):
                first = op.first.value.data
                for t in range(first, first + op.count.value.data):
                    block(op.body.block, t)
            elif isinstance(op, ipu.ReshardOp):
                pair = [variables[s.root_reference.data] for s in (op.source, op.target)]
                where = () if op.axis is None else (op.axis.value.data,)
                start = () if op.start is None else (op.start.value.data,)
                plan = moves(pair[0].layout.data, pair[1].layout.data, *where, *start)
                item = dtype_of(shape_dtype(pair[1].type)[1]).itemsize
                count(plan.source_core, plan.target_core, plan.elements * item)
            elif isinstance(op, ipu.ExchangeOp):
                source = variables[op.source.data.name]
                layout, slots = source.layout.data, op.source.data.slots
                kept = (
                    (n for e, n in zip(slots, layout.slots, strict=False) if e is None)
                    if slots
                    else layout.slots
                )
                each = prod(kept) * prod(layout.block_shape)
                each *= dtype_of(shape_dtype(source.type)[1]).itemsize
                cores = np.arange(variables[op.target.data.name].layout.data.cores)
                sender = np.broadcast_to(op.map.data.evaluate(c=cores, t=step, s=0), cores.shape)
                count(sender, cores, np.full(cores.shape, each))

    program = next(op for op in module.walk() if isinstance(op, ipu.ProgramOp))
    block(program.body.block, 0)
    return total, crossed


def test_the_report_says_what_crosses_chips() -> None:
    """Two chips of eight cores: some of what is exchanged goes over the link."""
    program = elk_ir.compile(model(), chip="test-2x8", policy="basic")
    total, crossed = moved_bytes(program.target, program.chip.cores_per_chip)
    assert 0 < crossed < total
    assert program.report["exchange_bytes"] == total
    assert program.report["chip_link_bytes"] == crossed


def test_one_chip_has_nothing_to_cross() -> None:
    """The same model on one chip."""
    program = elk_ir.compile(model(), chip="test-16", policy="basic")
    total, crossed = moved_bytes(program.target, program.chip.cores_per_chip)
    assert (program.report["exchange_bytes"], program.report["chip_link_bytes"]) == (total, 0)
    assert crossed == 0
