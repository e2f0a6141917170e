"""The binary files that an emitted program reads and writes.

Each is the raw little-endian elements of tensors, row-major, one tensor after another without
padding: weights in the order of the program's remote buffers (all layers of a stack), inputs in the
order of the buffers that hold them (the inputs a state replaces one a layer), outputs likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from elk_ir.dialects import ipu
from elk_ir.dialects.icca.attrs import HbmKind
from elk_ir.dialects.types import shape_dtype
from elk_ir.errors import ElkError
from elk_ir.numerics.body import dtype_of
from elk_ir.numerics.states import entering, leaving
from elk_ir.numerics.tensors import TensorSpec
from elk_ir.output import replacing


def remotes_of(module: ModuleOp) -> list[ipu.RemoteOp]:
    """The tensors in HBM of an ipu program, in order."""
    return [op for op in module.body.block.ops if isinstance(op, ipu.RemoteOp)]


def input_specs(module: ModuleOp) -> list[TensorSpec]:
    """The tensors of the file of inputs, in order; of a state the part filled at the start."""
    specs: list[TensorSpec] = []
    for op in remotes_of(module):
        shape, dtype = shape_dtype(op.type)
        if op.axis is not None and op.length is not None:
            filled = list(shape)
            filled[op.axis.value.data] = op.length.value.data
            shape = tuple(filled)
        specs += [TensorSpec(n.data, dtype, shape) for n in op.inputs or ()]
    return specs


def filled_after(module: ModuleOp) -> dict[str, int]:
    """Entries along its axis that each state holds after a run, by symbol: what it held before and
    what the program stores behind that."""
    filled: dict[str, int] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for op in module.walk():
        if isinstance(op, ipu.RemoteOp) and op.axis is not None and op.length is not None:
            filled[op.sym_name.data] = op.length.value.data
        elif isinstance(op, ipu.VarOp):
            shapes[op.sym_name.data] = shape_dtype(op.type)[0]
    appended = dict(filled)
    for op in module.walk():
        if isinstance(op, ipu.StoreStartOp) and op.axis is not None and op.start is not None:
            name = op.target.root_reference.data
            extent = shapes[op.source.root_reference.data][op.axis.value.data]
            end = op.start.value.data + extent
            appended[name] = max(appended.get(name, 0), end)
        elif isinstance(op, ipu.StoreStartOp):
            # Stored as a whole: everything is an output.
            appended.pop(op.target.root_reference.data, None)
    return {name: end for name, end in appended.items() if end != filled.get(name)}


def output_specs(module: ModuleOp) -> list[TensorSpec]:
    """The tensors of the file of outputs, in order; of a state that grows the filled part."""
    specs: list[TensorSpec] = []
    ends = filled_after(module)
    for op in remotes_of(module):
        shape, dtype = shape_dtype(op.type)
        if op.axis is not None and (end := ends.get(op.sym_name.data)) is not None:
            axis = op.axis.value.data
            shape = (*shape[:axis], end, *shape[axis + 1 :])
        specs += [TensorSpec(n.data, dtype, shape) for n in op.outputs or ()]
    return specs


def write_weights(
    module: ModuleOp, load: Callable[[ipu.RemoteOp], np.ndarray], path: Path | str
) -> int:
    """Write the file of weights, tensor by tensor; bytes written. `load` gives a weight's value.

    Raises ElkError when the file cannot be written.
    """

    def tensors():
        for op in remotes_of(module):
            if op.kind.data is HbmKind.WEIGHT:
                yield np.ascontiguousarray(load(op), dtype=dtype_of(shape_dtype(op.type)[1]))

    return _write(tensors(), path)


def write_inputs(module: ModuleOp, inputs: Mapping[str, np.ndarray], path: Path | str) -> int:
    """Write the file of inputs; bytes written. What a quantised state replaces is written as its
    integers. Raises ElkError for a missing or wrong input."""
    arrays: list[np.ndarray] = []
    kept = {n.data: (op, i) for op in remotes_of(module) for i, n in enumerate(op.inputs or ())}
    for spec in input_specs(module):
        if spec.name not in inputs:
            raise ElkError(f"input {spec.name!r} is missing: it is {spec}")
        array = np.asarray(inputs[spec.name], order="C")
        array = entering(*kept[spec.name], array)
        if array.shape != spec.shape or array.dtype != dtype_of(spec.dtype):
            raise ElkError(
                f"input {spec.name!r} is {array.dtype}{list(array.shape)}, the program takes {spec}"
            )
        arrays.append(array)
    return _write(arrays, path)


def read_outputs(module: ModuleOp, path: Path | str) -> dict[str, np.ndarray]:
    """The outputs by name from the file that the program wrote, those of a quantised state as
    numbers. Raises ElkError for another file."""
    try:
        data = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise ElkError(f"cannot be read: {error.strerror}", where=str(path)) from None
    outputs: dict[str, np.ndarray] = {}
    kept = {n.data: (op, i) for op in remotes_of(module) for i, n in enumerate(op.outputs or ())}
    at = 0
    for spec in output_specs(module):
        dtype = dtype_of(spec.dtype)
        size = int(np.prod(spec.shape, dtype=np.int64)) * dtype.itemsize
        if at + size > data.size:
            raise ElkError("the file is shorter than the outputs of the program", where=str(path))
        part = data[at : at + size]
        if dtype.name in ("int2", "int4", "uint2", "uint4"):
            part = part.view(np.int8 if dtype.name.startswith("int") else np.uint8).astype(dtype)
        outputs[spec.name] = leaving(*kept[spec.name], part.view(dtype).reshape(spec.shape))
        at += size
    if at != data.size:
        raise ElkError("the file is longer than the outputs of the program", where=str(path))
    return outputs


def _plain(array: np.ndarray) -> np.ndarray:
    """Narrow integers as whole signed or unsigned bytes: what is in the rest of ml_dtypes' bytes is
    its own business."""
    name = array.dtype.name
    if name in ("int2", "int4"):
        return array.astype(np.int8)
    return array.astype(np.uint8) if name in ("uint2", "uint4") else array


def _write(arrays, path: Path | str) -> int:
    total = 0
    with replacing(path, binary=True) as stream:
        for array in arrays:
            stream.write(_plain(array).tobytes())
            total += array.nbytes
    return total
