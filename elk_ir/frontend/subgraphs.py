"""Types of If, Loop, Scan and SequenceMap: their bodies are folded like the main graph."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from elk_ir.errors import ModelError
from elk_ir.frontend.graph import Graph, Node, Value, ValueType, type_from_proto
from elk_ir.frontend.simplify import attribute

if TYPE_CHECKING:
    from onnx import GraphProto

    from elk_ir.frontend.fold import Folder, Scope

_INT64, _BOOL = 7, 9


def fold_subgraphs(
    folder: Folder, node: Node, graphs: Mapping[str, GraphProto], scope: Scope
) -> list[ValueType | None]:
    """Fold the node's graphs into `node.subgraphs`; returns the types of its results."""
    match node.op_type:
        case "If":
            branches = [_fold(folder, node, name, graphs[name], scope, []) for name in graphs]
            return [
                merge(a.type, b.type)
                for (_, a), (_, b) in zip(branches[0].outputs, branches[1].outputs, strict=True)
            ]
        case "Loop":
            return _loop(folder, node, graphs["body"], scope)
        case "Scan":
            return _scan(folder, node, graphs["body"], scope)
        case "SequenceMap":
            return _sequence_map(folder, node, graphs["body"], scope)
        case _:
            # What a foreign operator hands to its graphs is what they declare.
            for name, graph in graphs.items():
                declared = [type_from_proto(i.type) for i in graph.input]
                _fold(folder, node, name, graph, scope, declared)
            return folder.custom_types(node)


def check_counts(node: Node, graphs: Mapping[str, GraphProto]) -> None:
    """Raise ModelError, naming the node, where an If, Loop or Scan and its graphs hand each other
    different numbers of values."""
    given, wanted = len(node.inputs), len(node.outputs)
    if node.op_type == "If":
        counts = {name: (0, wanted) for name in ("then_branch", "else_branch")}
    elif node.op_type == "Loop":
        states = max(2, given) - 2
        counts = {"body": (2 + states, 1 + max(wanted, states))}
    elif node.op_type == "Scan":
        _check_scanned(node)
        counts = {"body": (given, wanted)}
    else:
        return
    for name, (takes, yields) in counts.items():
        if name not in graphs:
            raise ModelError(f"{node.op_type} lacks its {name}", where=node.name)
        graph = graphs[name]
        _check_given(node, name, graph, takes)
        if len(graph.output) != yields:
            raise ModelError(
                f"its {name} yields {len(graph.output)} values, {yields} are taken", where=node.name
            )


def _check_given(node: Node, name: str, graph: GraphProto, given: int) -> None:
    if len(graph.input) != given:
        raise ModelError(
            f"its {name} takes {len(graph.input)} values, {given} are given", where=node.name
        )


def _check_scanned(node: Node) -> None:
    scanned = attribute(node, "num_scan_inputs")
    if scanned is None or not 1 <= scanned <= len(node.inputs):
        raise ModelError(f"num_scan_inputs = {scanned} of {len(node.inputs)}", where=node.name)
    states = len(node.inputs) - scanned
    for side, count in (("input", scanned), ("output", len(node.outputs) - states)):
        for what in ("axes", "directions"):
            found = attribute(node, f"scan_{side}_{what}", None)
            if count < 0 or (found and len(found) != count):
                raise ModelError(f"its scan_{side}_{what} are not {max(0, count)}", where=node.name)
    for value in node.inputs[states:]:
        if value is None or value.type.shape == ():
            raise ModelError("it scans a value without axes", where=node.name)


def _fold(
    folder: Folder,
    node: Node,
    name: str,
    proto: GraphProto,
    scope: Scope,
    input_types: Sequence[ValueType],
) -> Graph:
    _check_given(node, name, proto, len(input_types))
    inputs = [Value(i.name, t) for i, t in zip(proto.input, input_types, strict=True)]
    inner = ChainMap({v.name: v for v in inputs}, scope)
    graph = folder.fold(proto, inner, inputs)
    node.subgraphs[name] = graph
    return graph


def merge(a: ValueType, b: ValueType) -> ValueType:
    """The most precise type that covers both."""
    if a == b or a.other is not None or b.other is not None:
        return a
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return ValueType(a.elem)
    return ValueType(
        a.elem, tuple(x if x == y else None for x, y in zip(a.shape, b.shape, strict=True))
    )


def _stacked(type_: ValueType, count: int | None, axis: int = 0) -> ValueType:
    if type_.shape is None:
        return type_
    axis %= len(type_.shape) + 1
    return ValueType(type_.elem, (*type_.shape[:axis], count, *type_.shape[axis:]))


def _fold_carried(
    folder: Folder,
    node: Node,
    body: GraphProto,
    scope: Scope,
    before: Sequence[ValueType],
    carried: list[ValueType],
    after: Sequence[ValueType],
    skip: int,
) -> tuple[Graph, list[ValueType]]:
    """Fold a loop's body until the carried types hold at its end as at its start."""
    while True:
        graph = _fold(folder, node, "body", body, scope, [*before, *carried, *after])
        ends = [v.type for _, v in graph.outputs[skip : skip + len(carried)]]
        merged = [merge(a, b) for a, b in zip(carried, ends, strict=True)]
        if merged == carried:
            return graph, carried
        carried = merged  # strictly less precise, so this ends


def _loop(folder: Folder, node: Node, body: GraphProto, scope: Scope) -> list[ValueType | None]:
    inputs = [*node.inputs, None, None][: max(2, len(node.inputs))]
    carried = [v.type for v in inputs[2:] if v is not None]
    before = (ValueType(_INT64, ()), ValueType(_BOOL, ()))
    graph, carried = _fold_carried(folder, node, body, scope, before, carried, (), 1)
    limit, start = inputs[0], inputs[1]
    goes_on = graph.outputs[0][1]
    endless = (start is None or (start.const is not None and bool(start.const.all()))) and (
        goes_on is graph.inputs[1] or (goes_on.const is not None and bool(goes_on.const.all()))
    )
    count = None
    if endless and limit is not None and limit.const is not None:
        count = max(0, int(limit.const.reshape(-1)[0]))
    stacked = [_stacked(v.type, count) for _, v in graph.outputs[1 + len(carried) :]]
    return [*carried, *stacked]


def _scan(folder: Folder, node: Node, body: GraphProto, scope: Scope) -> list[ValueType | None]:
    scanned = attribute(node, "num_scan_inputs")
    axes = attribute(node, "scan_input_axes") or [0] * scanned
    split = len(node.inputs) - scanned
    types = [v.type for v in node.inputs if v is not None]
    count: int | None = None
    slices: list[ValueType] = []
    for type_, axis in zip(types[split:], axes, strict=True):
        if type_.shape is None:
            slices.append(type_)
            continue
        axis %= len(type_.shape)
        count = type_.shape[axis] if type_.shape[axis] is not None else count
        slices.append(ValueType(type_.elem, type_.shape[:axis] + type_.shape[axis + 1 :]))
    graph, states = _fold_carried(folder, node, body, scope, (), types[:split], slices, 0)
    outputs = [v.type for _, v in graph.outputs[split:]]
    out_axes = attribute(node, "scan_output_axes") or [0] * len(outputs)
    stacked = [_stacked(t, count, axis) for t, axis in zip(outputs, out_axes, strict=True)]
    return [*states, *stacked]


def _sequence_map(
    folder: Folder, node: Node, body: GraphProto, scope: Scope
) -> list[ValueType | None]:
    from onnx import TypeProto

    from elk_ir.frontend.graph import type_to_proto

    elements: list[ValueType] = []
    for value in node.inputs:
        assert value is not None
        if value.type.other is None:
            elements.append(value.type)
        else:
            proto = TypeProto.FromString(value.type.other)
            elements.append(type_from_proto(proto.sequence_type.elem_type))
    graph = _fold(folder, node, "body", body, scope, elements)
    results: list[ValueType | None] = []
    for _, value in graph.outputs:
        proto = TypeProto()
        proto.sequence_type.elem_type.CopyFrom(type_to_proto(value.type))
        results.append(ValueType(other=proto.SerializeToString()))
    return results
