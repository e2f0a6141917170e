"""Milliseconds of CPU time for one evaluation of a model: onnxruntime, ONNX's reference evaluator,
our te level, and the virtual machine.

    python benchmarks/interpreters.py [--chip test-64] [--seconds 0.3] [--csv FILE] [MODEL.onnx ...]

Models without arguments: every one of ../shared/models/tiny, or the bundled ones where that is
missing. Each runs in a process of its own, on one thread, on the inputs of the `.npz` beside it (or
random ones). Each evaluator runs once, and then at least five times and for `--seconds` of CPU
time, from inputs to outputs; the shortest of these runs is kept. So what a session, a prepared
module or a machine works out in its first run is not counted, nor are loading and compiling.
Columns te/ref and vm/te are ratios; the aims are te/ref ≤ 1 (≤ 0.1 for convolutional models) and
vm/te ≤ 20.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parent.parent
COLUMNS = ("onnxruntime", "reference", "te", "vm")


def shortest_ms(run: Callable[[], object], seconds: float) -> float:
    """The least CPU milliseconds of the runs after a first one that fit into a time."""
    run()
    times: list[float] = []
    while len(times) < 5 or sum(times) < seconds:
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times) * 1e3


def inputs_beside(path: Path) -> Path | None:
    """The file with the inputs of a model: of one with open dimensions the first of several."""
    beside = [path.with_suffix(".npz"), *sorted(path.parent.glob(f"{path.stem}_b*.npz"))]
    return next((p for p in beside if p.exists()), None)


def measure(path: Path, chip: str, seconds: float) -> dict[str, object]:
    """Milliseconds by column; None with the reason where one can't evaluate the model."""
    import onnx
    import onnxruntime as ort
    from onnx.reference import ReferenceEvaluator

    from elk_ir.compiler import compile_model
    from elk_ir.errors import ElkError
    from elk_ir.numerics.te_eval import Evaluator
    from elk_ir.numerics.tensors import check_inputs, random_inputs, read_npz

    npz = inputs_beside(path)
    inputs = read_npz(npz, "in/") if npz is not None else {}
    found: dict[str, object] = {"model": path.stem}
    try:
        program = compile_model(
            path,
            chip=chip,
            policy="basic",
            input_shapes={n: a.shape for n, a in inputs.items()},
        )
    except ElkError as error:
        return {**found, "why": str(error).splitlines()[0]}
    specs = program.signature.inputs
    inputs = check_inputs(inputs, specs) if inputs else random_inputs(specs, 0)
    weights = program.weights()
    model = onnx.load(path)
    found["nodes"] = len(model.graph.node)
    found["convolutional"] = sum(n.op_type == "Conv" for n in model.graph.node) > 3
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4

    def session() -> Callable[[], object]:
        made = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return partial(made.run, None, inputs)

    prepare: dict[str, Callable[[], Callable[[], object]]] = {
        "onnxruntime": session,
        "reference": lambda: partial(ReferenceEvaluator(model).run, None, inputs),
        "te": lambda: partial(Evaluator(program.module("te"), load_weight=weights.load), inputs),
        "vm": lambda: partial(program.run, inputs),
    }
    for name, make in prepare.items():
        try:
            found[name] = shortest_ms(make(), seconds)
        except ElkError as error:
            found[name], found["why"] = None, f"{name}: {str(error).splitlines()[0]}"
        except Exception as error:  # what other evaluators raise is a missing cell
            if name in ("te", "vm"):
                raise
            found[name], found["why"] = None, f"{name}: {str(error).splitlines()[0][:80]}"
    return found


def ratio(row: dict[str, object], above: str, below: str) -> float | None:
    """One column over another; None where either is missing."""
    a, b = row.get(above), row.get(below)
    return a / b if isinstance(a, float) and isinstance(b, float) and b else None


def text(row: dict[str, object]) -> str:
    """A line of the table."""
    cells = [f"{row[c]:9.2f}" if isinstance(row.get(c), float) else f"{'–':>9}" for c in COLUMNS]
    for above, below in (("te", "reference"), ("vm", "te")):
        value = ratio(row, above, below)
        cells.append(f"{'–':>7}" if value is None else f"{value:7.2f}")
    return f"{row['model']!s:44} " + " ".join(cells) + f"  {row.get('why', '')}".rstrip()


def main() -> None:
    """Print the table, and how many models keep the aims."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--chip", default="test-64")
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--one", action="store_true", help="measure in this process, print JSON")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.models[0], args.chip, args.seconds)))
        return
    shared = ROOT.parent / "shared" / "models" / "tiny"
    models = args.models or sorted(
        (shared if shared.exists() else ROOT / "tests/models").glob("*.onnx")
    )
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    print(f"{'model':44} " + " ".join(f"{c[:9]:>9}" for c in COLUMNS) + "  te/ref   vm/te")
    rows = []
    for model in models:
        command = [sys.executable, __file__, "--one", str(model)]
        command += ["--chip", args.chip, "--seconds", str(args.seconds)]
        run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if run.returncode:
            raise SystemExit(f"{model.name}: {run.stderr}")
        rows.append(json.loads(run.stdout.splitlines()[-1]))
        print(text(rows[-1]), flush=True)
    for title, above, below, aim, chosen in (
        ("te level against the reference evaluator", "te", "reference", 1.0, rows),
        (
            "… convolutional models",
            "te",
            "reference",
            0.1,
            [r for r in rows if r.get("convolutional")],
        ),
        ("virtual machine against te level", "vm", "te", 20.0, rows),
    ):
        ratios = [x for r in chosen if (x := ratio(r, above, below)) is not None]
        if ratios:
            kept = sum(x <= aim for x in ratios)
            print(f"{title}: at most {max(ratios):.2f}; {kept} of {len(ratios)} within {aim:g}")
    if args.csv is not None:
        with args.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["model", "nodes", "convolutional", *COLUMNS, "why"])
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
