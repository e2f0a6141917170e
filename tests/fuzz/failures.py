"""Writes a failing case as files that `elk verify` replays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from fuzz.chips import to_toml
from fuzz.runner import Case, Defect


def write(defect: Defect, folder: Path) -> str:
    """The case's model, inputs and chip, and `command.txt`; returns the command, to be given in
    `folder`."""
    case = defect.case
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(case.model, str):
        name = "model.mlir"
        (folder / name).write_text(case.model, encoding="utf-8")
    else:
        name = "model.onnx"
        onnx.save(case.model, folder / name)
    plain = {n: a.astype(np.float32) if a.dtype.kind == "V" else a for n, a in case.inputs.items()}
    with open(folder / "inputs.npz", "wb") as stream:
        np.savez(stream, allow_pickle=False, **plain)
    (folder / "chip.toml").write_text(to_toml(case.chip), encoding="utf-8")
    line = command(case, name)
    text = f"{defect.what}\n\n{line}\n"
    (folder / "command.txt").write_text(text, encoding="utf-8")
    return line


def command(case: Case, model: str) -> str:
    """The command line that replays a case from its files."""
    base = f"elk verify {model} --chip chip.toml --inputs inputs.npz"
    if case.policy is not None:
        base += f" --policy {case.policy}"
    if not case.plans:
        return base
    return f"{base} --before-schedule '{'' if case.plans == 'none' else case.plans}'"
