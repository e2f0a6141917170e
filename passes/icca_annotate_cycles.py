"""`icca-annotate-cycles`: write estimated cycles on executes and preloads."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import DictionaryAttr, FloatAttr, IntegerAttr, ModuleOp, i64
from xdsl.passes import ModulePass

from elk_ir.cost.device import device_model
from elk_ir.dialects.icca.ops import ExecuteOp, PreloadOp
from elk_ir.passes.icca_support import chip_of, program_of
from elk_ir.passes.icca_timeline import timeline_of
from elk_ir.sim.machine import Machine, machine_of
from elk_ir.sim.timeline import Compute, Event, Exchange, Operator, Preload, Repeat, leaves

ATTRIBUTE = "icca.estimate"


def _operators(events: tuple[Event, ...]) -> list[Operator]:
    """Operators in program order, loop bodies once."""
    found: list[Operator] = []
    for event in events:
        if isinstance(event, Operator):
            found.append(event)
        elif isinstance(event, Repeat):
            found += _operators(event.events)
    return found


def _preloads(events: tuple[Event, ...]) -> list[Preload]:
    """Preloads in program order, loop bodies once."""
    found: list[Preload] = []
    for event in events:
        if isinstance(event, Preload):
            found.append(event)
        elif isinstance(event, Repeat):
            found += _preloads(event.events)
    return found


def _execute_estimate(event: Operator, machine: Machine) -> dict[str, float]:
    """Cycles of one execute without anybody else, by what takes them."""
    chip = machine.resources.chip
    compute = exchange = sync = 0.0
    moved = 0
    for leaf, times in leaves(event.events):
        if isinstance(leaf, Compute):
            compute += times * leaf.cycles.maximum
        elif isinstance(leaf, Exchange):
            coflow = machine.coflow(leaf)
            exchange += times * (coflow.alone_s + coflow.latency_s) * chip.clock_hz
            moved += times * leaf.traffic.total_bytes
            if leaf.traffic.total_bytes:
                sync += times * 2.0 * chip.sync_cycles
    return {
        "cycles": compute + exchange + sync,
        "compute_cycles": compute,
        "exchange_cycles": exchange,
        "sync_cycles": sync,
        "exchange_bytes": float(moved),
    }


def _attribute(values: dict[str, float]) -> DictionaryAttr:
    return DictionaryAttr(
        {
            name: IntegerAttr(round(value), i64)
            if name.endswith("_bytes")
            else FloatAttr(round(value, 3), 64)
            for name, value in values.items()
        }
    )


@dataclass(frozen=True)
class IccaAnnotateCyclesPass(ModulePass):
    """Write on every icca.execute how many cycles it takes alone, and why, and on every
    icca.preload how many it keeps HBM busy for.

        elk-opt model.mlir -p 'icca-annotate-cycles'

    The attribute `icca.estimate` holds cycles of the chip's clock: `cycles` (all of them),
    `compute_cycles`, `exchange_cycles`, `sync_cycles`, and `exchange_bytes` over all cores; of a
    preload `cycles`, `hbm_bytes` and `landing_bytes`. Executes need plans; nothing else changes.
    The same patterns and rates as in the simulator, without contention: contention is a property
    of the whole program.
    """

    name = "icca-annotate-cycles"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        chip = chip_of(op)
        machine = machine_of(chip)
        timeline = timeline_of(op, device_model(chip))
        ops = list(program_of(op).walk())
        executes = [o for o in ops if isinstance(o, ExecuteOp)]
        for execute, event in zip(executes, _operators(timeline.events), strict=True):
            execute.attributes[ATTRIBUTE] = _attribute(_execute_estimate(event, machine))
        preloads = [o for o in ops if isinstance(o, PreloadOp)]
        for preload, event in zip(preloads, _preloads(timeline.events), strict=True):
            coflow = machine.coflow(event)
            preload.attributes[ATTRIBUTE] = _attribute(
                {
                    "cycles": coflow.alone_s * chip.clock_hz,
                    "hbm_bytes": coflow.hbm_bytes,
                    "landing_bytes": float(event.delivery.ingress.sum()),
                }
            )
