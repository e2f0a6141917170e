"""The target `toy`: a machine with one memory that runs whole operators, one after another.

Its program is a list of loads, operators of te and stores.
"""

from dataclasses import dataclass

from xdsl import irdl
from xdsl.dialects.builtin import ArrayAttr, StringAttr, TensorType
from xdsl.ir import Attribute, Dialect
from xdsl.passes import ModulePass
from xdsl.utils.target import Target as Emitter

from elk_ir.diagnostics import fail_at
from elk_ir.dialects import icca
from elk_ir.dialects.location import copy_location
from elk_ir.numerics.kernels import run_whole
from elk_ir.passes.icca_support import program_of
from elk_ir.target import Target


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

    def apply(self, ctx, op) -> None:
        tensors = {t.sym_name.data: t for t in op.ops if isinstance(t, icca.HbmOp)}
        program, listing, values = program_of(op), [], {}
        for old in list(program.body.block.ops):
            if isinstance(old, icca.PreloadOp) and old.rows is None and old.layer is None:
                hbm = tensors[old.source.root_reference.data]
                (name, *_) = hbm.inputs or ArrayAttr([hbm.sym_name])
                about = {"source": name, "value": hbm.value}
                new = LoadOp.build(properties=about, result_types=[hbm.type])
            elif isinstance(old, icca.ExecuteOp) and not old.entries:
                inner = old.structured
                new = inner.clone({i: values[v] for i, v in zip(inner.ins, old.ins, strict=True)})
            elif isinstance(old, icca.StoreOp) and old.start is None:
                (name,) = tensors[old.target.root_reference.data].outputs
                new = StoreOp.build(operands=[values[old.source]], properties={"target": name})
            else:
                fail_at(old, f"the toy machine has no {old.name} of this form")
            copy_location(old, new)
            listing.append(new)
            values.update(zip(old.results, new.results, strict=True))
        for gone in (program, *tensors.values()):
            op.body.block.erase_op(gone)
        op.body.block.add_ops(listing)


class ToyTarget(Target):
    name = "toy"
    lowering = ("convert-icca-to-toy",)
    emitter = ("toy-listing", "program.txt")

    def rolls_layers(self, chip):
        return False

    def run(self, module, inputs, *, chip, weights, landing="late"):
        values, outputs = {}, {}
        for op in module.ops:
            if isinstance(op, LoadOp):
                found = [inputs[op.source.data] if op.value is None else weights.load(op.value)]
            elif isinstance(op, StoreOp):
                found, outputs[op.target.data] = [], values[op.source]
            else:
                found = run_whole(op.operator(), [values[v] for v in op.ins])
            values.update(zip(op.results, found, strict=True))
        return outputs


@dataclass(frozen=True)
class ToyListing(Emitter):
    name = "toy-listing"

    def emit(self, ctx, module, output) -> None:
        for op in module.ops:
            print(op.name, *(v.type for v in (*op.operands, *op.results)), file=output)


TOY = ToyTarget()
TOY_DIALECT = Dialect("toy", [LoadOp, StoreOp])
