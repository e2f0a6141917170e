"""What other packages bring: the documented example, and extensions that are broken."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import elk_ir
from elk_ir import extensions
from elk_ir.chips import load_chip
from elk_ir.errors import ElkError
from elk_ir.target import find_target, target_names
from elk_ir.tools.elk_opt import main as elk_opt

EXAMPLE = Path(__file__).parent.parent / "examples" / "elk_ext_example"
EntryPoints = Mapping[str, Mapping[str, str]]


def install(folder: Path, name: str, groups: EntryPoints) -> Path:
    """The metadata of an installed package, as an installer writes them."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [
        line
        for group, entries in groups.items()
        for line in (f"[{group}]", *(f"{k} = {v}" for k, v in entries.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example package, installed."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    install(tmp_path, project["name"], project["entry-points"])
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.syspath_prepend(str(tmp_path))


def model() -> tuple[ModelProto, dict[str, np.ndarray], np.ndarray]:
    """A product and a PowerMean whose result type the model does not declare in value_info."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, 24)).astype(np.float32)
    w = rng.standard_normal((24, 40)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="proj"),
        helper.make_node("PowerMean", ["h"], ["m"], domain="com.example.ext", p=3.0, name="mean"),
        helper.make_node("Neg", ["m"], ["y"], name="neg"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [6, 24])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [6])],
        [numpy_helper.from_array(w, "w")],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.example.ext", 1)]
    want = -((np.abs(x @ w) ** 3).mean(1) ** (1 / 3))
    return helper.make_model(graph, opset_imports=opsets), {"x": x}, want


@pytest.mark.usefixtures("example")
@pytest.mark.parametrize("target", ["ipu", "toy"])
def test_example_runs(target: str, tmp_path: Path) -> None:
    proto, inputs, want = model()
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    program = elk_ir.compile(path, chip="toy-4", target=target, policy="basic")
    assert program.chip.cores == 4
    np.testing.assert_allclose(program(**inputs)["y"], want, rtol=1e-5)
    again = elk_ir.load(program.save(tmp_path / target))
    np.testing.assert_array_equal(again(**inputs)["y"], program(**inputs)["y"])
    assert "ext.power_mean" in again.mlir(target)
    if target == "ipu":
        (row,) = [o for o in program.report["operators"] if o["kind"] == "power_mean"]
        assert row["nodes"][0] == "mean"
    else:
        listing = (tmp_path / target / "program.txt").read_text().splitlines()
        assert [line.split()[0] for line in listing] == [
            "toy.load", "toy.load", "te.contract", "ext.power_mean", "te.map", "toy.store",
        ]  # fmt: skip
        with pytest.raises(ElkError, match="not simulated"):
            program.simulate()


@pytest.mark.usefixtures("example")
def test_example_in_elk_opt(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    proto, _, _ = model()
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    passes = "convert-onnx-to-te,te-pipeline,convert-te-to-icca{chip=toy-4},convert-icca-to-toy"
    assert elk_opt([str(path), "-p", passes, "-t", "toy-listing"]) == 0
    assert "ext.power_mean" in capsys.readouterr().out


@pytest.mark.usefixtures("example")
def test_split_reduction_of_the_example() -> None:
    """The kernel's combine phase: the same numbers whichever way the reduction is split."""
    from elk_ir.compiler import context, import_source, pipeline, run_passes, split_at
    from elk_ir.passes.icca_schedule import IccaSchedulePass
    from elk_ir.passes.icca_set_plan import IccaSetPlanPass
    from elk_ir.weight_source import WeightSource

    proto, inputs, want = model()
    chip = load_chip("toy-4")
    module, source = import_source(proto, chip)
    passes = pipeline(chip, policy="basic")
    front, back = split_at(passes, "icca-schedule")
    ctx = context()
    run_passes(ctx, module, front, model="m")
    run_passes(ctx, module, [IccaSetPlanPass(op="mean", grid="d0=2,k=2")], model="m")
    rest = [p for p in back if p.name != "icca-schedule"]
    schedule = IccaSchedulePass(policy="basic", plans="keep")
    run_passes(ctx, module, [schedule, *rest], model="m")
    weights = WeightSource(None, buffers=source.buffers)
    got = find_target("ipu").run(module, inputs, chip=chip, weights=weights)
    np.testing.assert_allclose(got["y"], want, rtol=1e-5)


@pytest.mark.usefixtures("example")
def test_example_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from elk_ir.tools.elk import main as elk

    path = tmp_path / "relu.onnx"
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"], name="relu")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])],
    )
    opsets = [helper.make_opsetid("", 20)]
    path.write_bytes(helper.make_model(graph, opset_imports=opsets).SerializeToString())
    flags = ["--chip", "toy-4", "--target", "toy", "--policy", "basic"]
    assert elk(["compile", str(path), *flags, "-o", str(tmp_path / "out")]) == 0
    assert "toy" in capsys.readouterr().out
    assert elk(["verify", str(path), *flags]) == 0
    assert "convert-icca-to-toy" in capsys.readouterr().out
    assert elk(["run", str(tmp_path / "out"), "--random-inputs", "1"]) == 0
    assert elk(["simulate", str(tmp_path / "out")]) == 2
    assert "not simulated" in capsys.readouterr().err
    assert elk(["chips"]) == 0
    assert "toy-4" in capsys.readouterr().out


def test_example_is_short() -> None:
    """Under 100 lines each, blank ones and comments included."""
    for name in ("power_mean.py", "toy_target.py"):
        text = (EXAMPLE / "elk_ext_example" / name).read_text()
        assert len(text.splitlines()) < 100


def test_without_the_example() -> None:
    proto, _, _ = model()
    assert "toy" not in target_names()
    with pytest.raises(ElkError, match=r"com\.example\.ext"):
        elk_ir.compile(proto, chip="test-16")
    with pytest.raises(ElkError, match="unknown target 'toy'"):
        find_target("toy")
    with pytest.raises(ElkError, match="unknown chip 'toy-4'"):
        load_chip("toy-4")


# ---------------------------------------------------------------------- broken extensions


def test_extension_that_does_not_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = {"elk_ir.targets": {"odd": "no_such_module_anywhere:T"}}
    monkeypatch.syspath_prepend(str(install(tmp_path, "odd-package", groups)))
    with pytest.raises(
        ElkError, match="the extension 'odd' of package odd-package can't be loaded: "
    ):
        find_target("odd")


def test_extension_of_xdsl_that_does_not_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = {"xdsl.universe": {"odd": "no_such_module_anywhere:U"}}
    monkeypatch.syspath_prepend(str(install(tmp_path, "odd-package", groups)))
    with pytest.raises(ElkError, match="an extension of xDSL can't be loaded: ModuleNotFoundError"):
        extensions.universe()


def test_extension_of_the_wrong_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = {
        "elk_ir.targets": {"odd": "json:dumps"},
        "elk_ir.operators": {"odd": "json:dumps"},
        "elk_ir.chips": {"odd": "json"},
    }
    monkeypatch.syspath_prepend(str(install(tmp_path, "odd-package", groups)))
    with pytest.raises(ElkError, match=r"no elk_ir\.target\.Target"):
        find_target("odd")
    with pytest.raises(ElkError, match=r"no elk_ir\.extensions\.Operators"):
        extensions.operators()
    with pytest.raises(ElkError, match=r"has no file odd\.toml"):
        load_chip("odd")


def test_two_extensions_with_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("first", "json:dumps"), ("second", "json:loads")):
        groups = {"elk_ir.targets": {"odd": value}}
        monkeypatch.syspath_prepend(str(install(tmp_path / name, name, groups)))
    with pytest.raises(ElkError, match="two extensions define 'odd'"):
        target_names()


def test_operator_that_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elk_test_relu.py").write_text(
        "from elk_ir.extensions import Operators\nOPS = Operators({'Relu': lambda c, n: None})\n"
    )
    groups = {"elk_ir.operators": {"relu": "elk_test_relu:OPS"}}
    monkeypatch.syspath_prepend(str(install(tmp_path, "relu", groups)))
    from elk_ir.passes.onnx_lowerings import lowerings

    with pytest.raises(ElkError, match="lowers Relu"):
        lowerings()
    sys.modules.pop("elk_test_relu")
