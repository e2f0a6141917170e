"""The target `toy`: a machine with one memory that runs whole operators, one after another.

Its program is a list of loads, operators of te and stores. It is lowered from the same planned
`icca` program as every target, executed on numpy, and written as a listing.
"""

from dataclasses import dataclass

from xdsl import irdl
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr, TensorType
from xdsl.ir import Attribute, Block, Dialect, Region
from xdsl.passes import ModulePass
from xdsl.traits import NoTerminator
from xdsl.utils.target import Target as Emitter

from elk_ir.diagnostics import fail_at
from elk_ir.dialects import icca
from elk_ir.dialects.location import copy_location
from elk_ir.numerics.kernels import run_whole
from elk_ir.passes.icca_support import program_of
from elk_ir.target import Target


@irdl.irdl_op_definition
class ProgramOp(irdl.IRDLOperation):
    name = "toy.program"
    body = irdl.region_def("single_block")
    traits = irdl.traits_def(NoTerminator())
    assembly_format = "$body attr-dict"


@irdl.irdl_op_definition
class LoadOp(irdl.IRDLOperation):  # of a weight, which has a value, or of an input of the graph
    name = "toy.load"
    source = irdl.prop_def(StringAttr)
    value = irdl.opt_prop_def(Attribute)
    result = irdl.result_def(TensorType)
    assembly_format = "$source (`=` $value^)? attr-dict `:` type($result)"


@irdl.irdl_op_definition
class StoreOp(irdl.IRDLOperation):
    name = "toy.store"
    target = irdl.prop_def(StringAttr)
    source = irdl.operand_def(TensorType)
    assembly_format = "$source `to` $target attr-dict `:` type($source)"


@dataclass(frozen=True)
class ConvertIccaToToyPass(ModulePass):
    name = "convert-icca-to-toy"

    def apply(self, ctx, op: ModuleOp) -> None:
        tensors = {t.sym_name.data: t for t in op.ops if isinstance(t, icca.HbmOp)}
        program, block, values = program_of(op), Block(), {}
        for old in list(program.body.block.ops):
            if isinstance(old, icca.PreloadOp) and old.rows is None and old.layer is None:
                hbm = tensors[old.source.root_reference.data]
                name = (hbm.inputs or ArrayAttr([hbm.sym_name])).data[0]
                given = {"source": name, "value": hbm.value}
                new = LoadOp.build(properties=given, result_types=[hbm.type])
            elif isinstance(old, icca.ExecuteOp) and not old.entries:
                inner = old.structured
                new = inner.clone({i: values[v] for i, v in zip(inner.ins, old.ins, strict=True)})
            elif isinstance(old, icca.StoreOp) and old.start is None:
                (name,) = tensors[old.target.root_reference.data].outputs
                new = StoreOp.build(operands=[values[old.source]], properties={"target": name})
            else:
                fail_at(old, f"the toy machine has no {old.name} of this form")
            copy_location(old, new)
            block.add_op(new)
            values.update(zip(old.results, new.results, strict=True))
        for gone in (program, *tensors.values()):
            op.body.block.erase_op(gone)
        op.body.block.add_op(ProgramOp.build(regions=[Region(block)]))


class ToyTarget(Target):
    name = "toy"
    lowering = ("convert-icca-to-toy",)
    emitter = ("toy-listing", "program.txt")

    def rolls_layers(self, chip):
        return False

    def run(self, module, inputs, *, chip, weights, landing="late"):
        values, outputs = {}, {}
        for op in steps(module):
            if isinstance(op, LoadOp):
                given = inputs[op.source.data] if op.value is None else weights.load(op.value)
                values[op.result] = given
            elif isinstance(op, StoreOp):
                outputs[op.target.data] = values[op.source]
            else:
                results = run_whole(op.operator(), [values[v] for v in op.ins])
                values.update(zip(op.outs, results, strict=True))
        return outputs


def steps(module: ModuleOp) -> list:
    return [op for p in module.ops if isinstance(p, ProgramOp) for op in p.body.block.ops]


@dataclass(frozen=True)
class ToyListing(Emitter):
    name = "toy-listing"

    def emit(self, ctx, module, output) -> None:
        for op in steps(module):
            print(op.name, *(v.type for v in (*op.operands, *op.results)), file=output)


TOY = ToyTarget()
TOY_DIALECT = Dialect("toy", [ProgramOp, LoadOp, StoreOp])
