"""The event-driven simulator: `simulate(timeline, chip)` (docs/simulator.md)."""

from elk_ir.sim.result import SimResult
from elk_ir.sim.run import simulate
from elk_ir.sim.timeline import Timeline

__all__ = ["SimResult", "Timeline", "simulate"]
