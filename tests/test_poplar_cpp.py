"""Emitted Poplar C++, compiled with the host's compiler and run on the small runtime."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from cpp_program import BuiltProgram, check_built, check_program, needs_compiler
from helpers import Weights, lower, parse, planned, run_passes
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from operators import CASES, plans
from xdsl.dialects.builtin import ModuleOp

import elk_ir
from elk_ir.dialects.ipu import RemoteOp
from elk_ir.errors import ElkError
from elk_ir.numerics.tensors import check_inputs, read_npz
from elk_ir.passes.icca_support import executes, program_of, set_plan
from elk_ir.targets.ipu.cpp_host import Remote
from elk_ir.targets.ipu.poplar_cpp import emit_cpp
from elk_ir.targets.ipu.weights_file import input_specs
from elk_ir.weight_source import WeightSource

SHARED = Path(__file__).resolve().parent.parent.parent / "shared" / "models" / "tiny"
FAST = (
    "bert_sdpa_static_dynamo",
    "dit_tiny_static_dynamo",
    "gemma2_decode_static_dynamo",
    "llama2_decode_static_dynamo",
    "opt_decode_static_dynamo",
    "vit_static_dynamo",
)
"""Six architectures that every run of the tests compiles; the others are marked slow."""

SLICE = """
te.global weight @g : tensor<64xf32> = dense<1.0> : tensor<64xf32>
te.global weight @wq : tensor<64x92xf32> = dense<0.5> : tensor<64x92xf32>
te.global weight @wo : tensor<92x48xf32> = dense<0.25> : tensor<92x48xf32>
func.func @main(%h: tensor<4x64xf32> {onnx.name = "h/0"}) -> (tensor<4x48xf32> {onnx.name = "y"}) {
  %g = te.load @g : tensor<64xf32>
  %n = te.normalize(%h, %g) <(m = 4, k = 64 reduce), [(m, k), (k)] -> [(m, k)]>
    {form = #te<norm_form rms>, epsilon = 1.0e-5 : f64, affine = "scale"}
    : (tensor<4x64xf32>, tensor<64xf32>) -> tensor<4x64xf32> loc("norm")
  %wq = te.load @wq : tensor<64x92xf32>
  %q = te.contract(%n, %wq) <(m = 4, n = 92, k = 64 reduce), [(m, k), (k, n)] -> [(m, n)]>
    : (tensor<4x64xf32>, tensor<64x92xf32>) -> tensor<4x92xf32> loc("q")
  %wo = te.load @wo : tensor<92x48xf32>
  %o = te.contract(%q, %wo) <(m = 4, n = 48, k = 92 reduce), [(m, k), (k, n)] -> [(m, n)]>
    : (tensor<4x92xf32>, tensor<92x48xf32>) -> tensor<4x48xf32> loc("o")
  func.return %o : tensor<4x48xf32>
}
"""


def ring_program(
    q: tuple[int, int, int] = (2, 2, 4), o: tuple[int, int] = (2, 4), chip: str = "test-16"
) -> ModuleOp:
    """SLICE lowered: rings of both operands, states that differ, a scattered sum and one to all.
    `q` and `o` are how the products are split along m, n, k."""
    plans = (
        f'icca-set-plan{{op=q grid="m={q[0]},n={q[1]},k={q[2]}" exec="0:k=2;1:k=2"'
        f" reduce=scatter scatter=n}},"
        f'icca-set-plan{{op=o grid="m=2,n={o[0]},k={o[1]}" exec="1:k=1" preload="1:k=2"'
        f" reduce=all}},"
        f'icca-set-plan{{op=norm grid="m={q[0]},k={q[2]}" reduce=all}}'
    )
    return lower(planned(SLICE, plans, chip=chip))


NORMS = """
func.func @main(%x: tensor<4x64xf32> {onnx.name = "x"}) -> (tensor<4x64xf32> {onnx.name = "y"}) {
  %a = te.normalize(%x) <(m = 4, k = 64 reduce), [(m, k)] -> [(m, k)]>
    {form = #te<norm_form layer>, epsilon = 1.0e-5 : f64, affine = ""}
    : (tensor<4x64xf32>) -> tensor<4x64xf32> loc("a")
  %b = te.normalize(%a) <(m = 4, k = 64 reduce), [(m, k)] -> [(m, k)]>
    {form = #te<norm_form layer>, epsilon = 1.0e-5 : f64, affine = ""}
    : (tensor<4x64xf32>) -> tensor<4x64xf32> loc("b")
  func.return %b : tensor<4x64xf32>
}
"""

Rings = tuple[ModuleOp, str, BuiltProgram]


@pytest.fixture(scope="module")
def rings(tmp_path_factory: pytest.TempPathFactory) -> Rings:
    """The ring program, its text, and what it was built to."""
    module = ring_program()
    text = emit_cpp(module)
    return module, text, BuiltProgram(text, tmp_path_factory.mktemp("rings"))


TABLE = "ipu.remote input @w stack 2 : tensor<3x4x5x2xf32>"

H = {"h/0": np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)}


@needs_compiler
def test_rings(rings: Rings) -> None:
    """Ring shifts, distribution, a scattered reduction and one to all."""
    module, _, built = rings
    check_built(built, module, H, Weights())
    assert not built.warnings


@needs_compiler
def test_changed_tile_mapping_fails(rings: Rings, tmp_path: Path) -> None:
    """A variable on the wrong tiles: the vertex that reads it is on another tile."""
    module, text, _ = rings
    line = "graph.setTileMapping(tensor.flatten().slice(c * n, (c + 1) * n), c);"
    assert text.count(line) == 1
    shifted = line.replace(", c);", ', name == "q.execute0" ? (c + 1) % 16 : c);')
    broken = text.replace(line, shifted)
    result = BuiltProgram(broken, tmp_path).run(module, H, Weights())
    assert result.returncode == 1
    assert "is connected to elements on tile" in result.stderr


@needs_compiler
@pytest.mark.slow
def test_changed_ring_distance_changes_the_numbers(rings: Rings, tmp_path: Path) -> None:
    """The runtime executes the text: a shift from the wrong core is not repaired."""
    module, text, built = rings
    start = text.index("elk::shift(prog, q_execute0")
    start = text.index("return ", start) + len("return ")
    end = text.index(";", start)
    broken = f"{text[:start]}(({text[start:end]}) + 1) % 16{text[end:]}"
    good = built.outputs(module, H, Weights())["y"]
    bad = BuiltProgram(broken, tmp_path).outputs(module, H, Weights())["y"]
    assert np.abs(good - bad).max() > 1e-3


def test_size_does_not_grow_with_the_cores() -> None:
    """16 cores and 5,888: less than 5 % of a difference."""
    small = emit_cpp(ring_program())
    large = emit_cpp(ring_program((4, 46, 32), (24, 46), "ipu-pod4-hbm"))
    assert abs(len(large) - len(small)) < 0.05 * len(small)


def sized_models() -> list[object]:
    """The bundled models and six architectures beside the checkout; all but Llama are slow."""
    found = sorted((Path(__file__).parent / "models").glob("*.onnx"))
    found += [SHARED / f"{n}.onnx" for n in FAST if n not in {p.stem for p in found}]
    fast = "llama2_decode_static_dynamo"
    return [
        pytest.param(p, id=p.stem, marks=() if p.stem == fast else pytest.mark.slow) for p in found
    ]


@pytest.mark.parametrize("model", sized_models())
def test_size_of_a_model_does_not_grow_with_the_cores(model: Path) -> None:
    """A model compiled for 16 cores and for 5,888, whatever plans are found for each: partial
    results of what only one of them splits are a codelet, a few declarations and a call."""
    if not model.exists():
        pytest.skip(f"needs {model.name} in ../shared/models/tiny")
    small, large = (
        len(emit_cpp(elk_ir.compile(model, chip=chip).target))
        for chip in ("test-16", "ipu-pod4-hbm")
    )
    assert abs(large - small) < 0.05 * small


def test_statistics_are_arrays_and_classes_are_shared() -> None:
    """Variables of one role are members of one array, each under its own name; classes that differ
    in nothing but their names are one."""
    text = emit_cpp(lower(planned(NORMS, 'icca-set-plan{op=a grid="m=2,k=4" reduce=all}')))
    stem = re.escape("elk::Variables a_partial{graph, FLOAT, ")
    assert re.search(stem + r'"a\.partial", \{(\{L\d+, \d+\}(, )?){3}\}\};', text)
    assert "elk::combine(graph, prog, a_partial, a_gathered, a_merged," in text
    assert 'elk::connect(graph, v, "a", a_merged, c);' in text
    assert text.count("class a_apply ") == 1
    assert text.count('graph.addVertex(cs, "a_apply")') == 2
    assert "b_apply" not in text


def test_names_of_nodes_are_in_the_text() -> None:
    """Names from the ONNX file stay readable, whatever characters they have."""
    text = SLICE.replace('loc("q")', 'loc("/model/q:0")').replace('loc("o")', 'loc("int")')
    emitted = emit_cpp(lower(planned(text)))
    assert "/model/q:0" in emitted
    assert 'graph.addHostToDeviceFIFO("h_0"' in emitted


def test_rows_of_a_buffer_that_is_accessed_along_two_axes() -> None:
    """A row is as small as its finest access needs: entries along an outer axis are many rows."""
    remote = next(op for op in parse(TABLE).walk() if isinstance(op, RemoteOp))
    buffer = Remote(remote, "w", "w", (3, 4, 5, 2), "float32", 3)
    numbers = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    for axis in range(3):
        call = buffer.row_list(axis, 1, 3, 1).removeprefix("elk::rowList(").rstrip(")")
        first, outer, extent, lo, hi, *more = (int(n) for n in call.split(","))
        inner = more[0] if more else 1
        rows = [
            first + (o * extent + i) * inner + k
            for o in range(outer)
            for i in range(lo, hi)
            for k in range(inner)
        ]
        assert rows == numbers[1].take(range(1, 3), axis).reshape(-1).tolist()


def test_no_program() -> None:
    """A module without an ipu program is a user's mistake, with a hint."""
    with pytest.raises(ElkError, match=r"no ipu\.program"):
        emit_cpp(parse("builtin.module {}"))


# ---------------------------------------------------------------------- operators

INDEXING = """
func.func @main(
    %x: tensor<3x20xf32> {onnx.name = "x"}, %at: tensor<5xi64> {onnx.name = "at"},
    %u: tensor<5x4xf32> {onnx.name = "u"}, %d: tensor<9x4xf32> {onnx.name = "d"}
  ) -> (tensor<3xi64> {onnx.name = "arg"}, tensor<3x4xf32> {onnx.name = "top"},
        tensor<3x4xi64> {onnx.name = "topi"}, tensor<3x20xf32> {onnx.name = "sum"},
        tensor<9x4xf32> {onnx.name = "set"}, tensor<9x4xf32> {onnx.name = "add"}) {
  %arg = te.argreduce(%x) <(a = 3, n = 20 reduce), [(a, n)] -> [(a)]> {last = true}
    : (tensor<3x20xf32>) -> tensor<3xi64> loc("arg")
  %top:2 = te.topk(%x) <(a = 3, n = 20 local, k = 4 local), [(a, n)] -> [(a, k), (a, k)]>
    {n = 1 : i64, k = 2 : i64} : (tensor<3x20xf32>) -> (tensor<3x4xf32>, tensor<3x4xi64>) loc("top")
  %sum = te.scan(%x) <(a = 3, n = 20 local), [(a, n)] -> [(a, n)]>
    {n = 1 : i64, combiner = #te<combiner sum>, exclusive = true, reverse = true}
    : (tensor<3x20xf32>) -> tensor<3x20xf32> loc("sum")
  %set = te.scatter(%d, %at, %u)
    <(r = 9, e = 4, i = 5 reduce), [(r, e), (i), (i, e)] -> [(r, e)]>
    {rows = 0 : i64, update = #te<update set>}
    : (tensor<9x4xf32>, tensor<5xi64>, tensor<5x4xf32>) -> tensor<9x4xf32> loc("set")
  %add = te.scatter(%d, %at, %u)
    <(r = 9, e = 4, i = 5 reduce), [(r, e), (i), (i, e)] -> [(r, e)]>
    {rows = 0 : i64, update = #te<update add>}
    : (tensor<9x4xf32>, tensor<5xi64>, tensor<5x4xf32>) -> tensor<9x4xf32> loc("add")
  func.return %arg, %top#0, %top#1, %sum, %set, %add : tensor<3xi64>, tensor<3x4xf32>,
    tensor<3x4xi64>, tensor<3x20xf32>, tensor<9x4xf32>, tensor<9x4xf32>
}
"""

INDEXING_PLANS = (
    'icca-set-plan{op=arg grid="a=3,n=5" reduce=all},icca-set-plan{op=top grid="a=3"},'
    'icca-set-plan{op=sum grid="a=2"},icca-set-plan{op=set grid="r=3,e=2,i=2" reduce=root},'
    'icca-set-plan{op=add grid="r=2,e=2,i=3" reduce=scatter scatter=r}'
)


@needs_compiler
@pytest.mark.slow
def test_indices(tmp_path: Path) -> None:
    """Ties, negative indices, indices out of range, several updates of one row."""
    rng = np.random.default_rng(2)
    inputs = {
        "x": rng.integers(-3, 4, (3, 20)).astype(np.float32),
        "at": np.array([2, -1, 2, 17, 2]),
        "u": rng.standard_normal((5, 4)).astype(np.float32),
        "d": rng.standard_normal((9, 4)).astype(np.float32),
    }
    check_program(lower(planned(INDEXING, INDEXING_PLANS)), inputs, tmp_path)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(CASES))
def test_any_operator_under_any_plan(kind: str, tmp_path: Path) -> None:
    """Random operators under random plans, as on the virtual machine."""
    seen = 0

    @settings(
        max_examples=4,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.data())
    def run(data: st.DataObject) -> None:
        nonlocal seen
        seen += 1
        check_case(data, kind, tmp_path)

    run()
    assert seen


def check_case(data: st.DataObject, kind: str, folder: Path) -> None:
    """One operator of a kind with drawn plans and inputs."""
    case = data.draw(CASES[kind])
    resident = tuple(data.draw(st.booleans()) for _ in case.operands)
    module = parse(case.text(resident))
    run_passes(module, "convert-te-to-icca{chip=test-16}")
    for execute in executes(program_of(module)):
        set_plan(execute, data.draw(plans(execute.operator(), 16)))
    lower(module)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    inputs = {f"a{i}": array for i, array in enumerate(case.arrays(rng))}
    check_program(module, inputs, folder, tolerance=2e-3 if case.half else 2e-5)


# ---------------------------------------------------------------------- models


def models() -> list[object]:
    """Every tiny model beside the checkout; those not in FAST are slow."""
    names = sorted(p.stem for p in SHARED.glob("*.onnx")) or list(FAST)
    return [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in names]


def inputs_of(name: str) -> Path:
    """The file of inputs beside a model: its own, or the first for a symbolic one."""
    own = SHARED / f"{name}.npz"
    return own if own.exists() else next(iter(sorted(SHARED.glob(f"{name}*.npz"))), own)


@needs_compiler
@pytest.mark.parametrize("name", models())
def test_tiny_models(name: str, tmp_path: Path) -> None:
    """Same numbers as the interpreter's, to 1e-5 of the largest (fp32)."""
    model = SHARED / f"{name}.onnx"
    if not model.exists() or not inputs_of(name).exists():
        pytest.skip(f"needs {name} and its inputs in ../shared/models/tiny")
    inputs = read_npz(inputs_of(name), "in/")
    shapes = {k: v.shape for k, v in inputs.items()}
    try:
        program = elk_ir.compile(model, chip="test-16", input_shapes=shapes)
    except ElkError as error:
        pytest.skip(f"does not compile for test-16: {error.what}")
    module, weights = program.target, WeightSource(SHARED)
    narrow = {s.dtype for s in input_specs(module)} & {"float16", "bfloat16"}
    check_program(
        module,
        check_inputs(inputs, input_specs(module)),
        tmp_path,
        lambda remote: weights.load(remote.value),
        tolerance=2e-2 if narrow else 1e-5,
    )
