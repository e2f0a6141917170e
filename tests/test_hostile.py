"""Malformed archives of inputs and damaged programs: no traceback, no hang, no stray file."""

from __future__ import annotations

from pathlib import Path

from hostile import file_inputs
from hostile.harness import problem_of


def test_sample_of_malformed_files(tmp_path: Path) -> None:
    problems = {}
    for i, case in enumerate(list(file_inputs.archives())[::9]):
        folder = tmp_path / str(i)
        folder.mkdir()
        if (problem := problem_of(case, folder)) is not None:
            problems[case.name] = problem
    assert not problems
