"""Named tensors at the edge of a program: what it declares, `.npz` files, random inputs."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile, ZipFile, is_zipfile

import numpy as np

from elk_ir.errors import ElkError
from elk_ir.numerics.body import dtype_of, is_float
from elk_ir.output import replacing

_PREFIXES = ("in/", "out/")

_AIR_BYTES, _AIR = 1 << 30, 500
"""Archives that unpack to more than this, and to that many times their size, are refused."""

_DAMAGED = (BadZipFile, NotImplementedError, SyntaxError, TokenError, TypeError, zlib.error)
"""What damaged archives, and headers that are no Python literals, make zipfile and numpy raise."""


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a model: its ONNX name, numpy (or ml_dtypes) type name and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def read_npz(path: Path | str, prefix: str) -> dict[str, np.ndarray]:
    """The arrays of an `.npz` file that belong to `prefix` (`in/` or `out/`), by plain name.

    Where any name has the prefix, those that have it are taken; otherwise all names without a known
    prefix. Raises ElkError when the file cannot be read or holds pickled objects.
    """
    try:
        _check_archive(path)
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ElkError("this is a single array, not an .npz file", where=str(path))
        with file:
            arrays = {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise ElkError("no such file", where=str(path)) from None
    except OSError as error:
        raise ElkError(f"cannot be read: {error.strerror or error}", where=str(path)) from None
    except (*_DAMAGED, ValueError, EOFError, KeyError, RuntimeError):
        # numpy takes anything that is no archive for pickled objects.
        raise ElkError("not an .npz file, or a damaged one", where=str(path)) from None
    if any(name.startswith(prefix) for name in arrays):
        return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
    return {n: a for n, a in arrays.items() if not n.startswith(_PREFIXES)}


def _check_archive(path: Path | str) -> None:
    """Raises ValueError (or what zipfile raises) for an archive whose members are no arrays, or do
    not have the bytes that their headers speak of, and ElkError for one that is mostly air."""
    if not is_zipfile(path):
        return
    with ZipFile(path) as archive:
        members = archive.infolist()
        total = sum(m.file_size for m in members)
        if total > _AIR_BYTES and total > _AIR * sum(m.compress_size for m in members):
            raise ElkError(
                f"its arrays take {total:,} bytes, {_AIR} times those of the file or more",
                where=str(path),
                hint="if they are wanted, store them without compression (numpy.savez)",
            )
        for member in members:
            with archive.open(member) as stream:
                version = np.lib.format.read_magic(stream)
                read = (
                    np.lib.format.read_array_header_1_0
                    if version == (1, 0)
                    else np.lib.format.read_array_header_2_0
                )
                shape, _, dtype = read(stream)
                if dtype.hasobject or min(shape, default=0) < 0:
                    raise ValueError("no array of numbers")
                if stream.tell() + prod(shape) * dtype.itemsize != member.file_size:
                    raise ValueError("bytes are missing, or too many")


def write_npz(path: Path | str, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays by plain name. Types that numpy cannot store (bfloat16) become float32, which
    holds them exactly. Raises ElkError when the file cannot be written."""
    plain = {n: a.astype(np.float32) if a.dtype.kind == "V" else a for n, a in arrays.items()}
    with replacing(path, binary=True) as stream:
        np.savez(stream, allow_pickle=False, **plain)


def check_inputs(
    given: Mapping[str, np.ndarray], specs: Sequence[TensorSpec], where: str | None = None
) -> dict[str, np.ndarray]:
    """`given` as the program takes it. Raises ElkError, with every mismatch, for a missing or
    unknown name, a wrong shape or a wrong type.

    Types that numpy's files lack may come in another form: bfloat16 and narrower floats as float32
    (rounded), or as raw elements of the same size; narrow integers as int8 or uint8.
    """
    problems: list[str] = []
    known = {spec.name: spec for spec in specs}
    for name in given:
        if name not in known:
            problems.append(f"there is no input {name!r}")
    result: dict[str, np.ndarray] = {}
    for spec in specs:
        if spec.name not in given:
            problems.append(f"input {spec.name!r} is missing: it is {spec}")
            continue
        array = np.asarray(given[spec.name])
        typed = _as_type(array, spec.dtype)
        if typed is None or array.shape != spec.shape:
            problems.append(
                f"input {spec.name!r} is {array.dtype}{list(array.shape)}, the program takes {spec}"
            )
        else:
            result[spec.name] = typed
    if problems:
        names = ", ".join(known) or "none"
        first, *rest = problems
        raise ElkError(first, where=where, details=rest, hint=f"the inputs are: {names}")
    return result


def _as_type(array: np.ndarray, wanted: str) -> np.ndarray | None:
    """`array` as the wanted element type, None where that would be a conversion."""
    dtype = dtype_of(wanted)
    if array.dtype == dtype:
        return array
    if dtype.kind != "V" and not dtype.name.startswith(("int4", "uint4", "int2", "uint2")):
        return None
    if is_float(wanted) and array.dtype == np.float32:
        return array.astype(dtype)
    if array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize:
        return array.view(dtype)
    if not is_float(wanted) and array.dtype in (np.int8, np.uint8):
        return array.astype(dtype)
    return None


def random_inputs(specs: Iterable[TensorSpec], seed: int) -> dict[str, np.ndarray]:
    """Inputs that any model takes, the same for the same seed and names.

    Floats are standard normal, booleans true, 8-bit integers uniform over their range, wider
    integers 0 or 1: they may be token numbers, positions or masks.
    """
    result: dict[str, np.ndarray] = {}
    for spec in specs:
        rng = np.random.default_rng([seed, *spec.name.encode()])
        dtype = dtype_of(spec.dtype)
        if spec.dtype == "bool":
            result[spec.name] = np.ones(spec.shape, dtype)
        elif is_float(spec.dtype):
            result[spec.name] = _normal(rng, spec.shape, dtype)
        elif dtype.kind in "iu" and dtype.itemsize == 1:
            info = np.iinfo(dtype)
            result[spec.name] = rng.integers(info.min, info.max, spec.shape, dtype, endpoint=True)
        else:
            result[spec.name] = rng.integers(0, 2, spec.shape).astype(dtype)
    return result


def _normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Standard normal numbers, drawn piece by piece: a KV cache in float64 would take gigabytes."""
    array = np.empty(shape, dtype)
    flat = array.reshape(-1)
    for i in range(0, flat.size, 1 << 20):
        flat[i : i + (1 << 20)] = rng.standard_normal(min(1 << 20, flat.size - i))
    return array


def nearest(value: float, dtype: np.dtype) -> Any:
    """`value` as an element of a type: of an integer type, its largest or smallest one where a
    float64 (which has no 2^63 - 1) lies beyond it."""
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        if value >= info.max or value <= info.min:
            return dtype.type(info.max if value > 0 else info.min)
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(dtype)[()]
