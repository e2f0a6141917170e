"""Several programs of one model, one for each binding of its dimensions.

They share the weights: every program refers to the same bytes of the model's own files (or of the
model in memory), which are neither copied nor written. A run takes the program that was compiled
for the shapes of its inputs.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from elk_ir.compiler import Model, compile_model
from elk_ir.errors import ElkError, UsageError
from elk_ir.program import REPORT_FILE, Program, load, read_report, report_text, write_files
from elk_ir.target import Landing

_OF_ALL = ("elk_ir_version", "model", "chip", "chip_hash", "target", "policy")
_LEFT_OUT = frozenset({*_OF_ALL, "dims", "operators", "states", "pieces"})


@dataclass(frozen=True)
class Member:
    """A program and the binding that it was compiled for; `folder` is its folder in that of the
    set."""

    dims: Mapping[str, int]
    program: Program
    folder: str


class ProgramSet:
    """Programs of one model for several bindings. Made by `elk_ir.compile_set`,
    `elk_ir.load_set`.

    report: what all have in common, and under `programs` what each of them takes.
    """

    def __init__(self, members: Sequence[Member], report: dict[str, Any]) -> None:
        self.members, self.report = tuple(members), report

    @property
    def programs(self) -> tuple[Program, ...]:
        """The programs, in the order of the bindings."""
        return tuple(m.program for m in self.members)

    def select(self, shapes: Mapping[str, Sequence[int]]) -> Program:
        """The program for inputs of these shapes. Raises UsageError, with the shapes that there are
        programs for, if there is none."""
        wanted = {name: tuple(shape) for name, shape in shapes.items()}
        for program in self.programs:
            if {s.name: s.shape for s in program.signature.inputs} == wanted:
                return program
        # What differs from program to program is what tells them apart.
        varying = [
            name
            for name in (s.name for s in self.programs[0].signature.inputs)
            if len({_shape(p, name) for p in self.programs}) > 1
        ]
        raise UsageError(
            "none of the programs is for inputs of these shapes: "
            + _listed({n: wanted.get(n) for n in varying or wanted}),
            details=[
                f"{m.folder}: {_listed({n: _shape(m.program, n) for n in varying})}"
                for m in self.members
            ],
            hint="compile the model for them as well",
        )

    def bound_to(self, dims: Mapping[str, int]) -> Program:
        """The only program whose binding has these values. Raises UsageError if there is none, or
        if there are several."""
        found = [m for m in self.members if dims.items() <= m.dims.items()]
        if len(found) == 1:
            return found[0].program
        what = "several programs are" if found else "no program is"
        given = ", ".join(f"{k}={v}" for k, v in dims.items()) or "anything"
        raise UsageError(
            f"{what} bound to {given}",
            hint="the bindings are: " + "; ".join(_label(m.dims) for m in self.members),
        )

    def run(
        self,
        inputs: Mapping[str, np.ndarray],
        *,
        random_weights: int | None = None,
        landing: Landing = "late",
    ) -> dict[str, np.ndarray]:
        """The outputs by name, from the program for these inputs. Raises ElkError as `select` and
        `Program.run` do."""
        program = self.select({name: np.shape(array) for name, array in inputs.items()})
        return program.run(inputs, random_weights=random_weights, landing=landing)

    def __call__(self, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        """`run` with the inputs as keywords."""
        return self.run(inputs)

    def save(self, folder: Path | str) -> Path:
        """Write each program into a folder of its own inside `folder`, as `Program.save` does, and
        `report.json` beside them; returns the folder. Raises ElkError when it cannot be written."""
        folder = Path(folder)
        for member in self.members:
            member.program.save(folder / member.folder)
        return write_files(folder, {REPORT_FILE: report_text(self.report)})


def compile_set(model: Model, *, dims: Sequence[Mapping[str, int]], **options: Any) -> ProgramSet:
    """Compile a model for several bindings of its dimensions. Exported as `elk_ir.compile_set`.

    `options` are those of `elk_ir.compile`. Raises ElkError as it does, and UsageError for no
    bindings, for two that are equal, or for programs that take inputs of the same shapes.
    """
    started = time.process_time()
    if not dims:
        raise UsageError("there are no bindings to compile for")
    if isinstance(model, ModuleOp):
        raise UsageError("the shapes of IR are static: there are no dimensions to bind")
    if not isinstance(model, str | Path | bytes):
        model = model.SerializeToString()  # once: the programs share these bytes
    members: list[Member] = []
    for binding in dims:
        program = compile_model(model, dims=binding, **options)
        twin = next((m for m in members if _inputs(m.program) == _inputs(program)), None)
        if twin is not None:
            raise UsageError(
                f"{_label(binding)} and {_label(twin.dims)} make programs for the same inputs"
            )
        members.append(Member(dict(binding), program, _folder(binding, members)))
    first = members[0].program.report
    report = {key: first[key] for key in _OF_ALL}
    report["programs"] = [
        {
            "dims": dict(sorted(m.dims.items())),
            "folder": m.folder,
            **{k: v for k, v in m.program.report.items() if k not in _LEFT_OUT},
        }
        for m in members
    ]
    report["compile_cpu_s"] = time.process_time() - started
    return ProgramSet(members, report)


def load_set(folder: Path | str, *, weights_dir: Path | str | None = None) -> ProgramSet:
    """The programs that `ProgramSet.save` wrote into `folder`. Exported as `elk_ir.load_set`.

    weights_dir: the folder of the model, if it is no longer where it was. Raises ElkError when a
    file is missing or damaged, and for a folder that holds one program.
    """
    folder = Path(folder)
    report = read_report(folder / REPORT_FILE)
    if "programs" not in report:
        raise ElkError("this folder holds one program", where=str(folder), hint="use elk_ir.load")
    try:
        entries = [
            ({str(k): int(v) for k, v in e["dims"].items()}, str(e["folder"]))
            for e in report["programs"]
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ElkError(
            f"this is no report of compiled programs ({type(error).__name__}: {error})",
            where=str(folder / REPORT_FILE),
        ) from None
    return ProgramSet(
        [
            Member(dims, load(folder / name, weights_dir=weights_dir), name)
            for dims, name in entries
        ],
        report,
    )


def is_set(folder: Path | str) -> bool:
    """Whether a folder holds several programs. Raises ElkError for one that holds none."""
    return "programs" in read_report(Path(folder) / REPORT_FILE)


def _inputs(program: Program) -> dict[str, tuple[int, ...]]:
    return {s.name: s.shape for s in program.signature.inputs}


def _shape(program: Program, name: str) -> tuple[int, ...] | None:
    return _inputs(program).get(name)


def _listed(shapes: Mapping[str, Sequence[int] | None]) -> str:
    return ", ".join(f"{n} {'missing' if s is None else list(s)}" for n, s in shapes.items())


def _label(dims: Mapping[str, int]) -> str:
    return ",".join(f"{name}={value}" for name, value in dims.items()) or "no binding"


def _folder(dims: Mapping[str, int], members: Sequence[Member]) -> str:
    """A folder's name for a binding: names of dimensions may hold anything."""
    stem = re.sub(r"[^A-Za-z0-9_.,=-]", "_", _label(dims)).lstrip(".")
    taken = {m.folder for m in members}
    name, count = stem, 1
    while name in taken:
        name, count = f"{stem}_{count}", count + 1
    return name
