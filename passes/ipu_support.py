"""What the checks of ipu programs share: variables, indices, and how things are called."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue

from elk_ir.dialects import ipu
from elk_ir.dialects.ipu.attrs import RefAttr
from elk_ir.plan.domain import Access, AxisExpr, Operator
from elk_ir.plan.layout import Layout


@dataclass(frozen=True)
class Variable:
    """A declared variable: its layout, element type and bytes."""

    op: ipu.VarOp
    layout: Layout
    dtype: str

    @property
    def name(self) -> str:
        """Its symbol."""
        return self.op.sym_name.data

    @property
    def start(self) -> int:
        """Its first byte."""
        return self.op.at.value.data

    @property
    def end(self) -> int:
        """The byte behind its last one."""
        return self.start + self.op.bytes.value.data

    @property
    def where(self) -> str:
        """`@name of NODE (bytes A to B)`."""
        owner = "" if self.op.owner is None else f" of {self.op.owner.data}"
        return f"@{self.name}{owner} (bytes {self.start} to {self.end - 1})"

    def overlaps(self, other: Variable) -> bool:
        """Whether they share bytes."""
        return self.start < other.end and other.start < self.end


def steps_of(index: SSAValue | None) -> np.ndarray:
    """Every value that an index can have; [0] without an index."""
    if index is None:
        return np.zeros(1, dtype=np.int64)
    owner = index.owner
    if isinstance(owner, ipu.RowOp):
        return steps_of(owner.base_row) + owner.offset.value.data
    loop = owner.parent_op() if isinstance(index, BlockArgument) else None
    assert isinstance(loop, ipu.RepeatOp)
    first = loop.first.value.data
    return np.arange(first, first + loop.count.value.data)


def box_at(
    layout: Layout, at: Sequence[np.ndarray | None], i: int
) -> tuple[np.ndarray, np.ndarray]:
    """Origins (cores, rank) and bounds (cores, rank, 2) of the slots `at` of step i."""
    place = (slice(None), *(0 if s is None else int(s[i]) for s in at))
    return layout.origins[place], layout.bounds[place]


def image_start(axis: AxisExpr, origin: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """First index along a tensor axis of the image of each core's iteration box."""
    start = np.full(origin.shape[0], axis.offset, dtype=np.int64)
    for d, k in axis.terms:
        start = start + k * (origin[:, d] if k > 0 else origin[:, d] + size[d] - 1)
    return start


def stat_access(codelet: Operator, i: int) -> Access:
    """Where statistic i lies in the iteration domain."""
    stat = codelet.stats[i]
    return Access(
        tuple(codelet.extents[d] for d in stat.dims),
        stat.dtype,
        tuple(AxisExpr(((d, 1),)) for d in stat.dims),
    )


def refs(attrs: Iterable[Attribute]) -> list[RefAttr]:
    """References, as what they are."""
    return [a for a in attrs if isinstance(a, RefAttr)]


def pairs(
    what: str, references: Sequence[RefAttr], accesses: Sequence[Access], lead: bool | None = False
) -> Iterator[tuple[str, RefAttr, Access, bool]]:
    """What a reference is for, the reference, its access, and whether it has a leading axis."""
    for reference, access in zip(references, accesses, strict=False):
        yield what, reference, access, bool(lead)


def misplaced(
    op: Operation,
    what: str,
    var: Variable,
    access: Access,
    origins: np.ndarray,
    bounds: np.ndarray,
    box: tuple[np.ndarray, np.ndarray],
    size: Sequence[int],
) -> str | None:
    """A sentence if a block does not hold what a vertex takes it for, on some core.

    origins, bounds: of the block, (cores, rank) and (cores, rank, 2). box: origins and bounds of
    the iteration, `size` points a dimension. Cores that hold or compute nothing do not count.
    """
    held = (bounds[..., 1] > bounds[..., 0]).all(axis=-1)
    busy = (box[1][..., 1] > box[1][..., 0]).all(axis=-1)
    for j, axis in enumerate(access.axes):
        start = image_start(axis, box[0], size)
        wrong = (origins[..., j] != start) & held & busy
        if wrong.any():
            core = int(np.flatnonzero(wrong)[0])
            return (
                f"{title(op)}: {what} {var.where} holds elements from {int(origins[core, j])} of"
                f" axis {j} on core {core}, the vertex takes them for those from {int(start[core])}"
            )
    return None


def title(op: Operation) -> str:
    """An operation in a message."""
    match op:
        case ipu.ExecuteOp():
            return f"@{op.sym_name.data}"
        case ipu.CopyStartOp():
            return f"the copy of @{op.source.root_reference.data}"
        case ipu.StoreStartOp():
            return f"the store to @{op.target.root_reference.data}"
        case ipu.ReshardOp():
            return f"the reshard to @{op.target.root_reference.data}"
        case ipu.ExchangeOp() | ipu.CopyOp():
            kind = "exchange" if isinstance(op, ipu.ExchangeOp) else "copy"
            return f"the {kind} to @{op.target.data.name}"
        case ipu.FillOp():
            return f"the fill of @{op.target.root_reference.data}"
        case _:
            return op.name
