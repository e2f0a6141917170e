"""From a `northpole.program` back to the `Mapping` that is simulated and drawn."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from elk_ir.dialects import northpole
from elk_ir.dialects.chip import ChipAttr
from elk_ir.errors import ElkError
from elk_ir.northpole.mapping import Mapping, Stage, micro_batch_table
from elk_ir.northpole.network import Block, Layer, Network


def mapping_of(module: ModuleOp) -> Mapping:
    """The mapping that the module holds. Raises ElkError when there is none, or no chip."""
    programs = [op for op in module.ops if isinstance(op, northpole.ProgramOp)]
    chip = module.attributes.get("icca.chip")
    if len(programs) != 1 or not isinstance(chip, ChipAttr):
        raise ElkError(
            f"a stage map shows one northpole.program for an icca.chip; there are {len(programs)}"
            + ("" if isinstance(chip, ChipAttr) else " and no chip"),
            hint="run northpole-map-stages first",
        )
    (program,) = programs
    blocks = {
        op.sym_name.data: _block(op) for op in module.ops if isinstance(op, northpole.BlockOp)
    }
    heads = {
        op.sym_name.data
        for op in module.ops
        if isinstance(op, northpole.BlockOp) and op.head is not None
    }
    head: Block | None = None
    stages: list[Stage] = []
    host = ()
    for op in northpole.contents(program.body):
        if isinstance(op, northpole.HostOp):
            host = op.tasks
        if not isinstance(op, northpole.StageOp):
            continue
        symbols = [ref.root_reference.data for ref in op.blocks]
        for symbol in symbols:
            if symbol in heads:
                head = blocks[symbol]
        stages.append(
            Stage(
                op.label.data,
                tuple(op.cards.get_values()),
                tuple(blocks[s] for s in symbols),
                all(s in heads for s in symbols),
                op.resident.data,
            )
        )
    layers = tuple(
        Layer(s.name, tuple(b for b in s.blocks if b is not head)) for s in stages if not s.head
    )
    context, fit = program.context.value.data, program.fit.value.data
    network = Network(
        program.model.data, program.batch.value.data, context, host, layers, head, True
    )
    return Mapping(
        network,
        chip.data,
        program.precision.data,
        program.assumptions.data,
        tuple(stages),
        context,
        fit,
        program.users.value.data,
        program.micro_batches.value.data,
        program.limit.data,
        micro_batch_table(fit, sum(not s.head for s in stages)),
    )


def _block(op: northpole.BlockOp) -> Block:
    return Block(
        op.label.data,
        op.tasks,
        op.phases.value.data,
        op.in_elements.value.data,
        op.out_elements.value.data,
    )
