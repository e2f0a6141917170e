"""A full disk, a folder without permission, Ctrl-C: no half-written result, one message, the right
exit code."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from elk_ir import output
from elk_ir.errors import ElkError
from elk_ir.tools import elk, elk_opt

HERE = Path(__file__).parent
SLICE = str(HERE / "programs" / "slice.mlir")
MODEL = HERE / "models" / "llama2_decode_static_dynamo.onnx"
SWEEP = '[base]\nmodel = "{model}"\npolicy = "basic"\n[axes]\nchip = ["test-16"]\n'

COMMANDS: dict[str, tuple[str, ...]] = {
    "compile": ("compile", SLICE, "--chip", "test-16", "--policy", "basic", "-o", "OUT"),
    "run": ("run", "DIR", "--random-inputs", "1", "-o", "OUT"),
    "trace": ("simulate", "DIR", "--trace", "OUT"),
    "report": ("simulate", "DIR", "--report", "OUT"),
    "explore": ("explore", "SWEEP", "-o", "OUT"),
    "elk-opt": (SLICE, "-p", "convert-te-to-icca{chip=test-16}", "-o", "OUT"),
}
"""Every command that writes a file; OUT is what it writes, DIR a compiled program."""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder that every user may enter, with a compiled program and a sweep."""
    path = Path(tempfile.mkdtemp(prefix="elk-crash-"))
    path.chmod(0o755)
    argv = ["compile", SLICE, "--chip", "test-16", "--policy", "basic", "-o", str(path / "program")]
    assert elk.main(argv) == 0
    (path / "sweep.toml").write_text(SWEEP.format(model=MODEL))
    yield path
    shutil.rmtree(path)


def command(name: str, folder: Path, out: Path) -> int:
    """Run one of COMMANDS; its exit code."""
    words = {"OUT": str(out), "DIR": str(folder / "program"), "SWEEP": str(folder / "sweep.toml")}
    argv = [words.get(a, a) for a in COMMANDS[name]]
    return (elk_opt if name == "elk-opt" else elk).main(argv)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@contextmanager
def small_files(size_bytes: int) -> Iterator[None]:
    """No file may grow beyond a size: what a full disk does, for this process alone."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def without_permissions() -> Iterator[None]:
    """Root may write anywhere: become somebody else meanwhile."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("name", COMMANDS)
def test_full_disk(
    name: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The old file stays as it is, and nothing lies beside it."""
    out = tmp_path / "out"
    if name not in ("compile", "explore"):
        out.write_text("what was there")
    before = contents(tmp_path)
    with small_files(200):
        code = command(name, folder, out)
    message = capsys.readouterr().err
    assert code == 1
    assert "Traceback" not in message and "internal error" not in message
    assert "cannot" in message and str(out) in message
    left = {n: data for n, data in contents(tmp_path).items() if data}
    assert left == before


@pytest.mark.parametrize("name", COMMANDS)
def test_folder_without_permission(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = folder / f"closed-{name}"
    closed.mkdir(mode=0o555)
    with without_permissions():
        code = command(name, folder, closed / "out")
    message = capsys.readouterr().err
    assert code == 1
    assert "Traceback" not in message and "internal error" not in message
    assert "cannot" in message and str(closed) in message
    assert contents(closed) == {}


class _Breaking:
    """A stream that fails after its first piece."""

    def __init__(self, stream: IO[Any], error: BaseException) -> None:
        self.stream, self.error, self.written = stream, error, 0

    def __enter__(self) -> _Breaking:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()

    def write(self, data: Any) -> int:
        self.stream.write(data[: len(data) // 2])
        self.stream.flush()
        raise self.error

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(("error", "code"), [(FULL, 1), (KeyboardInterrupt(), 130)])
@pytest.mark.parametrize("name", ["run", "trace", "report"])
def test_in_the_middle_of_a_file(
    name: str,
    error: BaseException,
    code: int,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The disk is full, or Ctrl-C is pressed, when half of the file is written."""
    out = tmp_path / "out"
    out.write_text("what was there")

    def breaking(*args: Any, **kwargs: Any) -> Any:
        return _Breaking(open(*args, **kwargs), error)

    monkeypatch.setattr(output, "open", breaking, raising=False)
    assert command(name, folder, out) == code
    assert contents(tmp_path) == {"out": b"what was there"}
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert ("no space left on device" if code == 1 else "interrupted") in err


def test_ctrl_c_while_a_program_is_saved(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of the files of a program appears unless all were written."""
    real, calls = Path.write_text, []

    def write_text(self: Path, *args: Any, **kwargs: Any) -> int:
        calls.append(self)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", write_text)
    assert command("compile", folder, tmp_path / "out") == 130
    assert len(calls) == 3 and contents(tmp_path) == {}


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (MemoryError(), 1, "error: out of memory"),
        (RecursionError(), 1, "error: the input is nested too deeply"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (ValueError("odd"), 1, "error: internal error: ValueError: odd"),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, BaseException) else "",
)
def test_what_ends_a_command(
    error: BaseException,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> int:
        raise error

    monkeypatch.delenv("ELK_TRACEBACK", raising=False)
    monkeypatch.setattr(elk.COMMANDS["chips"], "run", fail)
    assert elk.main(["chips"]) == code
    assert message in capsys.readouterr().err
    monkeypatch.setattr(elk_opt.ElkOptMain, "run", fail)
    assert elk_opt.main([SLICE]) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("tool", ["elk", "elk_opt"])
def test_full_standard_output(tool: str) -> None:
    """One message and exit code 1, also from what Python does at exit."""
    argv = ["chips"] if tool == "elk" else [SLICE]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", f"elk_ir.tools.{tool}", *argv],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    name = tool.replace("_", "-")
    wanted = f"{name}: error: standard output: cannot be written: no space left on device\n"
    assert (done.returncode, done.stderr) == (1, wanted)


def test_replacing_follows_links_and_keeps_modes(tmp_path: Path) -> None:
    target, link = tmp_path / "file", tmp_path / "link"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    output.write_text(link, "new")
    assert link.is_symlink() and target.read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o640
    output.write_text("/dev/null", "a device is written, not replaced")
    assert not Path("/dev/null").is_file()
    with pytest.raises(ElkError, match="is a directory"):
        output.write_text(tmp_path, "")
