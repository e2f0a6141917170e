"""What codelets are written with: indices into blocks, loops over a vertex's points, fields."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from elk_ir.plan.domain import Access, AxisExpr, Operator
from elk_ir.targets.ipu.cpp_types import cpp_type, literal, load, stored


class CodeletWriter:
    """One vertex class of an operator's phase.

    Names in its text: `iD` is the point of dimension D within the vertex's box; the fields `nD`
    (points), `oD` (the first one) and `sD` (points of a full box); `xV` operand V, `aS` statistic
    S, `yR` result R, `gS` gathered partials. Dimensions of one point vanish.
    """

    def __init__(self, op: Operator):
        self.op = op
        self.lines: list[str] = []
        self.depth = 2
        self.edges: dict[str, tuple[str, str]] = {}
        self.workers = True

    # ------------------------------------------------------------------ text

    def line(self, text: str) -> None:
        """Add a statement."""
        self.lines.append("  " * self.depth + text)

    @contextmanager
    def scope(self, head: str) -> Iterator[None]:
        """`head {`, what follows, `}`."""
        self.line(head + " {")
        self.depth += 1
        yield
        self.depth -= 1
        self.line("}")

    def extent(self, d: int) -> int:
        """Points of dimension d of the whole operator."""
        return self.op.extents[d]

    def point(self, d: int) -> str:
        """The point along d within the box."""
        return "0" if self.extent(d) == 1 else f"i{d}"

    def size(self, d: int) -> str:
        """Points of a full box along d."""
        return "1" if self.extent(d) == 1 else f"s{d}"

    def count(self, d: int) -> str:
        """Points of this vertex's box along d."""
        return "1" if self.extent(d) == 1 else f"n{d}"

    def position(self, d: int) -> str:
        """The point along d in the whole operator."""
        return "0" if self.extent(d) == 1 else f"(o{d} + i{d})"

    @contextmanager
    def points(self, dims: Sequence[int]) -> Iterator[None]:
        """A loop over all points of `dims`, divided among the worker threads."""
        dims = [d for d in dims if self.extent(d) > 1]
        total = " * ".join(f"n{d}" for d in dims) or "1"
        self.line(f"const int points = {total};")
        with self.scope("for (int p = worker; p < points; p += numWorkers())"):
            left = "p"
            for i, d in enumerate(reversed(dims)):
                last = i == len(dims) - 1
                self.line(f"const int i{d} = {left if last else f'{left} % n{d}'};")
                left = f"{left} / n{d}"
            yield

    @contextmanager
    def loops(self, dims: Sequence[int]) -> Iterator[None]:
        """Nested loops over all points of `dims`."""
        opened = 0
        for d in dims:
            if self.extent(d) > 1:
                self.line(f"for (int i{d} = 0; i{d} < n{d}; ++i{d}) {{")
                self.depth += 1
                opened += 1
        yield
        for _ in range(opened):
            self.depth -= 1
            self.line("}")

    # ------------------------------------------------------------------ accesses

    def _axis_index(self, axis: AxisExpr, at: dict[int, str]) -> str:
        terms: list[str] = []
        for d, k in axis.terms:
            point = at.get(d, self.point(d))
            if k < 0:
                point = f"({self.size(d)} - 1 - {point})"
            if point != "0":
                terms.append(point if abs(k) == 1 else f"{abs(k)} * {point}")
        if not terms:
            return "0"
        return terms[0] if len(terms) == 1 else f"({' + '.join(terms)})"

    def _axis_size(self, axis: AxisExpr) -> str:
        terms = [(d, abs(k)) for d, k in axis.terms if self.extent(d) > 1]
        if not terms:
            return "1"
        if len(terms) == 1 and terms[0][1] == 1:
            return self.size(terms[0][0])
        parts = [f"{k} * ({self.size(d)} - 1)" for d, k in terms]
        return f"({' + '.join(parts)} + 1)"

    def index(self, axes: Sequence[AxisExpr], at: dict[int, str] | None = None) -> str:
        """The element of a block at the current point; `at` replaces points of dimensions."""
        text = "0"
        for axis in axes:
            size = self._axis_size(axis)
            inner = self._axis_index(axis, at or {})
            if text != "0" and size != "1":
                text = f"({text}) * {size}" if " + " in text else f"{text} * {size}"
            if inner != "0":
                inner = inner[1:-1] if inner.startswith("(") and text == "0" else inner
                text = inner if text == "0" else f"{text} + {inner}"
        return text

    def outside(self, access: Access) -> str | None:
        """A condition that holds where the access leaves its tensor, None if it never does."""
        conditions: list[str] = []
        for axis, extent in zip(access.axes, access.shape, strict=True):
            low = axis.offset + sum(k * (self.extent(d) - 1) for d, k in axis.terms if k < 0)
            high = axis.offset + sum(k * (self.extent(d) - 1) for d, k in axis.terms if k > 0)
            if low >= 0 and high < extent:
                continue
            terms = [
                self.position(d) if k == 1 else f"{k} * {self.position(d)}"
                for d, k in axis.terms
                if self.extent(d) > 1
            ]
            where = " + ".join(terms) or "0"
            if axis.offset:
                where += f" {'-' if axis.offset < 0 else '+'} {abs(axis.offset)}"
            if low < 0:
                conditions.append(f"{where} < 0")
            if high >= extent:
                conditions.append(f"{where} >= {extent}")
        return " || ".join(conditions) or None

    def operand(self, v: int, at: dict[int, str] | None = None, checked: bool = True) -> str:
        """The value of operand v at the current point; its neutral value outside its tensor."""
        access = self.op.operands[v]
        self.edge("Input", f"x{v}", access.dtype)
        value = load(f"x{v}[{self.index(access.axes, at)}]", access.dtype)
        outside = self.outside(access) if checked else None
        if outside is None:
            return value
        neutral = literal(0 if access.neutral is None else access.neutral, access.dtype)
        kind = cpp_type(access.dtype).value
        return f"({outside} ? static_cast<{kind}>({neutral}) : {value})"

    def edge(self, kind: str, name: str, dtype: str) -> None:
        """Declare a field that is connected to a tensor."""
        self.edges.setdefault(name, (kind, cpp_type(dtype).storage))

    def stat_index(self, i: int, at: dict[int, str] | None = None) -> str:
        """The element of statistic i at the current point."""
        return self.index([AxisExpr(((d, 1),)) for d in self.op.stats[i].dims], at)

    def stat(self, i: int, kind: str = "Input", at: dict[int, str] | None = None) -> str:
        """Statistic i at the current point, as something that can be assigned unless Input."""
        self.edge(kind, f"a{i}", self.op.stats[i].dtype)
        return f"a{i}[{self.stat_index(i, at)}]"

    def write(self, r: int, value: str, at: dict[int, str] | None = None) -> None:
        """Store a value (of the result's type) into result r."""
        access = self.op.results[r]
        self.edge("Output", f"y{r}", access.dtype)
        self.line(f"y{r}[{self.index(access.axes, at)}] = {stored(value, access.dtype)};")

    # ------------------------------------------------------------------ the class

    def box_fields(self) -> list[str]:
        """The box fields that the text uses, in order."""
        found = set(re.findall(r"\b[nos]\d+\b", "\n".join(self.lines)))
        return sorted(found, key=lambda f: (f[0], int(f[1:])))

    def text(self, name: str, about: str, extra: Sequence[str] = ()) -> list[str]:
        """The class. `extra` are further integer fields."""
        base = "MultiVertex" if self.workers else "Vertex"
        out = [f"// {about}", f"class {name} : public {base} {{", "public:"]
        for field, (kind, storage) in self.edges.items():
            out.append(f"  {kind}<Vector<{storage}>> {field};")
        fields = [*self.box_fields(), *extra]
        if fields:
            out.append(f"  int {', '.join(fields)};")
        out.append("  bool compute(unsigned workerId) {" if self.workers else "  bool compute() {")
        if self.workers:
            out.append("    const int worker = static_cast<int>(workerId);")
            lines = [line.replace("numWorkers()", "int(numWorkers())") for line in self.lines]
        else:
            lines = self.lines
        out += [*lines, "    return true;", "  }", "};"]
        return out
