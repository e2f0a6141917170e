"""The IPU target: its passes, and what the virtual machine and the simulator say of a program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from elk_ir.chips import Chip
from elk_ir.sim import SimResult
from elk_ir.target import Landing, Runner, Target
from elk_ir.targets.ipu.interpreter import Interpreter
from elk_ir.weight_source import WeightSource

KEPT_MACHINE_BYTES = 256 << 20
"""A machine whose memories are larger than this is not kept between runs."""


class IpuTarget(Target):
    """Compute sets, exchanges and copies over cores with their own SRAM (docs/dialects/ipu.md)."""

    name = "ipu"
    lowering = ("convert-icca-to-ipu", "ipu-verify-program")
    emitter = ("poplar-cpp", "program.cpp")

    def machine(
        self,
        module: ModuleOp,
        *,
        chip: Chip,
        weights: WeightSource,
        landing: Landing = "late",
        filled: Mapping[str, int] | None = None,
    ) -> Interpreter:
        """A virtual machine that is about to run a program (`filled`: as it takes it)."""
        return Interpreter(
            module,
            lambda remote: weights.rows(
                remote.value, None if remote.stack is None else remote.layers
            ),
            cores=chip.cores,
            sram_bytes=chip.usable_sram_per_core_bytes,
            landing=landing,
            filled=filled,
        )

    def run(
        self,
        module: ModuleOp,
        inputs: Mapping[str, np.ndarray],
        *,
        chip: Chip,
        weights: WeightSource,
        landing: Landing = "late",
    ) -> dict[str, np.ndarray]:
        return self.machine(module, chip=chip, weights=weights, landing=landing).run(inputs)

    def runner(
        self, module: ModuleOp, *, chip: Chip, weights: WeightSource, landing: Landing = "late"
    ) -> Runner:
        """Runs on one machine, if that is not too large to be kept."""
        kept: list[Interpreter] = []

        def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            machine = kept.pop() if kept else None
            if machine is None:
                machine = self.machine(module, chip=chip, weights=weights, landing=landing)
            outputs = machine.run(inputs)
            if machine.held_bytes <= KEPT_MACHINE_BYTES:
                kept.append(machine)
            return outputs

        return run

    def simulate(self, module: ModuleOp, chip: Chip) -> SimResult:
        from elk_ir.targets.ipu.timeline import simulate_module

        return simulate_module(module, chip)

    def fields(
        self, module: ModuleOp, chip: Chip, *, simulate: bool, tokens: int | None
    ) -> dict[str, Any]:
        from elk_ir.report_json import hbm_traffic_bytes, sram_peak_bytes, time_fields

        fields = time_fields(self.simulate(module, chip), tokens) if simulate else {}
        return {
            **fields,
            "hbm_bytes": hbm_traffic_bytes(module),
            "sram_peak_bytes": sram_peak_bytes(module),
        }


IPU = IpuTarget()
