"""`northpole.program`: the mapped model, as a whole (docs/dialects/northpole.md)."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import I64, IntegerAttr, StringAttr, SymbolNameConstraint
from xdsl.ir import Operation
from xdsl.irdl import IRDLOperation, irdl_op_definition, prop_def, region_def, traits_def
from xdsl.traits import NoTerminator, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from elk_ir.dialects.chip import ChipAttr
from elk_ir.dialects.northpole.attrs import AssumptionsAttr, PrecisionAttr
from elk_ir.dialects.northpole.ops import BlockOp, HostOp, SendOp, StageOp, contents


@irdl_op_definition
class ProgramOp(IRDLOperation):
    """The mapped model: `users` of the `fit` that memory admits, in `micro_batches`."""

    name = "northpole.program"
    sym_name = prop_def(SymbolNameConstraint())
    model = prop_def(StringAttr)
    precision = prop_def(PrecisionAttr)
    assumptions = prop_def(AssumptionsAttr)
    users = prop_def(IntegerAttr[I64])
    fit = prop_def(IntegerAttr[I64])
    micro_batches = prop_def(IntegerAttr[I64])
    context = prop_def(IntegerAttr[I64])
    batch = prop_def(IntegerAttr[I64])
    limit = prop_def(StringAttr)
    body = region_def()
    traits = traits_def(SymbolOpInterface(), NoTerminator())
    assembly_format = (
        "$sym_name $model $precision $assumptions `users` $users `fit` $fit"
        " `micro_batches` $micro_batches `context` $context `batch` $batch `limit` $limit"
        " $body attr-dict"
    )

    def verify_(self) -> None:
        stages = [op for op in contents(self.body) if isinstance(op, StageOp)]
        hosts = [op for op in contents(self.body) if isinstance(op, HostOp)]
        known = {op.sym_name.data for op in (*stages, *hosts)}
        used: dict[int, str] = {}
        for stage in stages:
            for card in stage.cards.get_values():
                if card in used:
                    raise VerifyException(
                        f"card {card} is on stage @{used[card]} and on @{stage.sym_name.data}"
                    )
                used[card] = stage.sym_name.data
        for op in contents(self.body):
            if not isinstance(op, SendOp):
                continue
            for end in (op.source, op.target):
                if end.root_reference.data not in known:
                    raise VerifyException(f"no stage or host @{end.root_reference.data} here")
        users, batches = self.users.value.data, self.micro_batches.value.data
        if not 1 <= batches <= users:
            raise VerifyException(f"{users} users do not make {batches} micro-batches")
        self._verify_blocks(stages)
        self._verify_memory(stages)

    def _module(self) -> Operation | None:
        return self.parent_op()

    def _verify_blocks(self, stages: Sequence[StageOp]) -> None:
        module = self._module()
        if module is None:
            return
        known = {
            op.sym_name.data: op.ways.value.data
            for op in module.regions[0].block.ops
            if isinstance(op, BlockOp)
        }
        for stage in stages:
            for ref in stage.blocks:
                symbol = ref.root_reference.data
                if symbol not in known:
                    raise VerifyException(f"stage @{stage.sym_name.data}: no block @{symbol}")
                if known[symbol] != len(stage.cards):
                    raise VerifyException(
                        f"stage @{stage.sym_name.data} has {len(stage.cards)} cards, block"
                        f" @{symbol} is placed for {known[symbol]}"
                    )

    def _verify_memory(self, stages: Sequence[StageOp]) -> None:
        module = self._module()
        chip = None if module is None else module.attributes.get("icca.chip")
        if not isinstance(chip, ChipAttr):
            return
        machine, users = chip.data, self.users.value.data
        core = machine.usable_sram_per_core_bytes
        for stage in stages:
            size = stage.resident.data
            on_core = size.core_fixed_bytes + users * size.core_kv_bytes_per_user
            on_card = size.fixed_bytes + users * size.kv_bytes_per_user
            for what, needed, available in (
                ("core", on_core, core),
                ("card", on_card, core * machine.cores_per_chip),
            ):
                if needed > available:
                    raise VerifyException(
                        f"stage @{stage.sym_name.data}: {needed:,} bytes on a {what} that has"
                        f" {available:,} ({needed - available:,} too many)"
                    )
