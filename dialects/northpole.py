"""`northpole`: a model on cards that hold everything (docs/targets/northpole.md).

    northpole.block @block_0 "block 0" in 4096 out 4096 phases 7 ways 1 {
      northpole.place <name = "q", kind = "contract", unit = "matrix", ...> grid [16, 16]
    }
    northpole.program @appliance "model" <...> <...> users 28 fit 39 micro_batches 14 ... {
      northpole.host { ... }
      northpole.stage @stage_0 "layer 0" cards [0] blocks [@block_0, @block_1] of [0, 0] <...>
      northpole.send @host -> @stage_0 bytes 16384
    }

The te function beside it says what is computed; this says where: which card and which of its cores
hold which weights and caches, on which unit each operator runs, and what crosses cards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from enum import StrEnum
from typing import Any, TypeVar

from xdsl.dialects.builtin import (
    I64,
    ArrayAttr,
    DenseArrayBase,
    FlatSymbolRefAttrConstr,
    IntegerAttr,
    StringAttr,
    SymbolNameConstraint,
    SymbolRefAttr,
    UnitAttr,
    i64,
)
from xdsl.ir import Block, Data, Dialect, Operation, Region
from xdsl.irdl import (
    IRDLOperation,
    irdl_attr_definition,
    irdl_op_definition,
    opt_prop_def,
    prop_def,
    region_def,
    traits_def,
)
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.traits import NoTerminator, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from elk_ir.dialects.chip import ChipAttr
from elk_ir.errors import ElkError
from elk_ir.northpole.bytes import Resident
from elk_ir.northpole.network import Precision, Task, Unit
from elk_ir.northpole.timing import Assumptions

T = TypeVar("T")


def _print_fields(printer: Printer, data: object) -> None:
    """`<field = value, …>`, without fields that have their default."""
    parts: list[str] = []
    for each in fields(data):  # pyright: ignore[reportArgumentType]
        value = getattr(data, each.name)
        if each.default is not MISSING and value == each.default:
            continue
        parts.append(f"{each.name} = {_spelled(value)}")
    printer.print_string(f"<{', '.join(parts)}>")


def _spelled(value: Any) -> str:
    if isinstance(value, str | StrEnum):
        escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, tuple):
        return f"[{', '.join(str(v) for v in value)}]"
    text = repr(value)
    # A float of MLIR has a point, one of Python need not: 2e-05.
    return text.replace("e", ".0e", 1) if "e" in text and "." not in text else text


def _parse_fields(parser: AttrParser, data: type[T], convert: Mapping[str, Any]) -> T:
    """What `_print_fields` wrote."""
    known: dict[str, Field[Any]] = {f.name: f for f in fields(data)}  # pyright: ignore[reportArgumentType]
    found: dict[str, Any] = {}

    def one() -> None:
        start = parser.pos
        name = parser.parse_identifier()
        if name not in known or name in found:
            parser.raise_error(f"'{name}' is no field here, or is there twice", start, parser.pos)
        parser.parse_punctuation("=")
        found[name] = convert.get(name, lambda v: v)(_parse_value(parser))

    start = parser.pos
    parser.parse_comma_separated_list(parser.Delimiter.ANGLE, one)
    try:
        return data(**found)
    except (TypeError, ElkError) as error:
        parser.raise_error(str(error), start, parser.pos)


def _parse_value(parser: AttrParser) -> Any:
    text = parser.parse_optional_str_literal()
    if text is not None:
        return text
    if parser.parse_optional_punctuation("["):
        values = [parser.parse_integer()]
        while parser.parse_optional_punctuation(","):
            values.append(parser.parse_integer())
        parser.parse_punctuation("]")
        return tuple(values)
    return parser.parse_number()


@irdl_attr_definition
class TaskAttr(Data[Task]):
    """What an operator asks of a unit, for one user and token (elk_ir/northpole/network.py)."""

    name = "northpole.task"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Task:
        return _parse_fields(parser, Task, {"unit": Unit})

    def print_parameter(self, printer: Printer) -> None:
        _print_fields(printer, self.data)


@irdl_attr_definition
class ResidentAttr(Data[Resident]):
    """Bytes that stay on each card of a stage, and on its fullest core."""

    name = "northpole.resident"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Resident:
        return _parse_fields(parser, Resident, {})

    def print_parameter(self, printer: Printer) -> None:
        _print_fields(printer, self.data)


@irdl_attr_definition
class PrecisionAttr(Data[Precision]):
    """Bits of weights, activations, KV entries and the output layer."""

    name = "northpole.precision"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Precision:
        return _parse_fields(parser, Precision, {})

    def print_parameter(self, printer: Printer) -> None:
        _print_fields(printer, self.data)


@irdl_attr_definition
class AssumptionsAttr(Data[Assumptions]):
    """What is not published about the machine's use, with the values that were assumed."""

    name = "northpole.assumptions"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Assumptions:
        return _parse_fields(parser, Assumptions, {})

    def print_parameter(self, printer: Printer) -> None:
        _print_fields(printer, self.data)


def contents(region: Region) -> list[Operation]:
    """The operations of a region of one block, or of none: an empty one is printed as `{}`."""
    return [op for block in region.blocks for op in block.ops]


def _number(value: int) -> IntegerAttr[I64]:
    return IntegerAttr(value, i64)


@irdl_op_definition
class PlaceOp(IRDLOperation):
    """An operator on its unit; `grid` says how the cores divide its weights (reduction, outputs)
    or its cache (heads, positions) on each card of the stage."""

    name = "northpole.place"
    task = prop_def(TaskAttr)
    grid = prop_def(DenseArrayBase.constr(i64))
    assembly_format = "$task `grid` $grid attr-dict"

    def __init__(self, task: Task, grid: tuple[int, int]):
        super().__init__(
            properties={"task": TaskAttr(task), "grid": DenseArrayBase.from_list(i64, grid)}
        )

    def verify_(self) -> None:
        grid = self.grid.get_values()
        if len(grid) != 2 or min(grid) < 1:
            raise VerifyException(f"a grid has two extents of at least 1, not {list(grid)}")


@irdl_op_definition
class BlockOp(IRDLOperation):
    """Operators between two points where one tensor crosses. Identical blocks of all layers are
    one `northpole.block`; `ways` cards share it, `head` marks the output layer."""

    name = "northpole.block"
    sym_name = prop_def(SymbolNameConstraint())
    label = prop_def(StringAttr)
    in_elements = prop_def(IntegerAttr[I64])
    out_elements = prop_def(IntegerAttr[I64])
    phases = prop_def(IntegerAttr[I64])
    ways = prop_def(IntegerAttr[I64])
    head = opt_prop_def(UnitAttr)
    body = region_def()
    traits = traits_def(SymbolOpInterface(), NoTerminator())
    assembly_format = (
        "(`head` $head^)? $sym_name $label `in` $in_elements `out` $out_elements"
        " `phases` $phases `ways` $ways $body attr-dict"
    )

    def __init__(
        self,
        symbol: str,
        label: str,
        *,
        crossing: tuple[int, int],
        phases: int,
        ways: int,
        head: bool,
        places: Sequence[Operation],
    ):
        super().__init__(
            properties={
                "sym_name": StringAttr(symbol),
                "label": StringAttr(label),
                "in_elements": _number(crossing[0]),
                "out_elements": _number(crossing[1]),
                "phases": _number(phases),
                "ways": _number(ways),
                "head": UnitAttr() if head else None,
            },
            regions=[Region(Block(places))],
        )

    def verify_(self) -> None:
        for op in contents(self.body):
            if not isinstance(op, PlaceOp):
                raise VerifyException(f"a block holds northpole.place only, not {op.name}")


@irdl_op_definition
class HostOp(IRDLOperation):
    """What the host does for every token: embedding, positions, sampling."""

    name = "northpole.host"
    sym_name = prop_def(SymbolNameConstraint())
    body = region_def()
    traits = traits_def(SymbolOpInterface(), NoTerminator())
    assembly_format = "$sym_name $body attr-dict"

    def __init__(self, symbol: str, places: Sequence[Operation]):
        super().__init__(
            properties={"sym_name": StringAttr(symbol)}, regions=[Region(Block(places))]
        )


@irdl_op_definition
class StageOp(IRDLOperation):
    """A stage of the pipeline: `cards` that run `blocks` in order, and what stays on each. `layers`
    has the layer that each block belongs to (-1: none of the layers, the output layer)."""

    name = "northpole.stage"
    sym_name = prop_def(SymbolNameConstraint())
    label = prop_def(StringAttr)
    cards = prop_def(DenseArrayBase.constr(i64))
    blocks = prop_def(ArrayAttr[SymbolRefAttr])
    layers = prop_def(DenseArrayBase.constr(i64))
    resident = prop_def(ResidentAttr)
    traits = traits_def(SymbolOpInterface())
    assembly_format = (
        "$sym_name $label `cards` $cards `blocks` $blocks `of` $layers $resident attr-dict"
    )

    def __init__(
        self,
        symbol: str,
        label: str,
        cards: Sequence[int],
        blocks: Sequence[str],
        layers: Sequence[int],
        size: Resident,
    ):
        super().__init__(
            properties={
                "sym_name": StringAttr(symbol),
                "label": StringAttr(label),
                "cards": DenseArrayBase.from_list(i64, cards),
                "blocks": ArrayAttr([SymbolRefAttr(b) for b in blocks]),
                "layers": DenseArrayBase.from_list(i64, layers),
                "resident": ResidentAttr(size),
            }
        )

    def verify_(self) -> None:
        if len(self.layers) != len(self.blocks):
            raise VerifyException(
                f"@{self.sym_name.data}: {len(self.blocks)} blocks of {len(self.layers)} layers"
            )


@irdl_op_definition
class SendOp(IRDLOperation):
    """A micro-batch's tensor from one stage, or the host, to the next: bytes for one token."""

    name = "northpole.send"
    source = prop_def(FlatSymbolRefAttrConstr)
    target = prop_def(FlatSymbolRefAttrConstr)
    bytes = prop_def(IntegerAttr[I64])
    assembly_format = "$source `->` $target `bytes` $bytes attr-dict"

    def __init__(self, source: str, target: str, size: int):
        super().__init__(
            properties={
                "source": SymbolRefAttr(source),
                "target": SymbolRefAttr(target),
                "bytes": _number(size),
            }
        )


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


NORTHPOLE = Dialect(
    "northpole",
    [BlockOp, HostOp, PlaceOp, ProgramOp, SendOp, StageOp],
    [AssumptionsAttr, PrecisionAttr, ResidentAttr, TaskAttr],
)
