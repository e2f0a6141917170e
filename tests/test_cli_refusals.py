"""Options of `elk` that don't go together: one message and exit code 2, before anything is done."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from elk_ir.tools.elk import main

LLAMA = str(Path(__file__).parent / "models" / "llama2_decode_static_dynamo.onnx")
CHIP = ("--chip", "test-16")
CARDS = ("--chip", "northpole-16")


def refused(capsys: pytest.CaptureFixture[str], code: int, message: str, *argv: str) -> None:
    """The command says `message`, and nothing else."""
    capsys.readouterr()
    assert main(list(argv)) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("elk: error: ") and message in err, err
    assert err.count("error:") == 1


@pytest.mark.parametrize(
    ("message", "argv"),
    [
        ("--stages 1,x: numbers of stages", ("compare", LLAMA, *CHIP, "--stages", "1,x")),
        ("exclude each other", ("explore", "s.toml", "-o", "r", "--jobs", "1", "--cluster", "c")),
        ("elk explore show: which file?", ("explore", "show")),
        ("only to run a sweep", ("explore", "show", "r.sqlite", "--jobs", "1")),
        ("name must end in .txt", ("profile", "fit", "d.csv", "-o", "model.json")),
        ("would overwrite the measurements", ("profile", "fit", "d.txt", "-o", "d.txt")),
        ("--steps takes a model and --inputs", ("run", LLAMA, *CHIP, "--steps", "2")),
        (
            "--chip is needed to compile",
            ("run", LLAMA, "--steps", "2", "--inputs", LLAMA.replace(".onnx", ".npz")),
        ),
        ("--chip is needed to compile", ("simulate", LLAMA)),
        ("--bins -1: must not be negative", ("simulate", LLAMA, *CHIP, "--bins", "-1")),
        ("--gpus is for cards", ("simulate", LLAMA, *CHIP, "--gpus", "g.toml")),
        (
            "--report-policies is for --report",
            ("simulate", LLAMA, *CHIP, "--report-policies", "basic"),
        ),
        (
            "give the model, not a folder",
            ("simulate", ".", *CHIP, "--report", "r.html", "--report-policies", "basic"),
        ),
        (
            "--inputs and --random-inputs exclude each other",
            ("verify", LLAMA, *CHIP, "--inputs", "i.npz", "--random-inputs", "1"),
        ),
        (
            "--calibrate does nothing without --quantize",
            ("compile", LLAMA, *CHIP, "-o", "never-written", "--calibrate", "c.npz"),
        ),
    ],
)
def test_options_that_do_not_go_together(
    capsys: pytest.CaptureFixture[str], message: str, argv: tuple[str, ...]
) -> None:
    refused(capsys, 2, message, *argv)


def test_what_cards_do_not_show(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = str(tmp_path / "cards")
    assert main(["compile", LLAMA, *CARDS, "-o", folder]) == 0
    page = str(tmp_path / "page.html")
    refused(capsys, 2, "programs of the target ipu, not of", "simulate", folder, "--report", page)
    refused(capsys, 2, "has no utilisation over time", "simulate", folder, "--bins", "3")
    refused(capsys, 2, "elk diff compares programs of the target ipu", "diff", folder, folder)


def test_results_without_points(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from elk_ir.explore.store import Store

    path = tmp_path / "results.sqlite"
    Store(path).close()
    refused(capsys, 1, "there are no points", "explore", "show", str(path))
    refused(capsys, 1, "of a sweep called 'x'", "explore", "show", str(path), "--sweep", "x")
    refused(capsys, 1, "no such file of results", "explore", "show", str(tmp_path / "absent"))
    shutil.copyfile(LLAMA, path)
    refused(capsys, 1, "cannot be used as a file of results", "explore", "show", str(path))
