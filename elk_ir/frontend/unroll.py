"""Control flow without branches: loops unrolled, branches computed side by side.

A loop whose trip count is known when it is imported becomes its iterations one after another, each
with its number as a constant, so that shapes may depend on it. An If on a computed condition
becomes both of its branches and a Where; a loop that may end early does so too, if it has a bound.
Operators have no side effects, so computing what is then not selected changes nothing.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from elk_ir.errors import ModelError
from elk_ir.frontend.graph import Node, Value
from elk_ir.frontend.simplify import attribute

if TYPE_CHECKING:
    from onnx import GraphProto

    from elk_ir.frontend.fold import Folder, Scope

MAX_NODES = 20_000
"""Nodes that one loop may become."""

MAX_ITERATIONS = 4096
"""Iterations of a loop that are tried."""

MAX_SELECTED = 64
"""Iterations of a loop whose end is computed: all of them are, and the results selected."""


def unroll(
    folder: Folder, node: Node, graphs: Mapping[str, GraphProto], scope: Scope, nodes: list[Node]
) -> bool:
    """Append what an If, Loop or Scan becomes and bring its results into `scope`; False, and
    nothing appended, where it has to stay as it is."""
    if node.domain:
        return False
    mark = len(nodes)
    results = None
    match node.op_type:
        case "If":
            results = _branches(folder, node, graphs, scope, nodes)
        case "Loop":
            results = _Unrolled(folder, node, graphs["body"], scope, nodes).loop()
        case "Scan":
            results = _Unrolled(folder, node, graphs["body"], scope, nodes).scan()
        case _:
            pass
    if results is None:
        del nodes[mark:]
        return False
    for value, result in zip(node.outputs, results, strict=True):
        if value is not None:
            scope[value.name] = result
    return True


def _apply(
    folder: Folder,
    where: Node,
    nodes: list[Node],
    op_type: str,
    inputs: Sequence[Value],
    axis: int | None = None,
) -> Value:
    """The result of one more node, folded like any other."""
    from onnx import helper

    names = [f"i{i}" for i in range(len(inputs))]
    proto = helper.make_node(op_type, names, ["o"], name=where.name)
    if axis is not None:
        proto.attribute.append(helper.make_attribute("axis", axis))
    scope: Scope = dict(zip(names, inputs, strict=True))
    folder.add_node(proto, scope, nodes)
    return scope["o"]


def _select(
    folder: Folder, where: Node, nodes: list[Node], condition: Value, yes: Value, no: Value
) -> Value | None:
    """`yes` where the (one) condition holds; None where that is no choice between equal types."""
    if yes is no:
        return yes
    if yes.type != no.type or not yes.type.is_static:
        return None
    return _apply(
        folder, where, nodes, "Where", [_scalar(folder, where, nodes, condition), yes, no]
    )


def _scalar(folder: Folder, where: Node, nodes: list[Node], value: Value) -> Value:
    if value.type.shape == ():
        return value
    none = Value.constant("shape", np.zeros(0, np.int64))
    return _apply(folder, where, nodes, "Reshape", [value, none])


def _branches(
    folder: Folder, node: Node, graphs: Mapping[str, GraphProto], scope: Scope, nodes: list[Node]
) -> list[Value] | None:
    """Both branches of an If, and for each result the one that the condition selects."""
    condition = node.inputs[0]
    if condition is None or condition.type.shape is None:
        return None
    results: list[list[Value]] = []
    for name in ("then_branch", "else_branch"):
        inner = ChainMap({}, scope)
        folder.add_nodes(graphs[name], inner, nodes)
        results.append([folder.read(inner, o.name, node.name) for o in graphs[name].output])
    chosen: list[Value] = []
    for yes, no in zip(*results, strict=True):
        value = _select(folder, node, nodes, condition, yes, no)
        if value is None:
            return None
        chosen.append(value)
    return chosen


def _holds(value: Value | None) -> bool | None:
    """A condition's value, None if it is computed; an absent one holds."""
    if value is None:
        return True
    return None if value.const is None else bool(value.const.all())


class _Unrolled:
    """One Loop or Scan being unrolled."""

    def __init__(
        self, folder: Folder, node: Node, body: GraphProto, scope: Scope, nodes: list[Node]
    ) -> None:
        self.folder, self.node, self.body = folder, node, body
        self.scope, self.nodes, self.start = scope, nodes, len(nodes)

    def iteration(self, inputs: Sequence[Value]) -> list[Value]:
        """The results of the body for the given inputs."""
        inner: Scope = ChainMap({}, self.scope)
        inner.update((i.name, v) for i, v in zip(self.body.input, inputs, strict=True))
        self.folder.add_nodes(self.body, inner, self.nodes)
        return [self.folder.read(inner, o.name, self.node.name) for o in self.body.output]

    def apply(self, op_type: str, inputs: Sequence[Value], axis: int | None = None) -> Value:
        return _apply(self.folder, self.node, self.nodes, op_type, inputs, axis)

    def stacked(self, rows: Sequence[Value], axis: int) -> Value:
        """Values of one shape along a new axis."""
        where = Value.constant("axis", np.array([axis], np.int64))
        solid = [self.apply("Unsqueeze", [row, where]) for row in rows]
        return solid[0] if len(solid) == 1 else self.apply("Concat", solid, axis=axis)

    def loop(self) -> list[Value] | None:
        """A Loop: up to its trip count, or while its condition is known to hold."""
        limit, condition, *states = [*self.node.inputs, None, None][: max(2, len(self.node.inputs))]
        if any(s is None or s.type.other is not None for s in states):
            return None
        bound = None
        if limit is not None:
            if limit.const is None:
                return None
            bound = int(limit.const.reshape(-1)[0])
        carried = [s for s in states if s is not None]
        rows: list[list[Value]] = [[] for _ in self.body.output[1 + len(carried) :]]
        i = 0
        while bound is None or i < bound:
            active = _holds(condition)
            if active is False:
                break
            if active is None and (bound is None or bound > MAX_SELECTED or rows):
                return None
            if i >= MAX_ITERATIONS or len(self.nodes) - self.start > MAX_NODES:
                return None
            number = Value.constant("iteration", np.array(i, np.int64))
            goes_on, *ends = self.iteration([number, _true(), *carried])
            after, scanned = ends[: len(carried)], ends[len(carried) :]
            for line, row in zip(rows, scanned, strict=True):
                line.append(row)
            if active is None:
                assert condition is not None
                selected = self.selected(condition, after, carried)
                if selected is None:
                    return None
                carried = selected
                shaped = [
                    _scalar(self.folder, self.node, self.nodes, c) for c in (condition, goes_on)
                ]
                condition = self.apply("And", shaped)
            else:
                carried, condition = after, goes_on
            i += 1
        if any(not line for line in rows):
            return None  # nothing says what an iteration would have yielded
        return [*carried, *(self.stacked(line, 0) for line in rows)]

    def selected(
        self, condition: Value, after: Sequence[Value], before: Sequence[Value]
    ) -> list[Value] | None:
        """The states after an iteration that takes place only if the condition holds."""
        chosen: list[Value] = []
        for new, old in zip(after, before, strict=True):
            value = _select(self.folder, self.node, self.nodes, condition, new, old)
            if value is None:
                return None
            chosen.append(value)
        return chosen

    def scan(self) -> list[Value] | None:
        """A Scan over axes whose extent is known. Raises ModelError for a state that changes."""
        inputs = [v for v in self.node.inputs if v is not None]
        scanned = attribute(self.node, "num_scan_inputs")
        count = len(inputs) - scanned
        states, sources = inputs[:count], inputs[count:]
        axes = attribute(self.node, "scan_input_axes", None) or [0] * scanned
        backward = attribute(self.node, "scan_input_directions", None) or [0] * scanned
        yields = len(self.body.output) - count
        out_axes = attribute(self.node, "scan_output_axes", None) or [0] * yields
        out_backward = attribute(self.node, "scan_output_directions", None) or [0] * yields
        shapes = [s.type.shape for s in sources]
        if any(shape is None for shape in shapes):
            return None
        axes = [a % len(shape or ()) for a, shape in zip(axes, shapes, strict=True)]
        lengths = {(shape or ())[a] for a, shape in zip(axes, shapes, strict=True)}
        steps = lengths.pop()
        if lengths or not steps or steps > MAX_ITERATIONS:
            return None
        rows: list[list[Value]] = [[] for _ in range(yields)]
        for t in range(steps):
            if len(self.nodes) - self.start > MAX_NODES:
                return None
            slices = [
                self.apply("Gather", [source, _number(steps - 1 - t if back else t)], axis=axis)
                for source, axis, back in zip(sources, axes, backward, strict=True)
            ]
            ends = self.iteration([*states, *slices])
            for k, (old, new) in enumerate(zip(states, ends[:count], strict=True)):
                if old.type.is_static and new.type.is_static and old.type != new.type:
                    raise ModelError(
                        f"its state {k} is {old.type} before an iteration and {new.type} behind it",
                        where=self.node.name,
                    )
            states = ends[:count]
            for line, row, back in zip(rows, ends[count:], out_backward, strict=True):
                line.insert(0 if back else len(line), row)
        results = list(states)
        for line, axis in zip(rows, out_axes, strict=True):
            shape = line[0].type.shape
            if shape is None:
                return None
            results.append(self.stacked(line, axis % (len(shape) + 1)))
        return results


def _number(i: int) -> Value:
    return Value.constant("index", np.array(i, np.int64))


def _true() -> Value:
    return Value.constant("condition", np.array(True))
