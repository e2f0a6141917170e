"""What lit tests of the driver cannot say: signals, state, start-up, imports, internal helpers."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from xdsl.context import Context
from xdsl.dialects import test as test_dialect
from xdsl.dialects.builtin import (
    CallSiteLoc,
    FileLineColLoc,
    FusedLoc,
    IntAttr,
    LocationAttr,
    ModuleOp,
    NameLoc,
    NoneAttr,
    StringAttr,
    UnknownLoc,
)
from xdsl.ir import Attribute
from xdsl.passes import ModulePass
from xdsl.universe import Universe
from xdsl.utils.arg_spec import ArgSpec, parse_spec

from elk_ir import pipelines
from elk_ir.diagnostics import fail_at, place_of
from elk_ir.errors import CapacityError, ElkError, ModelError, NumericsError, UsageError
from elk_ir.frontend.xdsl_frontend import OnnxFrontend, parse_dims
from elk_ir.tools import elk_opt
from elk_ir.tools.opt_input import quote_spec
from elk_ir.tools.opt_pipeline import Timing, parse_passes
from elk_ir.universe import DIALECTS, ELK_UNIVERSE, FRONTENDS, PASSES, TARGETS

MODULE = "func.func @f(%a: i32) -> i32 {\n  func.return %a : i32\n}\n"
BIN = Path(sys.executable).parent


class CrashPass(ModulePass):
    """Raises what no pass should."""

    name = "crash"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        raise KeyError("lost")


class InterruptPass(ModulePass):
    """Stands for Ctrl-C in the middle of a pass."""

    name = "interrupt"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        raise KeyboardInterrupt


class BreakPass(ModulePass):
    """Leaves IR that does not verify."""

    name = "break"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        next(iter(op.body.block.first_op.regions[0].blocks)).last_op.detach()  # pyright: ignore


class RefusePass(ModulePass):
    """Gives up on an operation."""

    name = "refuse"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        first = op.body.block.first_op
        assert first is not None
        fail_at(first, "too hard", "the chip has no such unit")


class RefuseModelPass(ModulePass):
    """Raises this project's own error."""

    name = "refuse-model"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        raise NumericsError("off by one", where="output 'y'", hint="check the tolerance")


class TestDriver(elk_opt.ElkOptMain):
    """The driver with the passes above."""

    __test__ = False

    def register_all_passes(self) -> None:
        super().register_all_passes()
        for cls in (CrashPass, InterruptPass, BreakPass, RefusePass, RefuseModelPass):
            self.register_pass(cls.name, lambda cls=cls: cls)


@pytest.fixture
def module_file(tmp_path: Path) -> Path:
    path = tmp_path / "in.mlir"
    path.write_text(MODULE)
    return path


def run(*arguments: str | Path) -> int:
    return elk_opt.main([str(argument) for argument in arguments], TestDriver)


def test_crash_writes_the_input_of_the_crashing_pass(
    module_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "dir"
    assert run(module_file, "-p", "cse,crash,dce", "--crash-reproducer-dir", out) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "pass 'crash' crashed: KeyError: 'lost'" in captured.err
    assert "Traceback" not in captured.err
    reproducer = out / "elk-opt-crash-crash.mlir"
    assert f"elk-opt {reproducer} -p crash" in captured.err
    text = reproducer.read_text()
    assert text.startswith("// Pass 'crash' of elk-opt crashed")
    assert '"func.func"' in text
    assert list(out.iterdir()) == [reproducer]
    assert run(reproducer, "-p", "crash", "--crash-reproducer-dir", tmp_path) == 1


def test_crash_reproducer_keeps_the_flags_needed_to_replay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in.mlir"
    path.write_text('"no.such"() : () -> ()\n')
    flag = "--allow-unregistered-dialect"
    assert run(path, "-p", "crash", flag, "--crash-reproducer-dir", tmp_path) == 1
    assert capsys.readouterr().err.rstrip().endswith(f"-p crash {flag}")


def test_crash_without_a_writable_folder_still_says_what_happened(
    module_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert run(module_file, "-p", "crash", "--crash-reproducer-dir", blocked) == 1
    error = capsys.readouterr().err
    assert "pass 'crash' crashed" in error
    assert "no reproducer could be written: " in error


def test_interrupt_is_one_line_and_leaves_no_output(
    module_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.mlir"
    assert run(module_file, "-p", "interrupt", "-o", output) == 130
    assert capsys.readouterr().err == "elk-opt: interrupted\n"
    assert sorted(tmp_path.iterdir()) == [module_file]


def test_interrupt_of_the_process() -> None:
    with subprocess.Popen(
        [BIN / "elk-opt", "-"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A background job of a shell starts with SIGINT ignored, and passes that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        # Once it has used some CPU time it waits for its input.
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not _waits_for_input(process.pid):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    assert error == "elk-opt: interrupted\n"


def _waits_for_input(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():  # not Linux
        time.sleep(3)
        return True
    fields = stat.read_text().rsplit(")", 1)[1].split()
    used_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return fields[0] == "S" and used_s > 0.15


def test_invalid_ir_after_a_pass_names_the_pass(
    module_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(module_file, "-p", "cse,break,dce") == 1
    error = capsys.readouterr().err
    assert f"{module_file}:1:1: error: Operation does not verify" in error
    assert "note: after pass 'break'" in error


def test_failure_of_a_pass_is_located(
    module_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(module_file, "-p", "refuse") == 1
    assert capsys.readouterr().err.splitlines() == [
        f"{module_file}:1:1: error: too hard",
        f'{module_file}:1:1: note: see current operation: "func.func"() '
        '<{sym_name = "f", function_type = (i32) -> i32}> ({...}) : () -> ()',
        f"{module_file}:1:1: note: the chip has no such unit",
        f"{module_file}:1:1: note: while running pass 'refuse'",
    ]


def test_our_own_errors_carry_their_exit_code(
    module_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(module_file, "-p", "refuse-model") == 3
    assert capsys.readouterr().err == (
        "output 'y': error: off by one\n  hint: check the tolerance\n"
    )


def test_a_named_pipeline_that_contains_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"outer": "crash,inner", "inner": "outer"}
    with pytest.raises(ElkError, match="'outer' contains itself: outer -> inner -> outer"):
        parse_passes("outer", {"crash": lambda: CrashPass}, table)


def test_every_named_pipeline_parses() -> None:
    passes = Universe.get_multiverse().all_passes
    for name in pipelines.PIPELINES:
        assert name not in passes, "a pipeline must not hide a pass"
        assert parse_passes(name, passes, pipelines.PIPELINES)


def test_no_state_is_left_behind(module_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    post_init = Attribute.__post_init__
    assert run(module_file, "--disable-verify") == 0
    assert Attribute.__post_init__ is post_init


def test_output_is_written_through_a_link_with_its_permissions(
    module_file: Path, tmp_path: Path
) -> None:
    target, link = tmp_path / "target.mlir", tmp_path / "link.mlir"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    assert run(module_file, "-o", link) == 0
    assert link.is_symlink()
    assert "func.func @f" in target.read_text()
    assert target.stat().st_mode & 0o777 == 0o640


def test_output_may_be_the_input(module_file: Path) -> None:
    assert run(module_file, "-p", "cse", "-o", module_file) == 0
    assert "func.func @f" in module_file.read_text()


def test_reader_that_goes_away(module_file: Path) -> None:
    # `true` never reads: the write fails, silently.
    shell = f"{BIN / 'elk-opt'} {module_file} | true; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    assert result.stderr == ""
    assert result.stdout.strip() in {"0", "141"}


def test_start_up_imports_nothing_heavy() -> None:
    code = (
        "import sys, elk_ir, elk_ir.universe, elk_ir.tools.elk_opt as t; t.main(['--version']);"
        "print([m for m in ('numpy', 'onnx', 'lightgbm', 'rich') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]"


def test_universe_is_alphabetical_and_complete() -> None:
    for table in (DIALECTS, PASSES, TARGETS, FRONTENDS, pipelines.PIPELINES):
        assert list(table) == sorted(table)
    for factories in (
        ELK_UNIVERSE.all_dialects,
        ELK_UNIVERSE.all_passes,
        ELK_UNIVERSE.all_targets,
        ELK_UNIVERSE.all_frontends,
    ):
        for name, factory in factories.items():
            entry = factory()  # imports it
            assert getattr(entry, "name", name) == name


def test_plain_xdsl_opt_knows_our_dialects_and_passes() -> None:
    universe = Universe.get_multiverse()
    assert DIALECTS.keys() <= universe.all_dialects.keys()
    assert PASSES.keys() <= universe.all_passes.keys()
    assert TARGETS.keys() <= universe.all_targets.keys()
    assert FRONTENDS.keys() <= universe.all_frontends.keys()
    help_text = subprocess.run(
        [BIN / "xdsl-opt", "--help"], capture_output=True, text=True, check=True
    ).stdout.replace("\n", "")
    for name in (*PASSES, *FRONTENDS):
        # argparse breaks long lines at hyphens, too.
        assert name in "".join(help_text.split())


@pytest.mark.parametrize(
    ("bindings", "expected"),
    [
        ([], {}),
        (["N=4", "batch size = 2"], {"N": 4, "batch size": 2}),
        (["a=b=3"], {"a=b": 3}),
        (["N=4", "N=4"], {"N": 4}),
    ],
)
def test_dims(bindings: list[str], expected: dict[str, int]) -> None:
    assert parse_dims(bindings) == expected


@pytest.mark.parametrize("binding", ["N", "=4", "N=", "N=x", "N=0", "N=-1", "N=1.5"])
def test_wrong_dims(binding: str) -> None:
    with pytest.raises(UsageError, match="--dim"):
        parse_dims([binding])


def test_onnx_frontend_takes_dims_of_any_name_from_its_spec() -> None:
    dims = ('a"b\\c=1', "sequence length=2", "x,y}=3", "t\tab=4")
    spec = parse_spec(quote_spec(ArgSpec("onnx", {"dim": dims})))
    assert OnnxFrontend.from_spec(spec).dim == dims


@pytest.fixture
def onnx_file(tmp_path: Path) -> Path:
    """A model of one Relu over N x 4 numbers."""
    import onnx
    from onnx import TensorProto, helper

    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4]) for name in ("x", "y")]
    node = helper.make_node("Relu", ["x"], ["y"], name="the relu")
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    path = tmp_path / "relu.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), path)
    return path


def test_dims_reach_the_importer(onnx_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(onnx_file, "--dim", "N=3") == 0
    assert "onnx.Relu(%x) : (tensor<3x4xf32>) -> tensor<3x4xf32>" in capsys.readouterr().out


def test_an_unbound_dimension_is_an_error(
    onnx_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(onnx_file) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert "N" in captured.err


def test_plain_xdsl_opt_reads_onnx(onnx_file: Path) -> None:
    spec = quote_spec(ArgSpec("onnx", {"dim": ("N=3",)}))
    result = subprocess.run(
        [BIN / "xdsl-opt", onnx_file, "-f", spec], capture_output=True, text=True, check=True
    )
    assert "tensor<3x4xf32>" in result.stdout


def test_places_of_locations() -> None:
    place = FileLineColLoc(StringAttr("f.mlir"), IntAttr(3), IntAttr(7))
    model = FileLineColLoc(StringAttr("m.onnx"), IntAttr(12), IntAttr(0))
    inner = test_dialect.TestOp()

    def check(location: LocationAttr, expected: str | None) -> None:
        inner.location = location
        assert place_of(inner) == expected

    check(UnknownLoc(), None)
    check(place, "f.mlir:3:7")
    check(model, "m.onnx")
    check(NameLoc(StringAttr("n"), model), "m.onnx")
    check(NameLoc(StringAttr("n"), NoneAttr()), None)
    check(CallSiteLoc(NameLoc(StringAttr("n"), NoneAttr()), place), "f.mlir:3:7")
    check(FusedLoc((UnknownLoc(), NameLoc(StringAttr("n"), place)), NoneAttr()), "f.mlir:3:7")
    inner.location = UnknownLoc()
    module = ModuleOp([inner])
    module.location = place
    assert place_of(inner) == "f.mlir:3:7"


def test_errors_are_one_message() -> None:
    error = CapacityError(
        "attention 3",
        needed_bytes=700_000,
        available_bytes=598_016,
        core=17,
        largest=[("k (preload)", 400_000), ("scores", 3_000)],
        hint="split the batch",
    )
    assert str(error) == (
        "attention 3: needs 700,000 bytes on core 17, which has 598,016 (101,984 too many)\n"
        "  largest buffers:\n"
        "    400,000 bytes  k (preload)\n"
        "      3,000 bytes  scores\n"
        "  hint: split the batch"
    )
    assert [cls.exit_code for cls in (ElkError, ModelError, UsageError, NumericsError)] == [
        1,
        1,
        2,
        3,
    ]


@pytest.mark.parametrize(
    "error",
    [
        ModelError("bad", where="node 'x'", details=["a", "b"], hint="c"),
        CapacityError("op", needed_bytes=2, available_bytes=1, largest=[("b", 2)]),
    ],
)
def test_errors_survive_pickling(error: ElkError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_timing_charges_nested_phases_once() -> None:
    timing = Timing()
    with timing.phase("outer"), timing.phase("inner"):
        sum(range(100_000))
    assert list(timing.rows) == ["outer", "inner"]
    assert timing.rows["inner"] > timing.rows["outer"]
    assert timing.table().splitlines()[-1].split()[0] == "total"


def test_nested_too_deeply(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "deep.mlir"
    path.write_text("module {" * 1500 + "}" * 1500)
    assert elk_opt.main([str(path)]) == 1
    assert "nested too deeply" in capsys.readouterr().err
