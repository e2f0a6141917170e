"""Codelets of products, reductions, maps, softmax, norms and attention."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from elk_ir.errors import ElkError
from elk_ir.plan.domain import Phase
from elk_ir.targets.ipu.cpp_parts import (
    finish,
    fold,
    gathered,
    inner_dims,
    result_points,
    run_body,
)
from elk_ir.targets.ipu.cpp_types import convert, cpp_type, literal, load, stored
from elk_ir.targets.ipu.cpp_writer import CodeletWriter


def contract_local(w: CodeletWriter) -> None:
    """Sum of products."""
    op, stat = w.op, w.op.stats[0]
    factors = [v for v, a in enumerate(op.operands) if a.phase is Phase.LOCAL]
    with w.points(stat.dims):
        w.line(f"{cpp_type(stat.dtype).value} sum = 0;")
        with w.loops(inner_dims(w, factors, stat.dims)):
            parts = [convert(w.operand(v), op.operands[v].dtype, stat.dtype) for v in factors]
            if (zeros := op.param.get("zeros")) is not None:
                parts = [f"({p} - {z})" for p, z in zip(parts, zeros, strict=True)]
            w.line(f"sum += {' * '.join(parts)};")
        w.line(f"{w.stat(0, 'InOut')} += sum;")


def reduce_local(w: CodeletWriter) -> None:
    """One operand combined over the reduction dimensions."""
    op, stat = w.op, w.op.stats[0]
    with w.points(stat.dims):
        kind = cpp_type(stat.dtype).value
        target = w.stat(0, "InOut")
        w.line(f"{kind} acc = {load(target, stat.dtype)};")
        with w.loops(inner_dims(w, [0], stat.dims)):
            value = convert(w.operand(0), op.operands[0].dtype, stat.dtype)
            w.line(f"acc = {fold(op.param['combiner'], 'acc', value, stat.dtype)};")
        w.line(f"{target} = {stored('acc', stat.dtype)};")


def map_apply(w: CodeletWriter) -> None:
    """A scalar body at every point."""
    with w.points(result_points(w)):
        values = [w.operand(v) for v in range(len(w.op.operands))]
        run_body(w, w.op.param["body"], values, [a.dtype for a in w.op.operands])


def concat_apply(w: CodeletWriter) -> None:
    """Operands one after another along a dimension."""
    op, d = w.op, w.op.param["dim"]
    result = op.results[0]
    with w.points(range(len(op.dims))):
        starts = [
            -next(a.offset for a in access.axes if any(t == d for t, _ in a.terms))
            for access in op.operands
        ]
        text = ""
        for v in range(len(op.operands)):
            value = convert(w.operand(v), op.operands[v].dtype, result.dtype)
            kind = cpp_type(result.dtype).value
            test = f"{w.position(d)} >= {starts[v]}"
            text = value if not text else f"{test} ? {value} : {text}"
            w.line(f"const {kind} from{v} = {text};")
            text = f"from{v}"
        w.write(0, text)


# ---------------------------------------------------------------------- softmax, norms, attention


def _float_only(w: CodeletWriter) -> None:
    for stat in w.op.stats:
        if stat.dtype != "float32":
            raise ElkError(f"{w.op.kind} in {stat.dtype} has no codelet: Poplar's tiles lack it")


def softmax_local(w: CodeletWriter) -> None:
    """Running maximum and sum of exponentials."""
    _float_only(w)
    op, stat = w.op, w.op.stats[0]
    with w.points(stat.dims):
        top, total = w.stat(0, "InOut"), w.stat(1, "InOut")
        dims = inner_dims(w, [0], stat.dims)
        value = convert(w.operand(0), op.operands[0].dtype, stat.dtype)
        w.line(f"float top = {top};")
        with w.loops(dims):
            w.line(f"top = elk::maximum(top, {value});")
        w.line(f"float total = {total} * elk::rescale({top}, top);")
        with w.loops(dims):
            w.line(f"total += elk::rescale({value}, top);")
        w.line(f"{top} = top;")
        w.line(f"{total} = total;")


def softmax_apply(w: CodeletWriter) -> None:
    """exp(x - max) / sum, or its logarithm."""
    op, stat = w.op, w.op.stats[0]
    with w.points(sorted(op.operands[0].dims)):
        value = convert(w.operand(0), op.operands[0].dtype, stat.dtype)
        top, total = w.stat(0), w.stat(1)
        if op.param.get("log"):
            text = f"{value} - {top} - std::log({total})"
        else:
            text = f"std::exp({value} - {top}) / {total}"
        w.write(0, convert(f"({text})", stat.dtype, op.results[0].dtype))


def _merge_moments(w: CodeletWriter, right: Sequence[str]) -> None:
    """Count, mean and squares joined with those of another part, by Chan's formula."""
    count, mean, squares = right
    w.line(f"const float both = count + {count};")
    w.line("const float safe = elk::maximum(both, 1.0f);")
    w.line(f"const float delta = {mean} - mean;")
    w.line(f"squares += {squares} + delta * delta * count * {count} / safe;")
    w.line(f"mean += delta * {count} / safe;")
    w.line("count = both;")


_MOMENTS = ("count", "mean", "squares")


def normalize_local(w: CodeletWriter) -> None:
    """Count, mean and sum of squared deviations; for RMS the sum of squares alone."""
    _float_only(w)
    op, stat = w.op, w.op.stats[0]
    with w.points(stat.dims):
        if op.param["form"] == "rms":
            dims = inner_dims(w, [0], stat.dims)
            w.line(f"float squares = {w.stat(0, 'InOut')};")
            with w.loops(dims):
                w.line(
                    f"const float x = {convert(w.operand(0), op.operands[0].dtype, stat.dtype)};"
                )
                w.line("squares += x * x;")
            w.line(f"{w.stat(0, 'InOut')} = squares;")
            return
        for i, name in enumerate(_MOMENTS):
            w.line(f"float {name} = {w.stat(i, 'InOut')};")
        dims = inner_dims(w, [0], stat.dims)
        value = convert(w.operand(0), op.operands[0].dtype, stat.dtype)
        number = " * ".join(w.count(d) for d in dims if w.extent(d) > 1) or "1"
        w.line(f"const float own = static_cast<float>({number});")
        w.line("float center = 0;")
        with w.loops(dims):
            w.line(f"center += {value};")
        w.line("center /= elk::maximum(own, 1.0f);")
        w.line("float around = 0;")
        with w.loops(dims):
            w.line(f"const float x = {value} - center;")
            w.line("around += x * x;")
        _merge_moments(w, ("own", "center", "around"))
        for i, name in enumerate(_MOMENTS):
            w.line(f"{w.stat(i, 'InOut')} = {name};")


def normalize_combine(w: CodeletWriter) -> None:
    """Moments of disjoint parts joined in order."""
    with w.points(w.op.stats[0].dims):
        if w.op.param["form"] == "rms":
            w.line(f"float squares = {gathered(w, 0, '0')};")
            with w.scope("for (int r = 1; r < ways; ++r)"):
                w.line(f"squares += {gathered(w, 0, 'r')};")
            w.line(f"{w.stat(0, 'Output')} = squares;")
            return
        for i, name in enumerate(_MOMENTS):
            w.line(f"float {name} = {gathered(w, i, '0')};")
        with w.scope("for (int r = 1; r < ways; ++r)"):
            _merge_moments(w, [gathered(w, i, "r") for i in range(3)])
        for i, name in enumerate(_MOMENTS):
            w.line(f"{w.stat(i, 'Output')} = {name};")


def normalize_apply(w: CodeletWriter) -> None:
    """(x - mean) / sqrt(variance + epsilon), then scale and bias."""
    op, stat = w.op, w.op.stats[0]
    with w.points(sorted(op.operands[0].dims)):
        value = convert(w.operand(0), op.operands[0].dtype, stat.dtype)
        epsilon = literal(op.param["epsilon"], stat.dtype)
        if op.param["form"] == "rms":
            count = literal(float(prod(op.extents[d] for d in op.reductions)), stat.dtype)
            w.line(f"const float variance = {w.stat(0)} / {count};")
            centered = value
        else:
            count, mean, squares = (w.stat(i) for i in range(3))
            w.line(f"const float variance = {squares} / elk::maximum({count}, 1.0f);")
            centered = f"({value} - {mean})"
        w.line(f"const float scale = 1 / std::sqrt(variance + {epsilon});")
        w.line(f"float x = {centered} * scale;")
        # numpy computes in the type that the rounded value and the operand promote to.
        now = stat.dtype
        if (round_to := op.param.get("round_to")) is not None:
            w.line(f"x = {convert('x', now, round_to)};")
            now = round_to
        for v in range(1, len(op.operands)):
            sign = "*" if op.param["affine"][v - 1] == "scale" else "+"
            text = f"(x {sign} {w.operand(v)})"
            now = now if op.operands[v].dtype == now else "float32"
            w.line(f"x = {convert(text, 'float32', now)};")
        w.write(0, convert("x", now, op.results[0].dtype))


def attention_local(w: CodeletWriter) -> None:
    """Scores against each key, and the running maximum, sum and weighted values."""
    _float_only(w)
    op = w.op
    operands = list(op.operands)
    rows, out = op.stats[0], op.stats[2]
    (kv,) = op.reductions
    scored = {*rows.dims, kv}
    head = sorted((operands[0].dims | operands[1].dims) - scored)
    extra = [d for d in out.dims if d not in rows.dims]
    if operands[2].dims - {*out.dims, kv} or not set(out.dims) >= set(rows.dims):
        raise ElkError("no codelet for an attention whose values have dimensions of their own")
    with w.points(rows.dims):
        w.line(f"elk::LogSum sum{{{w.stat(0, 'InOut')}, {w.stat(1, 'InOut')}, 1, 0}};")
        with w.loops([kv]):
            w.line("float score = 0;")
            with w.loops(head):
                q, k = (convert(w.operand(v), operands[v].dtype, "float32") for v in (0, 1))
                w.line(f"score += {q} * {k};")
            w.line(f"score *= {literal(op.param['scale'], 'float32')};")
            if (cap := op.param.get("softcap")) is not None:
                limit = literal(cap, "float32")
                w.line(f"score = std::tanh(score / {limit}) * {limit};")
            if len(operands) > 3:
                mask = w.operand(3)
                if operands[3].dtype == "bool":
                    w.line(f"score = {mask} ? score : -INFINITY;")
                else:
                    w.line(f"score += {convert(mask, operands[3].dtype, 'float32')};")
            w.line("sum.add(score);")
            with w.loops(extra):
                value = convert(w.operand(2), operands[2].dtype, "float32")
                target = w.stat(2, "InOut")
                w.line(f"{target} = {target} * sum.old + sum.weight * {value};")
        w.line(f"{w.stat(0, 'InOut')} = sum.top;")
        w.line(f"{w.stat(1, 'InOut')} = sum.total;")


def log_sum_combine(w: CodeletWriter) -> None:
    """Partial maxima, sums and weighted values merged by their log-sum-exp."""
    op = w.op
    rows = op.stats[0].dims
    extra = [d for d in op.stats[2].dims if d not in rows] if len(op.stats) > 2 else []
    with w.points(rows):
        w.line(f"elk::LogSum sum{{{gathered(w, 0, '0')}, {gathered(w, 1, '0')}, 1, 0}};")
        if len(op.stats) > 2:
            with w.loops(extra):
                w.line(f"{w.stat(2, 'InOut')} = {gathered(w, 2, '0')};")
        with w.scope("for (int r = 1; r < ways; ++r)"):
            w.line(f"sum.add({gathered(w, 0, 'r')}, {gathered(w, 1, 'r')});")
            if len(op.stats) > 2:
                with w.loops(extra):
                    target = w.stat(2, "InOut")
                    value = f"{gathered(w, 2, 'r')} * sum.weight"
                    w.line(f"{target} = {target} * sum.old + {value};")
        w.line(f"{w.stat(0, 'Output')} = sum.top;")
        w.line(f"{w.stat(1, 'Output')} = sum.total;")


def attention_apply(w: CodeletWriter) -> None:
    """Weighted values divided by the sum of the weights; zero for a row without any."""
    with w.points(result_points(w)):
        total = w.stat(1)
        w.line(f"const float out = {total} == 0 ? 0.0f : {w.stat(2)} / {total};")
        finish(w, "out", "float32")


def fold_combine(w: CodeletWriter) -> None:
    """Partials of one statistic folded in order."""
    op, stat = w.op, w.op.stats[0]
    combiner = "sum" if op.kind == "contract" else op.param["combiner"]
    with w.points(stat.dims):
        w.line(f"{cpp_type(stat.dtype).value} acc = {gathered(w, 0, '0')};")
        with w.scope("for (int r = 1; r < ways; ++r)"):
            w.line(f"acc = {fold(combiner, 'acc', gathered(w, 0, 'r'), stat.dtype)};")
        w.line(f"{w.stat(0, 'Output')} = {stored('acc', stat.dtype)};")
