"""The `elk` command: its answers, its exit codes, and one clear message for each mistake."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from elk_ir.tools import demo
from elk_ir.tools.elk import main

MODELS = Path(__file__).parent / "models"
LLAMA = str(MODELS / "llama2_decode_static_dynamo.onnx")
DATA = LLAMA.replace(".onnx", ".npz")
# Most tests are not about schedules: the quickest policy will do.
CHIP = ("--chip", "test-16", "--policy", "basic")


class Result:
    """What one command did: exit code, stdout, stderr."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def message(self) -> str:
        """The first line on stderr."""
        return self.err.split("\n", maxsplit=1)[0]


@pytest.fixture
def elk(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*argv: str | Path) -> Result:
        capsys.readouterr()
        code = main([str(a) for a in argv])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return Result(code, out, err)

    return run


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compiled") / "llama"
    assert main(["compile", LLAMA, *CHIP, "-o", str(folder)]) == 0
    return folder


def save_model(
    path: Path,
    nodes: list[onnx.NodeProto],
    *,
    shape: list[Any] | None = None,
    outputs: tuple[str, ...] = ("y",),
    opsets: dict[str, int] | None = None,
) -> Path:
    """A model with the input x, float of `shape`, and a 32 x 48 weight w."""
    weight = numpy_helper.from_array(np.ones((32, 48), np.float32), "w")
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape or [4, 32])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        [weight],
    )
    imports = [helper.make_opsetid(d, v) for d, v in (opsets or {"": 21}).items()]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), path)
    return path


def product() -> onnx.NodeProto:
    return helper.make_node("MatMul", ["x", "w"], ["y"], name="product")


# ---------------------------------------------------------------------- what works


def test_compile_then_run(elk: Any, compiled: Path, tmp_path: Path) -> None:
    result = elk("run", compiled, "--inputs", DATA, "--expect", DATA, "-o", tmp_path / "o.npz")
    assert (result.code, result.err) == (0, "")
    assert "scheduled by policy basic" in result.out
    assert re.search(r"^logits .* ok$", result.out, re.M)
    written = np.load(tmp_path / "o.npz")
    assert written["logits"].shape == (2, 1, 512)


def test_run_compiles_by_itself(elk: Any) -> None:
    result = elk("run", LLAMA, "--chip", "test-64", "--inputs", DATA, "--expect", DATA)
    assert (result.code, result.err) == (0, "")


def test_run_without_expectations_shows_the_outputs(elk: Any, compiled: Path) -> None:
    result = elk("run", compiled, "--random-inputs", "1")
    assert result.code == 0
    assert "present.1.value" in result.out


def test_json_is_one_object_and_nothing_else(elk: Any, compiled: Path, tmp_path: Path) -> None:
    result = elk("compile", LLAMA, *CHIP, "-o", tmp_path / "d", "--json")
    report = json.loads(result.out)
    assert (result.code, result.err) == (0, "")
    for field in ("lower_bound_s", "hbm_bytes", "sram_peak_bytes", "sram_capacity_bytes"):
        assert report[field] > 0
    assert (report["policy"], report["chip"]) == ("basic", "test-16")
    written = json.loads((tmp_path / "d" / "report.json").read_text())
    assert written["hbm_bytes"] == report["hbm_bytes"]
    result = elk("run", compiled, "--inputs", DATA, "--expect", DATA, "--json")
    ran = json.loads(result.out)
    assert result.code == 0 and ran["agree"] is True
    assert 0 < ran["max_abs_error"] < 1e-4
    assert {o["name"] for o in ran["outputs"]} >= {"logits", "present.0.key"}
    listed = json.loads(elk("chips", "--json").out)
    assert any(chip["chip"] == "test-16" for chip in listed["chips"])


def test_compile_twice_writes_the_same_bytes(elk: Any, compiled: Path, tmp_path: Path) -> None:
    assert elk("compile", LLAMA, *CHIP, "-o", tmp_path / "d").code == 0
    for name in ("program.mlir", "target.mlir"):
        assert (tmp_path / "d" / name).read_bytes() == (compiled / name).read_bytes()


def test_verify(elk: Any) -> None:
    arguments = ("verify", LLAMA, *CHIP, "--inputs", DATA, "--expect", DATA)
    result = elk(*arguments, "--json")
    verdict = json.loads(result.out)
    assert result.code == 0 and verdict["agree"] and verdict["culprit"] is None
    after = [check["after"] for check in verdict["checks"]]
    assert after[0] == "import" and after[-1] == "convert-icca-to-ipu"
    assert all(check["ok"] for check in verdict["checks"])


def test_verify_exits_with_3(elk: Any, tmp_path: Path) -> None:
    data = dict(np.load(DATA))
    data["out/logits"] = data["out/logits"] + 1
    np.savez(tmp_path / "wrong.npz", **data)
    wrong = tmp_path / "wrong.npz"
    result = elk("verify", LLAMA, *CHIP, "--inputs", DATA, "--expect", wrong)
    assert result.code == 3
    assert "the numbers change after import: output 'logits' is off by 1" in result.out


def test_dimensions_come_from_inputs_or_flags(elk: Any, tmp_path: Path) -> None:
    path = save_model(tmp_path / "m.onnx", [product()], shape=["batch", 32])
    np.savez(tmp_path / "in.npz", x=np.ones((3, 32), np.float32))
    result = elk("run", path, "--chip", "test-16", "--inputs", tmp_path / "in.npz", "--json")
    assert json.loads(result.out)["outputs"][0]["shape"] == [3, 48]
    result = elk("compile", path, "--chip", "test-16", "--dim", "batch=5", "--json")
    assert json.loads(result.out)["dims"] == {"batch": 5}


def test_help_is_quick_and_documented(elk: Any) -> None:
    result = elk("--help")
    assert result.code == 0
    for command in ("compile", "run", "verify", "chips"):
        assert command in result.out
        assert elk(command, "--help").code == 0


def test_every_flag_is_documented() -> None:
    from elk_ir.tools.elk import build_parser

    text = (MODELS.parent.parent / "docs" / "commands.md").read_text(encoding="utf-8")
    (commands,) = (a for a in build_parser()._actions if a.dest == "command")
    assert isinstance(commands.choices, dict)
    for name, parser in commands.choices.items():
        assert f"elk {name}" in text
        for action in parser._actions:
            for flag in action.option_strings:
                if flag.startswith("--") and flag != "--help":
                    assert f"`{flag}" in text, f"elk {name}: {flag} is not documented"


def test_every_field_of_the_report_is_documented(compiled: Path) -> None:
    text = (MODELS.parent.parent / "docs" / "commands.md").read_text(encoding="utf-8")
    report = json.loads((compiled / "report.json").read_text())
    fields = [*report, *report["operators"][0], *report["states"][0]]
    assert [f for f in fields if f"`{f}`" not in text] == []


def test_imports_are_lazy() -> None:
    code = (
        "import sys, elk_ir;"
        "from elk_ir.tools.elk import build_parser; build_parser();"
        "sys.exit(bool({'onnx', 'numpy', 'xdsl', 'rich'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_demo(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main([]) == 0
    out = capsys.readouterr().out
    assert "test-64" in out and "the numbers agree" in out
    assert re.search(r"^lower_bound_s +\d", out, re.M)
    assert re.search(r"^max_abs_error +\d", out, re.M)
    assert re.search(r"^node_linear_14 +contract +1 .*n=64", out, re.M)


# ---------------------------------------------------------------------- models that are no good


def refused(result: Result, *patterns: str) -> None:
    """One message on stderr, nothing on stdout, exit code 1."""
    assert result.code == 1, result.err
    assert result.out == ""
    assert result.message.startswith("elk: error: ")
    assert result.err.count("error:") == 1
    for pattern in patterns:
        assert re.search(pattern, result.err), (pattern, result.err)


def compile_args(path: Path | str) -> tuple[str, ...]:
    return ("compile", str(path), "--chip", "test-16", "-o", "never-written")


def test_not_onnx(elk: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.onnx"
    path.write_text("hello, world\n")
    refused(elk(*compile_args(path)), r"a\.onnx: not an ONNX model")
    refused(elk(*compile_args(tmp_path / "none.onnx")), r"none\.onnx: no such file")
    refused(elk(*compile_args(tmp_path)), "this is a folder")


def test_truncated(elk: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.onnx"
    path.write_bytes(Path(LLAMA).read_bytes()[:9000])
    refused(elk(*compile_args(path)), r"t\.onnx: the file is truncated or damaged")


def test_newer_opset(elk: Any, tmp_path: Path) -> None:
    path = save_model(tmp_path / "n.onnx", [product()], opsets={"": 99})
    refused(elk(*compile_args(path)), r"n\.onnx: the model uses opset 99, newer than", "hint: ")


def test_unbound_dimension(elk: Any, tmp_path: Path) -> None:
    path = save_model(tmp_path / "m.onnx", [product()], shape=["batch", 32])
    result = elk(*compile_args(path))
    refused(result, "product: .*dimension 0 .batch. of input 'x'", "add --dim batch=VALUE")


def test_unsupported_operators_are_all_named(elk: Any, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["y"], name="first"),
        helper.make_node("Unheard", ["x"], ["z"], name="second", domain="some.domain"),
    ]
    path = save_model(
        tmp_path / "u.onnx", nodes, outputs=("y", "z"), opsets={"": 21, "some.domain": 1}
    )
    result = elk(*compile_args(path), "--no-host")
    refused(result, r"u\.onnx: 2 nodes can't be lowered", "first: NonZero")
    assert "second: some.domain:Unheard" in result.err
    result = elk(*compile_args(path))
    refused(result, r"1 node can be neither lowered to te nor run on the host", "second: some.dom")


def test_operator_that_fits_in_no_plan(elk: Any, tmp_path: Path) -> None:
    chip = tmp_path / "tiny.toml"
    chip.write_text('extends = "test-16"\nsram_per_core_bytes = 1536\n')
    with chip.open("a") as stream:
        stream.write("reserved_per_core_bytes = 1024\n")
    result = elk("compile", LLAMA, "--chip", chip, "-o", tmp_path / "o")
    refused(
        result,
        r"error: node_\w+: needs [\d,]+ bytes on each core, which has 512",
        "largest buffers:",
        "it would fit with one of these changes:",
        r"more SRAM: sram_per_core_bytes = [\d,]+ instead of 1,536 \([\d,]+ usable; tried\)",
    )
    assert not (tmp_path / "o").exists()


def test_hbm_too_small(elk: Any, tmp_path: Path) -> None:
    chip = tmp_path / "small.toml"
    chip.write_text('extends = "test-16"\n[hbm]\ncapacity_bytes = 100000\n')
    result = elk("compile", LLAMA, "--chip", chip, "-o", tmp_path / "o")
    refused(result, r"needs [\d,]+ bytes of HBM, chip 'small' has 100,000", "largest tensors:")


def test_missing_weights(elk: Any, tmp_path: Path) -> None:
    model = onnx.load(save_model(tmp_path / "m.onnx", [product()]))
    (weight,) = model.graph.initializer
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    entry = weight.external_data.add()
    entry.key, entry.value = "location", "absent.bin"
    onnx.save(model, tmp_path / "m.onnx")
    run = ("run", tmp_path / "m.onnx", "--chip", "test-16", "--random-inputs", "0")
    refused(elk(*run), "weights of 'w' are missing: no file 'absent.bin'", "--random-weights")
    assert elk(*run, "--random-weights", "1").code == 0
    # Verifying needs them as well: both levels compute with the same random weights.
    verify = ("verify", tmp_path / "m.onnx", "--chip", "test-16")
    refused(elk(*verify), "weights of 'w' are missing")
    assert elk(*verify, "--random-weights", "1").code == 0


# ---------------------------------------------------------------------- inputs that are no good


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        ({"in/foo": np.zeros(3)}, r"d\.npz: there is no input 'foo'"),
        ({"in/input_ids": None}, r"input 'input_ids' is missing: it is int64\[2, 1\]"),
        (
            {"in/input_ids": np.zeros((2, 1), np.int32)},
            r"is int32\[2, 1\], the program takes int64",
        ),
        ({"in/input_ids": np.zeros((2, 2), np.int64)}, r"is int64\[2, 2\], the program takes"),
    ],
)
def test_wrong_inputs(
    elk: Any, compiled: Path, tmp_path: Path, change: dict[str, Any], pattern: str
) -> None:
    data = {**np.load(DATA), **change}
    np.savez(tmp_path / "d.npz", **{n: a for n, a in data.items() if a is not None})
    refused(elk("run", compiled, "--inputs", tmp_path / "d.npz"), pattern, "the inputs are: input_")


def test_files_that_are_no_npz(elk: Any, compiled: Path, tmp_path: Path) -> None:
    (tmp_path / "junk.npz").write_bytes(b"PK\x03\x04 no archive")
    (tmp_path / "text.npz").write_text("1 2 3")
    np.save(tmp_path / "array.npy", np.zeros(3))
    for name, pattern in (
        ("junk.npz", "not an .npz file"),
        ("text.npz", "not an .npz file"),
        ("array.npy", "single array"),
        ("absent.npz", "no such file"),
    ):
        refused(elk("run", compiled, "--inputs", tmp_path / name), pattern)
        refused(elk("run", compiled, "--inputs", DATA, "--expect", tmp_path / name), pattern)


def test_expectations(elk: Any, compiled: Path, tmp_path: Path) -> None:
    data = dict(np.load(DATA))
    np.savez(tmp_path / "name.npz", nope=data["out/logits"])
    np.savez(tmp_path / "shape.npz", logits=data["out/logits"][:1])
    np.savez(tmp_path / "value.npz", logits=data["out/logits"] * 1.001)
    run = ("run", compiled, "--inputs", DATA, "--expect")
    refused(elk(*run, tmp_path / "name.npz"), "'nope' is expected, but is no output")
    refused(elk(*run, tmp_path / "shape.npz"), r"output 'logits' has shape \[2, 1, 512\]")
    result = elk(*run, tmp_path / "value.npz")
    assert result.code == 3
    assert "DISAGREES" in result.out and "the numbers disagree" in result.err
    result = elk(*run, tmp_path / "value.npz", "--json")
    assert result.code == 3 and json.loads(result.out)["agree"] is False


# ---------------------------------------------------------------------- usage and damage


def test_unknown_names(elk: Any) -> None:
    compile_ = ("compile", LLAMA, "-o", "never-written")
    refused(elk(*compile_, "--chip", "test-61"), "unknown chip 'test-61'", "did you mean 'test-64'")
    test16 = (*compile_, "--chip", "test-16")
    refused(
        elk(*test16, "--policy", "fancy"),
        "unknown policy 'fancy'",
        "the policies for 'test-16' are: basic, ",
    )
    refused(elk(*test16, "--target", "tpu"), "unknown target 'tpu'", "the targets are: ipu")
    refused(elk(*test16, "--dim", "nope=3"), "no dimension of this name")
    refused(elk(*test16, "--kv-capacity", "3"), "needs 13 entries in this run")


@pytest.mark.parametrize(
    ("argv", "pattern"),
    [
        ((), "required: COMMAND"),
        (("frobnicate",), "invalid choice: 'frobnicate'"),
        (("compile", LLAMA), "required: --chip"),
        (("compile", LLAMA, "--chip", "test-16"), "-o DIR is needed"),
        (("compile", LLAMA, "--chip", "test-16", "-o", "x", "--bogus"), "--bogus"),
        (("compile", LLAMA, "--chip", "test-16", "-o", "x", "--dim", "a"), "expected NAME=VALUE"),
        (("run", LLAMA, "--inputs", DATA), "--chip is needed"),
        (("run", LLAMA, "--chip", "test-16"), "no inputs"),
        (("run", LLAMA, "--inputs", DATA, "--random-inputs", "1"), "exclude each other"),
        (("run", str(MODELS), "--inputs", DATA, "--chip", "test-16"), "--chip does not apply"),
    ],
)
def test_wrong_usage(elk: Any, argv: tuple[str, ...], pattern: str) -> None:
    result = elk(*argv)
    assert result.code == 2
    assert pattern in result.err


def test_damaged_folders(elk: Any, compiled: Path, tmp_path: Path) -> None:
    run = ("run", tmp_path, "--inputs", DATA)
    refused(elk(*run), "no compiled program is here", "elk compile")
    for name in ("program.mlir", "target.mlir", "report.json"):
        (tmp_path / name).write_bytes((compiled / name).read_bytes())
    target = tmp_path / "target.mlir"
    good = target.read_text()
    target.write_text(good.replace("ipu.program", "ipu.programme"))
    refused(elk(*run), r"target\.mlir:\d+:\d+: .*ipu\.programme")
    target.write_text(good[: len(good) // 2])
    refused(elk(*run), r"target\.mlir:\d+:\d+: ")
    target.write_text(good)
    (tmp_path / "report.json").write_text("{")
    refused(elk(*run), r"report\.json:1:2: not valid JSON")
    (tmp_path / "report.json").write_text("{}")
    refused(elk(*run), "no report of a compiled program")


def test_a_crash_is_one_message(elk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from elk_ir.passes.icca_allocate import IccaAllocatePass

    def crash(*_: object) -> None:
        raise RuntimeError("no such luck")

    monkeypatch.delenv("ELK_TRACEBACK", raising=False)
    monkeypatch.setattr(IccaAllocatePass, "apply", crash)
    result = elk(*compile_args(LLAMA))
    refused(result, r"internal error in pass icca-allocate: RuntimeError: no such luck \(tests/")
    assert "hint: this is a defect of the compiler" in result.err


def test_nowhere_to_write(elk: Any, compiled: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "d"
    refused(elk("compile", LLAMA, *CHIP, "-o", folder), "cannot be written")
    run = ("run", compiled, "--inputs", DATA)
    refused(elk(*run, "-o", folder), "cannot be written")


def test_interrupt() -> None:
    """Ctrl-C ends a command with 130 and without a traceback."""
    code = (
        "import sys; from elk_ir.tools.elk import main; print('ready', flush=True);"
        f"sys.exit(main(['verify', {LLAMA!r}, '--chip', 'test-16']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A background job of a shell starts with SIGINT ignored, and passes that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == "elk: interrupted\n"
