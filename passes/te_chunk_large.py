"""`te-chunk-large`: operators on tensors that fill the SRAM become operators on parts of them.

The scores of attention in training have batch x heads x length x length entries. An operator that
reads two such tensors and makes a third one needs all three on chip at once. All operators around
such tensors are cut alike, along the outermost axis of the tensors, so that a part is made, used
and done with (or spilled, `icca-spill`) before the next one is begun.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, OpResult, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from elk_ir.cost.shapes import itemsize
from elk_ir.dialects.te import (
    AttentionOp,
    ConcatOp,
    ContractOp,
    MapOp,
    NormalizeOp,
    ReduceOp,
    SoftmaxOp,
)
from elk_ir.dialects.te.attrs import Domain, Map
from elk_ir.dialects.te.interface import StructuredOp
from elk_ir.dialects.types import tensor_type
from elk_ir.passes.te_support import chip_for, dtype_of_value, functions, rebuilt, shape_of
from elk_ir.plan.candidates import divisors
from elk_ir.plan.domain import AxisExpr, Dim, DimKind

MISSING = "te-chunk-large: name a chip with chip=NAME, or give chunks=N and large=BYTES"

WHOLE = 0.5
"""An operator whose operands and results take no more than this part of the SRAM stays whole."""

LARGE = 1 / 16
"""From this part of the SRAM on, a tensor is cut with the operators around it."""

MOST_CHUNKS = 64
"""More parts make programs too long to schedule."""

CUTTABLE = (AttentionOp, ContractOp, MapOp, NormalizeOp, ReduceOp, SoftmaxOp)
"""Operators whose parallel dimensions may be cut: none of them counts positions."""


def tensor_bytes(value: SSAValue) -> int:
    """Bytes of a tensor."""
    return prod(shape_of(value)) * itemsize(dtype_of_value(value))


def _outer_axis(value: SSAValue) -> int:
    """The first axis of more than one entry."""
    return next((j for j, n in enumerate(shape_of(value)) if n > 1), 0)


def _image(axis: AxisExpr, dims: Sequence[Dim], d: int, start: int, size: int) -> tuple[int, int]:
    """First and last index along an axis that points `start` … `start + size - 1` of d reach."""
    low = high = axis.offset
    for t, k in axis.terms:
        first, last = (start, start + size - 1) if t == d else (0, dims[t].extent - 1)
        low += min(k * first, k * last)
        high += max(k * first, k * last)
    return low, high


def _inside(value: SSAValue, axes: Map, dims: Sequence[Dim], d: int, chunks: int) -> bool:
    """Whether chunk c of an operator cut along d stays in part c of a tensor, for every c."""
    j = _outer_axis(value)
    extent, points = shape_of(value)[j], dims[d].extent
    if extent % chunks or points % chunks:
        return False
    part, size = extent // chunks, points // chunks
    for c in (0, chunks - 1):  # both ends of the image are linear in c
        low, high = _image(axes[j], dims, d, c * size, size)
        if low < c * part or high >= (c + 1) * part:
            return False
    return True


def _result_axis(axes: Map, dims: Sequence[Dim], d: int, chunks: int) -> int | None:
    """The axis along which chunks of d fill equal, consecutive parts of a result; None if none."""
    found = [j for j, axis in enumerate(axes) if any(t == d for t, _ in axis.terms)]
    if len(found) != 1:
        return None
    size = dims[d].extent // chunks
    whole = _image(axes[found[0]], dims, d, 0, dims[d].extent)
    part, rest = divmod(whole[1] + 1, chunks)
    for c in (0, chunks - 1):
        if rest or _image(axes[found[0]], dims, d, c * size, size) != (
            c * part,
            (c + 1) * part - 1,
        ):
            return None
    return found[0]


def cut_dim(op: StructuredOp, large: set[SSAValue], chunks: int) -> int | None:
    """The outermost parallel dimension along which `op` can be cut into chunks, each reading and
    writing one part of every large tensor and filling a part of every result."""
    if not isinstance(op, CUTTABLE):
        return None
    own = op.domain.data
    for d, dim in enumerate(own.dims):
        if dim.kind is not DimKind.PARALLEL or dim.extent % chunks or dim.extent == 1:
            continue
        accesses = [
            *zip(op.ins, own.operands, strict=True),
            *zip(op.outs, own.results, strict=True),
        ]
        if all(_inside(v, axes, own.dims, d, chunks) for v, axes in accesses if v in large) and all(
            _result_axis(axes, own.dims, d, chunks) is not None for axes in own.results
        ):
            return d
    return None


@dataclass
class Group:
    """Operators of one block that large tensors tie together, in order, and these tensors."""

    ops: list[StructuredOp]
    large: set[SSAValue]

    def chunks(self, limit_bytes: float) -> int:
        """The fewest chunks that bring every operator under the limit, or as many as there can be
        (up to MOST_CHUNKS); 1 if all of them are under it, or they can't be cut alike."""
        most = max(sum(map(tensor_bytes, {*op.ins, *op.outs})) for op in self.ops)
        if most <= limit_bytes:
            return 1
        extent = min(shape_of(v)[_outer_axis(v)] for v in self.large)
        found = [
            n
            for n in divisors(extent)
            if 1 < n <= MOST_CHUNKS
            and all(cut_dim(op, self.large, n) is not None for op in self.ops)
        ]
        return next((n for n in found if most <= n * limit_bytes), max(found, default=1))


def groups(block: Block, large_bytes: float) -> list[Group]:
    """The groups of a block."""
    made = [op for op in block.ops if isinstance(op, StructuredOp)]
    large = {v for op in made for v in op.outs if tensor_bytes(v) >= large_bytes}
    home: dict[StructuredOp, Group] = {}
    for op in made:
        tied = large & {*op.ins, *op.outs}
        if not tied:
            continue
        own = Group([op], set(tied))
        for value in op.ins:
            maker = value.owner
            if value in tied and isinstance(maker, StructuredOp) and home[maker] is not own:
                other = home[maker]
                own = Group(other.ops + own.ops, other.large | own.large)
                home.update(dict.fromkeys(own.ops, own))
        home[op] = own
    found = {id(g): g for g in home.values()}
    order = {op: i for i, op in enumerate(made)}
    return [Group(sorted(g.ops, key=order.__getitem__), g.large) for g in found.values()]


class _Cutter:
    """Replaces the operators of one group by chunks."""

    def __init__(self, group: Group, chunks: int):
        self.group, self.chunks = group, chunks
        self.dims = {op: cut_dim(op, group.large, chunks) for op in group.ops}
        self.parts: dict[SSAValue, list[SSAValue]] = {}
        self.axis: dict[SSAValue, int] = {}
        for op, d in self.dims.items():
            assert d is not None
            for value, axes in zip(op.outs, op.domain.data.results, strict=True):
                j = _result_axis(axes, op.domain.data.dims, d, chunks)
                assert j is not None
                self.axis[value] = j

    def segments(self) -> Iterator[tuple[list[StructuredOp], list[Operation]]]:
        """Runs of the group's operators that depend on each other part by part only, each with the
        operations between its first and its last one that depend on it."""
        run: list[StructuredOp] = []
        dependent: dict[Operation, None] = {}
        between: list[Operation] = []
        op: Operation | None = self.group.ops[0]
        while op is not None:
            if isinstance(op, StructuredOp) and op in self.dims:
                reads = zip(op.ins, op.domain.data.operands, strict=True)
                if any(
                    v.owner in dependent or (v.owner in run and not self.reads_parts(op, v, axes))
                    for v, axes in reads
                ):
                    yield run, between
                    run, dependent, between = [], {}, []
                run.append(op)
                between = list(dependent)
            elif any(v.owner in dependent or v.owner in run for v in op.operands):
                dependent[op] = None
            op = op.next_op
        yield run, between

    def run(self) -> None:
        for segment, between in list(self.segments()):
            anchor = segment[-1]
            block = anchor.parent
            assert block is not None
            for op in reversed(between):
                op.detach()
                block.insert_op_after(op, anchor)
            for c in range(self.chunks):
                for op in segment:
                    self.chunk(op, c, anchor)
            for op in segment:
                for value in op.outs:
                    self.join(value, anchor)
        for op in reversed(self.group.ops):
            op.detach()
            op.erase()

    def reads_parts(self, op: StructuredOp, value: SSAValue, axes: Map) -> bool:
        """Whether an operator of the group reads a tensor part by part."""
        d = self.dims[op]
        assert d is not None
        if self.axis.get(value) != _outer_axis(value):
            return False
        return _inside(value, axes, op.domain.data.dims, d, self.chunks)

    def chunk(self, op: StructuredOp, c: int, anchor: Operation) -> None:
        """Put chunk c of an operator in front of `anchor`."""
        own, d = op.domain.data, self.dims[op]
        assert d is not None and anchor.parent is not None
        size = own.dims[d].extent // self.chunks
        dims = tuple(replace(x, extent=size) if i == d else x for i, x in enumerate(own.dims))
        ins: list[SSAValue] = []
        maps: list[Map] = []
        for value, axes in zip(op.ins, own.operands, strict=True):
            shifted = [
                AxisExpr(a.terms, a.offset + c * size * sum(k for t, k in a.terms if t == d))
                for a in axes
            ]
            if value in self.parts and self.reads_parts(op, value, axes):
                j = self.axis[value]
                part = shape_of(value)[j] // self.chunks
                shifted[j] = replace(shifted[j], offset=shifted[j].offset - c * part)
                value = self.parts[value][c]
            ins.append(value)
            maps.append(tuple(shifted))
        types = []
        for value in op.outs:
            shape = list(shape_of(value))
            shape[self.axis[value]] //= self.chunks
            types.append(tensor_type(shape, dtype_of_value(value)))
        new = rebuilt(op, ins, Domain(dims, tuple(maps), own.results), types)
        anchor.parent.insert_op_before(new, anchor)
        for value, part in zip(op.outs, new.outs, strict=True):
            self.parts.setdefault(value, []).append(part)

    def join(self, value: OpResult, anchor: Operation) -> None:
        """Concatenate the parts of a result for those who read it as a whole."""
        joined: SSAValue | None = None
        for use in list(value.uses):
            reader = use.operation
            if isinstance(reader, StructuredOp) and reader in self.dims:
                if self.reads_parts(reader, value, reader.domain.data.operands[use.index]):
                    continue
            if joined is None:
                op = ConcatOp.along(self.parts[value], self.axis[value])
                op.location = value.op.location
                assert anchor.parent is not None
                anchor.parent.insert_op_before(op, anchor)
                joined = op.outs[0]
                joined.name_hint = value.name_hint
            reader.operands[use.index] = joined


@dataclass(frozen=True)
class TeChunkLargePass(ModulePass):
    """Cut operators that fill the SRAM, and all operators around the same tensors, into chunks.

        elk-opt model.onnx -p 'convert-onnx-to-te,te-pipeline,te-chunk-large{chip=ipu-pod4-hbm}'

    If the operands and results of an operator take more than half of the SRAM of all cores, it and
    every operator that makes or reads one of its large tensors (a sixteenth of the SRAM, or
    `large` bytes) are cut along the outermost axis of these, into as few chunks as bring the
    largest operator under half the SRAM (64 at the most), or into `chunks`. All operators between
    two that something else depends on are gone through chunk by chunk. What is read as a whole is
    concatenated.
    Operators that count positions (gathers, scatters, …) are never cut, nor is what hangs together
    with them by large tensors. Invariant: the numbers.
    """

    name = "te-chunk-large"

    chunks: int | None = None
    large: int | None = None
    chip: str | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.chunks is not None and self.chunks < 1:
            raise PassFailedException(f"te-chunk-large: {self.chunks} chunks are no operator")
        if self.chunks is None or self.large is None:
            chip = chip_for(op, self.chip, MISSING)
            if chip.hbm is None:
                return
            sram_bytes = chip.cores * chip.usable_sram_per_core_bytes
        else:
            sram_bytes = 0
        large_bytes = LARGE * sram_bytes if self.large is None else self.large
        for function in functions(op):
            for group in groups(function.body.block, large_bytes):
                count = self.chunks or group.chunks(WHOLE * sram_bytes)
                if count == 1:
                    continue
                if all(cut_dim(each, group.large, count) is not None for each in group.ops):
                    _Cutter(group, count).run()
