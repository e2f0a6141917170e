"""Structured operations that compute with indices: scatter, arg-reductions, top-k, scans."""

from __future__ import annotations

from enum import auto

from xdsl.dialects.builtin import BoolAttr, IntegerAttr
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import SpacedOpaqueSyntaxAttribute
from xdsl.irdl import irdl_attr_definition, irdl_op_definition, opt_prop_def, prop_def
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.str_enum import StrEnum

from elk_ir.dialects.te.interface import StructuredOp, accumulator, with_phase
from elk_ir.dialects.te.ops import Combiner, CombinerAttr, reduction_neutral
from elk_ir.numerics.indexing_kernels import NO_INDEX
from elk_ir.plan.domain import Access, Dim, DimKind, Operator, Phase, Stat


class Update(StrEnum):
    """What a scatter does with an element and its update."""

    ADD = auto()
    MAX = auto()
    MIN = auto()
    MUL = auto()
    SET = auto()


@irdl_attr_definition
class UpdateAttr(EnumAttribute[Update], SpacedOpaqueSyntaxAttribute):
    """`set`, `add`, `mul`, `max` or `min`."""

    name = "te.update"


_COMBINERS = {
    Update.ADD: Combiner.SUM,
    Update.MAX: Combiner.MAX,
    Update.MIN: Combiner.MIN,
    Update.MUL: Combiner.PROD,
}


def _flag(attr: BoolAttr | None) -> bool:
    return attr is not None and bool(attr.value.data)


@irdl_op_definition
class ScatterOp(StructuredOp):
    """A tensor (operand 0) with rows changed: index (operand 1) names the row of each update
    (operand 2).

    `rows` is the dimension of the indexed rows. Dimensions of the updates that the result lacks are
    reductions; negative indices count from the end, others out of range are left out. Of several
    updates `set` on one element the last one stays.
    """

    name = "te.scatter"
    rows = prop_def(IntegerAttr)
    update = prop_def(UpdateAttr)

    def build_operator(
        self, dims: tuple[Dim, ...], operands: list[Access], results: list[Access]
    ) -> Operator:
        if len(operands) != 3 or len(results) != 1:
            raise VerifyException("scatter takes data, index and updates, and has one result")
        rows = self.rows.value.data
        data, index, updates = operands
        kept = tuple(sorted(results[0].dims))
        if rows not in data.simple or rows not in results[0].simple:
            raise VerifyException("the rows are a whole axis of the data and of the result")
        if rows in index.dims or rows in updates.dims:
            raise VerifyException("the rows index neither the index nor the updates")
        if {*kept} - {rows} - index.dims - updates.dims:
            raise VerifyException("every dimension of the result but the rows is one of updates")
        for d in index.dims | updates.dims:
            if (dims[d].kind is DimKind.REDUCTION) is (d in kept):
                raise VerifyException(f"{dims[d].name} is in the result or reduced, not both")
        update = self.update.data
        if update is Update.SET:
            stats = (
                Stat("value", kept, data.dtype, 0.0),
                Stat("order", kept, "int64", -1),
            )
        else:
            combiner = _COMBINERS[update]
            dtype = data.dtype
            if combiner in (Combiner.SUM, Combiner.PROD):
                dtype = accumulator(dtype)
            stats = (Stat("acc", kept, dtype, reduction_neutral(combiner, dtype)),)
        accesses = (
            with_phase(data, Phase.APPLY),
            with_phase(index, Phase.LOCAL, NO_INDEX),
            with_phase(updates, Phase.LOCAL),
        )
        params = (("rows", rows), ("combiner", str(update)))
        return Operator("scatter", dims, accesses, tuple(results), stats, params, 1.0)


@irdl_op_definition
class ArgReduceOp(StructuredOp):
    """The index of the largest (with `smallest` the smallest) element along the one reduction
    dimension; of equal ones the first, with `last` the last."""

    name = "te.argreduce"
    smallest = opt_prop_def(BoolAttr)
    last = opt_prop_def(BoolAttr)

    def build_operator(
        self, dims: tuple[Dim, ...], operands: list[Access], results: list[Access]
    ) -> Operator:
        reductions = [i for i, d in enumerate(dims) if d.kind is DimKind.REDUCTION]
        if len(operands) != 1 or len(results) != 1 or len(reductions) != 1:
            raise VerifyException("argreduce takes one operand and has one reduction dimension")
        if reductions[0] in results[0].dims:
            raise VerifyException("the result does not have the reduction dimension")
        smallest = _flag(self.smallest)
        dtype = operands[0].dtype
        neutral = reduction_neutral(Combiner.MIN if smallest else Combiner.MAX, dtype)
        kept = tuple(sorted(results[0].dims))
        stats = (Stat("best", kept, dtype, neutral), Stat("index", kept, "int64", -1))
        params = (("largest", not smallest), ("last", _flag(self.last)))
        access = with_phase(operands[0], Phase.LOCAL, neutral)
        return Operator("argreduce", dims, (access,), tuple(results), stats, params, 1.0)


@irdl_op_definition
class TopkOp(StructuredOp):
    """The largest (with `smallest` the smallest) elements along dimension `n`, as many as dimension
    `k` has points, in order, and their indices. Both dimensions are local to a core."""

    name = "te.topk"
    n = prop_def(IntegerAttr)
    k = prop_def(IntegerAttr)
    smallest = opt_prop_def(BoolAttr)

    def build_operator(
        self, dims: tuple[Dim, ...], operands: list[Access], results: list[Access]
    ) -> Operator:
        n, k = self.n.value.data, self.k.value.data
        if len(operands) != 1 or len(results) != 2:
            raise VerifyException("topk takes one operand and yields values and indices")
        for d in (n, k):
            if not 0 <= d < len(dims) or dims[d].kind is not DimKind.LOCAL:
                raise VerifyException("the sorted dimensions are local to a core")
        if dims[k].extent > dims[n].extent:
            raise VerifyException(f"the top {dims[k].extent} of {dims[n].extent} elements")
        params = (("n", n), ("k", k), ("largest", not _flag(self.smallest)))
        access = with_phase(operands[0], Phase.APPLY)
        return Operator("topk", dims, (access,), tuple(results), (), params, 1.0)


@irdl_op_definition
class ScanOp(StructuredOp):
    """Running sums (or products) along dimension `n`, which is local to a core.

    `exclusive` leaves an element out of its own sum, `reverse` sums from the end.
    """

    name = "te.scan"
    n = prop_def(IntegerAttr)
    combiner = prop_def(CombinerAttr)
    exclusive = opt_prop_def(BoolAttr)
    reverse = opt_prop_def(BoolAttr)

    def build_operator(
        self, dims: tuple[Dim, ...], operands: list[Access], results: list[Access]
    ) -> Operator:
        n, combiner = self.n.value.data, self.combiner.data
        if len(operands) != 1 or len(results) != 1:
            raise VerifyException("scan takes one operand and has one result")
        if not 0 <= n < len(dims) or dims[n].kind is not DimKind.LOCAL:
            raise VerifyException("the scanned dimension is local to a core")
        if combiner not in (Combiner.SUM, Combiner.PROD):
            raise VerifyException("scan computes sums or products")
        params = (
            ("n", n),
            ("combiner", str(combiner)),
            ("dtype", accumulator(operands[0].dtype)),
            ("exclusive", _flag(self.exclusive)),
            ("reverse", _flag(self.reverse)),
        )
        access = with_phase(operands[0], Phase.APPLY)
        return Operator("scan", dims, (access,), tuple(results), (), params, 1.0)
