"""`make demo`: compile the bundled Llama decode graph, run it, and show what came out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

MODEL = "llama2_decode_static_dynamo"
CHIP = "test-64"


def main(argv: Sequence[str] | None = None) -> int:
    """Compile, run, compare and print; the exit code is that of `elk run --expect`.

    The optional argument is the folder that holds the bundled models.
    """
    from elk_ir.compiler import compile_model
    from elk_ir.errors import ElkError
    from elk_ir.numerics.compare import compare_outputs
    from elk_ir.numerics.tensors import read_npz
    from elk_ir.tools.elk import render
    from elk_ir.tools.elk_options import progress, short, summary, table

    given = sys.argv[1:] if argv is None else list(argv)
    folder = Path(given[0]) if given else bundled_models()
    model, data = folder / f"{MODEL}.onnx", folder / f"{MODEL}.npz"
    try:
        with progress() as say:
            program = compile_model(model, chip=CHIP, progress=say)
            say("running on the virtual chip")
            outputs = program.run(read_npz(data, "in/"))
        errors = compare_outputs(outputs, read_npz(data, "out/"), precision=program.precision)
    except ElkError as error:
        print(render(error), file=sys.stderr)
        return error.exit_code
    report = program.report
    rows = [
        (
            short(operator["name"], 36),
            operator["kind"],
            operator["count"],
            " ".join(f"{name}={factor}" for name, factor in operator["grid"].items()),
            operator["cores"],
            operator["sram_bytes"],
        )
        for operator in report["operators"]
    ]
    print(summary(report))
    print()
    print(table(("operator", "kind", "runs", "grid", "cores", "SRAM bytes a core"), rows))
    print()
    print(f"lower_bound_s  {report['lower_bound_s']:.4g}")
    print(
        f"max_abs_error  {max(e.max_abs_error for e in errors):.3g} against the exporter's outputs"
    )
    agree = all(e.ok for e in errors)
    print("the numbers agree" if agree else "the numbers DISAGREE")
    return 0 if agree else 3


def bundled_models() -> Path:
    """The folder of the graphs that come with a checkout."""
    return Path(__file__).resolve().parents[1] / "tests" / "models"


if __name__ == "__main__":
    sys.exit(main())
