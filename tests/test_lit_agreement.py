"""The in-process runner of lit tests and lit itself give the same results on the same tests."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

LIT_TESTS = Path(__file__).resolve().parent.parent / "lit_tests"

# A small subset that covers pipes, redirections, `not`, stdin and prefixes.
SAMPLES = ("errors_parse.mlir", "pipelines.mlir")

# Deliberately failing tests: each must fail in both runners.
FAILING = {
    "fails_check.mlir": "// RUN: elk-opt %s | filecheck %s\n// CHECK: no such text\n",
    "fails_exit_code.mlir": "// RUN: elk-opt %s -p no-such-pass\n",
    "fails_not.mlir": "// RUN: not elk-opt %s\n",
    "fails_in_pipe.mlir": "// RUN: elk-opt %s -p no-such-pass | filecheck %s --allow-empty\n"
    "// CHECK-NOT: func\n",
    "fails_second_line.mlir": "// RUN: elk-opt %s\n// RUN: not elk-opt %s\n",
    "fails_empty.mlir": "// RUN: elk-opt %s > %t | filecheck %s\n// CHECK-NOT: func\n",
    "fails_without_run.mlir": "// CHECK: nothing runs this\n",
}

PASSING = {
    "passes_quotes.mlir": "// RUN: elk-opt %s -p 'cse,dce' > \"%t\" 2>&1\n"
    "// RUN: filecheck %s < %t\n// CHECK: builtin.module\n",
    "passes_append.mlir": "// RUN: elk-opt %s > %t\n// RUN: elk-opt %s >> %t\n"
    "// RUN: filecheck %s < %t\n// CHECK-COUNT-2: builtin.module\n",
    "passes_continued.mlir": "// RUN: elk-opt %s \\\n// RUN:   | filecheck %s\n"
    "// CHECK: builtin.module\n",
    "passes_stderr.mlir": "// RUN: not elk-opt %s -p x 2> %t\n// RUN: filecheck %s < %t\n"
    "// CHECK: unknown pass 'x'\n",
}


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    """lit_tests/lit_inprocess.py, which is no package's module."""
    spec = importlib.util.spec_from_file_location("lit_inprocess", LIT_TESTS / "lit_inprocess.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tests, most of them copied from lit_tests/tools."""
    folder = tmp_path_factory.mktemp("suite")
    shutil.copy(LIT_TESTS / "lit.cfg.py", folder)
    for name in SAMPLES:
        shutil.copy(LIT_TESTS / "tools" / name, folder)
    for name, text in (FAILING | PASSING).items():
        (folder / name).write_text(f"{text}builtin.module {{\n}}\n")
    return folder


def in_process(runner: ModuleType, path: Path, scratch: Path) -> bool:
    try:
        script = runner.read_script(path)
    except runner.LitSyntaxError:
        return False
    return runner.run_script(script, scratch).passed


@pytest.mark.slow
def test_lit_and_the_in_process_runner_agree(
    runner: ModuleType, suite: Path, tmp_path: Path
) -> None:
    report = tmp_path / "lit.json"
    lit = Path(sys.executable).with_name("lit")
    run = subprocess.run(
        [lit, "-j2", "-q", "-o", report, suite], capture_output=True, text=True, check=False
    )
    assert report.exists(), run.stdout + run.stderr
    # A test's name is `suite :: file`.
    lit_passed = {
        test["name"].split(" :: ")[1]: test["code"] == "PASS"
        for test in json.loads(report.read_text())["tests"]
    }
    passed = {
        path.name: in_process(runner, path, tmp_path) for path in sorted(suite.glob("*.mlir"))
    }
    assert passed == lit_passed
    assert {name for name, ok in passed.items() if not ok} == set(FAILING)


@pytest.mark.parametrize(
    "line",
    [
        "elk-opt %s && filecheck %s",
        "elk-opt %s || true",
        "elk-opt %s ; true",
        "elk-opt %s 2>&1 > %t",
        "elk-opt %s >",
        "| filecheck %s",
        "elk-opt 'unclosed",
    ],
)
def test_what_the_runner_does_not_understand_is_an_error(runner: ModuleType, line: str) -> None:
    with pytest.raises(runner.LitSyntaxError):
        runner.parse_pipeline(line)


def test_a_failure_shows_the_command_and_the_mismatch(
    runner: ModuleType, suite: Path, tmp_path: Path
) -> None:
    outcome = runner.run_script(runner.read_script(suite / "fails_check.mlir"), tmp_path)
    assert not outcome.passed
    assert "elk-opt" in outcome.log
    assert 'Couldn\'t match "no such text"' in outcome.log


def test_standard_streams_are_restored(
    runner: ModuleType, suite: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    streams = (sys.stdin, sys.stdout, sys.stderr)
    runner.run_script(runner.read_script(suite / "fails_in_pipe.mlir"), tmp_path)
    assert (sys.stdin, sys.stdout, sys.stderr) == streams
    print("still here")
    assert capfd.readouterr().out == "still here\n"
