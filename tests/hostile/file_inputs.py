"""Malformed archives of tensors, and damaged compiled programs."""

from __future__ import annotations

import io
import json
import random
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from elk_ir.tools import elk
from hostile.harness import OUT, Hostile
from hostile.text_inputs import PROGRAMS, mutated

SLICE = PROGRAMS / "slice.mlir"


def npz(**arrays: np.ndarray) -> bytes:
    """An archive."""
    stream = io.BytesIO()
    np.savez(stream, **arrays)  # pyright: ignore[reportArgumentType]
    return stream.getvalue()


def archive(header: bytes, data: bytes = b"") -> bytes:
    """An archive whose only member has the given header (a Python literal) and data."""
    body = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data
    return zipped({"h.npy": body})


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip file."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method, compresslevel=1) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return stream.getvalue()


def header(shape: str, descr: str = "'<f4'", order: str = "False") -> bytes:
    """What an .npy file says of its array."""
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n".encode()


HEADERS = {
    **{f"shape {s}": header(s) for s in (
        "(-1,)", "(0,)", "(6, 64)", "(9999999999999,)", "(2**40,)", "(1 << 60, 1 << 60)",
        "6", "None", "(6.0, 64)", "('a',)", "(True, 64)",
        "(" + "1," * 5000 + ")", "__import__('os').getpid()",
    )},
    **{f"type {d}": header("(6, 64)", d) for d in (
        "'|O'", "'|V4'", "'<f3'", "'<U99999999'", "[('a', '<f4')]", "'<M8[s]'", "None", "'<c16'",
        "'<f8'", "'>f4'", "'|b1'", "''",
    )},
    "nested": b"{" * 5000,
    "a dictionary without anything": b"{}\n",
    "no literal": b"lambda: 0\n",
    "order": header("(6, 64)", order="'x'"),
}  # fmt: skip


def archives() -> Iterator[Hostile]:
    """What is given as `--inputs`."""
    good = npz(h=np.zeros((6, 64), np.float32))
    for size in range(0, len(good), 40):
        yield _inputs(f"cut at {size}", good[:size])
    for number in range(100):
        rng, data = random.Random(number), bytearray(good)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        yield _inputs(f"flipped {number}", bytes(data))
    for name, text in HEADERS.items():
        yield _inputs(f"header with {name}", archive(text))
    zeros = bytes(300 << 20)
    yield _inputs("a bomb of zeros", archive(header("(78643200,)"), zeros))
    yield _inputs("a bomb that is no array", zipped({"h.npy": zeros}))
    yield _inputs("members outside", zipped({"../../h.npy": b"x", "/etc/h.npy": b"y"}))
    yield _inputs("two of one name", zipped({"h.npy": b"", "in/h.npy": b""}))
    yield _inputs("pickled", archive(header("(1,)", "'|O'"), b"\x80\x04cos\nsystem\n."))
    for name, arrays in {
        "unknown": {"x": np.zeros(1)},
        "other type": {"h": np.zeros((6, 64), np.int8)},
        "text": {"h": np.array("text")},
        "not finite": {"h": np.full((6, 64), np.nan, np.float32)},
        "huge rank": {"h": np.zeros([1] * 32, np.float32)},
        "complex": {"h": np.zeros((6, 64), np.complex64)},
        "structured": {"h": np.zeros((6, 64), [("a", "f4")])},
    }.items():
        yield _inputs(name, npz(**arrays))
    yield _inputs("one array", _npy(np.zeros(3)))


def _npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def _inputs(name: str, data: bytes) -> Hostile:
    argv = (
        "run",
        "m.mlir",
        "--chip",
        "test-16",
        "--policy",
        "basic",
        "--inputs",
        "i.npz",
        "-o",
        OUT,
    )
    return Hostile(f"npz/{name}", {"m.mlir": SLICE.read_bytes(), "i.npz": data}, argv)


@cache
def program() -> dict[str, bytes]:
    """The files of a compiled program."""
    folder = Path(tempfile.mkdtemp())
    argv = ["compile", str(SLICE), "--chip", "test-16", "--policy", "basic", "-o", str(folder)]
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        assert elk.main(argv) == 0
    files = {f"program/{p.name}": p.read_bytes() for p in folder.iterdir() if p.is_file()}
    shutil.rmtree(folder)
    return files


def programs() -> Iterator[Hostile]:
    """Folders of compiled programs with one file missing, cut or changed."""
    files = program()
    for name, data in files.items():
        without = {n: d for n, d in files.items() if n != name}
        yield _program(f"without {name}", without)
        for part in range(4):
            yield _program(f"{name} cut {part}", {**files, name: data[: len(data) * part // 4]})
        if name.endswith(".mlir"):
            for number in range(60):
                text = mutated(data.decode(), number).encode()
                yield _program(f"{name} mutated {number}", {**files, name: text})
        yield _program(f"{name} is binary", {**files, name: b"\xff\x00" * 100})
    report = json.loads(files["program/report.json"])
    for key in report:
        for value in (None, -1, "x", [], {}, 1e308):
            yield _report(f"{key} = {value!r}", files, {**report, key: value})
        yield _report(f"without {key}", files, {k: v for k, v in report.items() if k != key})
    for text in ("", "[]", "null", "1", "{", "[" * 50_000, '{"a": NaN}'):
        name = "program/report.json"
        yield _program(f"report {text[:5]!r}", {**files, name: text.encode()})


def _report(name: str, files: dict[str, bytes], report: dict[str, Any]) -> Hostile:
    return _program(
        f"report with {name}", {**files, "program/report.json": json.dumps(report).encode()}
    )


def _program(name: str, files: dict[str, bytes]) -> Hostile:
    return Hostile(f"program/{name}", files, ("run", "program", "--random-inputs", "1"))


def cases() -> Iterator[Hostile]:
    """All of them."""
    yield from archives()
    yield from programs()
