"""Vertices that are not operators': fills, row numbers, loop counters; the helper files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path

import numpy as np

from elk_ir.cost.model import CostModel
from elk_ir.dialects import ipu
from elk_ir.dialects.ipu.attrs import VertexPhase
from elk_ir.plan.domain import Operator
from elk_ir.plan.layout import Layout
from elk_ir.targets.ipu.cpp_types import cpp_type, quoted, stored

_HELPERS = Path(__file__).parent / "codelets"


def helper(name: str) -> list[str]:
    """The lines of a helper file."""
    return (_HELPERS / name).read_text(encoding="utf-8").rstrip().split("\n")


@dataclass(frozen=True)
class Variable:
    """An `ipu.var` with its C++ names."""

    op: ipu.VarOp
    ident: str
    layout: Layout
    layout_ident: str
    dtype: str


@dataclass(frozen=True)
class Codelet:
    """A vertex class: its name, text, and the fields that it uses."""

    name: str
    text: list[str]
    fields: list[str]

    @property
    def box(self) -> str:
        """The fields that are told its box, as an argument of `elk::setBox`."""
        return quoted(" ".join(f for f in self.fields if f[0] in "nos"))


def counter_lines(counter: str, first: int) -> list[str]:
    """Statements that add the counter of a loop over layers."""
    return [
        f'{counter} = graph.addVariable(UNSIGNED_INT, {{1}}, "{counter}");',
        f"graph.setTileMapping({counter}, 0);",
        f"{counter}First = graph.addConstant(UNSIGNED_INT, {{1}},"
        f" ArrayRef<unsigned>({{{first}u}}));",
        f"graph.setTileMapping({counter}First, 0);",
        f'{counter}Next = graph.addComputeSet("{counter}.next");',
        f'graph.setTileMapping(graph.addVertex({counter}Next, "NextLayer",'
        f' {{{{"layer", {counter}}}}}), 0);',
    ]


def registration_lines(
    vertices: Sequence[tuple[str, Sequence[str]]], more: Sequence[str]
) -> list[str]:
    """The fields of vertex classes, for the runtime that has no popc; `more` lines for others."""
    out = [
        "// popc reads the fields of a vertex from its class; the small runtime is told.",
        "#ifdef POPLAR_LITE",
    ]
    for name, fields in vertices:
        listed = ", ".join(f"POPLAR_LITE_FIELD({f})" for f in fields)
        out.append(f"POPLAR_LITE_VERTEX({name}, {listed});")
    return [*out, *more, "#endif"]


def filler(dtype: str) -> str:
    """The name of the vertex that fills a variable of an element type."""
    return f"Fill_{dtype}"


def fill_value(dtype: str) -> str:
    """The element type in which that vertex is given its value."""
    return "float32" if cpp_type(dtype).value == "float" else dtype


def filler_text(dtype: str) -> list[str]:
    """Its class."""
    kind = cpp_type(dtype)
    value = stored("value", dtype) if kind.value == "float" else "value"
    return [
        f"class {filler(dtype)} : public MultiVertex {{",
        "public:",
        f"  Output<Vector<{kind.storage}>> out;",
        f"  {kind.value} value;",
        "  bool compute(unsigned workerId) {",
        "    for (unsigned i = workerId; i < out.size(); i += numWorkers())",
        f"      out[i] = {value};",
        "    return true;",
        "  }",
        "};",
    ]


def indexer(dtype: str) -> str:
    """The name of the vertex that turns indices of an element type into rows."""
    return f"IndexRows_{dtype}"


def indexer_text(dtype: str) -> list[str]:
    """Its class."""
    return [
        "// Rows of `outer` tables a layer, of `count` entries, `inner` rows each, from indices",
        "// that may count from the end. An index out of range gives a row that does not exist.",
        f"class {indexer(dtype)} : public Vertex {{",
        "public:",
        f"  Input<Vector<{cpp_type(dtype).storage}>> indices;",
        "  Input<unsigned> layer;",
        "  Output<Vector<unsigned>> rows;",
        "  unsigned plus, outer, count, inner;",
        "  bool compute() {",
        "    const unsigned each = indices.size() * inner;",
        "    for (unsigned i = 0; i < rows.size(); ++i) {",
        "      const long long index = static_cast<long long>(indices[i % each / inner]);",
        "      const long long entry = index < 0 ? index + count : index;",
        "      const unsigned first = ((*layer + plus) * outer + i / each) * count;",
        "      const bool exists = entry >= 0 && entry < static_cast<long long>(count);",
        "      rows[i] = exists ? (first + unsigned(entry)) * inner + i % inner : ~0u;",
        "    }",
        "    return true;",
        "  }",
        "};",
    ]


def head_lines(name: str, chips: int, tiles: int) -> list[str]:
    """Comments and includes of the program of the model called `name`."""
    return [
        f"// {name} on {chips} x {tiles} tiles: a Poplar program written by elk-ir.",
        "//",
        "// With Poplar:  c++ -std=c++17 program.cpp -lpoplar -o program",
        "// Without it:   c++ -std=c++17 -O1 -I RUNTIME program.cpp -o program",
        "//   (RUNTIME: elk-ir's targets/ipu/runtime, a small implementation of what is used)",
        "// Without HBM:  -DELK_EMULATE_HBM: a tile of each chip lets the modelled time of every",
        "//   transfer pass. For timing only: no tile can carry data at the speed of HBM, so none",
        "//   is moved and the outputs mean nothing.",
        "// Run:          ./program WEIGHTS INPUTS OUTPUTS",
        "//   Each file holds raw row-major tensors, one after another, in main()'s order.",
        "#ifndef __POPC__",
        "#ifdef ELK_ON_HARDWARE",
        "#include <poplar/DeviceManager.hpp>",
        "#endif",
        "#include <poplar/Engine.hpp>",
        "#include <poplar/Graph.hpp>",
        "#include <poplar/IPUModel.hpp>",
        "#include <poplar/Program.hpp>",
        "",
        "#include <algorithm>",
        "#include <cstdio>",
        "#include <map>",
        "#include <sstream>",
        "#include <stdexcept>",
        "#include <string>",
        "#include <utility>",
        "#include <vector>",
        "#endif",
        "",
    ]


def vertex_cycles(
    cost: CostModel, op: Operator, phase: VertexPhase, tile: tuple[int, ...], ways: int
) -> int:
    """Modelled cycles of one vertex on a full tile; `ways`: partials that a combine merges."""
    box = np.asarray([tile], dtype=np.int64).reshape(1, -1)
    if phase is VertexPhase.LOCAL:
        cycles = cost.tile_cycles(op, box)
    elif phase is VertexPhase.COMBINE:
        elements = sum(prod(tile[d] for d in s.dims) for s in op.stats)
        cycles = cost.combine_cycles(op, np.asarray([ways]), np.asarray([elements]))
    else:
        if not op.broadcasts_back:
            box[:, list(op.reductions)] = 1
        cycles = cost.apply_cycles(op, box)
    return ceil(float(cycles[0]))
