"""Variables of an emitted program: identifiers, and the statistics of an operator as one array.

An operator with several statistics (the maximum, sum and weighted values of an attention; the
moments of a norm) has a variable for each, in as many steps as its plan has. The names that the
lowering gives them end in a role and a number, so those of one role become `role[0]`, `role[1]`, ….
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from elk_ir.dialects import ipu
from elk_ir.dialects.types import shape_dtype
from elk_ir.targets.ipu.cpp_common import Variable
from elk_ir.targets.ipu.cpp_types import Names, comment, cpp_type, quoted

_STATISTIC = re.compile(r"(.*\.(?:partial|gathered|merged))(\d+)", re.DOTALL)


@dataclass(frozen=True)
class Array:
    """Several statistics: the name they share, the array's identifier, their own names in order."""

    stem: str
    ident: str
    members: tuple[str, ...]


class Declarations:
    """The variables of a program by name, and the arrays that some of them are members of."""

    def __init__(self, ops: Sequence[ipu.VarOp], names: Names):
        self.arrays: dict[str, Array] = {}
        self.idents: dict[str, str] = {}
        kinds = {op.sym_name.data: shape_dtype(op.type)[1] for op in ops}
        for name in kinds:
            if (found := _STATISTIC.fullmatch(name)) is None or found[2] != "0":
                continue
            stem, members = found[1], [name]
            while kinds.get(after := f"{stem}{len(members)}") == kinds[name]:
                members.append(after)
            if len(members) > 1:
                array = Array(stem, names.get("array", stem), tuple(members))
                self.arrays |= dict.fromkeys(members, array)
        for name in kinds:
            array = self.arrays.get(name)
            self.idents[name] = (
                names.get("var", name)
                if array is None
                else f"{array.ident}[{array.members.index(name)}]"
            )

    def whole(self, names: Sequence[str]) -> str | None:
        """The identifier of the array whose members are exactly these variables in order, or of the
        only one, if it is a member of none."""
        array = self.arrays.get(names[0]) if names else None
        if array is None:
            return self.idents[names[0]] if len(names) == 1 else None
        return array.ident if array.members == tuple(names) else None

    def connections(self, edges: Sequence[tuple[str, Variable, str]]) -> list[str]:
        """Statements that connect fields of a vertex to blocks: (field, variable, the arguments of
        `block`). One for all statistics of an array in their first slots."""
        out: list[str] = []
        at = 0
        while at < len(edges):
            field, v, where = edges[at]
            array = self.arrays.get(v.op.sym_name.data)
            count = len(array.members) if array else 1
            run = edges[at : at + count]
            fields = [f"{field[0]}{i}" for i in range(count)]
            if (
                array is not None
                and self.whole([x.op.sym_name.data for _, x, _ in run]) == array.ident
                and [(f, w) for f, _, w in run] == [(f, "c") for f in fields]
            ):
                out.append(f'elk::connect(graph, v, "{field[0]}", {array.ident}, c);')
                at += count
                continue
            out.append(f'graph.connect(v["{field}"], {v.ident}.block({where}));')
            at += 1
        return out

    def lines(self, variables: dict[str, Variable]) -> list[str]:
        """The members that declare them, under the names of their operators: element type, layout,
        name in reports, address in a tile's memory. Arrays stand where their first member does."""
        out: list[str] = []
        last = None
        for name, v in variables.items():
            array = self.arrays.get(name)
            if array is not None and array.members[0] != name:
                continue
            owner = v.op.owner.data if v.op.owner is not None else None
            if owner != last:
                out.append(f"// {comment(owner or 'of no operator')}")
                last = owner
            kind = cpp_type(v.dtype).poplar
            if array is None:
                what = f"{v.layout_ident}, {quoted(name)}, {v.op.at.value.data}"
                out.append(f"elk::Variable {v.ident}{{graph, {kind}, {what}}};")
                continue
            members = [variables[m] for m in array.members]
            places = ", ".join(f"{{{m.layout_ident}, {m.op.at.value.data}}}" for m in members)
            what = f"{quoted(array.stem)}, {{{places}}}"
            out.append(f"elk::Variables {array.ident}{{graph, {kind}, {what}}};")
        return out
