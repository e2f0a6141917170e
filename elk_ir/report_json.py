"""`report.json`: what was compiled, what it takes, and how fast it can be at best.

docs/commands.md documents every field; a field's name carries its unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block

from elk_ir import __version__
from elk_ir.compiler import Signature, policy_of_module
from elk_ir.dialects import icca, ipu
from elk_ir.dialects.icca.attrs import HbmKind
from elk_ir.dialects.location import node_names
from elk_ir.dialects.types import shape_dtype
from elk_ir.numerics.body import dtype_of
from elk_ir.numerics.tensors import TensorSpec
from elk_ir.plan.layout import Layout

if TYPE_CHECKING:
    from elk_ir.chips import Chip

RUN_DEPENDENT = ("compile_cpu_s", "compile_peak_rss_bytes")
"""Fields that differ between two compilations of the same model; all others are equal."""

MATRIX_KINDS = ("attention", "contract", "conv")
"""Operators whose work runs on the multiply-add units at their peak rate, at best."""


def build_report(
    program: ModuleOp,
    target: ModuleOp,
    operators: list[dict[str, Any]],
    *,
    chip: Chip,
    target_name: str,
    model: str,
    signature: Signature,
    dims: Mapping[str, int],
    compile_cpu_s: float,
    compile_peak_rss_bytes: int,
) -> dict[str, Any]:
    """The report of a compiled program: `program` is icca, `target` what it was lowered to."""
    traffic = count_traffic(target)
    bounds = rooflines_s(program, traffic, chip)
    return {
        "elk_ir_version": __version__,
        "model": model,
        "chip": chip.name,
        "chip_hash": chip.content_hash(),
        "target": target_name,
        "policy": policy_of_module(program),
        "dims": dict(sorted(dims.items())),
        "lower_bound_s": max(bounds.values()),
        "rooflines_s": bounds,
        "hbm_bytes": traffic.hbm_bytes,
        "hbm_footprint_bytes": hbm_footprint_bytes(program),
        "flops": float(sum(matrix_flops(program).values())),
        "sram_peak_bytes": sram_peak_bytes(target),
        "sram_capacity_bytes": chip.usable_sram_per_core_bytes,
        "inputs": [_spec_json(s) for s in signature.inputs],
        "outputs": [_spec_json(s) for s in signature.outputs],
        "states": state_table(program),
        "operators": operators,
        "compile_cpu_s": compile_cpu_s,
        "compile_peak_rss_bytes": compile_peak_rss_bytes,
    }


def _spec_json(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "dtype": spec.dtype, "shape": list(spec.shape)}


def signature_from_report(report: Mapping[str, Any]) -> Signature:
    """The inverse of what `build_report` writes of a signature. Raises KeyError, TypeError."""

    def specs(key: str) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(str(e["name"]), str(e["dtype"]), tuple(int(n) for n in e["shape"]))
            for e in report[key]
        )

    return Signature(specs("inputs"), specs("outputs"))


# ---------------------------------------------------------------------- HBM and SRAM


def hbm_tensors(module: ModuleOp) -> list[icca.HbmOp | ipu.RemoteOp]:
    """The tensors that a program keeps in HBM."""
    return [op for op in module.body.block.ops if isinstance(op, icca.HbmOp | ipu.RemoteOp)]


def hbm_tensor_sizes(module: ModuleOp) -> list[tuple[str, int]]:
    """Name and bytes of every tensor that a program keeps in HBM, stacked layers included."""
    sizes: list[tuple[str, int]] = []
    for op in hbm_tensors(module):
        shape, dtype = shape_dtype(op.type)
        sizes.append((op.sym_name.data, op.layers * prod(shape) * dtype_of(dtype).itemsize))
    return sizes


def hbm_footprint_bytes(module: ModuleOp) -> int:
    """Bytes that a program keeps in HBM: weights, states, inputs and outputs."""
    return sum(size for _, size in hbm_tensor_sizes(module))


def sram_peak_bytes(module: ModuleOp) -> int:
    """The highest byte address, plus one, that an ipu program uses on any core."""
    return max(
        (
            op.at.value.data + op.bytes.value.data
            for op in module.body.block.ops
            if isinstance(op, ipu.VarOp)
        ),
        default=0,
    )


def state_table(program: ModuleOp) -> list[dict[str, Any]]:
    """The states of an icca program: shape of one layer, where it grows, and its ONNX names."""
    table: list[dict[str, Any]] = []
    for op in program.body.block.ops:
        if not isinstance(op, icca.HbmOp) or op.kind.data is not HbmKind.STATE:
            continue
        assert op.axis is not None and op.length is not None
        shape, dtype = shape_dtype(op.type)
        axis = op.axis.value.data
        table.append(
            {
                "name": op.sym_name.data,
                "dtype": dtype,
                "shape": list(shape),
                "layers": op.layers,
                "axis": axis,
                "capacity": shape[axis],
                "length": op.length.value.data,
                "inputs": [n.data for n in op.inputs or ()],
                "outputs": [n.data for n in op.outputs or ()],
            }
        )
    return table


# ---------------------------------------------------------------------- operators


def operator_table(program: ModuleOp) -> list[dict[str, Any]]:
    """One row for each execute of an icca program, in program order: its nodes, grid, plan, and
    the most bytes that its buffers take on a core."""
    from elk_ir.passes.icca_support import buffers_of, plan_of
    from elk_ir.plan.buffers import peak_bytes

    rows: list[dict[str, Any]] = []
    for op, count in executes(program):
        operator, plan = op.operator(), plan_of(op)
        grid = {d.name: f for d, f in zip(operator.dims, plan.grid, strict=True)}
        rows.append(
            {
                "name": op.label.data,
                "nodes": list(node_names(op)),
                "kind": operator.kind,
                "count": count,
                "extents": {d.name: d.extent for d in operator.dims},
                "grid": grid,
                "cores": plan.cores,
                "sram_bytes": peak_bytes(buffers_of(op)),
                "flops": float(operator.flops),
                "plan": str(op.plan),
            }
        )
    return rows


def executes(program: ModuleOp) -> Iterator[tuple[icca.ExecuteOp, int]]:
    """Every execute of an icca program, in order, and how often it runs."""

    def visit(block: Block, count: int) -> Iterator[tuple[icca.ExecuteOp, int]]:
        for op in block.ops:
            if isinstance(op, icca.ExecuteOp):
                yield op, count
            elif isinstance(op, icca.RepeatOp):
                yield from visit(op.body.block, count * op.count.value.data)
            elif isinstance(op, icca.ProgramOp):
                yield from visit(op.body.block, count)

    yield from visit(program.body.block, 1)


def matrix_flops(program: ModuleOp) -> dict[str, float]:
    """Operations of the multiply-add units in one run, by element type of the operands."""
    flops: dict[str, float] = {}
    for op, count in executes(program):
        operator = op.operator()
        if operator.kind in MATRIX_KINDS:
            dtype = operator.operands[0].dtype
            flops[dtype] = flops.get(dtype, 0.0) + count * operator.flops
    return flops


# ---------------------------------------------------------------------- traffic and rooflines


class Traffic:
    """Bytes that one run of an ipu program moves.

    hbm_bytes: read from and written to HBM, each distinct byte of a copy once.
    port_bytes: received by all cores, of preloads and ring shifts (other exchanges come on top).
    """

    def __init__(self) -> None:
        self.hbm_bytes = 0
        self.port_bytes = 0


def count_traffic(module: ModuleOp) -> Traffic:
    """The traffic of one run of an ipu program."""
    variables = {op.sym_name.data: op for op in module.body.block.ops if isinstance(op, ipu.VarOp)}
    traffic = Traffic()

    def visit(block: Block, times: int) -> None:
        for op in block.ops:
            if isinstance(op, ipu.ProgramOp):
                visit(op.body.block, times)
            elif isinstance(op, ipu.RepeatOp):
                visit(op.body.block, times * op.count.value.data)
            elif isinstance(op, ipu.CopyStartOp):
                variable = variables[op.target.root_reference.data]
                limit = None
                if op.axis is not None and op.limit is not None:
                    limit = (op.axis.value.data, op.limit.value.data)
                distinct, received = landing_bytes(variable, limit)
                traffic.hbm_bytes += times * distinct
                traffic.port_bytes += times * received
            elif isinstance(op, ipu.StoreStartOp):
                distinct, _ = landing_bytes(variables[op.source.root_reference.data], None)
                traffic.hbm_bytes += times * distinct
            elif isinstance(op, ipu.ExchangeOp):
                traffic.port_bytes += times * _exchange_bytes(op, variables)

    visit(module.body.block, 1)
    return traffic


def landing_bytes(variable: ipu.VarOp, limit: tuple[int, int] | None) -> tuple[int, int]:
    """(distinct bytes, bytes over all cores) of what a variable holds; `limit` cuts an axis."""
    layout: Layout = variable.layout.data
    item = dtype_of(shape_dtype(variable.type)[1]).itemsize
    bounds = layout.bounds.reshape(-1, len(layout.axes), 2)
    if limit is not None:
        bounds = bounds.copy()
        axis, end = limit
        bounds[:, axis] = np.minimum(bounds[:, axis], end)
    distinct = np.unique(bounds, axis=0)
    return (
        item * int((distinct[..., 1] - distinct[..., 0]).prod(axis=-1).sum()),
        item * int((bounds[..., 1] - bounds[..., 0]).prod(axis=-1).sum()),
    )


def _exchange_bytes(op: ipu.ExchangeOp, variables: Mapping[str, ipu.VarOp]) -> int:
    """Bytes that cores receive from other cores in one ring shift."""
    source = variables[op.source.data.name]
    layout: Layout = source.layout.data
    item = dtype_of(shape_dtype(source.type)[1]).itemsize
    cores = np.arange(layout.cores)
    senders = np.broadcast_to(op.map.data.evaluate(c=cores, t=0, s=0), cores.shape)
    slots = op.source.data.slots or (None,) * len(layout.axes)
    blocks = prod(n for n, slot in zip(layout.slots, slots, strict=True) if slot is None)
    return int((senders != cores).sum()) * blocks * prod(layout.block_shape) * item


def rooflines_s(program: ModuleOp, traffic: Traffic, chip: Chip) -> dict[str, float]:
    """Seconds that a run takes at least, for each resource that everything goes through."""
    bounds = {"hbm": 0.0, "compute": 0.0, "network": 0.0}
    if chip.hbm_bytes_per_s:
        bounds["hbm"] = traffic.hbm_bytes / chip.hbm_bytes_per_s
    for dtype, flops in sorted(matrix_flops(program).items()):
        peak = chip.peak_flops_per_s(dtype) if _multiplies(chip, dtype) else 0.0
        if peak:
            bounds["compute"] += flops / peak
    if chip.all_ports_in_bytes_per_s:
        bounds["network"] = traffic.port_bytes / chip.all_ports_in_bytes_per_s
    return bounds


def _multiplies(chip: Chip, dtype: str) -> bool:
    from elk_ir.errors import ChipError

    try:
        return chip.macs_per_cycle(dtype) > 0
    except ChipError:
        return False
