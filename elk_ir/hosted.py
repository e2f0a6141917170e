"""Programs with a host part: pieces for the chip, pieces for the host, and the order of both.

`onnx-cut-host` cuts the model; each device piece is compiled like any other model, each host piece
is run by an ONNX runtime. docs/onnx.md says what goes where.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    ModuleOp,
    StringAttr,
    TensorType,
    UnrankedTensorType,
)
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, SSAValue
from xdsl.passes import ModulePass

from elk_ir import __version__
from elk_ir.compiler import (
    Report,
    Signature,
    Source,
    context,
    lower_program,
    run_passes,
    signature_of,
    split_at,
    with_hint,
)
from elk_ir.dialects.element_types import element_type_name
from elk_ir.errors import ModelError, UsageError
from elk_ir.frontend.element_types import BY_NAME
from elk_ir.frontend.export import argument_names, main_function, opset_of
from elk_ir.numerics.compare import coarsest
from elk_ir.numerics.host_eval import HostFunction, HostValue
from elk_ir.numerics.tensors import TensorSpec, check_inputs
from elk_ir.passes.onnx_cut_host import PLACE, REASONS, OnnxCutHostPass
from elk_ir.program import Program, load, report_text, write_files
from elk_ir.target import Landing, Target
from elk_ir.text import print_module, read_module
from elk_ir.weight_source import WeightSource

if TYPE_CHECKING:
    from elk_ir.chips import Chip
    from elk_ir.sim import SimResult

HOST_FILE = "host.mlir"
REPORT_FILE = "report.json"

OPEN = -1
"""An extent in the shape of an output that depends on data."""


@dataclass(frozen=True)
class OpenSpec(TensorSpec):
    """An output whose shape depends on data: such extents are OPEN; without `ranked` not even their
    number is known, and the shape is ()."""

    ranked: bool = True

    def __str__(self) -> str:
        if not self.ranked:
            return f"{self.dtype} of any shape"
        return f"{self.dtype}[{', '.join('?' if n == OPEN else str(n) for n in self.shape)}]"


class HostedProgram(Program):
    """A program some of whose nodes run on the host. Made by `elk_ir.compile` and `elk_ir.load`.

    devices: the compiled pieces by name, in the order in which they run.
    module("host"): the model as functions for the device and the host, and a `main` that calls
    them.
    """

    def __init__(
        self,
        *,
        levels: Mapping[str, ModuleOp | Path],
        devices: Mapping[str, Program],
        report: dict[str, Any],
        chip: Chip,
        source: Source,
        signature: Signature,
    ) -> None:
        super().__init__(
            levels=levels, report=report, chip=chip, source=source, signature=signature
        )
        self.devices = dict(devices)
        self._hosts: dict[str, HostFunction] = {}
        self._host_lock = threading.Lock()

    # ------------------------------------------------------------------ what it is made of

    @property
    def precision(self) -> str:
        """The least precise float type among its device programs and the values between them."""
        types = [program.precision for program in self.devices.values()]
        for function in functions_of(self.module("host")).values():
            kinds = (*function.function_type.inputs, *function.function_type.outputs)
            types += [t for t in map(_dtype, kinds) if t is not None]
        return coarsest(types)

    def module(self, level: str) -> ModuleOp:
        """The module at a level: `onnx` and `host` of the whole model; others of its only device
        program. Raises ElkError where there is none, or are several."""
        if level in self._levels:
            return super().module(level)
        return self._only(f"level {level!r}").module(level)

    def _only(self, what: str) -> Program:
        if len(self.devices) == 1:
            return next(iter(self.devices.values()))
        raise UsageError(
            f"{what} is that of one program, and this one has {len(self.devices)} device programs",
            hint=f"take one of them: {', '.join(self.devices)}" if self.devices else None,
        )

    def simulate(self, chip: Chip | None = None) -> SimResult:
        """How long its only device program takes; the host's time is not simulated. Raises ElkError
        where there are several (`program.devices[name].simulate()`)."""
        return self._only("a timeline").simulate(chip)

    def interpreter(self, **options: Any) -> NoReturn:
        """A program with a host part keeps no state from run to run: UsageError."""
        raise UsageError("a program with a host part has no machine that it stays on")

    def emitted(self) -> dict[str, str]:
        """The text of its only device program. Raises ElkError where there are several."""
        return self._only("an emitted text").emitted()

    # ------------------------------------------------------------------ numbers

    def run_with(
        self, weights: WeightSource, inputs: Mapping[str, np.ndarray], *, landing: Landing = "late"
    ) -> dict[str, np.ndarray]:
        """The outputs by name: piece after piece, each on its machine. Raises ElkError as
        `Program.run` does, and when the host can't run a piece on these inputs."""
        taken = check_inputs(inputs, self.signature.inputs)
        module = self.module("host")
        functions = functions_of(module)
        main = main_function(module)
        values: dict[SSAValue, Any] = {
            arg: taken[spec.name]
            for arg, spec in zip(main.body.block.args, self.signature.inputs, strict=True)
        }
        for call in main.body.block.ops:
            if isinstance(call, ReturnOp):
                found = [values[v] for v in call.arguments]
                names = [s.name for s in self.signature.outputs]
                return dict(zip(names, map(np.asarray, found), strict=True))
            assert isinstance(call, CallOp)
            name = call.callee.string_value()
            given, wanted = edges(functions[name])
            feed = dict(zip(given, (values[v] for v in call.arguments), strict=True))
            results: Mapping[str, HostValue]
            if name in self.devices:
                results = self.devices[name].run_with(weights, feed, landing=landing)
            else:
                results = self._host(functions[name], opset_of(module)).run(feed, weights)
            values.update(zip(call.results, (results[n] for n in wanted), strict=True))
        raise AssertionError("main does not return")

    def _host(self, function: FuncOp, opset: int) -> HostFunction:
        with self._host_lock:
            name = function.sym_name.data
            if name not in self._hosts:
                self._hosts[name] = HostFunction(function, opset)
            return self._hosts[name]

    # ------------------------------------------------------------------ files

    def save(self, folder: Path | str) -> Path:
        """Write `host.mlir`, `report.json` and, for each device program, a folder of its own that
        `Program.save` writes; returns the folder. Raises ElkError when it cannot be written."""
        folder = Path(folder)
        for name, program in self.devices.items():
            program.save(folder / name)
        report = {**self.report, "weights_dir": self.weights_dir(folder)}
        files = {HOST_FILE: print_module(self.module("host")), REPORT_FILE: report_text(report)}
        return write_files(folder, files)


def functions_of(module: ModuleOp) -> dict[str, FuncOp]:
    """The pieces of a cut model by name, in the order in which they run."""
    return {
        op.sym_name.data: op
        for op in module.body.block.ops
        if isinstance(op, FuncOp) and PLACE in op.attributes
    }


def edges(function: FuncOp) -> tuple[list[str], list[str]]:
    """The names of a piece's inputs and outputs."""
    last = function.body.block.last_op
    assert isinstance(last, ReturnOp)
    return (
        argument_names(function.arg_attrs, function.body.block.args, "input"),
        argument_names(function.res_attrs, last.arguments, "output"),
    )


def _on_device(function: FuncOp) -> bool:
    place = function.attributes[PLACE]
    return isinstance(place, StringAttr) and place.data == "device"


def _dtype(kind: Attribute) -> str | None:
    """The numpy element type of a tensor type, None for other types."""
    if not isinstance(kind, TensorType | UnrankedTensorType):
        return None
    return BY_NAME[element_type_name(kind.element_type)].numpy


def load_hosted(
    folder: Path, report: dict[str, Any], *, weights_dir: Path | str | None
) -> HostedProgram:
    """The program that `HostedProgram.save` wrote. Raises ElkError when a file is missing or
    damaged."""
    from elk_ir.compiler import chip_of_module

    relative = report.pop("weights_dir", None)
    base = folder / relative if isinstance(relative, str) else None
    if weights_dir is not None:
        base = Path(weights_dir)
    module = read_module(folder / HOST_FILE, context())
    devices = {
        name: load(folder / name, weights_dir=weights_dir)
        for name, function in functions_of(module).items()
        if _on_device(function)
    }
    return HostedProgram(
        levels={"host": module},
        devices=devices,
        report=report,
        chip=chip_of_module(module),
        source=Source(str(report.get("model")), base, {}),
        signature=open_signature(module),
    )


# ---------------------------------------------------------------------- compiling


def compile_hosted(
    module: ModuleOp,
    passes: Sequence[ModulePass],
    backend: Target,
    *,
    chip: Chip,
    source: Source,
    dims: Mapping[str, int],
    simulate: bool,
    progress: Report | None,
    failure: ModelError,
) -> HostedProgram:
    """Cut an imported model, and compile its device pieces with `passes`, which start at onnx.

    Raises ElkError: `failure` for a target whose programs can't be pieces; for nodes that the host
    can't run either; for inputs and outputs that are no tensors of numbers; and what
    `elk_ir.compile` raises of a piece.
    """
    if backend.program_class() is not Program:
        raise with_hint(
            failure, f"programs of target {backend.name!r} have no host part to run them on"
        )
    open_signature(module)
    cut = module.clone()
    run_passes(context(), cut, [OnnxCutHostPass()], model=source.name, progress=progress)
    signature = open_signature(cut)
    devices: dict[str, Program] = {}
    front, back = split_at(passes, "convert-te-to-icca")
    for name, function in functions_of(cut).items():
        if not _on_device(function):
            continue
        piece = _as_model(function, cut)
        own = signature_of(piece)
        levels = {"onnx": piece.clone()}
        run_passes(context(), piece, front, model=source.name, progress=progress)
        levels["te"] = piece.clone()
        devices[name] = lower_program(
            piece,
            back,
            backend,
            levels=levels,
            chip=chip,
            source=source,
            signature=own,
            dims=dims,
            simulate=simulate,
            progress=progress,
        )
    report = build_hosted_report(
        cut, devices, chip=chip, target=backend.name, model=source.name, signature=signature
    )
    report["dims"] = dict(sorted(dims.items()))
    return HostedProgram(
        levels={"onnx": module, "host": cut},
        devices=devices,
        report=report,
        chip=chip,
        source=source,
        signature=signature,
    )


def _as_model(function: FuncOp, cut: ModuleOp) -> ModuleOp:
    """A piece as a module of its own with the attributes of the whole."""
    copy = function.clone()
    copy.properties["sym_name"] = StringAttr("main")
    copy.properties.pop("sym_visibility", None)
    copy.attributes.pop(PLACE)
    return ModuleOp([copy], dict(cut.attributes))


def open_signature(module: ModuleOp) -> Signature:
    """The inputs and outputs of a model whose outputs may have shapes that depend on data. Raises
    ModelError for inputs that are no tensors of numbers of a static shape, and for other outputs
    than tensors of numbers."""
    main = main_function(module)
    last = main.body.block.last_op
    assert isinstance(last, ReturnOp)
    inputs = signature_of(_inputs_only(module)).inputs
    names = argument_names(main.res_attrs, last.arguments, "output")
    types = main.function_type.outputs
    return Signature(
        inputs, tuple(_open_spec(name, type_) for name, type_ in zip(names, types, strict=True))
    )


def _inputs_only(module: ModuleOp) -> ModuleOp:
    from xdsl.ir import Block, Region

    main = main_function(module)
    types = main.function_type.inputs.data
    block = Block([ReturnOp()], arg_types=types)
    function = FuncOp("main", (types, ()), Region(block), arg_attrs=main.arg_attrs)
    return ModuleOp([function])


def _open_spec(name: str, type_: Attribute) -> TensorSpec:
    dtype = _dtype(type_)
    if dtype is None or dtype in ("object", "complex64", "complex128"):
        raise ModelError(f"output {name!r} is {type_}, not a tensor of numbers")
    if not isinstance(type_, TensorType):
        return OpenSpec(name, dtype, (), ranked=False)
    shape = tuple(OPEN if n < 0 else n for n in type_.get_shape())
    return OpenSpec(name, dtype, shape) if OPEN in shape else TensorSpec(name, dtype, shape)


# ---------------------------------------------------------------------- the report

_SUMS = (
    "time_s",
    "lower_bound_s",
    "energy_j",
    "exchange_bytes",
    "chip_link_bytes",
    "hbm_bytes",
    "hbm_footprint_bytes",
)
_SUMS_BY_NAME = ("bounds_s", "breakdown_s")
_AVERAGES = ("hbm_utilization", "network_utilization", "flops_per_s")
_JOINED = ("states", "operators")


def build_hosted_report(
    cut: ModuleOp,
    devices: Mapping[str, Program],
    *,
    chip: Chip,
    target: str,
    model: str,
    signature: Signature,
) -> dict[str, Any]:
    """`report.json` of a program with a host part: that of its device programs one after another,
    and under `host` what runs there and why (docs/commands.md)."""
    functions = functions_of(cut)
    report: dict[str, Any] = {
        "elk_ir_version": __version__,
        "model": model,
        "chip": chip.name,
        "chip_hash": chip.content_hash(),
        "target": target,
        "policy": next((p.report["policy"] for p in devices.values()), None),
        "floats": next((p.report["floats"] for p in devices.values()), None),
        "dims": {},
        "host": host_fields(functions),
        "pieces": [
            {"name": name, "place": "device" if _on_device(f) else "host"}
            for name, f in functions.items()
        ],
    }
    parts = [p.report for p in devices.values()]
    report |= merged_fields(parts)
    return report | {
        "sram_peak_bytes": max((p["sram_peak_bytes"] for p in parts), default=0),
        "sram_capacity_bytes": chip.usable_sram_per_core_bytes,
        "inputs": [_spec_json(s) for s in signature.inputs],
        "outputs": [_spec_json(s) for s in signature.outputs],
    }


def merged_fields(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Fields of programs that run one after another: times, bytes and energy add up, rates are
    averages over time. Without times in a part there are none of the whole."""
    merged: dict[str, Any] = {}
    timed = bool(parts) and all("time_s" in p for p in parts)
    for key in _SUMS:
        if all(key in p for p in parts) and (timed or not key.endswith("_s")):
            merged[key] = sum(p[key] for p in parts)
    if timed:
        whole = merged["time_s"] or 1.0
        for key in _SUMS_BY_NAME:
            names = dict.fromkeys(n for p in parts for n in p[key])
            merged[key] = {n: sum(p[key].get(n, 0.0) for p in parts) for n in names}
        for key in _AVERAGES:
            merged[key] = sum(p[key] * p["time_s"] for p in parts) / whole
    for key in _JOINED:
        merged[key] = [row for p in parts for row in p[key]]
    return merged


def host_fields(functions: Mapping[str, FuncOp]) -> dict[str, Any]:
    """What the host runs: how many nodes of how many, and for each node its operator and why."""
    rows: list[dict[str, str]] = []
    for name, function in functions.items():
        reasons = function.attributes.get(REASONS)
        for entry in reasons.data if isinstance(reasons, ArrayAttr) else ():
            assert isinstance(entry, DictionaryAttr)
            texts = {k: v.data for k, v in entry.data.items() if isinstance(v, StringAttr)}
            rows.append({"piece": name, **texts})
    device = sum(
        sum(1 for op in f.body.block.ops if not op.name.endswith(("Initializer", "return")))
        for f in functions.values()
        if _on_device(f)
    )
    return {"nodes": len(rows), "of": device + len(rows), "why": rows}


def _spec_json(spec: TensorSpec) -> dict[str, Any]:
    shape: list[int | None] | None = [None if n == OPEN else n for n in spec.shape]
    if isinstance(spec, OpenSpec) and not spec.ranked:
        shape = None
    return {"name": spec.name, "dtype": spec.dtype, "shape": shape}
