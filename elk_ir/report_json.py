"""`report.json`: what was compiled, what it takes, and how fast it can be at best.

docs/commands.md documents every field; a field's name carries its unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block

from elk_ir import __version__
from elk_ir.compiler import Signature, floats_of_module, policy_of_module
from elk_ir.dialects import icca, ipu
from elk_ir.dialects.icca.attrs import HbmKind
from elk_ir.dialects.location import node_names
from elk_ir.dialects.types import shape_dtype
from elk_ir.numerics.body import dtype_of
from elk_ir.numerics.tensors import TensorSpec
from elk_ir.plan.layout import Layout
from elk_ir.plan.rows import unique_rows

if TYPE_CHECKING:
    from elk_ir.chips import Chip
    from elk_ir.sim import SimResult
    from elk_ir.target import Target

_Op = TypeVar("_Op", icca.ExecuteOp, icca.StoreOp)

RUN_DEPENDENT = ("compile_cpu_s", "compile_peak_rss_bytes")
"""Fields that differ between two compilations of the same model; all others are equal."""


def build_report(
    program: ModuleOp,
    module: ModuleOp,
    *,
    target: Target,
    chip: Chip,
    model: str,
    signature: Signature,
    dims: Mapping[str, int],
    simulate: bool,
) -> dict[str, Any]:
    """The report of a compiled program: `program` is icca, `module` what it was lowered to.

    Without `simulate` there are no fields about time. Raises SimulationError when the simulator
    contradicts itself.
    """
    report: dict[str, Any] = {
        "elk_ir_version": __version__,
        "model": model,
        "chip": chip.name,
        "chip_hash": chip.content_hash(),
        "target": target.name,
        "policy": policy_of_module(program),
        "floats": floats_of_module(program),
        "dims": dict(sorted(dims.items())),
    }
    tokens = tokens_per_run(program, signature)
    if tokens is not None:
        report["tokens_per_run"] = tokens
    report |= target.fields(module, chip, simulate=simulate, tokens=tokens)
    return report | {
        "hbm_footprint_bytes": hbm_footprint_bytes(program),
        "sram_capacity_bytes": chip.usable_sram_per_core_bytes,
        "inputs": [spec_json(s) for s in signature.inputs],
        "outputs": [spec_json(s) for s in signature.outputs],
        "states": state_table(program),
        "operators": operator_table(program),
    }


def time_fields(result: SimResult, tokens: int | None) -> dict[str, Any]:
    """What the simulator says of a program; `tokens` are what a run decodes, if it does."""
    fields: dict[str, Any] = {
        "time_s": result.time_s,
        "lower_bound_s": result.lower_bound_s,
        "bounds_s": dict(sorted(result.bounds_s.items())),
        "breakdown_s": result.breakdown.to_json(),
        "hbm_utilization": result.hbm_utilization,
        "network_utilization": result.network_utilization,
        "flops_per_s": result.flops_per_s,
        "energy_j": result.energy_j,
        "exchange_bytes": round(result.bytes_by_resource.get("exchange", 0.0)),
        "chip_link_bytes": round(result.bytes_by_resource.get("chip_link", 0.0)),
    }
    if tokens is not None and result.time_s > 0:
        fields["tokens_per_s"] = tokens / result.time_s
        fields["latency_per_token_s"] = result.time_s
        fields["energy_per_token_j"] = result.energy_j / tokens
    return fields


def tokens_per_run(program: ModuleOp, signature: Signature) -> int | None:
    """Tokens that one run of a decoding graph makes, one for each sequence of the batch; None for a
    graph that does not decode (no state, or states that do not get one entry a run)."""
    states = state_table(program)
    shapes = {s.name: s.shape for s in (*signature.inputs, *signature.outputs)}
    for state in states:
        axis = state["axis"]
        if axis == 0 or len(state["inputs"]) != state["layers"]:
            return None
        if state["length"] == state["capacity"]:
            if state["entries_written"] != 1:
                return None
            continue
        for before, after in zip(state["inputs"], state["outputs"], strict=False):
            if before not in shapes or after not in shapes:
                return None
            if shapes[after][axis] - shapes[before][axis] != 1:
                return None
    return states[0]["shape"][0] if states else None


def spec_json(spec: TensorSpec) -> dict[str, Any]:
    """An input or output as `report.json` spells it; `signature_from_report` reads it."""
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
    """The states of an icca program: shape of one layer, where entries are written, how many in a
    run (of one layer) and their bytes (of all layers), and its ONNX names."""
    table: list[dict[str, Any]] = []
    stored = _stored(program)
    for op in program.body.block.ops:
        if not isinstance(op, icca.HbmOp) or op.kind.data is not HbmKind.STATE:
            continue
        assert op.axis is not None and op.length is not None
        shape, dtype = shape_dtype(op.type)
        axis = op.axis.value.data
        entries, written = stored.get(op.sym_name.data, (0, 0))
        table.append(
            {
                "name": op.sym_name.data,
                "dtype": dtype,
                "shape": list(shape),
                "layers": op.layers,
                "axis": axis,
                "capacity": shape[axis],
                "length": op.length.value.data,
                "entries_written": entries,
                "written_bytes": written,
                "inputs": [n.data for n in op.inputs or ()],
                "outputs": [n.data for n in op.outputs or ()],
            }
        )
    return table


def _stored(program: ModuleOp) -> dict[str, tuple[int, int]]:
    """Of each state that an icca program stores to: entries of a store, and bytes of all stores."""
    axes = {
        op.sym_name.data: op.axis.value.data
        for op in program.body.block.ops
        if isinstance(op, icca.HbmOp) and op.axis is not None
    }
    found: dict[str, tuple[int, int]] = {}
    for op, count in _counted(program, icca.StoreOp):
        name = op.target.root_reference.data
        if name in axes:
            shape, dtype = shape_dtype(op.source.type)
            size = count * prod(shape) * dtype_of(dtype).itemsize
            found[name] = (shape[axes[name]], size + found.get(name, (0, 0))[1])
    return found


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
    yield from _counted(program, icca.ExecuteOp)


def _counted(program: ModuleOp, kind: type[_Op]) -> Iterator[tuple[_Op, int]]:
    """The operations of one kind of an icca program, in order, and how often each runs."""

    def visit(block: Block, count: int) -> Iterator[tuple[_Op, int]]:
        for op in block.ops:
            if isinstance(op, kind):
                yield op, count
            elif isinstance(op, icca.RepeatOp):
                yield from visit(op.body.block, count * op.count.value.data)
            elif isinstance(op, icca.ProgramOp):
                yield from visit(op.body.block, count)

    yield from visit(program.body.block, 1)


# ---------------------------------------------------------------------- traffic


def hbm_traffic_bytes(module: ModuleOp) -> int:
    """Bytes that one run of an ipu program reads from and writes to HBM: what several cores receive
    of one copy counts once."""
    variables = {op.sym_name.data: op for op in module.body.block.ops if isinstance(op, ipu.VarOp)}

    def moved(block: Block) -> int:
        total = 0
        for op in block.ops:
            if isinstance(op, ipu.ProgramOp):
                total += moved(op.body.block)
            elif isinstance(op, ipu.RepeatOp):
                total += op.count.value.data * moved(op.body.block)
            elif isinstance(op, ipu.CopyStartOp):
                limit = None
                if op.axis is not None and op.limit is not None:
                    limit = (op.axis.value.data, op.limit.value.data)
                total += distinct_bytes(variables[op.target.root_reference.data], limit)
            elif isinstance(op, ipu.StoreStartOp):
                total += distinct_bytes(variables[op.source.root_reference.data], None)
        return total

    return moved(module.body.block)


def distinct_bytes(variable: ipu.VarOp, limit: tuple[int, int] | None) -> int:
    """Bytes of the tensor that the cores hold in a variable, copies once; `limit` = (axis, end)
    leaves out what lies behind `end`."""
    layout: Layout = variable.layout.data
    item = dtype_of(shape_dtype(variable.type)[1]).itemsize
    if not layout.axes:
        return item
    bounds = layout.bounds.reshape(-1, len(layout.axes), 2)
    if limit is not None:
        bounds = bounds.copy()
        axis, end = limit
        bounds[:, axis] = np.minimum(bounds[:, axis], end)
    distinct, _ = unique_rows(bounds)
    return item * int((distinct[..., 1] - distinct[..., 0]).prod(axis=-1).sum())
