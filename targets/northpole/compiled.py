"""A compiled program of cards: its report, what is written beside it, and how it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from elk_ir import __version__
from elk_ir.compiler import GPIPE, Signature, floats_of_module
from elk_ir.dialects import northpole
from elk_ir.dialects.location import node_names
from elk_ir.dialects.types import shape_dtype
from elk_ir.northpole.mapping import Mapping as StageMapping
from elk_ir.northpole.network import Unit
from elk_ir.northpole.pipeline import with_chip
from elk_ir.northpole.report import (
    has_state,
    stage_map_fields,
    stage_map_json,
    stage_map_svg,
    stage_map_text,
)
from elk_ir.numerics.compare import coarsest
from elk_ir.numerics.tensors import check_inputs
from elk_ir.passes.northpole_place import map_of
from elk_ir.passes.northpole_verify_program import stages_of
from elk_ir.program import Program
from elk_ir.report_json import spec_json, state_table, tokens_per_run
from elk_ir.targets.northpole.memory import blocks_of, copies_of, core_bytes, held_by, tensors_of
from elk_ir.targets.northpole.read import mapping_of

if TYPE_CHECKING:
    from elk_ir.chips import Chip
    from elk_ir.targets.northpole.host import Generation, Session
    from elk_ir.targets.northpole.runtime import Appliance

MAP_FILES = {"map.txt": stage_map_text, "map.json": stage_map_json, "map.svg": stage_map_svg}
"""What is written of a mapping besides its IR."""


def build_northpole_report(
    program: ModuleOp,
    target: ModuleOp,
    operators: list[dict[str, Any]],
    *,
    chip: Chip,
    target_name: str,
    model: str,
    signature: Signature,
    dims: Mapping[str, int],
    simulate: bool,
) -> dict[str, Any]:
    """The report of a program of cards (docs/targets/northpole.md); `program` is icca.

    Without `simulate` there are no fields about time. Raises ElkError for a context too short to
    simulate a run.
    """
    mapping = with_chip(mapping_of(target), chip)
    fields = time_fields(mapping) if simulate else stage_map_fields(mapping, simulate=False)
    report: dict[str, Any] = {
        "elk_ir_version": __version__,
        "model": model,
        "chip": chip.name,
        "chip_hash": chip.content_hash(),
        "target": target_name,
        "policy": GPIPE,
        "floats": floats_of_module(program),
        "dims": dict(sorted(dims.items())),
        "quantized": _quantized(target),
        "graph_batch": mapping.network.batch,
    }
    tokens = tokens_per_run(program, signature)
    if tokens is not None:
        report["tokens_per_run"] = tokens
    report |= {k: v for k, v in fields.items() if k not in ("model", "chip", "policy")}
    return report | {
        "hbm_bytes": 0,
        "hbm_footprint_bytes": 0,
        "sram_peak_bytes": placed_core_bytes(target, chip),
        "sram_capacity_bytes": chip.usable_sram_per_core_bytes,
        "inputs": [spec_json(s) for s in signature.inputs],
        "outputs": [spec_json(s) for s in signature.outputs],
        "states": state_table(program),
        "operators": operators or operator_rows(target),
    }


def time_fields(mapping: StageMapping) -> dict[str, Any]:
    """The stage map's fields with the names that all targets share: `time_s` is that of a whole
    mini-batch with its prompts where the model generates, of one micro-batch where it does not."""
    fields = stage_map_fields(mapping)
    macs = mapping.network.macs
    if not has_state(mapping):
        rate = fields["samples_per_s"]
        return fields | {"time_s": fields["latency_s"], "flops_per_s": 2 * macs * rate}
    tokens = fields["mini_batch"] * (fields["prompt_tokens"] + fields["generated_tokens"])
    return fields | {
        "time_s": fields["latency_s"],
        "flops_per_s": 2 * macs * tokens / fields["latency_s"],
        "energy_j": fields["power_w"] * fields["latency_s"],
    }


def _quantized(target: ModuleOp) -> bool:
    """Whether every product on the cards is of integers: else the precision is only planned."""
    products = [
        op
        for block in blocks_of(target).values()
        for op in northpole.contents(block.body)
        if isinstance(op, northpole.ExecuteOp) and op.task.data.unit is Unit.MATRIX
    ]
    return all("int" in a.dtype for op in products for a in op.operator().operands[:2])


def placed_core_bytes(target: ModuleOp, chip: Chip) -> int:
    """Bytes that stay on the fullest core of the program, weights and caches of all users."""
    blocks = blocks_of(target)
    kinds = {name: op.kind.data for name, op in tensors_of(target).items()}
    mapping, copies = mapping_of(target), copies_of(map_of(target))
    fullest = 0.0
    for stage in stages_of(target):
        held = held_by(stage, blocks, kinds, mapping.precision)
        fixed, states = core_bytes(stage, held, chip.cores_per_chip, copies)
        fullest = max(fullest, float((fixed + states).max()))
    return int(fullest)


def operator_rows(target: ModuleOp) -> list[dict[str, Any]]:
    """One row for each operator of each block: its nodes, unit, grid and plan; `count` is how often
    a pass runs it, and `cards` how many share it."""
    counts: dict[str, int] = {}
    for stage in stages_of(target):
        for call in stage.calls:
            symbol = call.block.root_reference.data
            counts[symbol] = counts.get(symbol, 0) + 1
    rows: list[dict[str, Any]] = []
    for symbol, block in blocks_of(target).items():
        for op in northpole.contents(block.body):
            if not isinstance(op, northpole.ExecuteOp):
                continue
            operator, plan = op.operator(), op.partition()
            rows.append(
                {
                    "name": op.task.data.name,
                    "nodes": list(node_names(op)),
                    "kind": operator.kind,
                    "unit": op.task.data.unit.value,
                    "block": symbol,
                    "count": counts.get(symbol, 0),
                    "extents": {d.name: d.extent for d in operator.dims},
                    "grid": {d.name: f for d, f in zip(operator.dims, plan.grid, strict=True)},
                    "cards": block.ways.value.data,
                    "cores": plan.cores,
                    "flops": float(operator.flops),
                    "plan": str(op.plan),
                }
            )
    return rows


class NorthpoleProgram(Program):
    """A model compiled for an appliance of cards."""

    @property
    def precision(self) -> str:
        """The least precise float type among the program's tensors."""
        types = [shape_dtype(op.type)[1] for op in tensors_of(self.target).values()]
        return coarsest(types)

    def emitted(self) -> dict[str, str]:
        """The stage map as text, JSON and picture, by file name."""
        mapping = mapping_of(self.target)
        return {name: write(mapping) for name, write in MAP_FILES.items()}

    def appliance(
        self, *, micro_batches: int | None = None, random_weights: int | None = None
    ) -> Appliance:
        """The cards with the program and its weights on them, ready for `micro_batches` (the
        program's). Raises ElkError for weights that are missing."""
        from elk_ir.targets.northpole.runtime import Appliance

        weights = self._weights
        if random_weights is not None:
            weights = weights.with_seed(random_weights)
        return Appliance(
            self.target,
            weights.load,
            self.chip,
            self.signature,
            micro_batches=micro_batches,
        )

    def run(
        self,
        inputs: Mapping[str, np.ndarray],
        *,
        random_weights: int | None = None,
        landing: str = "late",
    ) -> dict[str, np.ndarray]:
        """The outputs by name of one micro-batch, its states included, computed on the cores.

        `landing` is of no meaning here: nothing is fetched. Raises ElkError for wrong inputs and
        missing weights.
        """
        taken = check_inputs(inputs, self.signature.inputs)
        appliance = self.appliance(micro_batches=1, random_weights=random_weights)
        appliance.put(0, taken)
        return appliance.get(0)

    # A session fills, executes and reads outputs as the virtual machine of an ipu program does.
    def interpreter(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        *,
        random_weights: int | None = None,
        landing: str = "late",
        filled: Mapping[str, int] | None = None,
    ) -> Session:
        """One micro-batch on the cards, as decoding drives it; `landing` and `filled` are of no
        meaning here: caches say by their shape how far they are filled."""
        from elk_ir.targets.northpole.host import Session

        return Session(self.appliance(micro_batches=1, random_weights=random_weights))

    def generate(
        self,
        prompts: np.ndarray,
        steps: int,
        *,
        micro_batches: int | None = None,
        together: bool = True,
        prefill: NorthpoleProgram | None = None,
        random_weights: int | None = None,
    ) -> Generation:
        """`steps` greedy tokens for each prompt: tokens (users, length) of whole micro-batches.

        The host embeds, samples and feeds back. Prompts pass token by token, one behind another, or
        with `prefill` through that program of the same model's prompt graph: as many tokens as it
        takes in one pass, whose caches stay on the cards, and the rest token by token. `together`:
        all micro-batches are under way at once; otherwise one after another, which gives the same
        tokens. Raises ElkError for a graph that does not decode, for prompts that do not fit, and
        for a prompt program that is not on the same cards with the same weights.
        """
        from elk_ir.targets.northpole.host import generate
        from elk_ir.targets.northpole.prefill import Prefill

        groups = -(-len(prompts) // self.report["graph_batch"])
        appliance = self.appliance(
            micro_batches=micro_batches or groups, random_weights=random_weights
        )
        first = None
        if prefill is not None:
            passing = prefill.appliance(
                micro_batches=appliance.micro_batches, random_weights=random_weights
            )
            room = self.report["sram_capacity_bytes"] - self.report["sram_peak_bytes"]
            first = Prefill(prefill, passing, appliance, room)
        return generate(self, appliance, prompts, steps, together=together, prefill=first)
