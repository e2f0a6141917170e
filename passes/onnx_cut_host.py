"""`onnx-cut-host`: a model cut into what the chip computes and what the host does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.context import Context as XdslContext
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    ModuleOp,
    StringAttr,
    TensorType,
)
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter
from xdsl.utils.exceptions import PassFailedException

from elk_ir.dialects.location import node_name
from elk_ir.dialects.te.ops import AttentionOp, ContractOp
from elk_ir.errors import ModelError
from elk_ir.passes.onnx_lowerings.context import Context
from elk_ir.passes.onnx_lowerings.driver import lower_block, op_type_of

PLACE = "elk.place"
"""Attribute of a function that the pass makes: `device` or `host`."""

REASONS = "elk.host_nodes"
"""Attribute of a host function: `node`, `operator` and `why` of each of its nodes."""


@dataclass(frozen=True)
class OnnxCutHostPass(ModulePass):
    """Cut `main` into functions for the device and functions for the host, which it then calls.

    Nodes that have no lowering to te (results whose shapes depend on data, loops and branches that
    are not resolved, operators without a lowering) go to the host, and so does what reads a tensor
    of a shape that depends on data. Nodes are collected into as few functions as their order
    allows: device functions have no choice of place, and one behind a host function that holds no
    product joins the host, for a round trip would cost more than it saves. What depends on
    constants only is repeated where it is read. A module without such nodes stays as it is.

    Fails, naming all of them, on nodes that the host can't run either (unknown operators, random
    numbers).
    """

    name = "onnx-cut-host"

    def apply(self, ctx: XdslContext, op: ModuleOp) -> None:
        from elk_ir.frontend.export import main_function, opset_of

        cut_module(op, main_function(op), opset_of(op))


def cut_module(module: ModuleOp, main: FuncOp, opset: int) -> bool:
    """Cut `main`; whether there was anything to cut. Raises PassFailedException."""
    trial = _try(main, opset)
    if not trial.failures:
        return False
    _refine(trial)
    graph = _Graph(main, opset)
    on_host = dict(trial.failures)
    graph.check(on_host)
    while True:
        stages = graph.stages(on_host)
        moved = _round_trips(stages, trial.products)
        if moved:
            on_host |= dict.fromkeys(moved, "behind the host, and no product")
            continue
        pieces = graph.pieces(stages, on_host)
        refused = _refused(pieces)
        if not refused:
            break
        graph.check(refused)
        on_host |= refused
    block = module.body.block
    for function in (*(p.function for p in pieces), graph.calls(pieces)):
        block.insert_op_before(function, main)
    block.erase_op(main)
    return True


# ---------------------------------------------------------------------- what can't be lowered


@dataclass
class _Trial:
    """A lowering that is thrown away: why nodes can't be lowered, which hold products, and the
    types of results that lowering knows better than inference."""

    failures: dict[Operation, str] = field(default_factory=dict)
    products: set[Operation] = field(default_factory=set)
    types: dict[SSAValue, TensorType] = field(default_factory=dict)


def _try(function: FuncOp, opset: int) -> _Trial:
    from elk_ir.dialects.onnx import InitializerOp

    trial, context = _Trial(), Context(opset)
    values: dict[SSAValue, SSAValue] = {}
    block = function.body.block
    for arg in block.args:
        values[arg] = context.block.insert_arg(arg.type, len(context.block.args))
    last: Operation | None = None

    def watch(op: Operation, failure: str | None) -> None:
        nonlocal last
        emitted = context.block.first_op if last is None else last.next_op
        while emitted is not None:
            if isinstance(emitted, ContractOp | AttentionOp):
                trial.products.add(op)
            emitted = emitted.next_op
        last = context.block.last_op
        if isinstance(op, InitializerOp):
            return
        if failure is not None:
            trial.failures[op] = _reason(op, failure)
            return
        for result in op.results:
            new = values[result].type
            if new != result.type and isinstance(new, TensorType):
                trial.types[result] = new

    lower_block(context, block, values, [], watch)
    return trial


def _reason(op: Operation, failure: str) -> str:
    """Why a node runs on the host, in terms of the model rather than of its lowering."""
    if op.regions:
        return failure
    if any(not _static(v) for v in op.operands):
        return "it reads a tensor whose shape depends on data"
    if any(not _static(v) for v in op.results):
        return "the shape of its result depends on data"
    return failure


def _static(value: SSAValue) -> bool:
    return isinstance(value.type, TensorType) and all(n >= 0 for n in value.type.get_shape())


def _refine(trial: _Trial) -> None:
    """Give results the types that lowering found, so that they hold across a cut."""
    for value, type_ in trial.types.items():
        Rewriter.replace_value_with_new_type(value, type_)


def _round_trips(stages: _Stages, products: set[Operation]) -> list[Operation]:
    """The operations of device stages behind a host stage that hold no product."""
    worth = {s for op, s in stages.of.items() if op in products}
    return [op for op, s in stages.of.items() if s % 2 == 0 and s > 0 and s not in worth]


def _refused(pieces: Sequence[_Piece]) -> dict[Operation, str]:
    """Operations of device functions that can't be lowered there, by what they were made from."""
    refused: dict[Operation, str] = {}
    for each in pieces:
        if each.on_device:
            failures = _try(each.function, each.opset).failures
            refused |= {each.origins[op]: why for op, why in failures.items()}
    return refused


# ---------------------------------------------------------------------- the cut


@dataclass(frozen=True)
class _Stages:
    """Operation -> stage, even on the device, odd on the host; `free` operations depend on
    constants only, have no stage, and are repeated where they are read."""

    of: Mapping[Operation, int]
    free: frozenset[Operation]


@dataclass(frozen=True)
class _Piece:
    """A piece: its function, what its operations were cloned from, and its edge in `main`."""

    function: FuncOp
    opset: int
    on_device: bool
    origins: Mapping[Operation, Operation]
    inputs: tuple[SSAValue, ...]
    outputs: tuple[SSAValue, ...]


class _Graph:
    """`main`, its operations in order, and the names that its values get at the edges of pieces."""

    def __init__(self, main: FuncOp, opset: int) -> None:
        from elk_ir.dialects.onnx import InitializerOp

        self.main_op, self.opset = main, opset
        self.block = main.body.block
        last = self.block.last_op
        assert isinstance(last, ReturnOp)
        self.returned = last
        self.ops = [op for op in self.block.ops if op is not last]
        self.constants = frozenset[Operation](
            op for op in self.ops if isinstance(op, InitializerOp)
        )
        self.names: dict[SSAValue, str] = {}
        self._taken: set[str] = set()
        self._checked: set[str] = set()

    def check(self, on_host: Mapping[Operation, str]) -> None:
        """Raises PassFailedException with all nodes that the host can't run either."""
        from elk_ir.numerics.host_eval import check_node

        errors: list[str] = []
        for op, reason in on_host.items():
            kind = op_type_of(op)
            if kind in self._checked and not op.regions:
                continue
            piece = self.piece("node", [op], op.results, self.constants, {}, on_device=False)
            try:
                check_node(op, piece.function, self.opset)
                self._checked.add(kind)
            except ModelError as error:
                errors.append(f"{node_name(op)}: {kind}: {reason}; the host: {error.what}")
        if errors:
            count = f"{len(errors)} node{'s' if len(errors) > 1 else ''}"
            raise PassFailedException(
                "\n  ".join([f"{count} can be neither lowered to te nor run on the host:", *errors])
            )

    def stages(self, on_host: Mapping[Operation, str]) -> _Stages:
        """The lowest stages that let each operation read earlier stages and its own only."""
        free = set(self.constants)
        stages: dict[Operation, int] = {}
        for op in self.ops:
            if op in free:
                continue
            host, read = op in on_host, list(_read(op))
            if not host and all(v.owner in free for v in read):
                free.add(op)
                continue
            stage = int(host)
            for value in read:
                before = stages.get(value.owner) if isinstance(value.owner, Operation) else None
                if before is not None:
                    stage = max(stage, before + (before % 2 != host))
            stages[op] = stage
        return _Stages(stages, frozenset(free))

    def pieces(self, stages: _Stages, on_host: Mapping[Operation, str]) -> list[_Piece]:
        """One for each stage, in the order in which they run."""
        groups: dict[int, list[Operation]] = {}
        readers: dict[SSAValue, set[int]] = {}
        for op, stage in stages.of.items():
            groups.setdefault(stage, []).append(op)
            for value in _read(op):
                readers.setdefault(value, set()).add(stage)
        returned = dict.fromkeys(self.returned.arguments)
        pieces: list[_Piece] = []
        last_of_host = max(s for s in groups if s % 2)
        for stage in sorted(groups):
            outputs = [
                v
                for op in groups[stage]
                for v in op.results
                if v in returned or readers.get(v, set()) - {stage}
            ]
            if stage == last_of_host:  # any piece could yield the outputs that are constants
                outputs += [v for v in returned if v.owner in stages.free]
            device = stage % 2 == 0
            count = sum(p.on_device == device for p in pieces)
            name = f"{'device' if device else 'host'}{count}"
            pieces.append(
                self.piece(name, groups[stage], outputs, stages.free, on_host, on_device=device)
            )
        return pieces

    def piece(
        self,
        name: str,
        ops: Sequence[Operation],
        outputs: Sequence[SSAValue],
        free: frozenset[Operation],
        on_host: Mapping[Operation, str],
        *,
        on_device: bool,
    ) -> _Piece:
        """A function of `ops`, and of what they read of `free`, that yields `outputs`."""
        wanted = self._with_free(ops, outputs, free)
        inside = {v for op in wanted for v in op.results}
        inputs = list(dict.fromkeys(v for op in wanted for v in _read(op) if v not in inside))
        block = Block(arg_types=[v.type for v in inputs])
        values: dict[SSAValue, SSAValue] = {}
        for value, arg in zip(inputs, block.args, strict=True):
            arg.name_hint = value.name_hint
            values[value] = arg
        origins: dict[Operation, Operation] = {}
        for op in wanted:
            copy = op.clone(values)
            origins[copy] = op
            block.add_op(copy)
        block.add_op(ReturnOp(*(values[v] for v in outputs)))
        function = FuncOp(
            name,
            ([v.type for v in inputs], [v.type for v in outputs]),
            Region(block),
            visibility="private",
            arg_attrs=self._named(inputs),
            res_attrs=self._named(outputs),
        )
        function.attributes[PLACE] = StringAttr("device" if on_device else "host")
        if not on_device:
            function.attributes[REASONS] = ArrayAttr(
                DictionaryAttr(
                    {
                        "node": StringAttr(node_name(op)),
                        "operator": StringAttr(op_type_of(op)),
                        "why": StringAttr(on_host.get(op, "")),
                    }
                )
                for op in ops
            )
        return _Piece(function, self.opset, on_device, origins, tuple(inputs), tuple(outputs))

    def _with_free(
        self, ops: Sequence[Operation], outputs: Iterable[SSAValue], free: frozenset[Operation]
    ) -> list[Operation]:
        """`ops` and what they and `outputs` need of `free`, in order."""
        wanted = set(ops)
        queue = [v for op in ops for v in _read(op)] + list(outputs)
        while queue:
            owner = queue.pop().owner
            if isinstance(owner, Operation) and owner in free and owner not in wanted:
                wanted.add(owner)
                queue.extend(_read(owner))
        return [op for op in self.ops if op in wanted]

    def _named(self, values: Iterable[SSAValue]) -> ArrayAttr[DictionaryAttr]:
        return ArrayAttr(
            DictionaryAttr({"onnx.name": StringAttr(self.name(value))}) for value in values
        )

    def name(self, value: SSAValue) -> str:
        """A name that no other value has."""
        if value not in self.names:
            stem = value.name_hint or "v"
            name, count = stem, 0
            while name in self._taken:
                count += 1
                name = f"{stem}_{count}"
            self._taken.add(name)
            self.names[value] = name
        return self.names[value]

    def calls(self, pieces: Sequence[_Piece]) -> FuncOp:
        """`main` as calls of the pieces."""
        block = Block(arg_types=[a.type for a in self.block.args])
        values: dict[SSAValue, SSAValue] = {}
        for old, new in zip(self.block.args, block.args, strict=True):
            new.name_hint = old.name_hint
            values[old] = new
        for piece in pieces:
            call = CallOp(
                piece.function.sym_name.data,
                [values[v] for v in piece.inputs],
                [v.type for v in piece.outputs],
            )
            for old, new in zip(piece.outputs, call.results, strict=True):
                new.name_hint = self.names[old]
                values[old] = new
            block.add_op(call)
        results = [values[v] for v in self.returned.arguments]
        block.add_op(ReturnOp(*results))
        old = self.main_op
        return FuncOp(
            old.sym_name.data,
            ([a.type for a in block.args], [v.type for v in results]),
            Region(block),
            arg_attrs=old.arg_attrs,
            res_attrs=old.res_attrs,
        )


def _read(op: Operation) -> Iterator[SSAValue]:
    """The values that an operation and the graphs inside it read from outside of it."""
    if not op.regions:
        yield from op.operands
        return
    inside = set[SSAValue]()
    for each in op.walk():
        inside.update(each.results)
        for region in each.regions:
            for block in region.blocks:
                inside.update(block.args)
    for each in op.walk():
        yield from (v for v in each.operands if v not in inside)
