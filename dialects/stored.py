"""What `te.global`, `icca.hbm`, `ipu.remote` and `northpole.tensor` have in common."""

from __future__ import annotations

from abc import ABC

from xdsl.dialects.builtin import (
    I64,
    ArrayAttr,
    DenseIntOrFPElementsAttr,
    IntegerAttr,
    StringAttr,
    SymbolNameConstraint,
    TensorType,
)
from xdsl.irdl import (
    IRDLOperation,
    ParsePropInAttrDict,
    base,
    opt_prop_def,
    prop_def,
    traits_def,
)
from xdsl.traits import SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from elk_ir.dialects.tensor_value import TensorValue
from elk_ir.dialects.weight import WeightAttr


class StoredTensorOp(IRDLOperation, ABC):
    """A tensor that is stored outside of the cores: `stack` layers of `type`, one behind another.

    A weight has a value: a reference to bytes on disk, or a small constant, of the stacked shape
    when `stack` is given. A state has an axis along which it grows: `length` entries of it are
    filled when a run starts; with `steps` (float32, one a layer) it holds integers or narrow floats
    q that stand for q · step of its layer, float32 numbers (docs/quantization.md). `inputs` and
    `outputs` name the graph inputs and outputs, one a layer, that the tensor is or replaces.
    Subclasses define `kind`.
    """

    sym_name = prop_def(SymbolNameConstraint())
    type = prop_def(TensorType)
    stack = opt_prop_def(IntegerAttr[I64])
    value = opt_prop_def(base(WeightAttr) | base(DenseIntOrFPElementsAttr))
    axis = opt_prop_def(IntegerAttr[I64])
    length = opt_prop_def(IntegerAttr[I64])
    inputs = opt_prop_def(ArrayAttr[StringAttr])
    outputs = opt_prop_def(ArrayAttr[StringAttr])
    steps = opt_prop_def(DenseIntOrFPElementsAttr)
    traits = traits_def(SymbolOpInterface())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = (
        "$kind $sym_name (`stack` $stack^)? `:` $type custom<TensorValue>($value) attr-dict"
    )
    custom_directives = (TensorValue,)

    @property
    def layers(self) -> int:
        """Stacked copies; 1 without a stack."""
        return 1 if self.stack is None else self.stack.value.data

    def verify_stored(self, *, weight: bool, state: bool) -> None:
        """What a weight and a state must have. Raises VerifyException."""
        name = self.sym_name.data
        if weight and self.value is None:
            raise VerifyException(f"weight @{name} has no value")
        if state and (self.axis is None or self.length is None):
            raise VerifyException(f"state @{name} needs an axis and a length")
        if self.steps is not None and self.steps.get_shape() != (self.layers,):
            raise VerifyException(
                f"@{name} has {self.layers} layers, its steps are of shape"
                f" {list(self.steps.get_shape())}"
            )
