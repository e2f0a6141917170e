"""Malformed ONNX files."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hostile.harness import OUT, Hostile

MODELS = Path(__file__).parent.parent / "models"
COMPILE = ("compile", "m.onnx", "--chip", "test-16", "--policy", "basic", "-o", OUT)
IMPORT = ("m.onnx",)
HUGE = (-1, -(2**63), 2**31, 2**40, 2**62)

Model = onnx.ModelProto


def info(name: str, shape: list[Any] | None, element: int = TensorProto.FLOAT) -> Any:
    """A graph input or output."""
    return helper.make_tensor_value_info(name, element, shape)


def model(
    nodes: list[Any],
    *,
    inputs: list[Any] | None = None,
    outputs: list[Any] | None = None,
    weights: list[Any] | None = None,
    **kwargs: Any,
) -> Model:
    """A model of opset 23 with the input x (4, 32) and the output y unless others are given."""
    graph = helper.make_graph(
        nodes, "g", inputs or [info("x", [4, 32])], outputs or [info("y", None)], weights or []
    )
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, **kwargs)


def base() -> Model:
    """A valid model with a bit of everything: weights, a branch, a function, a reshape."""
    w = numpy_helper.from_array(np.ones((32, 16), np.float32), "w")
    s = numpy_helper.from_array(np.array([2, -1]), "s")
    branch = [
        helper.make_graph([helper.make_node(op, ["a"], ["z"])], op, [], [info("z", [4, 16])])
        for op in ("Neg", "Abs")
    ]
    function = helper.make_function(
        "local",
        "Twice",
        ["i"],
        ["o"],
        [helper.make_node("Add", ["i", "i"], ["o"])],
        [helper.make_opsetid("", 23)],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="product"),
        helper.make_node("If", ["c"], ["b"], then_branch=branch[0], else_branch=branch[1]),
        helper.make_node("Twice", ["b"], ["d"], domain="local"),
        helper.make_node("Reshape", ["d", "s"], ["e"]),
        helper.make_node("Softmax", ["e"], ["y"], axis=-1),
    ]
    inputs = [info("x", [4, 32]), info("c", [], TensorProto.BOOL)]
    return model(nodes, inputs=inputs, weights=[w, s], functions=[function])


def case(
    name: str, data: bytes | Model, *, argv: tuple[str, ...] = COMPILE, **more: Any
) -> Hostile:
    """The file m.onnx with these bytes."""
    raw = data if isinstance(data, bytes) else data.SerializeToString()
    tool = "elk-opt" if argv == IMPORT else "elk"
    return Hostile(f"onnx/{name}", {"m.onnx": raw, **more.pop("files", {})}, argv, tool, **more)


def truncated() -> Iterator[Hostile]:
    """The small model cut at every 7th byte, real ones at every kilobyte."""
    raw = base().SerializeToString()
    for size in range(0, len(raw), 7):
        yield case(f"cut at byte {size}", raw[:size])
    for path in sorted(MODELS.glob("*.onnx")):
        data = path.read_bytes()
        for size in range(0, min(len(data), 320 << 10), 1 << 10):
            yield case(f"{path.stem} cut at {size >> 10} kB", data[:size], argv=IMPORT)


def flipped(count: int = 500) -> Iterator[Hostile]:
    """One to four bytes changed: a bit flipped, a byte replaced, removed or doubled."""
    raw = base().SerializeToString()
    for number in range(count):
        rng = random.Random(number)
        data = bytearray(raw)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data))
            match rng.randrange(4):
                case 0:
                    data[at] ^= 1 << rng.randrange(8)
                case 1:
                    data[at] = rng.randrange(256)
                case 2:
                    del data[at]
                case _:
                    data.insert(at, data[at])
        yield case(f"flipped {number}", bytes(data))


def changed() -> Iterator[Hostile]:
    """One field of the small model changed to something that it must not be."""
    for name, change in CHANGES.items():
        broken = base()
        change(broken)
        yield case(f"changed: {name}", broken)


def _dim(value: int, position: int, m: Model) -> None:
    m.graph.input[0].type.tensor_type.shape.dim[position].dim_value = value


def _weight_dim(value: int, m: Model) -> None:
    m.graph.initializer[0].dims[0] = value


def _shape_constant(value: int, m: Model) -> None:
    m.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.array([value, -1]), "s"))


def _set(path: str, value: Any, m: Model) -> None:
    *parts, last = path.split(".")
    target: Any = m
    for part in parts:
        target = target[int(part)] if part.isdigit() else getattr(target, part)
    setattr(target, last, value)


def _delete(path: str, m: Model) -> None:
    *parts, last = path.split(".")
    target: Any = m
    for part in parts:
        target = target[int(part)] if part.isdigit() else getattr(target, part)
    if last.isdigit():
        del target[int(last)]
    else:
        target.ClearField(last)


def _cycle(m: Model) -> None:
    m.graph.node[0].input[0] = "y"


def _two_cycle(m: Model) -> None:
    m.graph.node[0].input[0] = "e"


def _twice(field: str, m: Model) -> None:
    items = getattr(m.graph, field)
    items.add().CopyFrom(items[0])


def _recursive(m: Model) -> None:
    f = m.functions[0]
    f.node[0].CopyFrom(helper.make_node("Twice", ["i"], ["o"], domain="local"))


def _mutually_recursive(m: Model) -> None:
    other = m.functions.add()
    other.CopyFrom(m.functions[0])
    other.name = "Other"
    m.functions[0].node[0].CopyFrom(helper.make_node("Other", ["i"], ["o"], domain="local"))
    other.node[0].CopyFrom(helper.make_node("Twice", ["i"], ["o"], domain="local"))


CHANGES: dict[str, Callable[[Model], None]] = {
    **{f"input dimension {v}": partial(_dim, v, 0) for v in (*HUGE, 0)},
    **{f"inner input dimension {v}": partial(_dim, v, 1) for v in (*HUGE, 0)},
    **{f"weight dimension {v}": partial(_weight_dim, v) for v in (*HUGE, 0, 33)},
    **{f"reshape to {v}": partial(_shape_constant, v) for v in (*HUGE[:4], 0, 3, -2)},
    **{
        f"node {i} type '{t}'": partial(_set, f"graph.node.{i}.op_type", t)
        for i in range(5)
        for t in ("", "NoSuch", "LSTM", "Loop", "Concat", "x\x00y")
    },
    **{
        f"node {i} domain '{d}'": partial(_set, f"graph.node.{i}.domain", d)
        for i in range(5)
        for d in ("ai.onnx.ml", "com.none", "elk.unknown", "local", "\n")
    },
    **{
        f"node {i} name {n!r}": partial(_set, f"graph.node.{i}.name", n)
        for i in (0, 4)
        for n in ('"', "\n", "\\", "../../x", "a" * 100_000, "\x00", "é\u2028")
    },
    **{
        f"without {p}": partial(_delete, p)
        for p in (
            "graph",
            "graph.node",
            "graph.input",
            "graph.output",
            "graph.initializer",
            "functions",
            "opset_import",
            "ir_version",
            "graph.node.0",
            "graph.node.1",
            "graph.node.2",
            "graph.node.3",
            "graph.node.0.input.0",
            "graph.node.0.output.0",
            "graph.node.3.input.1",
            "graph.node.1.attribute.0",
            "graph.node.1.attribute.1",
            "graph.node.4.attribute.0.i",
            "graph.node.4.attribute.0.type",
            "graph.node.1.attribute.0.g",
            "graph.input.0.type",
            "graph.input.0.name",
            "graph.input.1.type",
            "graph.output.0.name",
            "graph.initializer.0.dims",
            "graph.initializer.0.raw_data",
            "graph.initializer.0.data_type",
            "graph.initializer.0.name",
            "functions.0.node",
            "functions.0.output",
            "functions.0.input",
            "functions.0.opset_import",
            "functions.0.name",
        )
    },
    **{
        f"weight type {t}": partial(_set, "graph.initializer.0.data_type", t)
        for t in (0, 8, 14, 16, 22, 23, 99, -5)
    },
    **{
        f"input type {t}": partial(_set, "graph.input.0.type.tensor_type.elem_type", t)
        for t in (0, 8, 14, 16, 99, -1)
    },
    **{
        f"axis {a}": partial(_set, "graph.node.4.attribute.0.i", a)
        for a in (5, -9, 2**62, -(2**63))
    },
    **{f"ir version {v}": partial(_set, "ir_version", v) for v in (0, -1, 1, 3, 99, 2**40)},
    **{f"opset {v}": partial(_set, "opset_import.0.version", v) for v in (0, -1, 1, 5, 99, 2**40)},
    "a node reads itself": _cycle,
    "a cycle of nodes": _two_cycle,
    "two inputs of one name": partial(_twice, "input"),
    "two outputs of one name": partial(_twice, "output"),
    "two weights of one name": partial(_twice, "initializer"),
    "two nodes of one name": partial(_twice, "node"),
    "a function that calls itself": _recursive,
    "functions that call each other": _mutually_recursive,
    "an output nobody makes": partial(_set, "graph.output.0.name", "nobody"),
    "an empty value name": partial(_set, "graph.node.0.name", ""),
}


def external() -> Iterator[Hostile]:
    """Weights in files that are not there, not allowed, too short, or no files."""
    places = {
        "absolute": "/etc/passwd",
        "device": "/dev/zero",
        "above": "../secret.bin",
        "far above": "../../../../etc/passwd",
        "hidden above": "sub/../../secret.bin",
        "empty": "",
        "the folder": ".",
        "a folder": "sub",
        "a link out": "link.bin",
        "a linked folder": "away/x.bin",
        "a pipe": "pipe",
        "missing": "none.bin",
        "the model itself": "m.onnx",
        "with a zero": "a\x00b",
        "a very long name": "x" * 5000,
        "short": "short.bin",
        "a url": "http://host/x",
        "home": "~/x",
    }
    for what, place in places.items():
        for offset, length in (
            ("0", None),
            ("-1", None),
            (str(2**62), None),
            ("0", "7"),
            ("x", "y"),
        ):
            m = base()
            tensor = m.graph.initializer[0]
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            entries = {"location": place, "offset": offset} | ({"length": length} if length else {})
            for key, value in entries.items():
                entry = tensor.external_data.add()
                entry.key, entry.value = key, value
            yield case(
                f"external {what} at {offset} length {length}",
                m,
                files={"short.bin": b"1234", "sub/y.bin": b"12"},
                prepare=_links,
            )


def _links(folder: Path) -> None:
    (folder / "link.bin").symlink_to("/etc/passwd")
    (folder / "away").symlink_to("/tmp")
    os.mkfifo(folder / "pipe")


def bombs() -> Iterator[Hostile]:
    """Small files that stand for huge tensors or endless work."""
    for extent in (2**20, 2**31, 2**40, 2**62):
        for name, make in BOMBS.items():
            yield case(f"bomb {name} {extent}", make(extent))
            yield case(f"bomb {name} {extent} imported", make(extent), argv=IMPORT)
    for depth in (5, 24, 40, 500, 5000):
        yield case(f"branches nested {depth} deep", _nested(depth))
        yield case(f"functions {depth} deep", _functions(depth))
    for count in (40, 64, 1000):
        yield case(f"doubled {count} times", _doubled(count))
    yield case("a thousand dimensions", model([node("Neg")], inputs=[info("x", [1] * 1000)]))
    yield case("forty dimensions of two", model([node("Neg")], inputs=[info("x", [2] * 40)]))


def node(op: str, ins: tuple[str, ...] = ("x",), **attributes: Any) -> Any:
    """A node that yields y."""
    return helper.make_node(op, list(ins), ["y"], **attributes)


def ints(name: str, values: list[int]) -> Any:
    """An int64 initializer."""
    return numpy_helper.from_array(np.array(values, np.int64), name)


def _with(nodes: list[Any], *weights: Any, **kwargs: Any) -> Model:
    return model(nodes, weights=list(weights), **kwargs)


def _range_of(n: int) -> Model:
    scalars = [numpy_helper.from_array(np.array(v), k) for k, v in (("a", 0), ("b", n), ("d", 1))]
    return _with([node("Range", ("a", "b", "d"))], *scalars, outputs=[info("y", None, 7)])


def _loop(n: int) -> Model:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["c"], ["c1"]),
            helper.make_node("Add", ["s", "s"], ["s1"]),
        ],
        "body",
        [info("i", [], 7), info("c", [], 9), info("s", [4, 32])],
        [info("c1", [], 9), info("s1", [4, 32])],
    )
    true = numpy_helper.from_array(np.array(True), "t")
    count = numpy_helper.from_array(np.array(n), "n")
    return _with([node("Loop", ("n", "t", "x"), body=body)], true, count)


def _sparse(n: int) -> Model:
    m = _with([node("Add", ("x", "q"))])
    values = numpy_helper.from_array(np.ones(1, np.float32), "q")
    m.graph.sparse_initializer.append(helper.make_sparse_tensor(values, ints("i", [0]), [n, 32]))
    return m


def _without_data(n: int) -> Model:
    m = _with([node("Add", ("x", "q"))], numpy_helper.from_array(np.ones((1, 32), np.float32), "q"))
    m.graph.initializer[0].dims[0] = n
    m.graph.initializer[0].ClearField("raw_data")
    return m


def _resized(n: int) -> Model:
    inputs = [info("x", [1, 1, 4, 4])]
    return _with([node("Resize", ("x", "", "", "s"))], ints("s", [1, 1, n, n]), inputs=inputs)


def _constant(n: int) -> Model:
    nodes = [helper.make_node("ConstantOfShape", ["s"], ["q"]), node("Add", ("x", "q"))]
    return _with(nodes, ints("s", [n, 1]))


def _topk(n: int) -> Model:
    m = _with([helper.make_node("TopK", ["x", "k"], ["y", "i"])], ints("k", [n]))
    return m


BOMBS: dict[str, Callable[[int], Model]] = {
    "ConstantOfShape": lambda n: _with([node("ConstantOfShape", ("s",))], ints("s", [n, 4])),
    "ConstantOfShape added": _constant,
    "Expand": lambda n: _with([node("Expand", ("x", "s"))], ints("s", [n, 4, 32])),
    "Tile": lambda n: _with([node("Tile", ("x", "s"))], ints("s", [n, 2])),
    "Pad": lambda n: _with([node("Pad", ("x", "s"))], ints("s", [n, 0, 0, 0])),
    "Range": _range_of,
    "Resize": _resized,
    "OneHot": lambda n: _with(
        [node("OneHot", ("s", "d", "v"))],
        ints("s", [1, 2]),
        ints("d", [n]),
        numpy_helper.from_array(np.zeros(2, np.float32), "v"),
    ),
    "EyeLike": lambda n: model([node("EyeLike")], inputs=[info("x", [n, n])]),
    "huge input": lambda n: model([node("Neg")], inputs=[info("x", [n, 32])]),
    "huge product": lambda n: model(
        [node("MatMul", ("x", "z"))], inputs=[info("x", [n, 32]), info("z", [32, n])]
    ),
    "outer sum": lambda n: model(
        [node("Add", ("x", "z"))], inputs=[info("x", [n, 1]), info("z", [1, n])]
    ),
    "Loop": _loop,
    "Split": lambda n: model([node("Split", num_outputs=min(n, 2**62))]),
    "sparse": _sparse,
    "without data": _without_data,
    "TopK": _topk,
    "BlackmanWindow": lambda n: _with(
        [node("BlackmanWindow", ("s",))], numpy_helper.from_array(np.array(n), "s")
    ),
    "ReduceSum axes": lambda n: _with([node("ReduceSum", ("x", "s"))], ints("s", [n])),
    "Unsqueeze": lambda n: _with([node("Unsqueeze", ("x", "s"))], ints("s", [n])),
    "Gather": lambda n: _with([node("Gather", ("x", "s"))], ints("s", [n])),
    "MaxPool": lambda n: model(
        [node("MaxPool", kernel_shape=[n, n], pads=[n - 1] * 4)], inputs=[info("x", [1, 1, 4, 4])]
    ),
    "Slice": lambda n: _with(
        [node("Slice", ("x", "a", "b", "d", "e"))],
        ints("a", [-n]),
        ints("b", [n]),
        ints("d", [0]),
        ints("e", [n]),
    ),
    "CumSum": lambda n: _with([node("CumSum", ("x", "s"))], ints("s", [n])),
    "DepthToSpace": lambda n: model(
        [node("DepthToSpace", blocksize=n)], inputs=[info("x", [1, 4, 2, 2])]
    ),
    "Dropout": lambda n: model([node("Dropout", seed=n)]),
}


def _nested(depth: int) -> bytes:
    """An If in an If in an If …, written by hand: the library itself goes no deeper than 100."""
    leaf = _leaf().SerializeToString()
    graph = leaf
    for _ in range(depth):
        graph = _field(1, _branch("z", graph, leaf)) + _field(2, b"g") + _output("z")
    top = _field(1, _branch("y", graph, leaf)) + _field(2, b"g") + _output("y")
    m = model([node("Neg")], inputs=[info("x", [4, 32]), info("c", [], TensorProto.BOOL)])
    top += b"".join(_field(11, i.SerializeToString()) for i in m.graph.input)
    m.ClearField("graph")
    return m.SerializeToString() + _field(7, top)


def _branch(result: str, taken: bytes, other: bytes) -> bytes:
    """A NodeProto: an If with two subgraphs."""
    attributes = (
        _field(5, _field(1, name) + _field(6, graph) + b"\xa0\x01\x05")
        for name, graph in ((b"then_branch", taken), (b"else_branch", other))
    )
    return _field(1, b"c") + _field(2, result.encode()) + _field(4, b"If") + b"".join(attributes)


def _output(name: str) -> bytes:
    return _field(12, info(name, [4, 32]).SerializeToString())


def _field(number: int, data: bytes) -> bytes:
    """A length-delimited field of a protobuf message."""
    size, length = len(data), bytearray()
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    length.append(size)
    return bytes([number << 3 | 2]) + bytes(length) + data


def _leaf() -> Any:
    return helper.make_graph([helper.make_node("Abs", ["x"], ["z"])], "e", [], [info("z", [4, 32])])


def _functions(depth: int) -> Model:
    """A function that calls a function that calls a function …"""
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("local", 1)]
    bodies = [
        helper.make_function(
            "local",
            f"F{i}",
            ["i"],
            ["o"],
            [
                helper.make_node(f"F{i + 1}", ["i"], ["o"], domain="local")
                if i + 1 < depth
                else helper.make_node("Neg", ["i"], ["o"])
            ],
            opsets,
        )
        for i in range(depth)
    ]
    return model([helper.make_node("F0", ["x"], ["y"], domain="local")], functions=bodies)


def _doubled(count: int) -> Model:
    """Each node doubles the size of a constant."""
    nodes, last = [], "w"
    for i in range(count):
        nodes.append(helper.make_node("Concat", [last, last], [f"d{i}"], axis=0))
        last = f"d{i}"
    nodes.append(helper.make_node("Identity", [last], ["y"]))
    return _with(nodes, numpy_helper.from_array(np.arange(8, dtype=np.float32), "w"))


def cases() -> Iterator[Hostile]:
    """All of them."""
    yield from truncated()
    yield from flipped()
    yield from changed()
    yield from external()
    yield from bombs()
    for text in (
        b"",
        b"\x00" * 4096,
        b"\x08",
        b"<html>",
        b"PK\x03\x04" + b"\x00" * 100,
        b"\xff" * 999,
    ):
        yield case(f"no model: {text[:4]!r}", text)
