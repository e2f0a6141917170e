"""`te-fold-views`: moves of data vanish into the maps of what reads or writes the data.

A view is a `te.map` with the identity as its body: a transpose, slice, expand or reshape. It goes
- into all its readers, whose maps are composed with it;
- or into its producer, which then writes the moved result;
- or, where only some readers can take it, into those.

Where a composition needs it, a dimension of the reader or producer is split: n = 64 becomes h = 4,
d = 16, so that a reshape is gone for good. A split costs a weight its plain axes, so that what
needs none is tried first. Weights that are then read through a composite axis (`16*h + d`) are
reshaped in their recipe, at no cost. Exact casts (f16 to f32) in front of operators that accumulate
in f32 go the same way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, ModuleOp
from xdsl.ir import Attribute
from xdsl.passes import ModulePass

from elk_ir.dialects.element_types import array_from_dense, dense_from_array
from elk_ir.dialects.te import (
    AttentionOp,
    ConcatOp,
    ContractOp,
    GlobalOp,
    LoadOp,
    MapOp,
    NormalizeOp,
    ReduceOp,
    SoftmaxOp,
    WeightAttr,
)
from elk_ir.dialects.te.attrs import Domain, DomainAttr, Map
from elk_ir.dialects.te.interface import StructuredOp, accumulator
from elk_ir.dialects.te.ops import Combiner
from elk_ir.dialects.types import tensor_type
from elk_ir.passes.te_affine import (
    Solution,
    Split,
    covers,
    digits,
    solve,
    substitute_map,
)
from elk_ir.passes.te_bodies import is_exact_cast
from elk_ir.passes.te_support import (
    FREE_DOMAINS,
    compose_read,
    dtype_of_value,
    erase_dead,
    extents_of,
    globals_of,
    in_bounds,
    is_move,
    loose_is_harmless,
    producer,
    rebuilt,
    reductions_are_written,
    replace_op,
    shape_of,
    simplified_domain,
    split_op_domain,
    structured_ops,
    symbol_of,
    users,
)
from elk_ir.plan.domain import AxisExpr, DimKind


@dataclass(frozen=True, slots=True)
class _Fold:
    """The domain of a reader (or of the producer) with the view composed in."""

    op: StructuredOp
    domain: Domain
    splits: int


def _fold_into(op: StructuredOp, view: MapOp) -> _Fold | None:
    """`op` reading through `view`; None if the composition is not affine."""
    if not isinstance(op, FREE_DOMAINS) or not in_bounds(view, 0):
        return None
    domain = op.domain.data
    splits = 0
    source = view.domain.data.operands[0]
    for i in range(len(op.ins)):
        if op.ins[i] is not view.outs[0]:
            continue
        while isinstance(found := compose_read(view, domain.operands[i], domain), Split):
            split = split_op_domain(op, domain, found)
            if split is None:
                return None
            domain, splits = split, splits + 1
        if found is None:
            return None
        assign, loose = found
        if loose and not (isinstance(op, ConcatOp) and loose_is_harmless(view, 0, loose)):
            return None
        operands = list(domain.operands)
        operands[i] = substitute_map(source, assign)
        domain = Domain(domain.dims, tuple(operands), domain.results)
    return _Fold(op, domain, splits) if _is_legal(op, domain) else None


def _is_legal(op: StructuredOp, domain: Domain) -> bool:
    """Whether the operation takes such maps: a concat's operand is indexed once by its dimension,
    and the results are still written whole."""
    if isinstance(op, ConcatOp):
        dim = op.dim.value.data
        for axes in domain.operands:
            if [t for a in axes for t in a.terms if t[0] == dim] != [(dim, 1)]:
                return False
    if not _reductions_are_read(op, domain):
        return False
    return _every_point_is_written(op, domain) and all(
        covers(axes, shape_of(r), extents_of(domain))
        for axes, r in zip(domain.results, op.outs, strict=True)
    )


def _every_point_is_written(op: StructuredOp, domain: Domain) -> bool:
    """Whether a norm or a softmax still has a result for every point of what it runs over. It does
    not where that is one point, whose place the view has fixed."""
    if not isinstance(op, SoftmaxOp | NormalizeOp):
        return True
    return reductions_are_written(domain, domain.results[0])


def _reductions_are_read(op: StructuredOp, domain: Domain) -> bool:
    """Whether what is reduced still depends on every reduction dimension. It does not where the
    view repeats a tensor: a sum over the copies would count one of them. What a norm or a softmax
    runs over depends on all dimensions, as there is a result for every point."""
    if isinstance(op, ContractOp):
        read = [domain.operands[: 2 if op.factors is None else op.factors.value.data]]
    elif isinstance(op, AttentionOp):
        read = [domain.operands[1:2], domain.operands[2:3]]
    elif isinstance(op, SoftmaxOp | NormalizeOp | ReduceOp):
        read = [domain.operands[:1]]
    else:
        return True
    # All but sums need even the dimensions of one point.
    least = 1 if isinstance(op, ContractOp | ReduceOp) else 0
    needed = {
        i
        for i, dim in enumerate(domain.dims)
        if (dim.kind is DimKind.REDUCTION or isinstance(op, SoftmaxOp | NormalizeOp))
        and dim.extent > least
    }
    return all(
        needed <= {d for axes in maps for axis in axes for d, _ in axis.terms} for maps in read
    )


def _fold_back(view: MapOp) -> _Fold | None:
    """The view's producer, writing the moved result."""
    op = producer(view.ins[0])
    if (
        op is None
        or not isinstance(op, FREE_DOMAINS)
        or op.parent is not view.parent
        or not view.ins[0].has_one_use()
    ):
        return None
    own = view.domain.data
    domain = op.domain.data
    splits = 0
    while True:
        # Who writes source index i writes result index R(S⁻¹(i)).
        found = solve(
            own.operands[0],
            shape_of(view.ins[0]),
            extents_of(own),
            domain.results[0],
            extents_of(domain),
        )
        if not isinstance(found, Split):
            break
        split = split_op_domain(op, domain, found)
        if split is None:
            return None
        domain, splits = split, splits + 1
    if (
        not isinstance(found, Solution)
        or found.loose
        or set(found.assign) != set(range(len(own.dims)))
    ):
        return None
    written = substitute_map(own.results[0], found.assign)
    domain = Domain(domain.dims, domain.operands, (written,))
    if not covers(written, shape_of(view.outs[0]), extents_of(domain)):
        return None
    return _Fold(op, domain, splits) if _every_point_is_written(op, domain) else None


def _splits_harm(fold: _Fold) -> bool:
    """Whether a fold splits dimensions of an operator whose partitioning matters most."""
    return fold.splits > 0 and isinstance(fold.op, ContractOp)


def _apply(fold: _Fold, view: MapOp, types: Sequence[Attribute] | None = None) -> StructuredOp:
    domain = fold.domain
    if not isinstance(fold.op, ConcatOp):
        domain, _ = simplified_domain(fold.op, domain)
    # Other readers of the view may have been replaced meanwhile: take the operands as they are now.
    ins = [view.ins[0] if v is view.outs[0] else v for v in fold.op.ins]
    return rebuilt(fold.op, ins, domain, types, sources=() if types is None else (view,))


def _fold_view(view: MapOp, contracts: bool) -> list[StructuredOp]:
    """Fold one view where it costs nothing, or (with `contracts`) at the price of splitting a
    product's dimensions. The operations that now do its work; none if it stays."""
    readers = users(view.outs[0])
    folds = [_fold_into(op, view) if isinstance(op, StructuredOp) else None for op in readers]
    whole = [f for f in folds if f is not None]
    complete = len(whole) == len(readers) > 0
    if complete and not any(map(_splits_harm, whole)):
        return _fold_all(whole, view)
    back = _fold_back(view)
    if back is not None and (contracts or not _splits_harm(back)):
        return [_replace_back(back, view)]
    return _fold_all(whole, view) if complete and contracts else []


def _fold_all(folds: Sequence[_Fold], view: MapOp) -> list[StructuredOp]:
    made: list[StructuredOp] = []
    for fold in folds:
        made.append(_apply(fold, view))
        replace_op(fold.op, made[-1])
    erase_dead(view)
    return made


def _replace_back(fold: _Fold, view: MapOp) -> StructuredOp:
    new = _apply(fold, view, [view.outs[0].type])
    replace_op(view, new)
    erase_dead(fold.op)
    return new


def _fold_partly(view: MapOp) -> None:
    """Fold a view that stays into the readers that can take it without harm."""
    for op in users(view.outs[0]):
        if isinstance(op, StructuredOp) and not is_move(op):
            fold = _fold_into(op, view)
            if fold is not None and not _splits_harm(fold):
                replace_op(op, _apply(fold, view))


# ---------------------------------------------------------------------- casts


def _takes_narrow(op: StructuredOp, i: int) -> bool:
    """Whether an operator widens operand i to its accumulator type by itself."""
    if isinstance(op, ContractOp):
        return i < (2 if op.factors is None else op.factors.value.data)
    if isinstance(op, ReduceOp):
        return i == 0 and op.combiner.data is Combiner.SUM
    if isinstance(op, AttentionOp):
        return i < 3
    return isinstance(op, SoftmaxOp | NormalizeOp) and i == 0


def _fold_cast(cast: MapOp) -> None:
    """Let readers that accumulate in f32 read what an exact cast reads."""
    body = cast.body.data
    if len(body.instrs) != 1 or body.instrs[0].op != "cast" or len(cast.ins) != 1:
        return
    source, target = dtype_of_value(cast.ins[0]), dtype_of_value(cast.outs[0])
    if not is_exact_cast(source, target) or accumulator(source) != target:
        return
    for op in users(cast.outs[0]):
        if not isinstance(op, StructuredOp) or any(
            v is cast.outs[0] and not _takes_narrow(op, i) for i, v in enumerate(op.ins)
        ):
            continue
        fold = _fold_into(op, cast)
        if fold is not None and not _splits_harm(fold):
            replace_op(op, _apply(fold, cast))
    erase_dead(cast)


# ---------------------------------------------------------------------- weights


def _reshape_weights(module: ModuleOp) -> None:
    """Give weights that are read through composite axes one axis a dimension."""
    table = globals_of(module)
    loads: dict[str, list[LoadOp]] = {}
    for op in module.walk():
        if isinstance(op, LoadOp):
            loads.setdefault(symbol_of(op), []).append(op)
    for symbol, readers in loads.items():
        shape = _common_shape(readers)
        if shape is None or symbol not in table:
            continue
        value = _reshaped(table[symbol], [n for axis in shape for n in axis])
        if value is None:
            continue
        extents = [n for axis in shape for n in axis]
        type_ = tensor_type(extents, dtype_of_value(readers[0].result))
        table[symbol].properties |= {"type": type_, "value": value}
        for load in readers:
            _reread(load, shape, type_)


def _common_shape(readers: Sequence[LoadOp]) -> list[list[int]] | None:
    """The extents into which each axis falls for every reader; None if there is nothing to do or
    the readers differ."""
    common: list[list[int]] | None = None
    for load in readers:
        for use in load.result.uses:
            op = use.operation
            if not isinstance(op, FREE_DOMAINS):
                return None
            domain = op.domain.data
            extents = extents_of(domain)
            shape: list[list[int]] = []
            for axis, extent in zip(domain.operands[use.index], shape_of(load.result), strict=True):
                order = digits(axis, extent, extents)
                shape.append([extents[d] for d in reversed(order or [])] or [extent])
                if order is None and len(axis.terms) > 1:
                    return None
                if order is None and shape[-1] != [extent]:
                    return None
            if common is not None and shape != common:
                return None
            common = shape
    return common if common is not None and any(len(axis) > 1 for axis in common) else None


def _reshaped(op: GlobalOp, extents: Sequence[int]) -> Attribute | None:
    """The value of a weight with another shape of as many elements a layer."""
    value = op.value
    if isinstance(value, DenseIntOrFPElementsAttr):
        lead = [] if op.stack is None else [op.layers]
        return dense_from_array(array_from_dense(value).reshape([*lead, *extents]).copy())
    if not isinstance(value, WeightAttr):
        return None
    ref = value.to_ref()
    step = "reshape " + " ".join(str(n) for n in extents)
    if op.stack is None:
        return WeightAttr.get(ref.then(step))
    recipe = ref.recipe
    assert recipe and recipe[-1].startswith("stack")
    return WeightAttr.get(type(ref)(ref.parts, (*recipe[:-1], step, recipe[-1])))


def _reread(load: LoadOp, shape: list[list[int]], type_: Attribute) -> None:
    new = LoadOp(symbol_of(load), type_, load.layer)
    new.location = load.location
    new.result.name_hint = load.result.name_hint
    for use in list(load.result.uses):
        op = use.operation
        assert isinstance(op, StructuredOp)
        domain = op.domain.data
        extents = extents_of(domain)
        axes: list[AxisExpr] = []
        for axis, parts in zip(domain.operands[use.index], shape, strict=True):
            if len(parts) == 1:
                axes.append(axis)
            else:
                order = digits(axis, _product(parts), extents)
                assert order is not None
                axes.extend(AxisExpr(((d, 1),)) for d in reversed(order))
        operands: list[Map] = list(domain.operands)
        operands[use.index] = tuple(axes)
        op.properties["domain"] = DomainAttr(Domain(domain.dims, tuple(operands), domain.results))
    block = load.parent
    assert block is not None
    block.insert_op_before(new, load)
    load.result.replace_all_uses_with(new.result)
    load.detach()
    load.erase()


def _product(extents: Sequence[int]) -> int:
    total = 1
    for n in extents:
        total *= n
    return total


@dataclass(frozen=True)
class TeFoldViewsPass(ModulePass):
    """Compose views into maps. `split_products=false` never splits a dimension of a product,
    `weights=false` leaves the shapes of weights alone, `casts=false` leaves casts."""

    name = "te-fold-views"

    split_products: bool = True
    weights: bool = True
    casts: bool = True

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrites `op` in place."""
        # Views behind one another become one, then go where they cost nothing, then the others.
        for contracts in (False, True) if self.split_products else (False,):
            queue: deque[StructuredOp] = deque(structured_ops(op))
            while queue:
                view = queue.popleft()
                if isinstance(view, MapOp) and view.parent is not None and is_move(view):
                    queue.extendleft(reversed(_fold_view(view, contracts)))
        for view in structured_ops(op):
            if isinstance(view, MapOp) and is_move(view):
                _fold_partly(view)
        if self.casts:
            for cast in structured_ops(op):
                if isinstance(cast, MapOp):
                    _fold_cast(cast)
        if self.weights:
            _reshape_weights(op)
