"""What a lowering works with: the te block under construction, constants, and the node at hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, StringAttr, TensorType
from xdsl.ir import Attribute, Block, Operation, SSAValue

from elk_ir.dialects.element_types import array_from_dense, dense_from_array
from elk_ir.dialects.location import copy_location
from elk_ir.dialects.te.attrs import BodyAttr, Map
from elk_ir.dialects.te.interface import dims_of, domain_attr, identity_map
from elk_ir.dialects.te.ops import MapOp
from elk_ir.dialects.te.structure import GlobalKind, GlobalKindAttr, GlobalOp, LoadOp
from elk_ir.dialects.types import shape_dtype, tensor_type
from elk_ir.dialects.weight import WeightAttr
from elk_ir.numerics.body import dtype_of, evaluate, is_float
from elk_ir.numerics.scalars import BodyBuilder, Scalar
from elk_ir.passes.onnx_lowerings.axes import Unsupported, broadcast

FOLD_ELEMENTS = 1 << 16
"""Constants of up to this many elements are folded when an operation reads nothing else."""


@dataclass(frozen=True)
class Node:
    """An ONNX node being lowered: its operands already in te, the types of its results."""

    op_type: str
    operands: tuple[SSAValue | None, ...]
    results: tuple[Attribute | None, ...]
    attr: Callable[[str], Any]

    def get(self, i: int) -> SSAValue | None:
        """Operand i, or None where it is absent."""
        return self.operands[i] if i < len(self.operands) else None

    def operand(self, i: int) -> SSAValue:
        """Operand i. Raises Unsupported where it is absent."""
        value = self.get(i)
        if value is None:
            raise Unsupported(f"operand {i} is absent")
        return value

    def wants(self, i: int) -> bool:
        """Whether the node has result i."""
        return i < len(self.results) and self.results[i] is not None

    def shape(self, i: int = 0) -> tuple[int, ...]:
        """Shape of result i. Raises Unsupported if it is not static."""
        return static_type(self.results[i])[0]

    def dtype(self, i: int = 0) -> str:
        """numpy element type of result i. Raises Unsupported if there is none."""
        return static_type(self.results[i])[1]


MAX_MADE_BYTES = 1 << 30
"""What a lowering may make up as a constant whose elements differ."""


def iota(count: int, dtype: np.dtype | type) -> np.ndarray:
    """0, 1, …: raises Unsupported for more elements than a constant may have."""
    made(count, np.dtype(dtype).itemsize)
    return np.arange(count).astype(dtype)


def made(elements: int, itemsize: int) -> None:
    """Raises Unsupported for a constant that is larger than any that is worth making up."""
    if elements * max(itemsize, 8) > MAX_MADE_BYTES:
        raise Unsupported(f"it stands for a constant of {elements:,} elements")


def static_type(type_: Attribute | None) -> tuple[tuple[int, ...], str]:
    """Shape and numpy element type. Raises Unsupported for anything but a static tensor."""
    if type_ is None:
        raise Unsupported("a result that is needed is absent")
    try:
        return shape_dtype(type_)
    except ValueError as error:
        raise Unsupported(str(error)) from None


def shape_of(value: SSAValue) -> tuple[int, ...]:
    """Shape of a te value."""
    return static_type(value.type)[0]


def expect(what: str, value: SSAValue | None, *shape: int) -> None:
    """Raises Unsupported for an operand, if there is one, that has not the shape that follows from
    others: ONNX's inference does not compare all of them."""
    if value is not None and shape_of(value) != shape:
        raise Unsupported(f"its {what} has shape {list(shape_of(value))}, not {list(shape)}")


def positive(node: Node, name: str) -> int:
    """An attribute that counts something. Raises Unsupported for less than one."""
    count = node.attr(name)
    if count < 1:
        raise Unsupported(f"{name} = {count} is not positive")
    return count


def dtype_of_value(value: SSAValue) -> str:
    """numpy element type of a te value."""
    return static_type(value.type)[1]


Fn = Callable[..., Scalar | tuple[Scalar, ...]]


class Context:
    """The block being filled. Every operation emitted gets the location of `current`.

    `opset` is that of the model, `depth` how many function bodies are being expanded, `symbols`
    what is taken in the module.
    """

    def __init__(self, opset: int, symbols: set[str] | None = None) -> None:
        self.opset = opset
        self.symbols = set[str]() if symbols is None else symbols
        self.depth = 0
        self.block = Block()
        self.current: Operation | None = None
        self.known: dict[SSAValue, np.ndarray] = {}
        self.globals: dict[str, GlobalOp] = {}
        self._loads: dict[object, SSAValue] = {}

    # ------------------------------------------------------------------ emission

    def emit(self, op: Operation) -> Operation:
        """Append an operation to the block."""
        if self.current is not None:
            copy_location(self.current, op)
        self.block.add_op(op)
        return op

    def emit1(self, op: Operation) -> SSAValue:
        """Append an operation and yield its first result."""
        return self.emit(op).results[0]

    # ------------------------------------------------------------------ constants

    def constant(self, array: np.ndarray, name: str | None = None) -> SSAValue:
        """A constant tensor as a global; equal ones are shared. One filled with a single number is
        stored (and handled) as that number, whatever its size."""
        if array.size > 1 and _uniform(array):
            array = np.broadcast_to(array.reshape(-1)[:1].reshape(()), array.shape)
            stored = array[(0,) * array.ndim]
            key = (array.shape, str(array.dtype), "filled", stored.tobytes())
        else:
            array = np.ascontiguousarray(array).reshape(array.shape)
            stored = array
            key = (array.shape, str(array.dtype), "", array.tobytes())
        if key in self._loads:
            return self._loads[key]
        type_ = cast(TensorType[Any], tensor_type(array.shape, str(array.dtype)))
        dense = dense_from_array(np.asarray(stored))
        attr = DenseIntOrFPElementsAttr(type_, dense.data)
        value = self._global(attr, type_, name or self._name())
        self.known[value] = array
        self._loads[key] = value
        return value

    def weight(self, attr: WeightAttr, name: str) -> SSAValue:
        """A tensor that stays on disk, as a global; equal ones are shared."""
        if attr not in self._loads:
            self._loads[attr] = self._global(attr, attr.get_type(), name)
        return self._loads[attr]

    def initializer(
        self, attr: Attribute, type_: Attribute, name: str, location: Operation
    ) -> SSAValue:
        """The value of an `onnx.Initializer`. Raises Unsupported for strings."""
        shape, _ = static_type(type_)
        before, self.current = self.current, location
        try:
            if isinstance(attr, WeightAttr):
                return self.weight(attr, name)
            assert isinstance(attr, DenseIntOrFPElementsAttr)
            return self.constant(np.broadcast_to(array_from_dense(attr), shape), name)
        finally:
            self.current = before

    def _name(self) -> str:
        from elk_ir.dialects.location import node_name

        return "constant" if self.current is None else f"{node_name(self.current)}.constant"

    def _global(self, value: Attribute, type_: TensorType[Attribute] | Any, name: str) -> SSAValue:
        symbol = self._symbol(name)
        op = GlobalOp.create(
            properties={
                "sym_name": StringAttr(symbol),
                "kind": GlobalKindAttr(GlobalKind.WEIGHT),
                "type": type_,
                "value": value,
            }
        )
        load = LoadOp(symbol, type_)
        if self.current is not None:
            copy_location(self.current, op, load)
        load.result.name_hint = _hint(name)
        self.globals[symbol] = op
        return load.result

    def _symbol(self, name: str) -> str:
        base = re.sub(r"[^0-9A-Za-z_.$]", "_", name).strip("_") or "constant"
        if not (base[0].isalpha() or base[0] == "_"):
            base = f"w_{base}"
        symbol, i = base, 1
        while symbol in self.symbols:
            symbol, i = f"{base}_{i}", i + 1
        self.symbols.add(symbol)
        return symbol

    def array(self, value: SSAValue) -> np.ndarray | None:
        """The elements of a value, if they are known here (weights on disk are not)."""
        return self.known.get(value)

    def need(self, value: SSAValue | None, what: str) -> np.ndarray:
        """The elements of a value that must be constant. Raises Unsupported otherwise."""
        array = None if value is None else self.known.get(value)
        if array is None:
            raise Unsupported(f"{what} is not a constant")
        return array

    def ints(self, value: SSAValue | None, what: str) -> list[int] | None:
        """A constant list of integers, None where the operand is absent."""
        if value is None:
            return None
        return [int(i) for i in self.need(value, what).reshape(-1)]

    def uniform(self, value: SSAValue) -> float | int | bool | None:
        """The number with which a constant is filled, or None."""
        array = self.known.get(value)
        if array is None or array.size == 0 or not _uniform(array):
            return None
        item = array[(0,) * array.ndim]
        return float(item) if is_float(str(array.dtype)) else item.item()

    # ------------------------------------------------------------------ maps

    def map(
        self,
        fn: Fn,
        *ins: SSAValue,
        shape: Sequence[int] | None = None,
        maps: Sequence[Map] | None = None,
    ) -> list[SSAValue]:
        """A `te.map` over `shape` (default: the operands broadcast together).

        `fn(body, *scalars)` yields the result scalar(s). Operands filled with one number become
        constants of the body. `maps` overrides how each operand is read.
        """
        if shape is None:
            shape = np.broadcast_shapes(*(shape_of(v) for v in ins))
        kept = [i for i, v in enumerate(ins) if self.uniform(v) is None]
        builder = BodyBuilder([dtype_of_value(ins[i]) for i in kept])
        scalars: list[Scalar] = []
        for i, v in enumerate(ins):
            if i in kept:
                scalars.append(builder.inputs[kept.index(i)])
            else:
                number = self.uniform(v)
                assert number is not None
                scalars.append(builder.const(number, dtype_of_value(v)))
        outs = fn(builder, *scalars)
        outs = outs if isinstance(outs, tuple) else (outs,)
        body = builder.finish(*outs)
        operands = [ins[i] for i in kept]
        volume = int(np.prod(shape, dtype=np.int64))
        if maps is None and volume <= FOLD_ELEMENTS and all(v in self.known for v in operands):
            arrays = evaluate(body, [self.known[v] for v in operands])
            return [
                self.constant(np.broadcast_to(a.astype(dtype_of(o.dtype), copy=False), shape))
                for a, o in zip(arrays, outs, strict=True)
            ]
        if body.is_identity and maps is None and shape_of(operands[0]) == tuple(shape):
            return [operands[0]]
        result = identity_map(len(shape))
        reads = [
            maps[i] if maps is not None else broadcast(shape_of(ins[i]), result, shape)
            for i in kept
        ]
        domain = domain_attr(dims_of(shape), reads, [result] * len(outs))
        op = MapOp.of(operands, body, [tensor_type(shape, o.dtype) for o in outs], domain)
        return list(self.emit(op).results)

    def map1(self, fn: Fn, *ins: SSAValue, **options: Any) -> SSAValue:
        """`map` with one result."""
        return self.map(fn, *ins, **options)[0]

    def cast(self, value: SSAValue, dtype: str) -> SSAValue:
        """`value` as `dtype`."""
        if dtype_of_value(value) == dtype:
            return value
        return self.map1(lambda b, x: b.cast(x, dtype), value)


def epilogue(dtypes: Sequence[str], fn: Fn) -> BodyAttr:
    """An epilogue body over the reduced value and further operands of the given element types."""
    builder = BodyBuilder(dtypes)
    outs = fn(builder, *builder.inputs)
    return BodyAttr(builder.finish(*(outs if isinstance(outs, tuple) else (outs,))))


def filled(array: np.ndarray) -> bool:
    """Whether an array is one number repeated without being stored more than once."""
    return array.size > 1 and all(
        step == 0 for step, n in zip(array.strides, array.shape, strict=True) if n > 1
    )


def _uniform(array: np.ndarray) -> bool:
    if filled(array):
        return True
    flat = array.reshape(-1)
    # Compare bytes: NaN equals itself and -0.0 differs from 0.0.
    return bool(flat.size) and flat.tobytes() == flat[:1].tobytes() * flat.size


def _hint(name: str) -> str | None:
    hint = re.sub(r"[^0-9A-Za-z_]", "_", name).strip("_")
    return hint if hint and not hint[0].isdigit() else None


Lowering = Callable[[Context, Node], "SSAValue | Sequence[SSAValue | None]"]
LOWERINGS: dict[str, Lowering] = {}
"""Operator -> lowering; `domain:Operator` outside ONNX's default domain."""


def lowers(*names: str) -> Callable[[Lowering], Lowering]:
    """Register a lowering for the given operators."""

    def register(fn: Lowering) -> Lowering:
        for name in names:
            assert name not in LOWERINGS, name
            LOWERINGS[name] = fn
        return fn

    return register
