"""The host's part of an emitted program: HBM buffers, streams, files, the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from elk_ir.dialects import ipu
from elk_ir.dialects.icca.attrs import HbmKind
from elk_ir.dialects.types import shape_dtype
from elk_ir.errors import ElkError
from elk_ir.numerics.body import dtype_of
from elk_ir.targets.ipu.cpp_types import CppType, Names, comment, cpp_type, quoted


@dataclass(frozen=True)
class Remote:
    """A tensor in HBM as rows of a remote buffer: all axes from `lead` on make a row."""

    op: ipu.RemoteOp
    name: str
    ident: str
    shape: tuple[int, ...]
    dtype: str
    lead: int

    @property
    def type(self) -> CppType:
        """Its element type."""
        return cpp_type(self.dtype)

    @property
    def row_elements(self) -> int:
        """Elements of a row."""
        return prod(self.shape[self.lead :])

    @property
    def rows(self) -> int:
        """Rows of one layer."""
        return prod(self.shape[: self.lead])

    @property
    def all_rows(self) -> int:
        """Rows of all layers."""
        return self.rows * self.op.layers

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return dtype_of(self.dtype).itemsize

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.row_elements * self.item_bytes

    @property
    def streams_in(self) -> bool:
        """Whether the host streams it to the device before a run."""
        return self.op.kind.data is HbmKind.INPUT

    @property
    def streams_out(self) -> bool:
        """Whether the device streams it to the host after a run."""
        return self.op.kind.data is HbmKind.OUTPUT

    def state_box(self, length: int | None) -> str:
        """Entries outside its axis, along it, of those the first `length` (all without it), and
        the bytes of one, as C++ arguments."""
        axis = self.op.axis.value.data if self.op.axis is not None else 0
        extent = self.shape[axis] if self.shape else 1
        outer, inner = prod(self.shape[:axis]), prod(self.shape[axis + 1 :]) * self.item_bytes
        return f"{outer}, {extent}, {extent if length is None else length}, {inner}"

    def rows_inside(self, axis: int) -> int:
        """Rows of one entry along an axis, between the others that make rows."""
        return prod(self.shape[axis + 1 : self.lead])

    def index_rows(
        self, ids: Remote, vertex: str, axis: int, counter: str | None, plus: int, name: str
    ) -> str:
        """The rows of the entries along an axis that the indices of another buffer name, as a C++
        expression; the vertex that computes them is called `vertex`. Raises ElkError where the
        indices are no plain tensor."""
        if ids.all_rows != 1:
            raise ElkError(f"@{ids.name} is no plain tensor of indices")
        layer = "nullptr" if counter is None else f"&{counter}"
        return (
            f"elk::indexRows(graph, prog, index, {ids.ident}, {ids.type.poplar},"
            f" {quoted(vertex)}, {layer}, {plus}, {prod(self.shape[:axis])}, {self.shape[axis]},"
            f" {self.rows_inside(axis)}, {name})"
        )

    def row_list(self, axis: int | None, lo: int, hi: int, first_layer: int) -> str:
        """The rows of entries [lo, hi) along an axis, or of everything, as a C++ expression."""
        first = first_layer * self.rows
        if axis is None:
            return f"elk::rowList({first}, 1, {self.rows}, 0, {self.rows})"
        assert axis < self.lead
        outer, inner = prod(self.shape[:axis]), self.rows_inside(axis)
        last = f", {inner}" if inner > 1 else ""
        return f"elk::rowList({first}, {outer}, {self.shape[axis]}, {lo}, {hi}{last})"


def remotes(module_ops: list[ipu.RemoteOp], uses: list[object], names: Names) -> list[Remote]:
    """The remote buffers, each with rows as fine as its copies need."""
    lead: dict[str, int] = {}
    for use in uses:
        if isinstance(use, ipu.CopyStartOp):
            key = use.source.root_reference.data
            if use.rows is not None:
                lead[key] = max(lead.get(key, 0), 1)
            elif use.axis is not None:
                lead[key] = max(lead.get(key, 0), use.axis.value.data + 1)
        elif isinstance(use, ipu.StoreStartOp) and use.axis is not None:
            key = use.target.root_reference.data
            lead[key] = max(lead.get(key, 0), use.axis.value.data + 1)
    found: list[Remote] = []
    for op in module_ops:
        name = op.sym_name.data
        shape, dtype = shape_dtype(op.type)
        if prod(shape) == 0:
            raise ElkError(f"@{name} is empty: Poplar has no remote buffer without elements")
        ident = names.get("remote", name)
        found.append(Remote(op, name, ident, shape, dtype, lead.get(name, 0)))
    return found


def onnx_names(r: Remote) -> str:
    """What the ONNX model calls it, for a comment."""
    known = [n.data for n in (*(r.op.inputs or ()), *(r.op.outputs or ()))]
    return f": {', '.join(known)}" if known and known != [r.name] else ""


def declare_remotes(buffers: list[Remote]) -> list[str]:
    """Statements that add the remote buffers."""
    lines: list[str] = []
    for r in buffers:
        layers = f"{r.op.layers} x " if r.op.layers > 1 else ""
        lines.append(f"// {r.op.kind.data}, {layers}{r.op.type}{comment(onnx_names(r))}")
        repeats = "" if r.all_rows == 1 else f", {r.all_rows}"
        lines.append(
            f"{r.ident} = graph.addRemoteBuffer({quoted(r.name)}, {r.type.poplar},"
            f" {r.row_elements}{repeats});"
        )
    return lines


def stream_lines(buffers: list[Remote], inward: bool) -> list[str]:
    """Statements that add the streams of the inputs (or outputs) and their copies."""
    lines: list[str] = []
    for r in buffers:
        if not (r.streams_in if inward else r.streams_out):
            continue
        what = "HostToDevice" if inward else "DeviceToHost"
        way = "upload" if inward else "download"
        rows = ""
        if r.all_rows > 1:
            rows = (
                f", elk::rows(graph, prog, elk::rowList(0, 1, {r.all_rows}, 0, {r.all_rows}),"
                f" nullptr, 0, {quoted(r.name + '.all')})"
            )
        lines += [
            "{",
            f"  DataStream fifo = graph.add{what}FIFO({quoted(r.name)}, {r.type.poplar},"
            f" {r.row_elements * r.all_rows});",
            f"  Tensor stage = elk::staging(graph, {r.type.poplar},"
            f" {r.row_elements * r.all_rows}, {quoted(f'{r.name}.{way}')});",
        ]
        copies = ["prog.add(Copy(fifo, stage));", f"prog.add(Copy(stage, {r.ident}{rows}));"]
        if not inward:
            copies = [f"prog.add(Copy({r.ident}, stage{rows}));", "prog.add(Copy(stage, fifo));"]
        lines += [f"  {copy}" for copy in copies]
        lines.append("}")
    return lines


def main_lines(
    buffers: list[Remote], filled: Mapping[str, int], chips: int, tiles: int, clock: str | None
) -> list[str]:
    """`main`: files in, run, file out. `filled`: entries of each state that are an output. `clock`:
    arguments of the virtual clock, if the machine is known."""
    before: list[str] = []
    inputs: list[str] = []
    after: list[str] = []
    for r in buffers:
        handle = quoted(r.name)
        if r.op.kind.data is HbmKind.WEIGHT:
            before.append(f"weights.toRemote(engine, {handle}, {r.row_bytes}, {r.all_rows});")
        elif r.streams_in:
            size = r.row_bytes * r.all_rows
            inputs.append(f"inputs.toStream(engine, {handle}, {size});")
        elif r.op.inputs:
            length = r.op.length.value.data if r.op.length is not None else None
            inputs.append(
                f"inputs.toState(engine, {handle}, {r.row_bytes}, {len(r.op.inputs)},"
                f" {r.state_box(length)});"
            )
        if not r.op.outputs:
            continue
        if r.streams_out:
            size = r.row_bytes * r.rows * len(r.op.outputs)
            inputs.append(f"outputs.toStream(engine, {handle}, {r.row_bytes * r.all_rows});")
            after.append(f"outputs.fromStream({handle}, {size});")
        else:
            after.append(
                f"outputs.fromState(engine, {handle}, {r.row_bytes}, {len(r.op.outputs)},"
                f" {r.state_box(filled.get(r.name))});"
            )
    lines = [
        "int main(int argc, char **argv) {",
        "  if (argc != 4) {",
        '    std::fprintf(stderr, "usage: %s WEIGHTS INPUTS OUTPUTS\\n", argv[0]);',
        "    return 2;",
        "  }",
        "  try {",
        f"    Device device = elk::openDevice({chips}, {tiles});",
        "    Graph graph(device.getTarget());",
        "    graph.addCodelets(__FILE__);",
        "    Model model(graph);",
        "    const std::vector<program::Program> programs = {model.upload(), model.run(),"
        " model.download()};",
        "    Engine engine(graph, programs);",
        "    engine.load(device);",
        '    elk::File weights(argv[1], "rb"), inputs(argv[2], "rb"), outputs(argv[3], "wb");',
    ]
    lines += [f"    {line}" for line in (*before, *inputs)]
    if clock is not None:
        lines.append(f"    elk::setClock(engine, {clock});")
    lines += ["    engine.run(0);", "    engine.run(1);", "    engine.run(2);"]
    lines += [f"    {line}" for line in after]
    lines += [
        "  } catch (const std::exception &error) {",
        '    std::fprintf(stderr, "error: %s\\n", error.what());',
        "    return 1;",
        "  }",
        "  return 0;",
        "}",
    ]
    return lines
