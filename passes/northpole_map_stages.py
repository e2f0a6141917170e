"""`northpole-map-stages`: put a te module's layers on the cards of a NorthPole machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.ir import Block as IRBlock
from xdsl.ir import Operation, Region
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from elk_ir.chips import Chip, load_chip
from elk_ir.dialects import northpole
from elk_ir.dialects.chip import ChipAttr
from elk_ir.dialects.te.interface import StructuredOp
from elk_ir.errors import ElkError
from elk_ir.northpole.bytes import placement
from elk_ir.northpole.mapping import Mapping, map_network
from elk_ir.northpole.network import Block, Network, Precision, Task, parse_precision
from elk_ir.northpole.pipeline import send_bytes
from elk_ir.northpole.timing import Assumptions
from elk_ir.passes.te_support import fresh_symbol
from elk_ir.targets.northpole.extract import (
    Part,
    graph_precision,
    is_quantized,
    network_and_parts,
)


@dataclass(frozen=True)
class NorthpoleMapStagesPass(ModulePass):
    """Assign layers to cards, choose users and micro-batches, and write the mapping down.

        elk-opt model.onnx -p 'convert-onnx-to-te,te-pipeline,northpole-map-stages{precision=w4a4}'

    It reads te rather than icca: a NorthPole card fetches nothing, so there are no preloads to
    plan, and where a weight lies is decided for all tokens at once. The te function stays; blocks
    and a `northpole.program` join it. `precision` is what the model is quantised to (`graph`: the
    types it has, which must be integers; `auto`: those if they are, else w4a4); weights are counted
    at that size. `chip` is the module's `icca.chip`, or northpole-16. Fails, with numbers, when
    something does not fit.
    """

    name = "northpole-map-stages"

    precision: str = "w4a4"
    chip: str | None = None
    context: int | None = None
    cards: int | None = None
    users: int | None = None
    route: str = "direct"
    host_time_s: float = Assumptions.host_time_s
    prefill_utilization: float = Assumptions.prefill_utilization

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        try:
            chip = self._chip(op)
            network, parts = network_and_parts(op)
            mapping = map_network(
                network,
                chip,
                self._precision(network, parts),
                context=self.context,
                cards=self.cards,
                users=self.users,
                assumptions=Assumptions(
                    route=self.route,
                    host_time_s=self.host_time_s,
                    prefill_utilization=self.prefill_utilization,
                ),
            )
        except ElkError as error:
            raise PassFailedException(str(error)) from error
        op.attributes["icca.chip"] = ChipAttr.from_chip(chip)
        _write(op, mapping, parts)

    def _chip(self, module: ModuleOp) -> Chip:
        given = module.attributes.get("icca.chip")
        if self.chip is None and isinstance(given, ChipAttr):
            return given.data
        return load_chip(self.chip or "northpole-16")

    def _precision(self, network: Network, parts: Sequence[Part]) -> Precision:
        quantized = self.precision == "auto" and is_quantized(parts)
        if self.precision == "graph" or quantized:
            return graph_precision(parts, network.head)
        return parse_precision("w4a4" if self.precision == "auto" else self.precision)


def _place(mapping: Mapping, task: Task, ways: int) -> northpole.PlaceOp:
    cores = mapping.chip.cores_per_chip
    return northpole.PlaceOp(task, placement(task, ways, mapping.context, cores))


def _name_blocks(symbols: dict[tuple[Block, int], str], parts: Sequence[Part]) -> None:
    """Say on every operator which block it belongs to: later passes need no analysis for it."""
    for part in parts:
        # A block has one symbol: layers that are alike are divided alike.
        symbol = next((s for (block, _), s in symbols.items() if block == part.block), None)
        for op in part.ops:
            if symbol is not None and isinstance(op, StructuredOp):
                op.attributes[northpole.BLOCK] = StringAttr(symbol)


def _write(module: ModuleOp, mapping: Mapping, parts: Sequence[Part]) -> None:
    """Append the blocks and the program of `mapping` to the module, and name each operator's
    block."""
    taken = {
        name.data
        for op in module.ops
        if isinstance(name := op.properties.get("sym_name"), StringAttr)
    }
    symbols: dict[tuple[Block, int], str] = {}
    for stage in mapping.stages:
        for block in stage.blocks:
            ways = len(stage.cards)
            if (block, ways) in symbols:
                continue
            symbol = fresh_symbol(f"block_{len(symbols)}", taken)
            taken.add(symbol)
            symbols[block, ways] = symbol
            module.body.block.add_op(
                northpole.BlockOp(
                    symbol,
                    block.name,
                    crossing=(block.in_elements, block.out_elements),
                    phases=block.phases,
                    ways=ways,
                    head=block is mapping.network.head,
                    places=[_place(mapping, t, ways) for t in block.tasks],
                )
            )
    _name_blocks(symbols, parts)
    body: list[Operation] = [
        northpole.HostOp("host", [_place(mapping, t, 1) for t in mapping.network.host])
    ]
    owners = iter([i for i, layer in enumerate(mapping.network.layers) for _ in layer.blocks])
    for i, stage in enumerate(mapping.stages):
        blocks = [symbols[b, len(stage.cards)] for b in stage.blocks]
        layers = [next(owners, -1) for _ in stage.blocks]
        body.append(
            northpole.StageOp(f"stage_{i}", stage.name, stage.cards, blocks, layers, stage.resident)
        )
    ends = ["host", *(f"stage_{i}" for i in range(len(mapping.stages))), "host"]
    for source, target, size in zip(ends, ends[1:], send_bytes(mapping), strict=False):
        body.append(northpole.SendOp(source, target, size))
    module.body.block.add_op(
        northpole.ProgramOp(
            properties={
                "sym_name": StringAttr(fresh_symbol("appliance", taken)),
                "model": StringAttr(mapping.network.name),
                "precision": northpole.PrecisionAttr(mapping.precision),
                "assumptions": northpole.AssumptionsAttr(mapping.assumptions),
                "users": IntegerAttr(mapping.mini_batch, i64),
                "fit": IntegerAttr(mapping.users_by_memory, i64),
                "micro_batches": IntegerAttr(mapping.micro_batches, i64),
                "context": IntegerAttr(mapping.context, i64),
                "batch": IntegerAttr(mapping.network.batch, i64),
                "limit": StringAttr(mapping.limit),
            },
            regions=[Region(IRBlock(body))],
        )
    )
