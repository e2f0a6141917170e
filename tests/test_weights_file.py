"""The files of an emitted program: what does not fit its tensors is refused, on both sides."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from cpp_program import BuiltProgram, needs_compiler
from helpers import Weights, lower, planned, program
from xdsl.dialects.builtin import ModuleOp

from elk_ir.errors import ElkError
from elk_ir.targets.ipu.poplar_cpp import emit_cpp
from elk_ir.targets.ipu.weights_file import (
    input_specs,
    output_specs,
    read_outputs,
    write_inputs,
    write_weights,
)


@pytest.fixture(scope="module")
def module() -> ModuleOp:
    """Two products of a slice, on one core each."""
    return lower(planned(program("slice")))


def test_outputs_of_another_size(module: ModuleOp, tmp_path: Path) -> None:
    (spec,) = output_specs(module)
    whole = np.arange(np.prod(spec.shape), dtype=spec.dtype).tobytes()
    path = tmp_path / "outputs"
    path.write_bytes(whole)
    assert read_outputs(module, path)[spec.name].shape == spec.shape
    path.write_bytes(whole[:-1])
    with pytest.raises(ElkError, match="outputs: the file is shorter than the outputs"):
        read_outputs(module, path)
    path.write_bytes(whole + b"x")
    with pytest.raises(ElkError, match="outputs: the file is longer than the outputs"):
        read_outputs(module, path)
    with pytest.raises(ElkError, match="absent: cannot be read: No such file"):
        read_outputs(module, tmp_path / "absent")


def test_inputs_that_are_not_the_programs(module: ModuleOp, tmp_path: Path) -> None:
    (spec,) = input_specs(module)
    path = tmp_path / "inputs"
    with pytest.raises(ElkError, match=rf"input '{spec.name}' is missing: it is"):
        write_inputs(module, {}, path)
    wrong = np.zeros((*spec.shape, 1), np.float64)
    with pytest.raises(ElkError, match=r"is float64\[.*, 1\], the program takes"):
        write_inputs(module, {spec.name: wrong}, path)
    assert not path.exists()


def test_a_file_that_cannot_be_written(module: ModuleOp, tmp_path: Path) -> None:
    weights = Weights()
    written = write_weights(module, weights, tmp_path / "weights")
    assert written == (tmp_path / "weights").stat().st_size > 0
    with pytest.raises(ElkError, match="weights"):
        write_weights(module, weights, tmp_path / "no folder" / "weights")


@needs_compiler
def test_an_emitted_program_refuses_short_files(module: ModuleOp, tmp_path: Path) -> None:
    """One byte less of weights, or of inputs."""
    built = BuiltProgram(emit_cpp(module), tmp_path)
    inputs = {"h": np.ones((6, 64), np.float32)}
    assert built.run(module, inputs, Weights()).returncode == 0
    for name in ("weights", "inputs"):
        path = tmp_path / name
        whole = path.read_bytes()
        path.write_bytes(whole[:-1])
        command = [str(built.program), "weights", "inputs", "outputs"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 1 and f"{name}: too short" in done.stderr, done.stderr
        path.write_bytes(whole)
