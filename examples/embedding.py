"""The compiler from Python: a model in memory, its program, numbers, time, files.

Run: python examples/embedding.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

import elk_ir


def model() -> ModelProto:
    """softmax(x W) with a symbolic batch."""
    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.standard_normal((32, 24)).astype(np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("Softmax", ["h"], ["y"], name="softmax"),
    ]
    graph = helper.make_graph(
        nodes,
        "example",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 24])],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def main() -> None:
    """Compile, run, simulate, save, load; a mistake, and what it says."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model().SerializeToString())
        program = elk_ir.compile(path, chip="test-64", policy="basic", dims={"batch": 4})
        x = np.linspace(-1, 1, 4 * 32, dtype=np.float32).reshape(4, 32)
        y = program(x=x)["y"]
        print(f"rows sum to {y.sum(axis=1)}")
        result = program.simulate()
        print(f"{result.time_s * 1e6:.2f} µs; at least {result.lower_bound_s * 1e6:.2f} µs")
        for row in program.report["operators"]:
            print(f"  {row['name']}: {row['kind']} on {row['cores']} cores")
        again = elk_ir.load(program.save(Path(folder) / "out"))
        print(f"the same after saving and loading: {np.array_equal(again(x=x)['y'], y)}")
        try:
            elk_ir.compile(path, chip="test-64")
        except elk_ir.ElkError as error:
            print(f"without dims:\n{error}")


if __name__ == "__main__":
    main()
