"""Weights on disk: where their bytes are, and what to do with them when they are loaded.

A `WeightRef` names parts (a byte range of a file each) and a recipe. The recipe's steps are applied
in order to a list of arrays that starts with one array a part:

    transpose P…        permute the axes of every array
    reshape D…          new shape of every array
    cast T              to element type T (f16, bf16, i8, …)
    saturate T          to f16 or bf16, finite numbers beyond its largest become that one
    slice A S E K       elements S, S+K, … before E on axis A
    add X | mul X       with a scalar of the array's own type
    quantize T A…       to a narrow type T (i8, i4, i2, f8E4M3FN), a step for each index of the
                        axes A…
    steps T A…          the steps of `quantize T A…`: f32, of the extents of A… (one without axes)
    concat A [N]        joins N consecutive arrays each (all by default) on axis A; also `merge`
    stack [N]           joins N consecutive arrays each (all by default) on a new first axis

After the last step one array is left. No step needs more memory than its result, and without a
recipe a tensor is memory-mapped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TypeVar

import numpy as np

from elk_ir.errors import ModelError
from elk_ir.frontend.element_types import BY_NAME, decode, numpy_dtype, stored_bytes

# Tensors up to this size are hashed whole, larger ones by their two ends and their length: a
# model's weights may be hundreds of gigabytes.
HASH_WHOLE_BYTES = 64 << 20
HASH_END_BYTES = 1 << 20


@dataclass(frozen=True)
class WeightPart:
    """One tensor as it is stored: `length` bytes at `offset` of `file` (relative to the model).

    `hash` is empty when the file did not exist at import, `file` when the model was made without
    this tensor's elements. `dtype` is an IR element type name.
    """

    file: str
    offset: int
    length: int
    hash: str
    dtype: str
    shape: tuple[int, ...]
    name: str


@dataclass(frozen=True)
class WeightRef:
    """Parts and the recipe that makes one tensor of them. Raises ModelError if they do not fit."""

    parts: tuple[WeightPart, ...]
    recipe: tuple[str, ...] = ()

    def then(self, *steps: str) -> WeightRef:
        """The same weight with further steps applied at load."""
        return replace(self, recipe=self.recipe + steps)

    @cached_property
    def type(self) -> tuple[str, tuple[int, ...]]:
        """(element type name, shape) of the tensor after the recipe."""
        return infer_recipe([(p.dtype, p.shape) for p in self.parts], self.recipe)

    @property
    def dtype(self) -> str:
        return self.type[0]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type[1]

    @property
    def name(self) -> str:
        return self.parts[0].name

    @property
    def stored_bytes(self) -> int:
        """Bytes in files, before the recipe."""
        return sum(p.length for p in self.parts)


def stacked_rows(ref: WeightRef, rows: int) -> list[WeightRef] | None:
    """The weights that a stack of `rows` layers joins, in order; None where the recipe does not end
    by stacking them, so that no row can be had without the others."""
    if not ref.recipe or len(ref.parts) % rows:
        return None
    *before, last = ref.recipe
    word, args = _split(last)
    if word != "stack" or (args and int(args[0]) != rows):
        return None
    each = len(ref.parts) // rows
    return [
        WeightRef(ref.parts[i : i + each], tuple(before)) for i in range(0, len(ref.parts), each)
    ]


def stacked_ref(refs: Sequence[WeightRef]) -> WeightRef | None:
    """The weights as layers of one; None if their parts or recipes differ in structure."""
    parts, recipe = len(refs[0].parts), refs[0].recipe
    if any(len(r.parts) != parts or r.recipe != recipe or r.type != refs[0].type for r in refs):
        return None
    steps: list[str] = []
    left = parts
    for step in recipe:
        word, *args = step.split()
        if word in ("stack", "concat", "merge"):
            # Joins take all arrays unless they say how many belong together.
            position = 0 if word == "stack" else 1
            group = int(args[position]) if len(args) > position else left
            steps.append(" ".join([word, *args[:position], str(group)]))
            left //= group
        else:
            steps.append(step)
    joined = tuple(p for r in refs for p in r.parts)
    return replace(refs[0], parts=joined, recipe=(*steps, "stack"))


def every_layer(ref: WeightRef, layers: int, first: int, step: int) -> WeightRef:
    """Of a stack of `layers`, the stack of layers `first`, `first` + `step`, …."""
    rows = stacked_rows(ref, layers)
    found = None if rows is None else stacked_ref(rows[first::step])
    return ref.then(f"slice 0 {first} {layers} {step}") if found is None else found


T = TypeVar("T")
Typed = tuple[str, tuple[int, ...]]


def infer_recipe(parts: Sequence[Typed], recipe: Iterable[str]) -> Typed:
    """Type and shape after a recipe. Raises ModelError naming the step that does not fit."""
    current = list(parts)
    for step in recipe:
        word, args = _split(step)
        try:
            if word in ("stack", "concat", "merge"):
                current = [_joined(group, word, args) for group in _groups(current, word, args)]
            else:
                current = [_stepped(t, word, args) for t in current]
        except (ValueError, IndexError, KeyError) as error:
            raise ModelError(f"weight recipe step {step!r} does not apply: {error}") from None
    if len(current) != 1:
        raise ModelError(f"weight recipe leaves {len(current)} tensors; expected 1")
    return current[0]


def _split(step: str) -> tuple[str, list[str]]:
    word, *args = step.split()
    return word, args


def _groups(items: Sequence[T], word: str, args: list[str]) -> list[Sequence[T]]:
    position = 0 if word == "stack" else 1
    count = int(args[position]) if len(args) > position else len(items)
    if count < 1 or len(items) % count:
        raise ValueError(f"{len(items)} tensors do not split into groups of {count}")
    return [items[i : i + count] for i in range(0, len(items), count)]


def _joined(group: Sequence[Typed], word: str, args: list[str]) -> Typed:
    dtype, shape = group[0]
    if any(d != dtype for d, _ in group):
        raise ValueError("parts differ in element type")
    if word == "stack":
        if any(s != shape for _, s in group):
            raise ValueError(f"shapes differ: {sorted({s for _, s in group})}")
        return dtype, (len(group), *shape)
    axis = int(args[0])
    if not 0 <= axis < len(shape):
        raise ValueError(f"axis {axis} of rank {len(shape)}")
    rest = {s[:axis] + s[axis + 1 :] for _, s in group}
    if len(rest) != 1:
        raise ValueError("shapes differ outside the axis")
    return dtype, (*shape[:axis], sum(s[axis] for _, s in group), *shape[axis + 1 :])


def _stepped(typed: Typed, word: str, args: list[str]) -> Typed:
    dtype, shape = typed
    match word:
        case "transpose":
            order = [int(a) for a in args]
            if sorted(order) != list(range(len(shape))):
                raise ValueError(f"{order} is no permutation of rank {len(shape)}")
            return dtype, tuple(shape[a] for a in order)
        case "reshape":
            target = tuple(int(a) for a in args)
            if prod(target) != prod(shape) or min(target, default=0) < 0:
                raise ValueError(f"{shape} to {target}")
            return dtype, target
        case "cast":
            return BY_NAME[args[0]].name, shape
        case "saturate":
            from elk_ir.quant.integers import LARGEST

            if BY_NAME[args[0]].numpy not in LARGEST:
                raise ValueError(f"floats as {args[0]}")
            return BY_NAME[args[0]].name, shape
        case "slice":
            axis, start, stop, step = (int(a) for a in args)
            if not 0 <= axis < len(shape) or start < 0 or step < 1:
                raise ValueError(f"slice of {shape}")
            extent = len(range(start, min(stop, shape[axis]), step))
            return dtype, (*shape[:axis], extent, *shape[axis + 1 :])
        case "add" | "mul":
            float(args[0])
            return dtype, shape
        case "quantize" | "steps":
            _, axes = _quantization(args, len(shape))
            if word == "quantize":
                return BY_NAME[args[0]].name, shape
            return "f32", tuple(shape[a] for a in axes) or (1,)
        case _:
            raise ValueError("unknown step")


def _quantization(args: list[str], rank: int) -> tuple[str, tuple[int, ...]]:
    """(numpy type, axes) of a step `quantize` or `steps`. Raises ValueError."""
    from elk_ir.quant.integers import FLOAT8

    kind = BY_NAME[args[0]]
    axes = tuple(int(a) for a in args[1:])
    whole = kind.is_integer and kind.numpy != "bool" and kind.bits <= 8
    if not whole and kind.numpy not in FLOAT8:
        raise ValueError(f"quantisation to {kind.name}")
    if list(axes) != sorted(set(axes)) or any(not 0 <= a < rank for a in axes):
        raise ValueError(f"axes {list(axes)} of rank {rank}")
    return kind.numpy, axes


def apply_recipe(arrays: Sequence[np.ndarray], recipe: Iterable[str]) -> np.ndarray:
    """Apply a recipe (see the module's docstring) to the arrays of a weight's parts."""
    current = list(arrays)
    for step in recipe:
        word, args = _split(step)
        if word == "stack":
            current = [np.stack(g) for g in _groups(current, word, args)]
        elif word in ("concat", "merge"):
            axis = int(args[0])
            current = [np.concatenate(g, axis=axis) for g in _groups(current, word, args)]
        else:
            current = [_apply_step(a, word, args) for a in current]
    (result,) = current
    return result


def _apply_step(array: np.ndarray, word: str, args: list[str]) -> np.ndarray:
    match word:
        case "transpose":
            return array.transpose([int(a) for a in args])
        case "reshape":
            return array.reshape([int(a) for a in args])
        case "cast":
            return array.astype(numpy_dtype(args[0]))
        case "saturate":
            from elk_ir.quant.integers import saturated

            return saturated(array, BY_NAME[args[0]].numpy)
        case "slice":
            axis, start, stop, step = (int(a) for a in args)
            return array[(slice(None),) * axis + (slice(start, stop, step),)]
        case "add":
            return array + np.asarray(float(args[0])).astype(array.dtype)
        case "mul":
            return array * np.asarray(float(args[0])).astype(array.dtype)
        case "quantize" | "steps":
            from elk_ir.quant.steps import channel_steps, quantize_channels

            to, axes = _quantization(args, array.ndim)
            make = quantize_channels if word == "quantize" else channel_steps
            return make(array, to, axes)
        case _:
            raise ModelError(f"weight recipe step {word!r} is unknown")


def content_hash(data: memoryview | bytes | np.ndarray) -> str:
    """8 bytes of blake2b as hex: of all bytes below 64 MiB, else of both ends and the length."""
    view = data.data if isinstance(data, np.ndarray) else memoryview(data)
    view = view.cast("B")
    digest = hashlib.blake2b(digest_size=8)
    if len(view) < HASH_WHOLE_BYTES:
        digest.update(view)
    else:
        digest.update(view[:HASH_END_BYTES])
        digest.update(view[-HASH_END_BYTES:])
        digest.update(len(view).to_bytes(8, "little"))
    return digest.hexdigest()


def resolve_file(file: str, base_dir: Path | str) -> Path:
    """The path of a weight file. Raises ModelError when it would leave the model's folder."""
    base = Path(base_dir)
    relative = Path(file)
    if "\0" in file:
        raise ModelError(f"external data file {file!r} has a name that no file can have")
    escapes = relative.is_absolute() or ".." in relative.parts or not relative.parts
    if not escapes:
        # A link inside the folder may still point outside of it.
        escapes = not (base / relative).resolve().is_relative_to(base.resolve())
    if escapes:
        raise ModelError(
            f"external data file {file!r} lies outside of the model's folder",
            hint="external data must be a relative path below the folder of the .onnx file",
        )
    return base / relative


def map_file(path: Path) -> np.ndarray:
    """The bytes of a file, memory-mapped read-only; an empty file maps to an empty array."""
    if path.stat().st_size == 0:
        return np.zeros(0, np.uint8)
    return np.memmap(path, dtype=np.uint8, mode="r")


def load_part(
    part: WeightPart,
    base_dir: Path | str,
    *,
    buffers: Mapping[str, bytes] | None = None,
    maps: dict[str, np.ndarray] | None = None,
    check_hash: bool = True,
) -> np.ndarray:
    """One stored tensor, memory-mapped (or a view of `buffers[part.file]`). `maps` keeps the files
    that are mapped, for the next tensor.

    Raises ModelError when the file is missing, too short, or its bytes have changed since import.
    """
    if buffers is not None and part.file in buffers:
        data = np.frombuffer(buffers[part.file], np.uint8)
    elif not part.file:
        raise ModelError(
            f"the weights of {part.name!r} are missing: the model was made without them",
            hint="use --random-weights SEED",
        )
    elif maps is not None and part.file in maps:
        data = maps[part.file]
    else:
        path = resolve_file(part.file, base_dir)
        if not path.is_file():
            raise ModelError(
                f"the weights of {part.name!r} are missing: no file {part.file!r} beside the model",
                hint="put the external data there, or use --random-weights SEED",
            )
        data = map_file(path)
        if maps is not None:
            maps[part.file] = data
    end = part.offset + part.length
    if end > data.size:
        raise ModelError(
            f"the weights of {part.name!r} need bytes {part.offset} to {end} of {part.file!r}, "
            f"which has {data.size}",
            hint="the file is truncated or belongs to another model",
        )
    needed = stored_bytes(part.dtype, part.shape)
    if part.length != needed:
        raise ModelError(
            f"the weights of {part.name!r} are {part.length} bytes in {part.file!r}, but "
            f"{part.dtype} of shape {list(part.shape)} takes {needed}"
        )
    raw = data[part.offset : end]
    if check_hash and part.hash and content_hash(raw) != part.hash:
        raise ModelError(
            f"the weights of {part.name!r} in {part.file!r} are not those that were imported",
            hint="the file has changed; compile the model again",
        )
    return decode(raw, part.dtype, part.shape)


def load_weight(
    ref: WeightRef,
    base_dir: Path | str,
    *,
    buffers: Mapping[str, bytes] | None = None,
    check_hash: bool = True,
) -> np.ndarray:
    """The tensor a reference stands for; memory-mapped when its recipe is empty.

    Raises ModelError as `load_part` does.
    """
    parts = [load_part(p, base_dir, buffers=buffers, check_hash=check_hash) for p in ref.parts]
    return apply_recipe(parts, ref.recipe)


def random_weight(ref: WeightRef, seed: int) -> np.ndarray:
    """A stand-in for weights that do not exist, the same for the same seed and tensor names.

    Normal with variance 1 / fan-in. Vectors are scales or offsets: offsets (named bias, beta or
    mean) are centred on 0, all others on 1, so that normalisations pass their signal on. Integer
    types are uniform over (a 1/8 of) their range, booleans are true.
    """
    swapped = any(step.startswith("transpose") for step in ref.recipe)
    return apply_recipe([_random_part(p, seed, swapped) for p in ref.parts], ref.recipe)


def _random_part(part: WeightPart, seed: int, swapped: bool) -> np.ndarray:
    digest = hashlib.blake2b(f"{seed}:{part.name}".encode(), digest_size=8).digest()
    rng = np.random.default_rng(int.from_bytes(digest, "little"))
    shape = part.shape
    dtype = numpy_dtype(part.dtype)
    kind = BY_NAME[part.dtype]
    if kind.name == "i1":
        return np.ones(shape, dtype)
    if kind.is_integer:
        half = max(1, 1 << (kind.bits - 4) if kind.bits >= 8 else 1 << (kind.bits - 1))
        low = 0 if kind.name.startswith("ui") else -half
        return rng.integers(low, half, shape).astype(dtype)
    values = rng.standard_normal(shape, dtype=np.float32)
    values *= np.float32(1 / np.sqrt(fan_in(shape, swapped)))
    if len(shape) < 2 and not any(w in part.name.lower() for w in ("bias", "beta", "mean")):
        values += 1
    return values.astype(dtype)


def fan_in(shape: tuple[int, ...], swapped: bool) -> int:
    """Inputs a value is summed over: k of (k, n) (n, k if swapped), all but the first axis of a
    convolution's weight, the vector's length otherwise. At least 1."""
    if len(shape) >= 4:
        return max(1, prod(shape[1:]))
    if len(shape) >= 2:
        return max(1, shape[-1] if swapped else shape[-2])
    return max(1, prod(shape))
