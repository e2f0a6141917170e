"""Upstream's `linalg` dialect with the named operations that xDSL 0.75 does not have yet.

Modules from other compilers hold `linalg.batch_matmul`, `linalg.div` and the like; `elk-opt` and
the embedding API parse them through this dialect, which is upstream's in every other respect. A
plain `xdsl-opt` sees xDSL's own, since two dialects of one name would clash there.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import ClassVar

from xdsl.builder import Builder
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import AnyFloat, ArrayAttr
from xdsl.dialects.linalg import Linalg
from xdsl.dialects.linalg.abstract_ops import ElementwiseOperation, NamedOperation
from xdsl.dialects.linalg.attrs import IteratorTypeAttr
from xdsl.dialects.linalg.ops import YieldOp
from xdsl.ir import Block, BlockArgument, Dialect, Operation, Region, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineMap
from xdsl.irdl import IRDLOperation, irdl_op_definition
from xdsl.utils.exceptions import VerifyException


class ContractionOp(NamedOperation, ABC):
    """A sum of products of two operands. Loops are letters: MAPS has those of each operand and of
    the output, which lead in the order of the loops; the others are summed over."""

    MAPS: ClassVar[tuple[str, str, str]]
    PRINT_ATTRS_IN_FRONT: ClassVar[bool] = True

    @classmethod
    def letters(cls) -> str:
        """The loops in order: those of the output, then those summed over."""
        left, right, out = cls.MAPS
        return out + "".join(dict.fromkeys(c for c in left + right if c not in out))

    @classmethod
    def get_hidden_region(cls, inputs: Sequence[SSAValue], outputs: Sequence[SSAValue]) -> Region:
        if len(inputs) != 2 or len(outputs) != 1:
            return Region(Block([YieldOp()]))  # verify_ says what is wrong
        types = cls.body_arg_types((*inputs, *outputs))
        real = isinstance(types[-1], AnyFloat)
        add, mul = (arith.AddfOp, arith.MulfOp) if real else (arith.AddiOp, arith.MuliOp)
        widen: type[IRDLOperation] = arith.ExtFOp if real else arith.ExtSIOp

        def wide(value: BlockArgument) -> SSAValue:
            if value.type == types[-1]:
                return value
            return widen.build(operands=[value], result_types=[types[-1]]).results[0]

        @Builder.implicit_region(types)
        def region(args: tuple[BlockArgument, ...]) -> None:
            YieldOp(add(args[2], mul(wide(args[0]), wide(args[1]))))

        return region

    def get_default_indexing_maps(self) -> Sequence[AffineMap]:
        loops = self.letters()
        return tuple(
            AffineMap(len(loops), 0, tuple(AffineDimExpr(loops.index(c)) for c in operand))
            for operand in self.MAPS
        )

    def get_iterator_types(self) -> ArrayAttr[IteratorTypeAttr]:
        out = self.MAPS[2]
        return ArrayAttr(
            IteratorTypeAttr.parallel() if c in out else IteratorTypeAttr.reduction()
            for c in self.letters()
        )

    def verify_(self) -> None:
        if len(self.inputs) != 2 or len(self.outputs) != 1:
            raise VerifyException(f"{self.name} takes two inputs and one output")
        super().verify_()


@irdl_op_definition
class BatchMatmulOp(ContractionOp):
    """A product of matrices for each element of a batch."""

    name = "linalg.batch_matmul"
    MAPS: ClassVar = ("bmk", "bkn", "bmn")


@irdl_op_definition
class BatchMatmulTransposeAOp(ContractionOp):
    """A batched product whose first operand is transposed."""

    name = "linalg.batch_matmul_transpose_a"
    MAPS: ClassVar = ("bkm", "bkn", "bmn")


@irdl_op_definition
class BatchMatmulTransposeBOp(ContractionOp):
    """A batched product whose second operand is transposed."""

    name = "linalg.batch_matmul_transpose_b"
    MAPS: ClassVar = ("bmk", "bnk", "bmn")


@irdl_op_definition
class BatchMatvecOp(ContractionOp):
    """A product of a matrix and a vector for each element of a batch."""

    name = "linalg.batch_matvec"
    MAPS: ClassVar = ("bmk", "bk", "bm")


@irdl_op_definition
class DotOp(ContractionOp):
    """The inner product of two vectors."""

    name = "linalg.dot"
    MAPS: ClassVar = ("k", "k", "")


@irdl_op_definition
class MatmulTransposeAOp(ContractionOp):
    """A product of matrices whose first operand is transposed."""

    name = "linalg.matmul_transpose_a"
    MAPS: ClassVar = ("km", "kn", "mn")


@irdl_op_definition
class MatmulTransposeBOp(ContractionOp):
    """A product of matrices whose second operand is transposed."""

    name = "linalg.matmul_transpose_b"
    MAPS: ClassVar = ("mk", "nk", "mn")


@irdl_op_definition
class MatvecOp(ContractionOp):
    """A product of a matrix and a vector."""

    name = "linalg.matvec"
    MAPS: ClassVar = ("mk", "k", "m")


@irdl_op_definition
class VecmatOp(ContractionOp):
    """A product of a vector and a matrix."""

    name = "linalg.vecmat"
    MAPS: ClassVar = ("k", "kn", "n")


class ScalarOp(ElementwiseOperation, ABC):
    """One scalar operation at every element: FLOAT on floats, INTEGER on integers (None: there is
    no such operation)."""

    FLOAT: ClassVar[type[IRDLOperation] | None] = None
    INTEGER: ClassVar[type[IRDLOperation] | None] = None

    @classmethod
    def scalar(cls, args: Sequence[BlockArgument]) -> Operation | None:
        """The operation on the scalars of the inputs; None if the element type has none."""
        kind = cls.FLOAT if isinstance(args[-1].type, AnyFloat) else cls.INTEGER
        if kind is None:
            return None
        return kind.create(operands=args[:-1], result_types=[args[-1].type])

    @classmethod
    def get_hidden_region(cls, inputs: Sequence[SSAValue], outputs: Sequence[SSAValue]) -> Region:
        @Builder.implicit_region(cls.body_arg_types((*inputs, *outputs)))
        def region(args: tuple[BlockArgument, ...]) -> None:
            result = cls.scalar(args)
            YieldOp(args[-1] if result is None else result)

        return region

    def verify_(self) -> None:
        if len(self.outputs) != 1 or self.scalar(self.body.block.args) is None:
            raise VerifyException(f"{self.name} is not defined on these element types")
        super().verify_()


@irdl_op_definition
class AbsOp(ScalarOp):
    """The absolute value."""

    name = "linalg.abs"
    FLOAT: ClassVar = math.AbsFOp


@irdl_op_definition
class CeilOp(ScalarOp):
    """The next whole number above."""

    name = "linalg.ceil"
    FLOAT: ClassVar = math.CeilOp


@irdl_op_definition
class DivOp(ScalarOp):
    """The quotient; signed, towards zero, for integers."""

    name = "linalg.div"
    FLOAT: ClassVar = arith.DivfOp
    INTEGER: ClassVar = arith.DivSIOp


@irdl_op_definition
class ErfOp(ScalarOp):
    """The error function."""

    name = "linalg.erf"
    FLOAT: ClassVar = math.ErfOp


@irdl_op_definition
class FloorOp(ScalarOp):
    """The next whole number below."""

    name = "linalg.floor"
    FLOAT: ClassVar = math.FloorOp


@irdl_op_definition
class NegfOp(ScalarOp):
    """The negative."""

    name = "linalg.negf"
    FLOAT: ClassVar = arith.NegfOp


@irdl_op_definition
class PowfOp(ScalarOp):
    """The first operand to the power of the second."""

    name = "linalg.powf"
    FLOAT: ClassVar = math.PowFOp


@irdl_op_definition
class RoundOp(ScalarOp):
    """The closest whole number, halves away from zero."""

    name = "linalg.round"
    FLOAT: ClassVar = math.RoundOp


@irdl_op_definition
class RsqrtOp(ScalarOp):
    """The reciprocal of the square root."""

    name = "linalg.rsqrt"
    FLOAT: ClassVar = math.RsqrtOp


@irdl_op_definition
class SquareOp(ScalarOp):
    """The square."""

    name = "linalg.square"
    FLOAT: ClassVar = arith.MulfOp
    INTEGER: ClassVar = arith.MuliOp

    @classmethod
    def scalar(cls, args: Sequence[BlockArgument]) -> Operation | None:
        """The product of the input with itself."""
        return super().scalar((args[0], *args)) if len(args) == 2 else None


@irdl_op_definition
class TanhOp(ScalarOp):
    """The hyperbolic tangent."""

    name = "linalg.tanh"
    FLOAT: ClassVar = math.TanhOp


LINALG = Dialect(
    "linalg",
    [
        *Linalg.operations,
        AbsOp,
        BatchMatmulOp,
        BatchMatmulTransposeAOp,
        BatchMatmulTransposeBOp,
        BatchMatvecOp,
        CeilOp,
        DivOp,
        DotOp,
        ErfOp,
        FloorOp,
        MatmulTransposeAOp,
        MatmulTransposeBOp,
        MatvecOp,
        NegfOp,
        PowfOp,
        RoundOp,
        RsqrtOp,
        SquareOp,
        TanhOp,
        VecmatOp,
    ],
    [*Linalg.attributes],
)
