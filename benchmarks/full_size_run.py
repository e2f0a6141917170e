"""Run a full-size model on the virtual chip and in onnxruntime, and compare: time, memory, error.

    python benchmarks/full_size_run.py [MODEL.onnx] [--chip ipu-pod4-hbm] [--folder DIR]

The model's weights do not exist: they are made up (`--random-weights 0`) and written beside a copy
of the graph, so that both sides read the same files; so are the inputs. onnxruntime runs in a
process of its own, afterwards `elk run` in another one, with the same seeds. Nothing is kept in
memory here; the folder needs about 10 GB on disk and is removed unless it was given.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
MODEL = ROOT.parent / "shared" / "models" / "full" / "llama2-13b_L2_b32_s1_kv2048_fp16.onnx"
SEED = 0

ONNXRUNTIME = """
import sys
import numpy as np
import onnxruntime as ort
model, inputs, outputs = sys.argv[1:]
options = ort.SessionOptions()
options.intra_op_num_threads = 2
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
options.enable_cpu_mem_arena = False
session = ort.InferenceSession(model, options)
names = [o.name for o in session.get_outputs()]
with np.load(inputs) as given:
    results = session.run(names, {i.name: given[i.name] for i in session.get_inputs()})
np.savez(outputs, **dict(zip(names, results)))
"""


@dataclass(frozen=True)
class Step:
    """A process that has ended: what it took, and what it printed."""

    name: str
    wall_s: float
    cpu_s: float
    peak_bytes: int
    output: str


def measured(name: str, command: Sequence[str]) -> Step:
    """Run a process to its end. Raises SystemExit if it fails."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wall, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 3):
        raise SystemExit(f"{name} failed with code {done.returncode}:\n{done.stderr[-2000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    # The peak of all processes so far: steps run in the order of their needs.
    return Step(name, wall, cpu, after.ru_maxrss * 1024, done.stdout)


def write_model(model: Path, folder: Path, chip: str) -> None:
    """A copy of the graph with random weights and inputs beside it: those of `elk run` for the same
    seed. Run in a process of its own."""
    import elk_ir
    from elk_ir.dialects import ipu
    from elk_ir.dialects.weight import WeightAttr
    from elk_ir.numerics.tensors import random_inputs, write_npz
    from elk_ir.weight_source import WeightSource

    program = elk_ir.compile(model, chip=chip, policy="basic", simulate=False)
    shutil.copy(model, folder / model.name)
    source = WeightSource(model.parent, random_seed=SEED)
    done: set[str] = set()
    for op in program.target.walk():
        if not isinstance(op, ipu.RemoteOp) or not isinstance(op.value, WeightAttr):
            continue
        ref = op.value.to_ref()
        for part in ref.parts:
            if part.name in done or (model.parent / part.file).is_file():
                continue
            done.add(part.name)
            path = folder / part.file
            path.touch()
            with open(path, "r+b") as stream:
                stream.seek(part.offset)
                source.part(part, ref).tofile(stream)
    write_npz(folder / "inputs.npz", random_inputs(program.signature.inputs, SEED))


def largest_error(got: np.ndarray, wanted: np.ndarray) -> tuple[float, float]:
    """(largest |got - wanted|, largest |wanted|), in pieces."""
    error = scale = 0.0
    step = max(1, (1 << 24) // max(1, got[0].size)) if got.ndim else 1
    for i in range(0, len(got), step):
        a, b = (x[i : i + step].astype(np.float32) for x in (got, wanted))
        error, scale = max(error, float(np.abs(a - b).max())), max(scale, float(np.abs(b).max()))
    return error, scale


def run(model: Path, chip: str, folder: Path) -> bool:
    """Print the table; whether all outputs agree."""
    from elk_ir.numerics.compare import tolerance_of

    here = str(Path(__file__).resolve())
    python, elk = sys.executable, str(Path(sys.executable).parent / "elk")
    copy = folder / model.name
    steps: list[Step] = []
    if not (folder / "inputs.npz").is_file():
        write = [python, here, str(model), "--chip", chip, "--write", str(folder)]
        steps.append(measured("write", write))
    seeds = ["--random-weights", str(SEED), "--random-inputs", str(SEED)]
    out, wanted = folder / "elk.npz", folder / "onnxruntime.npz"
    command = [elk, "run", str(model), "--chip", chip, *seeds, "-o", str(out)]
    steps.append(measured("elk run", command))
    inputs = str(folder / "inputs.npz")
    steps.append(
        measured("onnxruntime", [python, "-c", ONNXRUNTIME, str(copy), inputs, str(wanted)])
    )
    print(f"{'step':14} {'wall s':>8} {'CPU s':>8} {'peak GB so far':>15}")
    for step in steps:
        print(
            f"{step.name:14} {step.wall_s:8.0f} {step.cpu_s:8.0f} {step.peak_bytes / 1e9:15.2f}",
            flush=True,
        )
    agree = True
    print(f"{'output':24} {'max error':>10} {'of max':>10} {'allowed':>10}")
    with np.load(out) as got, np.load(wanted) as expected:
        for name in expected.files:
            a, b = got[name], expected[name]
            error, scale = largest_error(a, b)
            allowed = tolerance_of(a.dtype.name) * scale
            agree = agree and error <= allowed
            print(f"{name:24} {error:10.3g} {scale:10.3g} {allowed:10.3g}", flush=True)
    return agree


def main() -> None:
    """Run it; exit code 3 if the numbers disagree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", type=Path, default=MODEL)
    parser.add_argument("--chip", default="ipu-pod4-hbm")
    parser.add_argument("--folder", type=Path, help="keep the files there, and use those that are")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.model.is_file():
        raise SystemExit(f"no model {args.model.name}")
    if args.write is not None:
        write_model(args.model, args.write, args.chip)
        return
    if args.folder is not None:
        args.folder.mkdir(parents=True, exist_ok=True)
        agree = run(args.model, args.chip, args.folder)
    else:
        with tempfile.TemporaryDirectory() as folder:
            agree = run(args.model, args.chip, Path(folder))
    sys.exit(0 if agree else 3)


if __name__ == "__main__":
    main()
