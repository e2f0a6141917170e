"""Codelets that compute with indices: gather, scatter, arg-reductions, scans, top-k."""

from __future__ import annotations

from elk_ir.numerics.body import is_float
from elk_ir.targets.ipu.cpp_parts import fold, gathered
from elk_ir.targets.ipu.cpp_types import convert, cpp_type, literal, load, stored
from elk_ir.targets.ipu.cpp_writer import CodeletWriter

# ---------------------------------------------------------------------- gather


def gather_local(w: CodeletWriter) -> None:
    """The rows of this vertex's part of the table that the indices name; others stay."""
    op, stat = w.op, w.op.stats[0]
    rows = op.reductions[0]
    with w.points(stat.dims):
        w.line(f"const long long index = {w.operand(1)};")
        first = "" if w.extent(rows) == 1 else f" - o{rows}"
        w.line(f"const long long row = (index < 0 ? index + {w.extent(rows)} : index){first};")
        with w.scope(f"if (row >= 0 && row < {w.count(rows)})"):
            w.line("const int at = static_cast<int>(row);")
            where = "0" if w.extent(rows) == 1 else "at"
            value = w.operand(0, {rows: where}, checked=False)
            w.line(f"{w.stat(0, 'InOut')} = {stored(value, stat.dtype)};")


def gather_combine(w: CodeletWriter) -> None:
    """The first partial that is not zero."""
    stat = w.op.stats[0]
    with w.points(stat.dims):
        w.line(f"{cpp_type(stat.dtype).value} acc = {gathered(w, 0, '0')};")
        with w.scope("for (int r = 1; r < ways; ++r)"):
            w.line(f"if (acc == 0) acc = {gathered(w, 0, 'r')};")
        w.line(f"{w.stat(0, 'Output')} = {stored('acc', stat.dtype)};")


# ---------------------------------------------------------------------- scatter


def scatter_local(w: CodeletWriter) -> None:
    """Updates written into this vertex's rows, or combined with them; the last writer wins."""
    w.workers = False  # two updates may name one row
    op, rows = w.op, w.op.param["rows"]
    extent = w.extent(rows)
    with w.loops(sorted(op.operands[1].dims | op.operands[2].dims)):
        w.line(f"const long long index = {w.operand(1)};")
        first = "" if extent == 1 else f" - o{rows}"
        w.line(f"const long long row = (index < 0 ? index + {extent} : index){first};")
        legal = f"index >= -{extent} && index < {extent}"
        with w.scope(f"if ({legal} && row >= 0 && row < {w.count(rows)})"):
            w.line("const int at = static_cast<int>(row);")
            _scatter_one(w, {rows: "0" if extent == 1 else "at"})


def _scatter_one(w: CodeletWriter, where: dict[int, str]) -> None:
    """One update to the row at `where`."""
    op, stat = w.op, w.op.stats[0]
    value = convert(w.operand(2), op.operands[2].dtype, stat.dtype)
    target = w.stat(0, "InOut", where)
    if len(op.stats) == 1:
        text = fold(op.param["combiner"], load(target, stat.dtype), value, stat.dtype)
        w.line(f"{target} = {stored(text, stat.dtype)};")
        return
    order = "0"
    for d in sorted(op.operands[1].dims | op.operands[2].dims):
        if d in op.reductions:
            lead = "" if order == "0" else f"({order}) * {w.extent(d)} + "
            order = lead + w.position(d)
    writer = w.stat(1, "InOut", where)
    w.line(f"const long long order = {order};")
    with w.scope(f"if (order >= {writer})"):
        w.line(f"{target} = {stored(value, stat.dtype)};")
        w.line(f"{writer} = order;")


def scatter_combine(w: CodeletWriter) -> None:
    """Partials combined, or the one of the last writer."""
    op, stat = w.op, w.op.stats[0]
    with w.points(stat.dims):
        kind = cpp_type(stat.dtype).value
        w.line(f"{kind} acc = {gathered(w, 0, '0')};")
        if len(op.stats) > 1:
            w.line(f"long long order = {gathered(w, 1, '0')};")
        with w.scope("for (int r = 1; r < ways; ++r)"):
            right = gathered(w, 0, "r")
            if len(op.stats) == 1:
                w.line(f"acc = {fold(op.param['combiner'], 'acc', right, stat.dtype)};")
            else:
                later = gathered(w, 1, "r")
                with w.scope(f"if ({later} > order)"):
                    w.line(f"acc = {right};")
                    w.line(f"order = {later};")
        w.line(f"{w.stat(0, 'Output')} = {stored('acc', stat.dtype)};")
        if len(op.stats) > 1:
            w.line(f"{w.stat(1, 'Output')} = order;")


def scatter_apply(w: CodeletWriter) -> None:
    """The updates over the data."""
    op, stat, result = w.op, w.op.stats[0], w.op.results[0]
    with w.points(stat.dims):
        data = convert(w.operand(0), op.operands[0].dtype, stat.dtype)
        value = load(w.stat(0), stat.dtype)
        if len(op.stats) == 1:
            text = fold(op.param["combiner"], data, value, stat.dtype)
        else:
            text = f"{w.stat(1)} >= 0 ? {value} : {data}"
        w.line(f"const {cpp_type(stat.dtype).value} out = {text};")
        w.write(0, convert("out", stat.dtype, result.dtype))


# ---------------------------------------------------------------------- arg-reductions


def _take(w: CodeletWriter, value: str, position: str) -> None:
    """Replace (best, where) by a candidate that is better, or equal and in front."""
    best = w.op.stats[0]
    sign = ">" if w.op.param["largest"] else "<"
    better, worse = f"{value} {sign} best", f"best {sign} {value}"
    if is_float(best.dtype):
        better = f"({better} || ({value} != {value} && best == best))"
        worse = f"({worse} || (best != best && {value} == {value}))"
    ahead = f"{position} {'>' if w.op.param['last'] else '<'} where"
    w.line(
        f"if (where < 0 || ({position} >= 0 && ({better} || (!({worse}) && {ahead}))))"
        f" best = {value}, where = {position};"
    )


def argreduce_local(w: CodeletWriter) -> None:
    """The best element so far and where it is."""
    op, best = w.op, w.op.stats[0]
    (d,) = op.reductions
    with w.points(best.dims):
        w.line(f"{cpp_type(best.dtype).value} best = {load(w.stat(0, 'InOut'), best.dtype)};")
        w.line(f"long long where = {w.stat(1, 'InOut')};")
        with w.loops([d]):
            value = convert(w.operand(0), op.operands[0].dtype, best.dtype)
            w.line(f"const {cpp_type(best.dtype).value} x = {value};")
            w.line(f"const long long at = {w.position(d)};")
            _take(w, "x", "at")
        w.line(f"{w.stat(0, 'InOut')} = {stored('best', best.dtype)};")
        w.line(f"{w.stat(1, 'InOut')} = where;")


def argreduce_combine(w: CodeletWriter) -> None:
    """The best of the partials."""
    best = w.op.stats[0]
    kind = cpp_type(best.dtype).value
    with w.points(best.dims):
        w.line(f"{kind} best = {gathered(w, 0, '0')};")
        w.line(f"long long where = {gathered(w, 1, '0')};")
        with w.scope("for (int r = 1; r < ways; ++r)"):
            w.line(f"const {kind} x = {gathered(w, 0, 'r')};")
            w.line(f"const long long at = {gathered(w, 1, 'r')};")
            _take(w, "x", "at")
        w.line(f"{w.stat(0, 'Output')} = {stored('best', best.dtype)};")
        w.line(f"{w.stat(1, 'Output')} = where;")


def argreduce_apply(w: CodeletWriter) -> None:
    """Where the best element is."""
    result, stat = w.op.results[0], w.op.stats[1]
    with w.points(stat.dims):
        w.write(0, convert(w.stat(1), stat.dtype, result.dtype))


# ---------------------------------------------------------------------- scan, top-k


def scan_apply(w: CodeletWriter) -> None:
    """Running sums or products along one dimension."""
    op, dtype, d = w.op, w.op.param["dtype"], w.op.param["n"]
    result = op.results[0]
    product = op.param["combiner"] == "prod"
    with w.points([e for e in sorted(result.dims) if e != d]):
        w.line(f"{cpp_type(dtype).value} acc = {literal(1 if product else 0, dtype)};")
        with w.scope(f"for (int j = 0; j < {w.count(d)}; ++j)"):
            w.line(f"const int i{d} = {f'{w.count(d)} - 1 - j' if op.param['reverse'] else 'j'};")
            value = convert(w.operand(0), op.operands[0].dtype, dtype)
            if op.param["exclusive"]:
                w.write(0, convert("acc", dtype, result.dtype))
            w.line(f"acc = {fold('prod' if product else 'sum', 'acc', value, dtype)};")
            if not op.param["exclusive"]:
                w.write(0, convert("acc", dtype, result.dtype))


def topk_apply(w: CodeletWriter) -> None:
    """The k largest (or smallest) elements in order: of those behind the last one taken, the best;
    equal elements in the order of their indices."""
    op, n, k = w.op, w.op.param["n"], w.op.param["k"]
    access = op.operands[0]
    kind = cpp_type(access.dtype).value
    nan = is_float(access.dtype)

    # NaN sorts behind everything, as in numpy: it is the largest.
    def above(a: str, b: str) -> str:
        test = f"{a} > {b}"
        return f"({test} || ({a} != {a} && {b} == {b}))" if nan else f"{test}"

    first = (lambda a, b: above(a, b)) if op.param["largest"] else (lambda a, b: above(b, a))
    with w.points(sorted(access.dims - {n})):
        w.line(f"{kind} last = 0;")
        w.line("int lastAt = -1;")
        with w.scope(f"for (int j = 0; j < {w.count(k)}; ++j)"):
            w.line(f"{kind} best = 0;")
            w.line("int at = -1;")
            with w.scope(f"for (int m = 0; m < {w.count(n)}; ++m)"):
                value = w.operand(0, {n: "0" if w.extent(n) == 1 else "m"})
                w.line(f"const {kind} x = {value};")
                later = f"{first('last', 'x')} || (!({first('x', 'last')}) && m > lastAt)"
                w.line(f"if (lastAt >= 0 && !({later})) continue;")
                w.line(f"if (at < 0 || {first('x', 'best')}) best = x, at = m;")
            w.line("last = best, lastAt = at;")
            where = {k: "0" if w.extent(k) == 1 else "j"}
            w.write(0, convert("best", access.dtype, op.results[0].dtype), where)
            w.write(1, convert("at", "int32", op.results[1].dtype), where)
