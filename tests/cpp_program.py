"""Build and run emitted Poplar C++ on the small runtime, and compare it with the interpreter."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from helpers import assert_close, load_dense, machine_of
from xdsl.dialects.builtin import ModuleOp

from elk_ir.dialects import ipu
from elk_ir.targets.ipu.poplar_cpp import RUNTIME, emit_cpp
from elk_ir.targets.ipu.weights_file import read_outputs, write_inputs, write_weights

COMPILER = shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
Load = Callable[[ipu.RemoteOp], np.ndarray]


class BuiltProgram:
    """An executable made from C++ text, in a folder of its own.

    Without optimisation unless asked: the time goes into compiling, programs of tests are small.
    """

    def __init__(self, text: str, folder: Path, optimise: str = "-O0"):
        assert COMPILER is not None
        self.folder = folder
        source, self.program = folder / "program.cpp", folder / "program"
        source.write_text(text, encoding="utf-8")
        command = [COMPILER, "-std=c++17", optimise, "-Wall", "-Wextra", "-Wno-unused"]
        command += ["-I", str(RUNTIME), str(source), "-o", str(self.program)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr[:4000]
        self.warnings = result.stderr

    def run(
        self,
        module: ModuleOp,
        inputs: Mapping[str, np.ndarray],
        load: Load = load_dense,
        *,
        late: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Write the files of weights and inputs and run. `late`: copies from HBM land when they
        are waited for, not when they start."""
        write_weights(module, load, self.folder / "weights")
        write_inputs(module, inputs, self.folder / "inputs")
        environment = {k: v for k, v in os.environ.items() if k != "POPLAR_LITE_LATE"}
        if late:
            environment["POPLAR_LITE_LATE"] = "1"
        return subprocess.run(
            [str(self.program), "weights", "inputs", "outputs"],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def outputs(
        self,
        module: ModuleOp,
        inputs: Mapping[str, np.ndarray],
        load: Load = load_dense,
        *,
        late: bool = False,
    ) -> dict[str, np.ndarray]:
        """What it computes."""
        result = self.run(module, inputs, load, late=late)
        assert result.returncode == 0, result.stderr
        return read_outputs(module, self.folder / "outputs")


def check_program(
    module: ModuleOp,
    inputs: Mapping[str, np.ndarray],
    folder: Path,
    load: Load = load_dense,
    tolerance: float = 1e-5,
) -> None:
    """Emit, compile and run an ipu program: the interpreter's numbers."""
    check_built(BuiltProgram(emit_cpp(module), folder), module, inputs, load, tolerance)


def check_built(
    built: BuiltProgram,
    module: ModuleOp,
    inputs: Mapping[str, np.ndarray],
    load: Load = load_dense,
    tolerance: float = 1e-5,
) -> None:
    """The numbers of a built program, with either landing, are the interpreter's."""
    wanted = machine_of(module, load).run(inputs)
    for late in (False, True):
        got = built.outputs(module, inputs, load, late=late)
        assert set(got) == set(wanted)
        for name, value in wanted.items():
            assert_close(got[name], value, tolerance, name)
