"""The structured interface of `te`: from an operation to its `Operator` and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache

from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    ParsePropInAttrDict,
    prop_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from elk_ir.dialects.te.attrs import Domain, DomainAttr, Map
from elk_ir.dialects.types import shape_dtype
from elk_ir.numerics.body import is_float
from elk_ir.plan.domain import Access, AxisExpr, Dim, Operator, Phase

MAP_ARITY = "the domain has {maps} {what} maps, the operation {values} {what}s"


class StructuredOp(IRDLOperation, ABC):
    """An operator on ranked static tensors with an iteration domain and an affine map per value.

    Subclasses say what is computed; `operator()` gives the IR-free description from which tiling,
    footprint, FLOPs, cost and numbers follow.
    """

    ins = var_operand_def()
    outs = var_result_def()
    domain = prop_def(DomainAttr)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)

    assembly_format = "`(` $ins `)` $domain attr-dict `:` functional-type($ins, $outs)"

    @abstractmethod
    def build_operator(
        self, dims: tuple[Dim, ...], operands: list[Access], results: list[Access]
    ) -> Operator:
        """The operator over already mapped operands and results. Raises VerifyException."""

    def operator(self) -> Operator:
        """What the operation computes, free of IR; cached by everything it depends on."""
        key = (
            type(self),
            tuple(v.type for v in self.ins),
            tuple(v.type for v in self.outs),
            tuple(sorted(self.properties.items())),
        )
        cached = _OPERATORS.get(key)
        if cached is None:
            domain = self.domain.data
            operands = [_access(v.type, m) for v, m in zip(self.ins, domain.operands, strict=True)]
            results = [_access(v.type, m) for v, m in zip(self.outs, domain.results, strict=True)]
            cached = _OPERATORS.setdefault(key, self.build_operator(domain.dims, operands, results))
        return cached

    def verify_(self) -> None:
        domain = self.domain.data
        for what, values, maps in (
            ("operand", self.ins, domain.operands),
            ("result", self.outs, domain.results),
        ):
            if len(values) != len(maps):
                raise VerifyException(
                    MAP_ARITY.format(maps=len(maps), what=what, values=len(values))
                )
            for i, (value, axes) in enumerate(zip(values, maps, strict=True)):
                try:
                    shape, _ = shape_dtype(value)
                except ValueError as error:
                    raise VerifyException(f"{what} {i}: {error}") from error
                if len(shape) != len(axes):
                    raise VerifyException(
                        f"{what} {i} has rank {len(shape)}, its map {len(axes)} axes"
                    )
                _check_extents(what, i, shape, axes, domain)
        self.operator()


_OPERATORS: dict[tuple[object, ...], Operator] = {}


@lru_cache(maxsize=4096)
def _access(type_: Attribute, axes: Map) -> Access:
    shape, dtype = shape_dtype(type_)
    return Access(shape, dtype, axes)


def _check_extents(
    what: str, i: int, shape: tuple[int, ...], axes: tuple[AxisExpr, ...], domain: Domain
) -> None:
    extents = tuple(d.extent for d in domain.dims)
    for j, axis in enumerate(axes):
        d = axis.simple_dim
        if d is not None and what == "result" and shape[j] != extents[d]:
            raise VerifyException(
                f"{what} {i}, axis {j}: extent {shape[j]}, but {domain.dims[d].name} has"
                f" {extents[d]}"
            )
        if what == "result" and d is None and axis.size(extents) + axis.offset > max(shape[j], 1):
            raise VerifyException(f"result {i}, axis {j}: the map reaches past extent {shape[j]}")


# ---------------------------------------------------------------------- builders


def dims_of(extents: Sequence[int], names: Sequence[str] | None = None) -> tuple[Dim, ...]:
    """Parallel dimensions d0, d1, … (or `names`) of the given extents."""
    names = names or [f"d{i}" for i in range(len(extents))]
    return tuple(Dim(n, e) for n, e in zip(names, extents, strict=True))


def identity_map(rank: int) -> Map:
    """(d0, d1, …)."""
    return tuple(AxisExpr(((i, 1),)) for i in range(rank))


def broadcast_map(shape: Sequence[int], result: Sequence[int]) -> Map:
    """How an operand of `shape` is read under numpy broadcasting to `result`."""
    lead = len(result) - len(shape)
    return tuple(
        AxisExpr() if extent == 1 and result[lead + j] != 1 else AxisExpr(((lead + j, 1),))
        for j, extent in enumerate(shape)
    )


def domain_attr(dims: Sequence[Dim], operands: Sequence[Map], results: Sequence[Map]) -> DomainAttr:
    """The attribute of the given dimensions and maps."""
    return DomainAttr(Domain(tuple(dims), tuple(operands), tuple(results)))


def accumulator(dtype: str) -> str:
    """The type in which values of `dtype` are accumulated."""
    if dtype == "float64":
        return "float64"
    if is_float(dtype):
        return "float32"
    return "int64" if dtype in ("int64", "uint64") else "int32"


def with_phase(access: Access, phase: Phase, neutral: float | None = 0.0) -> Access:
    """`access` read in `phase`, with the given neutral value."""
    return Access(access.shape, access.dtype, access.axes, phase, neutral)


def value_type(value: SSAValue) -> Attribute:
    """The type of a value (for use in comprehensions)."""
    return value.type
