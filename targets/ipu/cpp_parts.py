"""Parts that codelets share: bodies, epilogues, folds, gathered partials."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from elk_ir.numerics.body import Body
from elk_ir.plan.domain import Phase
from elk_ir.targets.ipu.cpp_body import body_lines
from elk_ir.targets.ipu.cpp_types import convert, cpp_type, load
from elk_ir.targets.ipu.cpp_writer import CodeletWriter

Emit = Callable[[CodeletWriter], None]


def inner_dims(w: CodeletWriter, operands: Sequence[int], outer: Sequence[int]) -> list[int]:
    """Dimensions over which the operands vary besides `outer`."""
    dims = {d for v in operands for d in w.op.operands[v].dims}
    return sorted(dims - set(outer))


def run_body(w: CodeletWriter, body: Body, values: list[str], types: list[str]) -> None:
    """Evaluate a body at the current point and store its results."""
    lines, results, dtypes = body_lines(body, values, types)
    for line in lines:
        w.line(line)
    for r, (value, dtype) in enumerate(zip(results, dtypes, strict=True)):
        w.write(r, convert(value, dtype, w.op.results[r].dtype))


def finish(w: CodeletWriter, value: str, dtype: str) -> None:
    """The reduced value at the current point through the epilogue to the results."""
    body = w.op.param.get("epilogue")
    if body is None:
        w.write(0, convert(value, dtype, w.op.results[0].dtype))
        return
    values, types = [value], [dtype]
    for v, access in enumerate(w.op.operands):
        if access.phase is Phase.APPLY:
            values.append(w.operand(v))
            types.append(access.dtype)
    run_body(w, body, values, types)


def result_points(w: CodeletWriter) -> list[int]:
    """The dimensions of the results."""
    return sorted(w.op.result_dims)


def stat_value(w: CodeletWriter, i: int) -> str:
    """Statistic i at the current point, as a value."""
    return load(w.stat(i), w.op.stats[i].dtype)


def apply_epilogue(w: CodeletWriter) -> None:
    """Results from the only statistic and the epilogue."""
    with w.points(result_points(w)):
        finish(w, stat_value(w, 0), w.op.stats[0].dtype)


def fold(combiner: str, left: str, right: str, dtype: str) -> str:
    """Two values combined by a reduction."""
    text = {
        "sum": f"{left} + {right}",
        "add": f"{left} + {right}",
        "prod": f"{left} * {right}",
        "mul": f"{left} * {right}",
        "max": f"elk::maximum({left}, {right})",
        "min": f"elk::minimum({left}, {right})",
    }[combiner]
    kind = cpp_type(dtype).value
    return text if kind in ("float", "int", "long long") else f"static_cast<{kind}>({text})"


def gathered(w: CodeletWriter, i: int, way: str) -> str:
    """Partial `way` of statistic i at the current point."""
    stat = w.op.stats[i]
    w.edge("Input", f"g{i}", stat.dtype)
    sizes = " * ".join(w.size(d) for d in stat.dims if w.extent(d) > 1) or "1"
    index = w.stat_index(i)
    if way == "0":
        text = index
    else:
        text = f"{way} * {sizes}" + ("" if index == "0" else f" + {index}")
    return load(f"g{i}[{text}]", stat.dtype)
