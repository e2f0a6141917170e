"""Products: MatMul, Gemm, Einsum, all `te.contract`."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import SSAValue

from elk_ir.dialects.te.attrs import DomainAttr, Map
from elk_ir.dialects.te.interface import accumulator
from elk_ir.dialects.te.ops import ContractOp, MapOp
from elk_ir.dialects.types import tensor_type
from elk_ir.numerics.scalars import BodyBuilder, Scalar
from elk_ir.passes.onnx_lowerings import moves
from elk_ir.passes.onnx_lowerings.axes import Domain, broadcast
from elk_ir.passes.onnx_lowerings.context import (
    Context,
    Fn,
    Node,
    Unsupported,
    dtype_of_value,
    epilogue,
    lowers,
    shape_of,
)
from elk_ir.passes.te_affine import drop_dims
from elk_ir.plan.domain import AxisExpr, DimKind


def contract(
    ctx: Context,
    domain: Domain,
    factors: Sequence[tuple[SSAValue, Map]],
    result: tuple[Sequence[int], str, Map],
    after: Fn | None = None,
    extra: Sequence[tuple[SSAValue, Map]] = (),
) -> SSAValue:
    """A `te.contract` of `factors`; `after(body, sum, *extra)` is its epilogue.

    `result` is (shape, element type, map). Without elements to yield it is a constant; without
    elements to sum it is the epilogue of nought.
    """
    shape, dtype, write = result
    if 0 in shape or any(0 in shape_of(v) for v, _ in factors):
        if after is None or 0 in shape:
            return moves.full(ctx, shape, 0, dtype)
        return _of_nought(
            ctx, domain, accumulator(dtype_of_value(factors[0][0])), result, after, extra
        )
    operands = [*factors, *extra]
    op = ContractOp.create(
        operands=[v for v, _ in operands],
        result_types=[tensor_type(shape, dtype)],
        properties={"domain": domain.attr([m for _, m in operands], [write])},
    )
    if len(factors) != 2:
        op.properties["factors"] = IntegerAttr(len(factors), i64)
    if after is not None:
        types = [accumulator(dtype_of_value(factors[0][0]))]
        op.properties["epilogue"] = epilogue(
            [*types, *(dtype_of_value(v) for v, _ in extra)], after
        )
    return ctx.emit1(op)


def _of_nought(
    ctx: Context,
    domain: Domain,
    total: str,
    result: tuple[Sequence[int], str, Map],
    after: Fn,
    extra: Sequence[tuple[SSAValue, Map]],
) -> SSAValue:
    """The epilogue of a sum over no elements, of type `total`."""
    shape, dtype, write = result
    body = BodyBuilder([dtype_of_value(v) for v, _ in extra])
    outs = after(body, body.const(0, total), *body.inputs)
    assert isinstance(outs, Scalar)
    reads = domain.attr([m for _, m in extra], [write]).data
    sums = {i for i, d in enumerate(reads.dims) if d.kind is DimKind.REDUCTION}
    return ctx.emit1(
        MapOp.of(
            [v for v, _ in extra],
            body.finish(outs),
            [tensor_type(shape, dtype)],
            DomainAttr(drop_dims(reads, sums)),
        )
    )


@lowers("MatMul")
def _matmul(ctx: Context, node: Node) -> SSAValue:
    """numpy's matmul, batch dimensions broadcast."""
    return matmul(ctx, node.operand(0), node.operand(1), node.shape(), node.dtype())


def matmul(ctx: Context, a: SSAValue, b: SSAValue, shape: Sequence[int], dtype: str) -> SSAValue:
    """numpy's matmul of `a` and `b` into a result of `shape`. Raises Unsupported for factors that
    do not fit."""
    sa, sb = shape_of(a), shape_of(b)
    if not sa or not sb or sa[-1] != (sb[0] if len(sb) == 1 else sb[-2]):
        raise Unsupported(f"factors of shapes {list(sa)} and {list(sb)}")
    domain = Domain()
    inner = (len(sa) > 1) + (len(sb) > 1)
    extents = list(shape[: len(shape) - inner])
    batch = domain.parallel(extents, "b")
    m = tuple(domain.add("m", extent) for extent in sa[-2:-1])
    n = tuple(domain.add("n", extent) for extent in sb[1:][-1:])
    k = domain.reduction("k", sb[0] if len(sb) == 1 else sb[-2])
    read_a = (*broadcast(sa[:-2], batch, extents), *m, k)
    read_b = (*broadcast(sb[:-2], batch, extents), k, *n) if len(sb) > 1 else (k,)
    return contract(ctx, domain, [(a, read_a), (b, read_b)], (shape, dtype, (*batch, *m, *n)))


@lowers("Gemm")
def _gemm(ctx: Context, node: Node) -> SSAValue:
    """alpha · A' B' + beta · C, the last two in the epilogue."""
    a, b, c = node.operand(0), node.operand(1), node.get(2)
    alpha, beta = node.attr("alpha"), node.attr("beta")
    shape, dtype = node.shape(), node.dtype()
    sa = shape_of(a)
    domain = Domain()
    m, n = domain.add("m", shape[0]), domain.add("n", shape[1])
    k = domain.reduction("k", sa[0] if node.attr("transA") else sa[1])
    read_a = (k, m) if node.attr("transA") else (m, k)
    read_b = (n, k) if node.attr("transB") else (k, n)

    def after(body: BodyBuilder, total: Scalar, *bias: Scalar) -> Scalar:
        value = total if alpha == 1 else body.cast(total * alpha, total.dtype)
        for x in bias:
            wide = body.cast(x, total.dtype)
            value = value + (wide if beta == 1 else wide * beta)
        return value

    extra = []
    if c is not None and beta != 0:
        extra.append((c, broadcast(shape_of(c), (m, n), shape)))
    needed = extra or alpha != 1
    factors = [(a, read_a), (b, read_b)]
    return contract(ctx, domain, factors, (shape, dtype, (m, n)), after if needed else None, extra)


@lowers("Einsum")
def _einsum(ctx: Context, node: Node) -> SSAValue:
    """Any einsum, with ellipsis, repeated and summed letters."""
    equation = node.attr("equation").replace(" ", "")
    ins = [node.operand(i) for i in range(len(node.operands))]
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(ins):
        raise Unsupported(f"equation {equation!r} for {len(ins)} operands")
    letters = [t.replace("...", "") for t in terms]
    ranks = [
        len(shape_of(v)) - len(t) if "..." in term else 0
        for v, t, term in zip(ins, letters, terms, strict=True)
    ]
    if not arrow:
        every = "".join(letters)
        right = "..." * any(ranks) + "".join(sorted(c for c in set(every) if every.count(c) == 1))
    for value, term, rank in zip(ins, letters, ranks, strict=True):
        if rank < 0 or rank + len(term) != len(shape_of(value)):
            raise Unsupported(f"equation {equation!r} for an operand {list(shape_of(value))}")
    depth = max(ranks)

    def labels(term: str, rank: int) -> list[str]:
        head, dots, tail = term.partition("...")
        middle = [f"e{i}" for i in range(depth - rank, depth)] if dots else []
        return [*head, *middle, *tail]

    named = [labels(t, r) for t, r in zip(terms, ranks, strict=True)]
    out = labels(right, depth)
    extents: dict[str, int] = {}
    for v, names in zip(ins, named, strict=True):
        own = dict(zip(names, shape_of(v), strict=True))
        for name, extent in zip(names, shape_of(v), strict=True):
            if extent != own[name]:
                raise Unsupported(f"{name} is {extent} and {own[name]} in one operand")
            if extents.get(name, 1) == 1:
                extents[name] = extent
    domain = Domain()
    axes: dict[str, AxisExpr] = {name: domain.add(name, extents[name]) for name in out}
    for name, extent in extents.items():
        if name not in axes:
            axes[name] = domain.reduction(name, extent)
    factors = [
        (v, broadcast(shape_of(v), tuple(axes[c] for c in names), [extents[c] for c in names]))
        for v, names in zip(ins, named, strict=True)
    ]
    write = tuple(axes[c] for c in out)
    return contract(ctx, domain, factors, (node.shape(), node.dtype(), write))
