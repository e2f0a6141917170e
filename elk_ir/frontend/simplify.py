"""Nodes that need no operation: those that change nothing, and those that only re-view a weight.

The latter extend the recipe of the weight's reference, so that no weight is read at compile time.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from elk_ir.frontend.element_types import BY_NAME, BY_ONNX
from elk_ir.frontend.graph import Node, Value, ValueType
from elk_ir.frontend.weights import WeightRef

Types = list[ValueType | None]


def attribute(node: Node, name: str, default: Any = None) -> Any:
    """The value of a node's attribute; strings stay bytes."""
    for a in node.attributes:
        if a.name == name:
            from onnx.helper import get_attribute_value

            return get_attribute_value(a)
    return default


def _constant(node: Node, position: int) -> np.ndarray | None:
    value = node.inputs[position] if position < len(node.inputs) else None
    return None if value is None else value.const


def _same_type(node: Node, types: Types) -> bool:
    value = node.inputs[0]
    return value is not None and value.type.is_static and value.type == types[0]


def _only_first_result(node: Node) -> bool:
    return not any(node.outputs[1:])


def _slice_keeps_all(node: Node, types: Types) -> bool:
    if not _same_type(node, types):
        return False
    if len(node.inputs) < 5 or node.inputs[4] is None:
        return True
    steps = _constant(node, 4)
    return steps is not None and bool((steps > 0).all())


def _transpose_keeps_order(node: Node, types: Types) -> bool:
    value = node.inputs[0]
    if value is None or value.type.shape is None:
        return False
    rank = len(value.type.shape)
    perm = attribute(node, "perm", list(range(rank))[::-1])
    # An axis of extent 1 may move without moving an element, but then the type changes.
    return list(perm) == list(range(rank))


def _training(node: Node) -> bool:
    mode = _constant(node, 2)
    given = len(node.inputs) > 2 and node.inputs[2] is not None
    return given and (mode is None or bool(mode.any()))


# Operators whose result is their first operand when the condition holds.
_UNCHANGED: dict[str, Callable[[Node, Types], bool]] = {
    "Cast": _same_type,
    "CastLike": _same_type,
    "Concat": lambda node, types: len(node.inputs) == 1,
    "Dropout": lambda node, types: _only_first_result(node) and not _training(node),
    "Expand": _same_type,
    "Flatten": _same_type,
    "Identity": lambda node, types: True,
    "Max": lambda node, types: len(node.inputs) == 1,
    "Mean": lambda node, types: len(node.inputs) == 1,
    "Min": lambda node, types: len(node.inputs) == 1,
    "Reshape": _same_type,
    "Slice": _slice_keeps_all,
    "Split": lambda node, types: len(node.outputs) == 1,
    "Squeeze": _same_type,
    "Sum": lambda node, types: len(node.inputs) == 1,
    "Tile": _same_type,
    "Transpose": _transpose_keeps_order,
    "Unsqueeze": _same_type,
}


def unchanged_operand(node: Node, types: Types) -> Value | None:
    """The operand that a node's only result equals, or None."""
    condition = _UNCHANGED.get(node.op_type)
    if condition is not None and condition(node, types):
        return node.inputs[0]
    if node.op_type == "Where":
        chosen = _constant(node, 0)
        if chosen is not None and chosen.size:
            for position, whole in ((1, chosen.all()), (2, not chosen.any())):
                value = node.inputs[position]
                if whole and value is not None and value.type == types[0]:
                    return value
    if node.op_type in ("And", "Or"):
        neutral = node.op_type == "And"
        for position in (0, 1):
            array = _constant(node, position)
            other = node.inputs[1 - position]
            if (
                array is not None
                and array.size
                and bool((array == neutral).all())
                and other is not None
                and other.type == types[0]
            ):
                return other
    return None


# --- weights --------------------------------------------------------------------------------------

_FLOATS = ("f16", "bf16", "f32", "f64")


def rewritten_weights(node: Node, types: Types) -> list[WeightRef] | None:
    """References to the results of a node on weights (its other operands constant), or None."""
    rule = _WEIGHT_RULES.get(node.op_type)
    if rule is None or any(t is None or not t.is_static for t in types):
        return None
    return rule(node, types)


def _shape(type_: ValueType | None) -> tuple[int, ...]:
    assert type_ is not None and type_.shape is not None
    return tuple(d for d in type_.shape if d is not None)


def _words(*parts: object) -> str:
    return " ".join(str(p) for p in parts)


def _only_weight(node: Node, position: int = 0) -> WeightRef | None:
    """The weight at a position when everything else is constant."""
    for i, value in enumerate(node.inputs):
        if value is None or (i != position and value.const is not None):
            continue
        if i != position or value.weight is None:
            return None
    value = node.inputs[position]
    return None if value is None else value.weight


def _reshape(node: Node, types: Types) -> list[WeightRef] | None:
    ref = _only_weight(node)
    return None if ref is None else [reshaped(ref, _shape(types[0]))]


def reshaped(ref: WeightRef, shape: tuple[int, ...]) -> WeightRef:
    """The weight in another shape; consecutive reshapes are one."""
    recipe = ref.recipe
    if recipe and recipe[-1].startswith("reshape"):
        recipe = recipe[:-1]
    before = WeightRef(ref.parts, recipe)
    if len(ref.parts) == 1 and before.shape == shape:
        return before
    return before.then(_words("reshape", *shape))


def _transpose(node: Node, types: Types) -> list[WeightRef] | None:
    ref = _only_weight(node)
    if ref is None:
        return None
    perm = attribute(node, "perm", list(range(len(ref.shape)))[::-1])
    return [ref.then(_words("transpose", *perm))]


def _cast(node: Node, types: Types) -> list[WeightRef] | None:
    ref = _only_weight(node)
    assert types[0] is not None
    target = BY_ONNX[types[0].elem]
    if ref is None or target.name not in _FLOATS:
        return None  # rounding to integers and saturating 8-bit floats stay operations
    if ref.dtype not in _FLOATS and not BY_NAME[ref.dtype].is_integer:
        return None
    return [ref.then(f"cast {target.name}")]


def _slice(node: Node, types: Types) -> list[WeightRef] | None:
    ref = _only_weight(node)
    starts, ends = _constant(node, 1), _constant(node, 2)
    if ref is None or starts is None or ends is None:
        return None
    axes, steps = _constant(node, 3), _constant(node, 4)
    axes = np.arange(starts.size) if axes is None else axes
    steps = np.ones(starts.size, np.int64) if steps is None else steps
    words: list[str] = []
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis = int(axis) % len(ref.shape)
        if step < 1:
            return None
        begin, stop, _ = slice(int(start), int(end), int(step)).indices(ref.shape[axis])
        words.append(_words("slice", axis, begin, max(begin, stop), int(step)))
    return [ref.then(*words)]


def _split(node: Node, types: Types) -> list[WeightRef] | None:
    ref = _only_weight(node)
    if ref is None:
        return None
    axis = attribute(node, "axis", 0) % len(ref.shape)
    begin = 0
    refs: list[WeightRef] = []
    for type_ in types:
        end = begin + _shape(type_)[axis]
        refs.append(ref.then(_words("slice", axis, begin, end, 1)))
        begin = end
    return refs


def _gather(node: Node, types: Types) -> list[WeightRef] | None:
    ref = _only_weight(node)
    index = _constant(node, 1)
    if ref is None or index is None or not index.size or index.ndim > 1:
        return None
    axis = attribute(node, "axis", 0) % len(ref.shape)
    first = int(index.reshape(-1)[0]) % ref.shape[axis]
    if not np.array_equal(index.reshape(-1) % ref.shape[axis], first + np.arange(index.size)):
        return None
    sliced = ref.then(_words("slice", axis, first, first + index.size, 1))
    return [sliced if index.ndim else reshaped(sliced, _shape(types[0]))]


def _concat(node: Node, types: Types) -> list[WeightRef] | None:
    refs = [v.weight for v in node.inputs if v is not None and v.weight is not None]
    if len(refs) != len(node.inputs) or len({r.recipe for r in refs}) != 1:
        return None
    if any(len(r.parts) != 1 for r in refs):
        return None
    axis = attribute(node, "axis") % len(_shape(types[0]))
    parts = tuple(p for r in refs for p in r.parts)
    return [WeightRef(parts, (*refs[0].recipe, f"concat {axis}"))]


def _with_scalar(word: str, sign: int = 1) -> Callable[[Node, Types], list[WeightRef] | None]:
    def rule(node: Node, types: Types) -> list[WeightRef] | None:
        for position in (0,) if sign < 0 else (0, 1):
            value, scalar = node.inputs[position], _constant(node, 1 - position)
            if value is None or value.weight is None or scalar is None or scalar.size != 1:
                continue
            if value.weight.dtype in _FLOATS and _shape(types[0]) == value.weight.shape:
                number = sign * float(scalar.reshape(-1)[0])
                return [value.weight.then(f"{word} {number!r}")]
        return None

    return rule


_WEIGHT_RULES: dict[str, Callable[[Node, Types], list[WeightRef] | None]] = {
    "Add": _with_scalar("add"),
    "Cast": _cast,
    "Concat": _concat,
    "Flatten": _reshape,
    "Gather": _gather,
    "Mul": _with_scalar("mul"),
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _reshape,
    "Sub": _with_scalar("add", -1),
    "Transpose": _transpose,
    "Unsqueeze": _reshape,
}


def integer_weight_bytes(ref: WeightRef) -> int | None:
    """Bytes of an integer or boolean weight (positions, masks), None for another type."""
    element = BY_NAME[ref.dtype]
    return prod(ref.shape) * max(8, element.bits) // 8 if element.is_integer else None
