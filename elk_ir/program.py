"""`Program`: a compiled model, which can be run on the virtual machine, printed and saved."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from elk_ir.compiler import Signature, Source, chip_of_module, context
from elk_ir.errors import ElkError
from elk_ir.extensions import universe
from elk_ir.numerics.compare import coarsest
from elk_ir.numerics.tensors import check_inputs
from elk_ir.target import Landing, Runner, find_target
from elk_ir.text import no_program, print_module, read_module, read_text
from elk_ir.weight_source import WeightSource

if TYPE_CHECKING:
    from elk_ir.chips import Chip
    from elk_ir.sim import SimResult
    from elk_ir.targets.ipu.interpreter import Interpreter

PROGRAM_FILE = "program.mlir"
TARGET_FILE = "target.mlir"
REPORT_FILE = "report.json"


class Program:
    """A model compiled for a chip. Made by `elk_ir.compile` and `elk_ir.load`.

    report: what `report.json` holds (docs/commands.md).
    signature: the inputs and outputs by their ONNX names.
    """

    def __init__(
        self,
        *,
        levels: Mapping[str, ModuleOp | Path],
        report: dict[str, Any],
        chip: Chip,
        source: Source,
        signature: Signature,
    ) -> None:
        # A path stands for the module in that file until someone asks for it.
        self._levels, self.report, self.chip = dict(levels), report, chip
        self.source, self.signature = source, signature
        self._weights = WeightSource(source.base_dir, buffers=source.buffers)
        self._runner: tuple[tuple[ModuleOp, WeightSource, Landing], Runner] | None = None

    @property
    def icca(self) -> ModuleOp:
        """The planned, scheduled and allocated program."""
        return self.module("icca")

    @property
    def target(self) -> ModuleOp:
        """What the program was lowered to; this is what runs."""
        return self.module(self.target_name)

    @property
    def target_name(self) -> str:
        """The name of that level."""
        return self.report["target"]

    @property
    def precision(self) -> str:
        """The least precise float type among what the program keeps in HBM."""
        from elk_ir.dialects.types import shape_dtype
        from elk_ir.report_json import hbm_tensors

        tensors = hbm_tensors(self.target) or hbm_tensors(self.icca)
        return coarsest(shape_dtype(op.type)[1] for op in tensors)

    def mlir(self, level: str = "icca") -> str:
        """The program's text at a level: `onnx`, `te`, `icca` or the target, with locations.

        A program that was loaded has the last two. Raises ElkError for a level it does not have.
        """
        return print_module(self.module(level))

    def module(self, level: str) -> ModuleOp:
        """The program's module at a level. Raises ElkError for a level it does not have, or whose
        file is missing or damaged."""
        if level not in self._levels:
            raise ElkError(
                f"this program has no level {level!r}", hint=f"it has: {', '.join(self._levels)}"
            )
        found = self._levels[level]
        if isinstance(found, Path):
            found = self._levels[level] = read_module(found, context())
        return found

    # ------------------------------------------------------------------ numbers

    def run(
        self,
        inputs: Mapping[str, np.ndarray],
        *,
        random_weights: int | None = None,
        landing: Landing = "late",
    ) -> dict[str, np.ndarray]:
        """The outputs by name, computed on the virtual machine from the inputs by name.

        Weights are read from the files beside the model and checked by size and hash;
        `random_weights` is a seed for those that do not exist. `landing` says whether preloads
        arrive as early or as late as allowed: the result is the same. Raises ElkError for wrong
        inputs, missing weights, and programs that break a rule of the machine.
        """
        return self.run_with(self.weights(random_weights), inputs, landing=landing)

    def run_with(
        self, weights: WeightSource, inputs: Mapping[str, np.ndarray], *, landing: Landing = "late"
    ) -> dict[str, np.ndarray]:
        """`run` with weights from a source that several programs share.

        What was prepared is kept for the next run with the same weights and landing, as long as the
        target's module is the same object: replace it, don't change it, after the first run.
        """
        taken = check_inputs(inputs, self.signature.inputs)
        key = (self.target, weights, landing)
        # Taken out while it runs: another thread makes one of its own; and lost if the run fails.
        kept, self._runner = self._runner, None
        if kept is None or any(a is not b for a, b in zip(kept[0], key, strict=True)):
            runner = find_target(self.target_name).runner(
                self.target, chip=self.chip, weights=weights, landing=landing
            )
            kept = (key, runner)
        outputs = kept[1](taken)
        if weights.random_seed is None:  # random weights take memory as long as they are kept
            self._runner = kept
        return shaped_outputs(outputs, self.signature)

    def simulate(self, chip: Chip | None = None) -> SimResult:
        """How long the program takes on its chip, or on another one of as many cores
        (`program.chip.ideal()`, say), and why: docs/simulator.md. Raises ElkError for a target that
        is not simulated step by step."""
        return find_target(self.target_name).simulate(self.target, chip or self.chip)

    def weights(self, random_weights: int | None = None) -> WeightSource:
        """Where the program's weights come from; `random_weights` is a seed for those whose file
        does not exist."""
        if random_weights is None:
            return self._weights
        return self._weights.with_seed(random_weights)

    def interpreter(
        self,
        *,
        random_weights: int | None = None,
        landing: Landing = "late",
        filled: Mapping[str, int] | None = None,
    ) -> Interpreter:
        """A virtual machine that is about to run the program (`filled`: as it takes it). Raises
        ElkError for a program that is not of the ipu target."""
        from elk_ir.targets.ipu.target import IPU

        if self.target_name != IPU.name:
            raise ElkError(f"a program of target {self.target_name!r} does not run on this machine")
        return IPU.machine(
            self.target,
            chip=self.chip,
            weights=self.weights(random_weights),
            landing=landing,
            filled=filled,
        )

    def __call__(self, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        """`run` with the inputs as keywords."""
        return self.run(inputs)

    # ------------------------------------------------------------------ files

    def save(self, folder: Path | str) -> Path:
        """Write `program.mlir`, `target.mlir`, the emitted text and `report.json` into a folder;
        returns it.

        The files appear complete or not at all. Weights are not copied: `weights_dir` in the report
        leads from the folder to the model's. A program that the emitter can't express is written
        without its text, and the report's `emit_failure` says why. Raises ElkError when the folder
        cannot be written.
        """
        folder = Path(folder)
        files = {
            PROGRAM_FILE: self.mlir("icca"),
            TARGET_FILE: self.mlir(self.target_name),
        }
        failure = None
        try:
            files |= self.emitted()
        except ElkError as error:
            failure = str(error)
        report = {
            **self.report,
            "emit_failure": failure,
            "weights_dir": self.weights_dir(folder),
        }
        files[REPORT_FILE] = report_text(report)
        return write_files(folder, files)

    def emitted(self) -> dict[str, str]:
        """The target as text for its own tools, by file name; empty if it has no emitter.

        Raises ElkError for a program that the emitter can't express.
        """
        from xdsl.utils.exceptions import DiagnosticException

        emitter = find_target(self.target_name).emitter
        if emitter is None:
            return {}
        name, file = emitter
        stream = StringIO()
        try:
            universe().all_targets[name]()().emit(context(), self.target, stream)
        except DiagnosticException as error:
            raise ElkError(str(error), where=name) from None
        return {file: stream.getvalue()}

    def weights_dir(self, folder: Path) -> str | None:
        """The way from `folder` to the model's folder, None if the model was in memory."""
        base = self.source.base_dir
        if base is None:
            return None
        try:
            relative = os.path.relpath(base.resolve(), folder.resolve())
        except ValueError:  # on another drive
            return base.resolve().as_posix()
        return Path(relative).as_posix()


def load(folder: Path | str, *, weights_dir: Path | str | None = None) -> Program:
    """The program that `Program.save` wrote into `folder`. Exported as `elk_ir.load`.

    weights_dir: the folder of the model, if it is no longer where it was. Raises ElkError when a
    file is missing or damaged.
    """
    from elk_ir.report_json import signature_from_report

    folder = Path(folder)
    report = read_report(folder / REPORT_FILE)
    if "programs" in report:
        raise ElkError(
            f"this folder holds {len(report['programs'])} programs",
            where=str(folder),
            hint="use elk_ir.load_set, or give the folder of one of them",
        )
    if "host" in report:
        from elk_ir.hosted import load_hosted

        return load_hosted(folder, report, weights_dir=weights_dir)
    try:
        signature = signature_from_report(report)
        target_name, name = str(report["target"]), str(report["model"])
        if missing := {"chip", "policy"} - report.keys():
            raise KeyError(min(missing))
        relative = report.pop("weights_dir", None)
        report.pop("emit_failure", None)
    except (KeyError, TypeError, ValueError) as error:
        raise ElkError(
            f"this is no report of a compiled program ({type(error).__name__}: {error})",
            where=str(folder / REPORT_FILE),
        ) from None
    target = read_module(folder / TARGET_FILE, context())
    if not (folder / PROGRAM_FILE).is_file():
        raise no_program(folder, PROGRAM_FILE)
    base = folder / relative if isinstance(relative, str) else None
    if weights_dir is not None:
        base = Path(weights_dir)
    return find_target(target_name).program_class()(
        levels={"icca": folder / PROGRAM_FILE, target_name: target},
        report=report,
        chip=chip_of_module(target),
        source=Source(name, base, {}),
        signature=signature,
    )


def report_text(report: Mapping[str, Any]) -> str:
    """A report as the text of its file."""
    return json.dumps(report, indent=2, allow_nan=False) + "\n"


def write_files(folder: Path, files: Mapping[str, str]) -> Path:
    """Write texts into a folder, which is made if need be: all appear complete, or none does.
    Returns the folder. Raises ElkError when that fails."""
    temporary = {name: folder / f".{name}.{os.getpid()}.tmp" for name in files}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            temporary[name].write_text(text, encoding="utf-8")
        for name, path in temporary.items():
            path.replace(folder / name)
    except OSError as error:
        what = (error.strerror or str(error)).lower()
        raise ElkError(f"cannot be written: {what}", where=str(folder)) from None
    finally:
        for path in temporary.values():
            if path.parent.is_dir():
                path.unlink(missing_ok=True)
    return folder


def read_report(path: Path) -> dict[str, Any]:
    """The object in a `report.json`. Raises ElkError for a file that is missing or damaged."""
    text = read_text(path)
    try:
        report = json.loads(text)
    except json.JSONDecodeError as error:
        raise ElkError(
            f"not valid JSON: {error.msg}", where=f"{path}:{error.lineno}:{error.colno}"
        ) from None
    if not isinstance(report, dict):
        raise ElkError("this is no report of a compiled program", where=str(path))
    return report


def shaped_outputs(
    outputs: Mapping[str, np.ndarray], signature: Signature
) -> dict[str, np.ndarray]:
    """Outputs in the model's order. A state is read in its whole capacity, of which the filled
    part, which is what the model declares, is the output."""
    result: dict[str, np.ndarray] = {}
    for spec in signature.outputs:
        if spec.name not in outputs:
            raise ElkError(f"the program does not compute output {spec.name!r}")
        filled = tuple(slice(0, n) for n in spec.shape)
        result[spec.name] = outputs[spec.name][filled]
    return result
