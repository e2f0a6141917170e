"""`elk run DIR|MODEL.onnx --inputs in.npz [--expect out.npz]`: numbers from the virtual chip."""

from __future__ import annotations

import argparse
import sys
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elk_ir.errors import UsageError
from elk_ir.tools.elk_options import (
    add_compile_flags,
    add_host_flag,
    add_input_flags,
    add_json_flag,
    add_quantize_flags,
    dims_of,
    given_inputs,
    host_lines,
    inputs_for,
    mapping_of,
    print_json,
    program_from_args,
    progress,
    quantization_of,
    short,
    table,
)

if TYPE_CHECKING:
    import numpy as np

    from elk_ir.numerics.compare import OutputError
    from elk_ir.program import Program

DISAGREE = 3


def add_parser(subparsers: Any) -> None:
    """Adds the command to what `ArgumentParser.add_subparsers()` returned."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "run",
        help="run a model on the virtual chip",
        description="Runs a compiled program (a folder), or compiles a model and runs it, on a"
        " virtual chip that owns every core's memory byte by byte. With --expect the outputs are"
        " compared, and the exit code is 3 if they disagree.",
    )
    parser.add_argument("model", metavar="DIR|MODEL.onnx")
    parser.add_argument("-o", "--output", metavar="OUT.npz", help="write the outputs, by name")
    add_input_flags(parser)
    parser.add_argument(
        "--expect", metavar="OUT.npz", help="expected outputs (plain names, or the prefix out/)"
    )
    parser.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help="decode N tokens greedily: tokens, positions and state are fed back; the outputs are"
        " `tokens` (batch, N) and `logits` (N, …)",
    )
    add_compile_flags(parser, chip_required=False)
    add_quantize_flags(parser)
    add_host_flag(parser)
    add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Runs, compares, writes. Raises ElkError for wrong inputs and what can't be compiled."""
    from elk_ir.numerics.tensors import read_npz, write_npz

    if args.steps is not None:
        return run_steps(args)
    given = given_inputs(args)
    expected = None if args.expect is None else read_npz(args.expect, "out/")
    with progress() as say:
        program = program_from_args(args, say, given)
        inputs = inputs_for(program.signature, given, args)
        say("running on the virtual chip")
        outputs = program.run(inputs, random_weights=args.random_weights)
        if args.output is not None:
            write_npz(args.output, outputs)
    return _finish(args, program, outputs, expected)


def run_steps(args: argparse.Namespace) -> int:
    """`--steps N`: decode, print the tokens. Raises ElkError."""
    import numpy as np

    from elk_ir.decode import compile_decoder
    from elk_ir.numerics.tensors import read_npz, write_npz

    if args.steps < 1:
        raise UsageError("--steps takes a number from 1")
    if args.inputs is None or Path(args.model).is_dir():
        raise UsageError("--steps takes a model and --inputs: the state and token to start from")
    if args.chip is None:
        raise UsageError("--chip is needed to compile a model", hint="`elk chips` lists them")
    expected = None if args.expect is None else read_npz(args.expect, "out/")
    inputs = read_npz(args.inputs, "in/")
    with progress() as say:
        decoder = compile_decoder(
            args.model,
            chip=args.chip,
            inputs=inputs,
            steps=args.steps,
            kv_capacity=args.kv_capacity,
            random_weights=args.random_weights,
            progress=say,
            policy=args.policy,
            attention_chunks=args.attention_chunks,
            floats=args.floats,
            target=args.target,
            mapping=mapping_of(args),
            quantize=quantization_of(args),
            dims=dims_of(args),
        )
        tokens: list[np.ndarray] = []
        logits: list[np.ndarray] = []
        for step in range(args.steps):
            say(f"decoding token {step + 1} of {args.steps}")
            logits.append(decoder.step()[decoder.roles.logits].copy())
            tokens.append(decoder.tokens.copy())
    outputs = {"tokens": np.stack(tokens, axis=1), "logits": np.stack(logits)}
    if args.output is not None:
        write_npz(args.output, outputs)
    if not args.json:
        for user, row in enumerate(outputs["tokens"]):
            print(f"sequence {user}: {' '.join(map(str, row))}")
    if expected is not None:
        expected = {name: expected[name] for name in outputs if name in expected} or expected
    return _finish(args, decoder.program, outputs, expected)


def _finish(
    args: argparse.Namespace,
    program: Program,
    outputs: dict[str, np.ndarray],
    expected: dict[str, np.ndarray] | None,
) -> int:
    """Compare with what is expected, print, and say by the exit code whether they agree."""
    from elk_ir.numerics.compare import compare_outputs

    errors = None
    if expected is not None:
        errors = compare_outputs(outputs, expected, precision=program.precision, where=args.expect)
    agree = errors is None or all(e.ok for e in errors)
    if args.json:
        print_json(_json(program, outputs, errors))
    else:
        sys.stdout.write(_text(program, outputs, errors))
    if not agree:
        print("elk: the numbers disagree", file=sys.stderr)
    return 0 if agree else DISAGREE


def _json(
    program: Program, outputs: dict[str, np.ndarray], errors: list[OutputError] | None
) -> dict[str, Any]:
    result = {**program.report}
    result["outputs"] = [
        {"name": name, "dtype": value.dtype.name, "shape": list(value.shape)}
        for name, value in outputs.items()
    ]
    if errors is not None:
        worst = max(e.max_abs_error for e in errors)
        result["max_abs_error"] = worst if isfinite(worst) else None
        result["agree"] = all(e.ok for e in errors)
        result["outputs"] = [e.to_json() for e in errors]
    return result


def _text(
    program: Program, outputs: dict[str, np.ndarray], errors: list[OutputError] | None
) -> str:
    report = program.report
    head = (
        f"{report['model']} on {report['chip']} ({report['target']}),"
        f" scheduled by policy {report['policy']}\n"
        + "".join(f"{line}\n" for line in host_lines(report))
    )
    if errors is None:
        rows = [
            (short(name), value.dtype.name, "x".join(map(str, value.shape)), *_range(value))
            for name, value in outputs.items()
        ]
        return head + table(("output", "type", "shape", "min", "max"), rows) + "\n"
    rows = [
        (
            short(e.name),
            e.dtype,
            "x".join(map(str, e.shape)),
            e.max_abs_error,
            e.allowed,
            "ok" if e.ok else "DISAGREES",
        )
        for e in errors
    ]
    columns = ("output", "type", "shape", "max_abs_error", "allowed", "")
    return head + table(columns, rows) + "\n"


def _range(value: np.ndarray) -> tuple[float, float]:
    if not value.size:
        return 0.0, 0.0
    wide = value.astype("float64")
    return float(wide.min()), float(wide.max())
