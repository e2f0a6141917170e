"""`elk profile`: fitting a user's data, showing models, and its answers to unusable data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from elk_ir.tools.elk import main

HEADER = "batch,in_channels,out_channels,out_pixels,kernel_pixels,cycles"


def conv_csv(path: Path, rows: int = 40, target: str = "cycles") -> Path:
    rng = np.random.default_rng(5)
    lines = [HEADER.replace("cycles", target)]
    for _ in range(rows):
        b, i, o, p, k = (2 ** rng.integers(0, 5, 5)).tolist()
        lines.append(f"{b},{i},{o},{p},{k},{200 + b * i * o * p * k / 16}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_fit_and_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, model = conv_csv(tmp_path / "d.csv"), tmp_path / "m.txt"
    assert main(["profile", "fit", str(data), "-o", str(model), "--source", "our lab"]) == 0
    text = capsys.readouterr().out
    assert "m: our lab" in text and "5-fold" in text and "conv" in text
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d.csv", "m.json", "m.txt"]
    assert main(["profile", "show", str(model)]) == 0
    assert capsys.readouterr().out == text
    before = model.read_bytes()
    assert main(["profile", "fit", str(data), "-o", str(model), "--json"]) == 0
    assert model.read_bytes() == before
    (fit,) = json.loads(capsys.readouterr().out)["fits"]
    assert fit["kind"] == "conv" and fit["rows"] == 40 and fit["element_bytes"] == 2
    assert fit["ranges"]["batch"] == [1, 16] and "batch*out_pixels" in fit["ranges"]


@pytest.mark.slow
def test_kinds_in_one_file_and_another_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ["kind, outputs, length, bytes, measured"]
    for i in range(1, 31):
        rows.append(f"reduction,{i % 5 + 1},{8 * i},,{100 + 2 * i}")
        rows.append(f"shift,,,{64 * i},{236 + 19 * i}")
    data, model = tmp_path / "d.csv", tmp_path / "m.txt"
    data.write_text("\n".join(rows) + "\n\n")
    argv = ["profile", "fit", str(data), "-o", str(model), "--target", "measured"]
    assert main(argv) == 0
    assert "236 + 0.2969 a byte" in capsys.readouterr().out
    assert main(["profile", "show", str(model), "--json"]) == 0
    kinds = [f["kind"] for f in json.loads(capsys.readouterr().out)["fits"]]
    assert kinds == ["reduction", "shift"]


def test_only_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, model = tmp_path / "d.csv", tmp_path / "m.txt"
    rows = [f"copy,{64 * i},{20 * i}" for i in range(1, 31)]
    data.write_text("kind,bytes,cycles\n" + "\n".join(rows))
    assert main(["profile", "fit", str(data), "-o", str(model)]) == 0
    assert main(["profile", "show", str(model)]) == 0
    assert "0.3125 a byte" in capsys.readouterr().out


def test_shipped_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "show"]) == 0
    text = capsys.readouterr().out
    assert "IPU MK2" in text and "conv" in text and "pool" in text and "kernel_pixels" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read this file: No such file"),
        (b"\xff\xfe\x00", "not a CSV file"),
        (b"", "no measurements"),
        (HEADER.encode(), "no measurements"),
        (b"a,b,cycles\n1,2,3\n", "no column 'kind'"),
        (b"batch,in_channels,out_channels,out_pixels,cycles\n1,2,3,4,5\n", "no column 'kernel_"),
        (b"channels,out_pixels,kernel_pixels\n1,2,3\n", "no column 'cycles'"),
        (b"kind,bytes,cycles\nwarp,2,3\n", "d.csv:2: kind 'warp' is none that can be fitted"),
        (f"{HEADER}\n1,1,1,1,1,7\n".encode(), "1 rows of kind 'conv': a fit needs at least 20"),
        (f"{HEADER}\n1,1,1\n".encode(), "d.csv:2: 3 values, but 6 columns"),
        ((HEADER + "\n1,1,x,1,1,7" * 20).encode(), "d.csv:2: out_channels = 'x'"),
        ((HEADER + "\n1,1,1,1,1,7" * 20 + "\n1,1,1,1,1,nan").encode(), "d.csv:22: cycles = 'nan'"),
        ((HEADER + "\n1,0,1,1,1,7" * 20).encode(), "in_channels = '0': must be a positive number"),
    ],
)
def test_data_that_is_no_good(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: bytes | None, message: str
) -> None:
    data, model = tmp_path / "d.csv", tmp_path / "m.txt"
    if text is not None:
        data.write_bytes(text)
    assert main(["profile", "fit", str(data), "-o", str(model)]) == 1
    out = capsys.readouterr()
    assert message in out.err and out.err.startswith("elk: error: ") and out.out == ""
    assert "Traceback" not in out.err and not model.exists()


def test_outputs_that_are_no_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = conv_csv(tmp_path / "d.csv")
    assert main(["profile", "fit", str(data), "-o", str(tmp_path / "none" / "m.txt")]) == 1
    assert "cannot be written" in capsys.readouterr().err
    assert main(["profile", "fit", str(data), "-o", str(tmp_path / "m.csv")]) == 2
    own = conv_csv(tmp_path / "own.txt")
    before = own.read_bytes()
    assert main(["profile", "fit", str(own), "-o", str(own)]) == 2
    assert own.read_bytes() == before
    assert main(["profile", "show", str(tmp_path / "none.txt")]) == 1
    assert "cannot read this file" in capsys.readouterr().err
    assert main(["profile"]) == 2
