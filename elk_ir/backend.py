"""elk-ir as an ONNX backend: `prepare`, `run_model`, `run_node` on the virtual machine.

import elk_ir.backend as backend
outputs = backend.prepare(model, "ELK:test-16").run([x])

A device is `ELK` or `ELK:CHIP`, CHIP being a built-in chip or a chip file; `CPU`, which ONNX's own
tools ask for, is the default chip. The program runs on the virtual machine of that chip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper, shape_inference
from onnx.backend.base import Backend, BackendRep, namedtupledict

from elk_ir.errors import ElkError, ModelError, UsageError

if TYPE_CHECKING:
    from elk_ir.chips import Chip
    from elk_ir.program import Program

DEFAULT_CHIP = "test-64"

MAX_PROGRAMS = 16
"""Programs that one prepared model keeps, one for each set of shapes (and specialised values)."""


class ElkBackendRep(BackendRep):
    """A prepared model. Each set of input shapes is compiled once, on its first run.

    `program` is what the last run used; `specialised` names the inputs whose values it was compiled
    for, because they determine shapes; `host_nodes` says what of it runs on the host, and why.
    """

    def __init__(
        self, model: ModelProto, chip: str | Chip, policy: str | None, *, host: bool = True
    ) -> None:
        self.model, self.chip, self.policy, self.host = model, chip, policy, host
        self.program: Program | None = None
        self.specialised: tuple[str, ...] = ()
        self._programs: dict[object, tuple[Program, tuple[str, ...]]] = {}
        constants = {t.name for t in model.graph.initializer}
        self.input_names = [i.name for i in model.graph.input if i.name not in constants]
        self.output_names = [o.name for o in model.graph.output]

    def run(
        self, inputs: Sequence[Any] | Mapping[str, Any] | np.ndarray, **_kwargs: Any
    ) -> tuple[np.ndarray, ...]:
        """The outputs, in order (also by name), for inputs in order or by name.

        Raises ElkError for inputs that do not fit the model and for what can't be compiled.
        """
        values = self._named(inputs)
        program, specialised = self._program_for(values)
        self.program, self.specialised = program, specialised
        given = {name: array for name, array in values.items() if name not in specialised}
        outputs = program.run(given)
        results = [outputs[name] for name in self.output_names]
        return namedtupledict("Outputs", self.output_names)(*results)

    @property
    def host_nodes(self) -> list[dict[str, str]]:
        """The nodes of `program` that run on the host: piece, node, operator, why."""
        if self.program is None:
            return []
        return self.program.report.get("host", {}).get("why", [])

    def _named(self, inputs: Sequence[Any] | Mapping[str, Any] | np.ndarray) -> dict[str, Any]:
        if isinstance(inputs, np.ndarray):
            inputs = [inputs]
        if not isinstance(inputs, Mapping):
            if len(inputs) > len(self.input_names):
                raise UsageError(
                    f"{len(inputs)} inputs are given, the model has {len(self.input_names)}"
                )
            inputs = dict(zip(self.input_names, inputs, strict=False))
        return {name: _array(name, value) for name, value in inputs.items()}

    def _program_for(self, values: Mapping[str, np.ndarray]) -> tuple[Program, tuple[str, ...]]:
        from elk_ir.frontend.specialise import candidates

        shapes = tuple((n, a.shape, str(a.dtype)) for n, a in sorted(values.items()))
        found = self._programs.get(shapes)
        if found is not None and not found[1]:
            return found
        small = tuple((n, values[n].tobytes()) for n in candidates(values))
        found = self._programs.get((shapes, small))
        if found is None:
            found = self._compile(values)
            while len(self._programs) >= MAX_PROGRAMS:
                self._programs.pop(next(iter(self._programs)))
            self._programs[(shapes, small) if found[1] else shapes] = found
        return found

    def _compile(self, values: Mapping[str, np.ndarray]) -> tuple[Program, tuple[str, ...]]:
        from elk_ir.compiler import compile_model
        from elk_ir.frontend.specialise import needed_values, specialise

        shapes = {name: array.shape for name, array in values.items()}
        try:
            chosen = needed_values(self.model, values, lambda m: check_lowers(m, shapes))
        except ElkError:
            if not self.host:
                raise
            chosen = {}
        model = specialise(self.model, chosen) if chosen else self.model
        program = compile_model(
            model,
            chip=self.chip,
            policy=self.policy,
            input_shapes={n: s for n, s in shapes.items() if n not in chosen},
            simulate=False,
            host=self.host,
        )
        return program, tuple(chosen)


def check_lowers(model: ModelProto, shapes: Mapping[str, Sequence[int]]) -> None:
    """Raises ElkError if a model can't be lowered to te for inputs of the given shapes."""
    from elk_ir.compiler import context, run_passes, signature_of
    from elk_ir.frontend.importer import import_model
    from elk_ir.passes.convert_onnx_to_te import ConvertOnnxToTePass
    from elk_ir.process import quiet_collector

    with quiet_collector():
        names = {i.name for i in model.graph.input}
        module = import_model(
            model.SerializeToString(),
            name="model.onnx",
            input_shapes={n: s for n, s in shapes.items() if n in names},
        )
        signature_of(module)
        run_passes(context(), module, [ConvertOnnxToTePass()], model="model.onnx")


class ElkBackend(Backend):
    """The backend as ONNX's tools take it; the module has the same functions."""

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether `model` can be compiled for the shapes that it declares without a host part."""
        try:
            check_lowers(model, {})
        except ElkError:
            return False
        return cls.supports_device(device)

    @classmethod
    def prepare(
        cls,
        model: ModelProto,
        device: str = "CPU",
        *,
        chip: str | Chip | None = None,
        policy: str | None = None,
        host: bool = True,
        **_kwargs: Any,
    ) -> ElkBackendRep:
        """A model that can be run again and again. `chip` overrides that of the device; without
        `host` nodes that the chip can't take are an error.

        Compilation takes place at the first run of each set of shapes. Raises ElkError for an
        unknown device.
        """
        if chip is None:
            chip = _chip_of(device)
            if chip is None:
                raise UsageError(f"unknown device {device!r}", hint="use ELK or ELK:CHIP")
        return ElkBackendRep(model, chip, policy, host=host)

    @classmethod
    def run_model(
        cls, model: ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[np.ndarray, ...]:
        """Compile and run once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype, Sequence[int]]] | None = None,
        **kwargs: Any,
    ) -> tuple[np.ndarray, ...]:
        """Run one operator as a model of its own. `outputs_info` has (type, shape) an output."""
        opset = kwargs.pop("opset_version", None)
        names = [name for name in node.input if name]
        arrays = dict(zip(names, map(np.asarray, inputs), strict=True))
        infos = [_value_info(n, a.dtype, a.shape) for n, a in arrays.items()]
        if outputs_info is None:
            results = [helper.make_empty_tensor_value_info(n) for n in node.output if n]
        else:
            results = [
                _value_info(n, np.dtype(dtype), shape)
                for n, (dtype, shape) in zip(node.output, outputs_info, strict=False)
            ]
        graph = helper.make_graph([node], "node", infos, results)
        imports = None if opset is None else [helper.make_opsetid("", opset)]
        model = helper.make_model(graph, **({} if imports is None else {"opset_imports": imports}))
        if outputs_info is None:
            model = shape_inference.infer_shapes(model)
        return cls.run_model(model, arrays, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether a device names the virtual machine of a chip that exists."""
        return _chip_of(device) is not None


def _array(name: str, value: Any) -> np.ndarray:
    """An input as an array. Raises ModelError for sequences, optionals and the like."""
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    if not isinstance(value, np.ndarray | np.generic | int | float | bool):
        raise ModelError(f"input {name!r} is no tensor")
    return np.asarray(value)


def _chip_of(device: str) -> Chip | None:
    """The chip that a device string names, None for devices that are not ours."""
    from elk_ir.chips import load_chip

    kind, _, name = device.partition(":")
    if kind == "CPU":
        return load_chip(DEFAULT_CHIP)
    if kind != "ELK":
        return None
    try:
        return load_chip(name or DEFAULT_CHIP)
    except ElkError:
        return None


def _value_info(name: str, dtype: np.dtype, shape: Sequence[int]) -> Any:
    element: TensorProto.DataType = helper.np_dtype_to_tensor_dtype(dtype)
    return helper.make_tensor_value_info(name, element, list(shape))


is_compatible = ElkBackend.is_compatible
prepare = ElkBackend.prepare
run_model = ElkBackend.run_model
run_node = ElkBackend.run_node
supports_device = ElkBackend.supports_device
