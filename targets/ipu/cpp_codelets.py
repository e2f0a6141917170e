"""Codelets: what the kernels of `elk_ir.numerics` compute, as vertex classes.

A vertex works on the valid points of its box only, so padding never enters a sum; a point outside
an operand's tensor reads as the operand's neutral value. Local vertices add to their statistics,
combine vertices merge partials in the order of the cores, apply vertices write results.
"""

from __future__ import annotations

from collections.abc import Sequence

from elk_ir.dialects.ipu.attrs import VertexPhase
from elk_ir.errors import ElkError
from elk_ir.plan.domain import Operator
from elk_ir.targets.ipu import cpp_indexing, cpp_kernels
from elk_ir.targets.ipu.cpp_parts import Emit, apply_epilogue
from elk_ir.targets.ipu.cpp_writer import CodeletWriter

LOCAL: dict[str, Emit] = {
    "argreduce": cpp_indexing.argreduce_local,
    "attention": cpp_kernels.attention_local,
    "contract": cpp_kernels.contract_local,
    "gather": cpp_indexing.gather_local,
    "normalize": cpp_kernels.normalize_local,
    "reduce": cpp_kernels.reduce_local,
    "scatter": cpp_indexing.scatter_local,
    "softmax": cpp_kernels.softmax_local,
}
COMBINE: dict[str, Emit] = {
    "argreduce": cpp_indexing.argreduce_combine,
    "attention": cpp_kernels.log_sum_combine,
    "contract": cpp_kernels.fold_combine,
    "gather": cpp_indexing.gather_combine,
    "normalize": cpp_kernels.normalize_combine,
    "reduce": cpp_kernels.fold_combine,
    "scatter": cpp_indexing.scatter_combine,
    "softmax": cpp_kernels.log_sum_combine,
}
APPLY: dict[str, Emit] = {
    "argreduce": cpp_indexing.argreduce_apply,
    "attention": cpp_kernels.attention_apply,
    "concat": cpp_kernels.concat_apply,
    "contract": apply_epilogue,
    "gather": apply_epilogue,
    "map": cpp_kernels.map_apply,
    "normalize": cpp_kernels.normalize_apply,
    "reduce": apply_epilogue,
    "scan": cpp_indexing.scan_apply,
    "scatter": cpp_indexing.scatter_apply,
    "softmax": cpp_kernels.softmax_apply,
    "topk": cpp_indexing.topk_apply,
}


def codelet_text(op: Operator, phase: VertexPhase, name: str, about: str) -> list[str]:
    """The vertex class of one phase of an operator. Raises ElkError for what C++ lacks."""
    table = {VertexPhase.LOCAL: LOCAL, VertexPhase.COMBINE: COMBINE, VertexPhase.APPLY: APPLY}
    emit = table[phase].get(op.kind)
    if emit is None:
        raise ElkError(f"no codelet for the {phase} phase of {op.kind}")
    writer = CodeletWriter(op)
    emit(writer)
    return writer.text(name, about, ("ways",) if phase is VertexPhase.COMBINE else ())


def codelet_fields(text: Sequence[str]) -> list[str]:
    """Names of the fields of a class that `codelet_text` wrote, in order."""
    fields: list[str] = []
    for line in text[3:]:
        if line.startswith("  bool compute"):
            break
        names = line.strip().rstrip(";")
        names = names.split("int ", 1)[1] if names.startswith("int ") else names.split("> ")[-1]
        fields += names.split(", ")
    return fields
