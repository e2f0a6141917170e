"""`torch.compile(model, backend="elk")`: graphs that TorchDynamo captures run on the virtual chip.

with torch.no_grad():
    compiled = torch.compile(model, backend="elk", options={"chip": "test-64"})
    y = compiled(x)

A graph is exported with PyTorch's own ONNX exporter when it is first called, compiled once for each
set of shapes, and compiled anew when a parameter has changed. A graph that can't be taken runs in
PyTorch, and a `FallbackWarning` says why. Options: `chip`, and what `elk_ir.compile` takes;
`on_program` is called with each compiled `Program`. Needs the extra `elk-ir[torch]`.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]

from elk_ir.errors import ElkError, UsageError

if TYPE_CHECKING:
    from elk_ir.program import Program

DEFAULT_CHIP = "test-64"

OPTIONS = frozenset(
    "chip target policy kv_capacity time_budget_s floats mapping quantize simulate host".split()
)
"""Options that go to `elk_ir.compile`."""

INLINE_BYTES = 1 << 30
"""Models with more bytes of weights keep them in a file of their own."""

Graph = Callable[..., Any]
OnProgram = Callable[["Program"], None]


class FallbackWarning(UserWarning):
    """A graph runs in PyTorch, and the message says why."""


class _Unsupported(Exception):
    """Why a graph can't be taken."""


def elk(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    **_kwargs: Any,
) -> Graph:
    """The backend itself, as the entry point `elk` of `torch_dynamo_backends` names it.

    Raises UsageError for an option that does not exist.
    """
    del example_inputs  # a call's own inputs decide
    given = dict(options or {})
    on_program = given.pop("on_program", None)
    unknown = sorted(given.keys() - OPTIONS)
    if unknown:
        known = ", ".join(sorted((*OPTIONS, "on_program")))
        raise UsageError(f"unknown option {unknown[0]!r}", hint=f"the options are: {known}")
    return _Compiled(
        graph, {"chip": DEFAULT_CHIP, "simulate": False, "host": False, **given}, on_program
    )


def backend(**options: Any) -> Callable[..., Graph]:
    """A backend with options, to be handed to torch.compile: `backend=backend(chip="test-16")`."""

    def configured(graph: torch.fx.GraphModule, inputs: Sequence[Any], **_kwargs: Any) -> Graph:
        return elk(graph, inputs, options=options)

    return configured


@dataclass(frozen=True)
class _Entry:
    """A compiled graph: its program, the positions of the arguments that it takes, what it returns
    in place of each output (None: the next of the program's), and the folder of its weights."""

    program: Program
    taken: tuple[int, ...]
    outputs: tuple[tuple[str, Any], ...]
    folder: TemporaryDirectory[str] | None


@dataclass
class _Compiled:
    """A captured graph, and the programs it was compiled to by the arguments' shapes."""

    graph: torch.fx.GraphModule
    options: dict[str, Any]
    on_program: OnProgram | None
    entries: dict[object, _Entry | None] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, *args: Any) -> Any:
        frozen = {i for i, a in enumerate(args) if _is_static(a)}
        try:
            _check(args)
            key = tuple(_key(a, i in frozen) for i, a in enumerate(args))
            with self.lock:
                if key not in self.entries:
                    # A failure is remembered: its warning is given once for each set of shapes.
                    self.entries[key] = None
                    self.entries[key] = self.compile(args, frozen)
                entry = self.entries[key]
        except (_Unsupported, ElkError) as reason:
            self.fall_back(str(reason))
            entry = None
        return self.graph(*args) if entry is None else _run(entry, args)

    def compile(self, args: Sequence[Any], frozen: set[int]) -> _Entry:
        """Export and compile for these arguments. Raises _Unsupported, ElkError."""
        import elk_ir

        wrapper = _Wrapper(self.graph, args, frozen)
        taken = tuple(i for i in wrapper.positions)
        exported = _export(wrapper, tuple(args[i] for i in taken))
        folder, model = _model(exported, wrapper)
        program = elk_ir.compile(model, **self.options)
        names = iter(s.name for s in program.signature.outputs)
        outputs = tuple(
            ("", value) if kind == "constant" else (next(names), None)
            for kind, value in wrapper.outputs
        )
        if self.on_program is not None:
            self.on_program(program)
        return _Entry(program, taken, outputs, folder)

    def fall_back(self, reason: str) -> None:
        """Say that the graph runs in PyTorch."""
        nodes = sum(n.op not in ("placeholder", "output") for n in self.graph.graph.nodes)
        warnings.warn(
            f"elk: a graph of {nodes} operations runs in PyTorch: {reason}",
            FallbackWarning,
            stacklevel=4,
        )


class _Wrapper(torch.nn.Module):
    """The graph with its parameters as buffers and its numbers fixed: a module of the tensors that
    change from call to call."""

    def __init__(self, graph: torch.fx.GraphModule, args: Sequence[Any], frozen: set[int]) -> None:
        super().__init__()
        self.graph = graph
        self.fixed: dict[int, Any] = {}
        self.positions: list[int] = []
        for i, value in enumerate(args):
            if i in frozen:
                self.register_buffer(f"weight{i}", value.detach())
            elif isinstance(value, torch.Tensor):
                self.positions.append(i)
            else:
                self.fixed[i] = value
        self.count = len(args)
        self.outputs = _outputs(graph)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The tensors among the graph's outputs."""
        given = dict(zip(self.positions, tensors, strict=True)) | self.fixed
        args = [given[i] if i in given else getattr(self, f"weight{i}") for i in range(self.count)]
        found = self.graph(*args)
        found = found if isinstance(found, tuple | list) else (found,)
        # An output that is an input as it is has no node of its own in ONNX without this.
        return tuple(
            v.clone() if any(v is a for a in args) else v
            for v, (kind, _) in zip(found, self.outputs, strict=True)
            if kind == "tensor"
        )


def _outputs(graph: torch.fx.GraphModule) -> list[tuple[str, Any]]:
    """What the graph returns: tensors, and constants. Raises _Unsupported for computed numbers."""
    (last,) = (n for n in graph.graph.nodes if n.op == "output")
    returned = last.args[0]
    result: list[tuple[str, Any]] = []
    for value in returned if isinstance(returned, tuple | list) else (returned,):
        if not isinstance(value, torch.fx.Node):
            result.append(("constant", value))
        elif isinstance(value.meta.get("example_value"), torch.Tensor):
            result.append(("tensor", None))
        else:
            raise _Unsupported(f"it returns {value.name!r}, which is no tensor")
    return result


def _is_static(value: Any) -> bool:
    """Whether an argument is a parameter or a buffer of the module."""
    if not isinstance(value, torch.Tensor):
        return False
    return (
        isinstance(value, torch.nn.Parameter)
        or getattr(value, "_dynamo_static_input_type", None) is not None
    )


def _check(args: Sequence[Any]) -> None:
    """Raises _Unsupported for arguments that the virtual chip can't take."""
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        raise _Unsupported(
            "gradients are wanted, and programs have none; call it under torch.no_grad() or"
            " torch.inference_mode()"
        )
    for tensor in tensors:
        if tensor.device.type != "cpu":
            raise _Unsupported(f"an argument is on device {tensor.device}, not on the CPU")
        if tensor.layout is not torch.strided or tensor.is_complex():
            raise _Unsupported(f"an argument is a tensor of {tensor.dtype}, {tensor.layout}")


def _key(value: Any, frozen: bool) -> object:
    """What a program depends on: of a weight which tensor it is and its version, of another tensor
    its type, of everything else the value."""
    if not isinstance(value, torch.Tensor):
        return value
    if frozen:
        version = 0 if value.is_inference() else value._version
        return (id(value), value.data_ptr(), version)
    return (tuple(value.shape), value.dtype)


def _export(wrapper: _Wrapper, tensors: tuple[torch.Tensor, ...]) -> Any:
    """The graph as PyTorch's exporter sees it. Raises _Unsupported."""
    try:
        with torch.no_grad():
            exported = torch.export.export(wrapper, tensors)
            # Without its in-place operations a graph says what it changes.
            signature = exported.run_decompositions({}).graph_signature
    except Exception as error:  # the exporter raises whatever its parts raise
        raise _Unsupported(f"torch.export fails: {_first_line(error)}") from error
    changed = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if changed:
        raise _Unsupported(f"it changes {len(changed)} of its inputs or buffers in place")
    return exported


def _model(exported: Any, wrapper: _Wrapper) -> tuple[TemporaryDirectory[str] | None, Any]:
    """The ONNX model: its bytes, or a file with its weights beside it if they are many. Raises
    _Unsupported."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter's own, about its future
            program = torch.onnx.export(exported, dynamo=True, verbose=False)
    except Exception as error:  # the exporter raises whatever its parts raise
        raise _Unsupported(f"the ONNX exporter fails: {_first_line(error)}") from error
    if program is None:
        raise _Unsupported("the ONNX exporter returns nothing")
    weights = sum(b.numel() * b.element_size() for b in wrapper.buffers())
    if weights <= INLINE_BYTES:
        return None, program.model_proto.SerializeToString()
    folder = TemporaryDirectory(prefix="elk-torch-")
    path = Path(folder.name) / "model.onnx"
    program.save(str(path), external_data=True)
    return folder, path


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _run(entry: _Entry, args: Sequence[Any]) -> tuple[Any, ...]:
    specs = entry.program.signature.inputs
    arrays = {s.name: to_numpy(args[i]) for s, i in zip(specs, entry.taken, strict=True)}
    found = entry.program.run(arrays)
    return tuple(from_numpy(found[name]) if name else value for name, value in entry.outputs)


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A tensor's elements; bfloat16 as ml_dtypes has it."""
    tensor = tensor.detach().contiguous()
    if tensor.dtype is torch.bfloat16:
        import ml_dtypes

        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def from_numpy(array: np.ndarray) -> torch.Tensor:
    """The inverse of `to_numpy`; the tensor owns its memory."""
    array = np.array(array)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
