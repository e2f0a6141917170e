"""From a model to a program: the pipeline, the checks around it, and `elk_ir.compile`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import DiagnosticException

from elk_ir.errors import CapacityError, ElkError, ModelError, UsageError
from elk_ir.numerics.tensors import TensorSpec
from elk_ir.process import peak_rss_bytes, quiet_collector
from elk_ir.target import Target, find_target

if TYPE_CHECKING:
    from onnx import ModelProto

    from elk_ir.chips import Chip
    from elk_ir.program import Program
    from elk_ir.quantizer import Quantization

GPIPE = "gpipe"
"""The policy of NorthPole appliances: micro-batches through stages that hold everything."""

NORTHPOLE_OPTIONS = ("precision", "cards", "users", "route")
"""What `northpole-map-stages` can be told about a mapping, beside its chip."""

TRACEBACK = "ELK_TRACEBACK"
"""Environment variable: a defect of the compiler then shows its traceback."""

Report = Callable[[str], None]
"""Receives one line about what is being done now."""

Model: TypeAlias = "str | Path | bytes | ModelProto | ModuleOp"
"""What can be compiled."""

NARROWER = 16
"""Times fewer bytes that a state may take on the machine than as an input (float64 as int4)."""

AfterPass = Callable[[ModulePass, ModuleOp], None]


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of a model, in order, states included, as the ONNX graph names them."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


@dataclass(frozen=True)
class Source:
    """A model as it was given: its file's name, its folder (None: it was in memory) and, if it was
    in memory, its bytes under that name."""

    name: str
    base_dir: Path | None
    buffers: Mapping[str, bytes]


def compile_model(
    model: Model,
    *,
    chip: str | Path | Chip,
    target: str | None = None,
    policy: str | None = None,
    dims: Mapping[str, int] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    kv_capacity: int | None = None,
    time_budget_s: float | None = None,
    objective: str | None = None,
    attention_chunks: int | None = None,
    floats: str | None = None,
    mapping: Mapping[str, str | int] | None = None,
    quantize: Quantization | None = None,
    simulate: bool = True,
    host: bool = True,
    progress: Report | None = None,
) -> Program:
    """Compile a model for a chip. Exported as `elk_ir.compile`.

    model: the path of a `.onnx` file, its bytes, or an onnx.ModelProto; or IR, an xDSL module or
    the path of an `.mlir` file, at the level of te or linalg on tensors (docs/embedding.md).
    chip: a built-in name, the path of a chip file, or a Chip.
    target: ipu, northpole, or the name of an extension's (None: what the chip is).
    policy: how preloads are scheduled (None: the best one there is; the report names it).
    dims, input_shapes: bind symbolic dimensions by name, or by the shapes of inputs.
    kv_capacity: entries that a KV cache can hold (default: what this run needs).
    time_budget_s: how long to search for a better program; the best one so far is returned.
    objective: what policies minimise: time (None: this) or energy.
    attention_chunks: into how many parts of the batch attention over a KV cache is cut, 1 for none
    (None: as many as the chip's SRAM asks for, docs/scheduling.md).
    floats: f16 or bf16, what float32 tensors are stored and multiplied as; sums stay float32 (None:
    they are left alone; docs/targets/poplar.md). Inputs and outputs keep the model's types.
    mapping: for northpole, options of `northpole-map-stages`: precision, cards, users, route.
    quantize: makes the products of the model products of integers (docs/quantization.md).
    simulate: whether the report says how long the program takes on the chip.
    host: whether nodes that the chip can't take run on the host: the program is an
    `elk_ir.hosted.HostedProgram` then (docs/onnx.md). False: they are an error.
    progress: called with a line about each step.

    Raises ElkError, with one message, when the model or the chip is no good or when the model does
    not fit the chip. Weights are not read and need not exist.
    """
    if dims is not None and not isinstance(dims, Mapping):
        raise UsageError("dims binds each dimension once", hint="elk_ir.compile_set takes several")
    started = time.process_time()
    machine = resolve_chip(chip)
    backend = find_target(resolve_target(target, machine))
    with quiet_collector():
        module, source = import_source(
            model, machine, dims=dims, input_shapes=input_shapes, progress=progress
        )
        check_edges(module, machine)
        ctx = context()
        entry = input_level(module)
        levels = {entry: module.clone()}
        passes = pipeline(
            machine,
            target=backend.name,
            policy=policy,
            kv_capacity=kv_capacity,
            time_budget_s=time_budget_s,
            objective=objective,
            attention_chunks=attention_chunks,
            floats=floats,
            mapping=mapping,
            source=entry,
        )

        if quantize is not None:
            from elk_ir.quantizer import with_quantization

            passes = with_quantization(
                passes,
                quantize,
                model=model,
                source=source,
                module=module,
                chip=machine,
                progress=progress,
            )

        front, back = split_at(passes, "convert-te-to-icca")
        try:
            run_passes(ctx, module, front, model=source.name, progress=progress)
        except ModelError as error:
            if entry != "onnx" or not is_lowering_failure(error):
                raise
            if not host:
                raise with_hint(error, "they may run on the host, which is switched off") from error
            if quantize is not None:
                raise with_hint(
                    error, "a model that is quantised has no host part, on which they could run"
                ) from error
            from elk_ir.hosted import compile_hosted

            program = compile_hosted(
                levels[entry],
                passes,
                backend,
                chip=machine,
                source=source,
                dims=dims or {},
                simulate=simulate,
                progress=progress,
                failure=error,
            )
        else:
            levels["te"] = module.clone()
            try:
                program = lower_program(
                    module,
                    back,
                    backend,
                    levels=levels,
                    chip=machine,
                    source=source,
                    signature=signature_of(levels[entry]),
                    dims=dims or {},
                    simulate=simulate,
                    progress=progress,
                )
            except CapacityError as error:
                if entry == "onnx" and quantize is None:
                    explain_capacity(error, model, passes, dims or {}, input_shapes)
                raise
        program.report["compile_cpu_s"] = time.process_time() - started
        program.report["compile_peak_rss_bytes"] = peak_rss_bytes()
    return program


def explain_capacity(
    error: CapacityError,
    model: Model,
    passes: Sequence[ModulePass],
    dims: Mapping[str, int],
    input_shapes: Mapping[str, Sequence[int]] | None = None,
) -> None:
    """Let `error` say what would fit, by compiling the model anew as far as it is asked. passes:
    those that lead from the model to the target."""
    from elk_ir.smaller import explain

    front, _ = split_at(passes, "icca-schedule")

    def prepare(chip: Chip, bound: Mapping[str, int]) -> ModuleOp:
        module, source = import_source(model, chip, dims=bound, input_shapes=input_shapes)
        run_passes(context(), module, front, model=source.name)
        return module

    explain(error, prepare, dims)


def lower_program(
    module: ModuleOp,
    passes: Sequence[ModulePass],
    backend: Target,
    *,
    levels: dict[str, ModuleOp],
    chip: Chip,
    source: Source,
    signature: Signature,
    dims: Mapping[str, int],
    simulate: bool,
    progress: Report | None,
) -> Program:
    """The program that `passes` make of a module of te; `levels` has the levels before, and is
    completed. Raises ElkError as `compile_model` does."""

    def after(done: ModulePass, module: ModuleOp) -> None:
        if done.name == "convert-te-to-icca":
            check_hbm(module, chip)

    ctx = context()
    middle, last = split_at(passes, backend.lowering[0])
    run_passes(ctx, module, middle, model=source.name, progress=progress, after=after)
    levels["icca"] = module.clone()
    run_passes(ctx, module, last, model=source.name, progress=progress)
    levels[backend.name] = module
    if simulate and progress is not None:
        progress("simulating")
    report = backend.build_report(
        levels["icca"],
        module,
        chip=chip,
        model=source.name,
        signature=signature,
        dims=dims,
        simulate=simulate,
    )
    return backend.program_class()(
        levels=levels, report=report, chip=chip, source=source, signature=signature
    )


def is_lowering_failure(error: ElkError) -> bool:
    """Whether a pass gave up because nodes have no lowering to te."""
    from elk_ir.passes.convert_onnx_to_te import LoweringFailure

    return isinstance(error.__cause__, LoweringFailure)


def with_hint(error: ElkError, hint: str) -> ModelError:
    """The same failure with another hint."""
    return ModelError(error.what, where=error.where, details=error.details, hint=hint)


# ---------------------------------------------------------------------- what goes in


def resolve_chip(chip: str | Path | Chip) -> Chip:
    """A chip by name, by file, or as it is. Raises ChipError."""
    from elk_ir.chips import Chip, load_chip

    return chip if isinstance(chip, Chip) else load_chip(str(chip))


def resolve_target(target: str | None, chip: Chip) -> str:
    """The target by name, or the one that the chip is. Raises ElkError for one that does not exist,
    and for a chip that is no machine of its kind."""
    if target is None:
        target = "northpole" if chip.northpole is not None else "ipu"
    find_target(target).check(chip)
    return target


def import_source(
    model: Model,
    chip: Chip,
    *,
    dims: Mapping[str, int] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    progress: Report | None = None,
) -> tuple[ModuleOp, Source]:
    """The model as a module that names its chip, and where it came from: an ONNX model in the onnx
    dialect, IR as it is.

    Raises ModelError as `elk_ir.frontend.importer.import_model` and `import_ir` do.
    """
    from elk_ir.dialects.chip import ChipAttr
    from elk_ir.frontend.importer import import_model

    if progress is not None:
        progress("importing the model")
    if isinstance(model, ModuleOp) or (
        isinstance(model, str | Path) and str(model).endswith(".mlir")
    ):
        from elk_ir.frontend.ir import import_ir

        if dims:
            raise ModelError(
                "the shapes of IR are static: there are no dimensions to bind",
                where=None if isinstance(model, ModuleOp) else str(model),
            )
        module, source = import_ir(model)
    elif isinstance(model, str | Path):
        path = Path(model)
        if path.is_dir():
            raise ModelError("this is a folder, not an ONNX model", where=str(model))
        source = Source(path.name, path.parent, {})
        module = import_model(path, dims=dims, input_shapes=input_shapes)
    else:
        name = "model.onnx"
        data = model if isinstance(model, bytes) else model.SerializeToString()
        source = Source(name, None, {name: data})
        module = import_model(data, name=name, dims=dims, input_shapes=input_shapes)
    module.attributes["icca.chip"] = ChipAttr.from_chip(chip)
    return module, source


def input_level(module: ModuleOp) -> str:
    """The level at which a model comes in: onnx, linalg or te."""
    prefixes = {op.name.partition(".")[0] for op in module.walk()}
    if "onnx" in prefixes:
        return "onnx"
    return "linalg" if prefixes & {"linalg", "tensor", "arith", "math"} else "te"


def signature_of(module: ModuleOp) -> Signature:
    """Inputs and outputs of an imported model. Raises ModelError for what is no tensor."""
    from xdsl.dialects.builtin import ArrayAttr
    from xdsl.ir import Attribute

    from elk_ir.dialects.types import shape_dtype
    from elk_ir.frontend.export import main_function

    function = main_function(module)

    def spec(attrs: ArrayAttr | None, position: int, type_: Attribute, what: str) -> TensorSpec:
        entry = None if attrs is None else attrs.data[position]
        named = getattr(entry, "data", {}).get("onnx.name")
        name = named.data if isinstance(named, StringAttr) else f"{what}{position}"
        try:
            shape, dtype = shape_dtype(type_)
        except ValueError:
            raise ModelError(
                f"{what} {name!r} is {type_}, not a tensor of numbers of a static shape"
            ) from None
        return TensorSpec(name, dtype, shape)

    types = function.function_type
    return Signature(
        tuple(spec(function.arg_attrs, i, t, "input") for i, t in enumerate(types.inputs)),
        tuple(spec(function.res_attrs, i, t, "output") for i, t in enumerate(types.outputs)),
    )


# ---------------------------------------------------------------------- the pipeline


def context() -> Context:
    """A context that knows every dialect: ours, upstream's, and those of extensions; each is
    imported when it is first used. Raises ElkError for a broken extension."""
    from elk_ir import extensions
    from elk_ir.universe import all_dialects

    ctx = Context()
    for name, factory in all_dialects(extensions.universe()).items():
        ctx.register_dialect(name, factory)
    return ctx


_FRONT_ENDS = {
    "onnx": ("convert-onnx-to-te",),
    "linalg": ("convert-linalg-to-te",),
    "te": (),
}
"""Levels at which a model may come in, and the passes from there to te."""


def pipeline(
    chip: Chip,
    *,
    target: str = "ipu",
    policy: str | None = None,
    kv_capacity: int | None = None,
    time_budget_s: float | None = None,
    objective: str | None = None,
    attention_chunks: int | None = None,
    floats: str | None = None,
    mapping: Mapping[str, str | int] | None = None,
    source: str = "onnx",
) -> tuple[ModulePass, ...]:
    """The passes that lead from `source` (onnx, linalg or te) to `target`, in order.

    On a chip without HBM everything is on chip before a run starts: layers stay unrolled, because
    there is nothing to fetch in a loop. Raises ElkError for a bad option.
    """
    from elk_ir.extensions import universe
    from elk_ir.pipelines import PIPELINES
    from elk_ir.tools.opt_pipeline import parse_passes

    backend = find_target(target)
    if kv_capacity is not None and kv_capacity < 1:
        raise ElkError(f"a KV capacity of {kv_capacity} entries holds nothing")
    names = [*_FRONT_ENDS[source], "te-pipeline"]
    if floats is not None:
        check_floats(floats)
        names.append(f"te-change-floats{{to={floats}}}")
    if kv_capacity is not None:
        names.append(f"te-state-capacity{{entries={kv_capacity}}}")
    if attention_chunks is not None and attention_chunks < 1:
        raise ElkError(f"attention in {attention_chunks} chunks is none", hint="1 leaves it whole")
    names += backend.passes(chip, policy, mapping or {})
    passes = parse_passes(",".join(names), universe().all_passes, PIPELINES, origin="elk")
    if not backend.rolls_layers(chip):
        passes = tuple(p for p in passes if p.name != "te-roll-layers")
    wanted = {
        "time_budget_s": time_budget_s,
        "objective": objective,
        "static": None if backend.updates_rows else False,
    }
    given = {name: value for name, value in wanted.items() if value is not None}
    chunks = {} if attention_chunks is None else {"chunks": attention_chunks}
    return tuple(
        with_options(each, chunks if each.name == "te-chunk-attention" else given)
        for each in passes
    )


def check_floats(floats: str) -> None:
    """Raises ElkError for a name that is none of what float32 can become."""
    from elk_ir.passes.te_change_floats import FLOATS

    if floats not in FLOATS:
        raise ElkError(
            f"unknown floats {floats!r}",
            hint=f"float32 can become {' or '.join(FLOATS)}; by default it stays",
        )


def with_options(each: ModulePass, given: Mapping[str, object]) -> ModulePass:
    """The pass with those of the options given that it has."""
    own = {f.name for f in fields(each)} & given.keys()
    return replace(each, **{name: given[name] for name in own}) if own else each


def split_at(
    passes: Sequence[ModulePass], name: str
) -> tuple[tuple[ModulePass, ...], tuple[ModulePass, ...]]:
    """The passes before the one called `name`, and the rest."""
    position = next((i for i, p in enumerate(passes) if p.name == name), len(passes))
    return tuple(passes[:position]), tuple(passes[position:])


def run_passes(
    ctx: Context,
    module: ModuleOp,
    passes: Sequence[ModulePass],
    *,
    model: str,
    progress: Report | None = None,
    after: AfterPass | None = None,
) -> None:
    """Run passes on a module, verifying it after each one. Raises ElkError naming `model` and the
    pass when one gives up or leaves invalid IR behind."""
    for each in passes:
        if progress is not None:
            progress(each.name)
        try:
            each.apply(ctx, module)
            module.verify()
        except DiagnosticException as error:
            raise pass_error(error, each.name, model) from error
        except ElkError:
            raise
        except Exception as error:
            if TRACEBACK in os.environ:
                raise
            raise internal_error(error, each.name, model) from error
        if after is not None:
            after(each, module)


def internal_error(error: Exception, pass_name: str, model: str) -> ElkError:
    """A crash of a pass as one message that says which pass and where."""
    from elk_ir.tools.opt_diagnostics import summarize

    return ElkError(
        f"internal error in pass {pass_name}: {summarize(error)}",
        where=model,
        hint=f"this is a defect of the compiler; {TRACEBACK}=1 shows where",
    )


def pass_error(error: DiagnosticException, pass_name: str, model: str) -> ElkError:
    """A pass's failure as one message: the node, the reason, and the pass."""
    from xdsl.utils.exceptions import VerifyException

    from elk_ir.diagnostics import LocatedFailure
    from elk_ir.dialects.location import node_names
    from elk_ir.tools.opt_diagnostics import failing_op

    what, *details = str(error).split("\n")
    what = what.removeprefix(f"{pass_name}: ")
    if isinstance(error, VerifyException):
        what = f"pass {pass_name} left an invalid program behind: {what}"
    op = failing_op(error)
    names = () if op is None else node_names(op)
    if names and names[0] not in what:
        what = f"node {names[0]!r}: {what}"
    notes = error.notes if isinstance(error, LocatedFailure) else ()
    lines = [line.strip() for line in (*details, *notes) if line.strip()]
    return ModelError(what, where=model, details=[*lines, f"(in pass {pass_name})"])


def check_edges(module: ModuleOp, chip: Chip) -> None:
    """Raises ElkError if the inputs of an imported model, or its outputs, do not fit the machine:
    nothing that is done to a model changes that, and a few bytes of a file can ask for any size."""
    from elk_ir.dialects.types import shape_dtype
    from elk_ir.frontend.export import argument_names, main_function
    from elk_ir.numerics.body import dtype_of

    available = chip.usable_sram_bytes if chip.hbm is None else chip.hbm.capacity_bytes
    function = main_function(module)
    last = function.body.block.last_op
    outputs = () if last is None else last.operands
    for what, attrs, values in (
        ("input", function.arg_attrs, function.body.block.args),
        ("output", function.res_attrs, outputs),
    ):
        sizes: list[tuple[str, int]] = []
        for name, value in zip(argument_names(attrs, values, what), values, strict=True):
            try:
                shape, dtype = shape_dtype(value.type)
            except ValueError:
                continue  # no tensor of a static shape: an error later on, or the host's
            sizes.append((f"{what} {name!r}", prod(shape) * dtype_of(dtype).itemsize))
        needed = sum(size for _, size in sizes)
        if needed > NARROWER * available:
            raise _too_large(needed, available, "SRAM" if chip.hbm is None else "HBM", chip, sizes)


def check_hbm(module: ModuleOp, chip: Chip) -> None:
    """Raises ElkError if the tensors of a program do not fit the chip's HBM."""
    from elk_ir.report_json import hbm_footprint_bytes, hbm_tensor_sizes

    if chip.hbm is None:
        return
    needed, available = hbm_footprint_bytes(module), chip.hbm.capacity_bytes
    if needed <= available:
        return
    raise _too_large(needed, available, "HBM", chip, hbm_tensor_sizes(module))


def _too_large(
    needed: int, available: int, memory: str, chip: Chip, sizes: Iterable[tuple[str, int]]
) -> ElkError:
    largest = sorted(sizes, key=lambda item: (-item[1], item[0]))[:5]
    return ElkError(
        f"the model needs {needed:,} bytes of {memory}, chip {chip.name!r} has {available:,}"
        f" ({needed - available:,} too many)",
        details=["largest tensors:", *(f"  {size:>15,} bytes  {name}" for name, size in largest)],
        hint=f"choose a chip with more {memory}, a smaller batch or a shorter KV cache",
    )


def chip_of_module(module: ModuleOp) -> Chip:
    """The chip that a program was compiled for. Raises ElkError if it names none."""
    from elk_ir.dialects.chip import ChipAttr

    attr = module.attributes.get("icca.chip")
    if not isinstance(attr, ChipAttr):
        raise ElkError("the program names no chip (attribute icca.chip)")
    return attr.to_chip()


def floats_of_module(module: ModuleOp) -> str | None:
    """What the float32 tensors of a program were changed to, f16 or bf16."""
    attr = module.attributes.get("te.floats")
    return attr.data if isinstance(attr, StringAttr) else None


def policy_of_module(module: ModuleOp) -> str | None:
    """The scheduling policy that made a program."""
    attr = module.attributes.get("icca.policy")
    return attr.data if isinstance(attr, StringAttr) else None
