"""Layer loops: one body whatever the number of layers, and preloads issued one iteration ahead."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from helpers import Weights, check_both_landings, lower, planned, random_array, run_passes
from xdsl.dialects.builtin import ModuleOp

from elk_ir.dialects import ipu
from elk_ir.dialects.icca.ops import ExecuteOp, PreloadOp, RepeatOp
from elk_ir.passes.icca_liveness import liveness
from elk_ir.passes.icca_support import defining_preloads

CARRY = "icca-carry-preload{op=keys operand=1 before=down}"


def layers(count: int) -> str:
    """`count` layers: keys appended to a state, attention over it, a product, a residual."""
    names = [f"past{i}" for i in range(count)], [f"present{i}" for i in range(count)]
    inputs, outputs = (", ".join(f'"{n}"' for n in group) for group in names)
    stack = f"stack {count}"
    return f"""
te.global weight @wk {stack} : tensor<16x16xf32> = dense<1.0> : tensor<{count}x16x16xf32>
te.global weight @wo {stack} : tensor<16x16xf32> = dense<1.0> : tensor<{count}x16x16xf32>
te.global state @kv {stack} : tensor<6x16xf32> {{axis = 0 : i64, length = 3 : i64, inputs = [{inputs}], outputs = [{outputs}]}}

func.func @main(%x: tensor<1x16xf32> {{onnx.name = "x"}}) -> (tensor<1x16xf32> {{onnx.name = "y"}}) {{
  %y = te.repeat {count} iter(%x) {{
  ^bb0(%l: index, %h: tensor<1x16xf32>):
    %wk = te.load @wk[%l] : tensor<16x16xf32>
    %k = te.contract(%h, %wk) <(m = 1, n = 16, k = 16 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<1x16xf32>, tensor<16x16xf32>) -> tensor<1x16xf32> loc("keys")
    %kv = te.append %k to @kv[%l] : tensor<1x16xf32> -> tensor<4x16xf32>
    %s = te.contract(%h, %kv) <(m = 1, n = 4, k = 16 reduce), [(m, k), (n, k)] -> [(m, n)]> : (tensor<1x16xf32>, tensor<4x16xf32>) -> tensor<1x4xf32> loc("scores")
    %p = te.softmax(%s) <(m = 1, n = 4 reduce), [(m, n)] -> [(m, n)]> : (tensor<1x4xf32>) -> tensor<1x4xf32> loc("softmax")
    %o = te.contract(%p, %kv) <(m = 1, n = 16, k = 4 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<1x4xf32>, tensor<4x16xf32>) -> tensor<1x16xf32> loc("values")
    %wo = te.load @wo[%l] : tensor<16x16xf32>
    %d = te.contract(%o, %wo, %h) <(m = 1, n = 16, k = 16 reduce), [(m, k), (k, n), (m, n)] -> [(m, n)]> {{epilogue = #te.body<(x0, x1) {{t0 = add(x0, x1)}} -> (t0)>}} : (tensor<1x16xf32>, tensor<16x16xf32>, tensor<1x16xf32>) -> tensor<1x16xf32> loc("down")
    te.yield %d : tensor<1x16xf32>
  }} : (tensor<1x16xf32>) -> tensor<1x16xf32>
  func.return %y : tensor<1x16xf32>
}}
"""  # noqa: E501


PLANS = ",".join(
    [
        'icca-set-plan{op=keys grid="n=4,k=2" exec="1:n=1" scatter=n}',
        'icca-set-plan{op=scores grid="n=2,k=4" reduce=all}',
        'icca-set-plan{op=values grid="n=8,k=2" exec="0:k=2" scatter=n}',
        'icca-set-plan{op=down grid="n=3,k=3" reduce=root}',
    ]
)


def arrays(count: int, weights: Weights, module: ModuleOp) -> tuple[dict, dict]:
    """Inputs, and the outputs that numpy expects."""
    for op in module.walk():
        if isinstance(op, ipu.RemoteOp) and op.value is not None:
            weights(op)
    rng = np.random.default_rng(7)
    h = random_array(rng, (1, 16), "float32")
    inputs = {"x": h}
    outputs: dict[str, np.ndarray] = {}
    for i in range(count):
        past = random_array(rng, (3, 16), "float32")
        inputs[f"past{i}"] = past
        kv = np.concatenate([past, h @ weights.values["wk"][i]])
        outputs[f"present{i}"] = kv
        s = h @ kv.T
        p = np.exp(s - s.max()) / np.exp(s - s.max()).sum()
        h = p @ kv @ weights.values["wo"][i] + h
    return inputs, {**outputs, "y": h}


def counts(module: ModuleOp) -> Counter[str]:
    """Operations by name."""
    return Counter(op.name for op in module.walk())


@pytest.mark.parametrize("carry", [False, True])
def test_numbers(carry: bool) -> None:
    """Two, four and eight layers: the same number of operations, and the right numbers."""
    sizes = []
    for count in (2, 4, 8):
        module = planned(layers(count), PLANS)
        if carry:
            run_passes(module, CARRY)
        before = counts(module)
        lower(module)
        sizes.append((before, counts(module)))
        weights = Weights()
        inputs, outputs = arrays(count, weights, module)
        check_both_landings(module, inputs, outputs, weights, 2e-5)
    assert sizes[0] == sizes[1] == sizes[2]


def test_carried_preload() -> None:
    """The handle goes around the loop: prologue, body and exit use one address, cyclically."""
    module = planned(layers(4), PLANS)
    run_passes(module, CARRY + ",icca-allocate,icca-verify-program")
    loop = next(op for op in module.walk() if isinstance(op, RepeatOp))
    assert loop.count.value.data == 3
    inside = [op for op in loop.body.block.ops if isinstance(op, PreloadOp | ExecuteOp)]
    labels = [
        op.label.data if isinstance(op, ExecuteOp) else op.source.root_reference.data
        for op in inside
    ]
    assert labels.index("wk") == labels.index("down") - 1
    carried = loop.body.block.args[-1]
    preloads = defining_preloads(carried)
    assert len(preloads) == 2
    assert len({p.at.value.data for p in preloads if p.at is not None}) == 1
    placed = next(
        p for p in liveness(module).placed if p.buffer.cyclic and p.uses[0][1] == "preload"
    )
    buffer, users = placed.buffer, placed.uses
    assert [u[0].label.data for u in users] == ["keys", "keys"]
    assert buffer.start > buffer.end, "issued late in one iteration, read early in the next"
    assert buffer.entry is not None and buffer.exit is not None


def test_two_carried_preloads() -> None:
    """The pass may be applied again: another preload, another peeled iteration."""
    module = planned(layers(4), PLANS)
    run_passes(module, CARRY + ",icca-carry-preload{op=scores operand=1 before=values}")
    lower(module)
    weights = Weights()
    inputs, outputs = arrays(4, weights, module)
    check_both_landings(module, inputs, outputs, weights, 2e-5)


def test_swapped_values() -> None:
    """Values that trade places around a loop."""
    text = """
func.func @main(%a: tensor<8xf32> {onnx.name = "a"}, %b: tensor<8xf32> {onnx.name = "b"}) -> (tensor<8xf32> {onnx.name = "p"}, tensor<8xf32> {onnx.name = "q"}) {
  %p, %q = te.repeat 3 iter(%a, %b) {
  ^bb0(%l: index, %x: tensor<8xf32>, %y: tensor<8xf32>):
    te.yield %y, %x : tensor<8xf32>, tensor<8xf32>
  } : (tensor<8xf32>, tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>)
  func.return %p, %q : tensor<8xf32>, tensor<8xf32>
}
"""  # noqa: E501
    module = lower(planned(text))
    a, b = np.arange(8, dtype=np.float32), np.ones(8, dtype=np.float32)
    check_both_landings(module, {"a": a, "b": b}, {"p": b, "q": a})
