"""What cards refuse, each in one message with numbers, and what the verifier finds."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers import context, parse, run_passes
from northpole_programs import LLAMA, SHARED, SMALL, compiled, decoder, shared, shrunk
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, SymbolRefAttr, i64
from xdsl.utils.exceptions import DiagnosticException, VerifyException

from elk_ir.chips import Chip, load_chip
from elk_ir.compiler import Signature
from elk_ir.dialects import northpole
from elk_ir.errors import CapacityError, ChipError, ElkError, UsageError
from elk_ir.northpole.mapping import map_network
from elk_ir.northpole.network import Decoder, Network, parse_precision
from elk_ir.northpole.pipeline import simulate
from elk_ir.northpole.timing import Assumptions, Rates
from elk_ir.numerics.tensors import TensorSpec
from elk_ir.passes.northpole_place import map_of
from elk_ir.passes.northpole_verify_program import stages_of
from elk_ir.targets.northpole.cores import buffered
from elk_ir.targets.northpole.host import generate
from elk_ir.targets.northpole.memory import copies_of
from elk_ir.targets.northpole.runtime import Appliance
from elk_ir.targets.northpole.stage_map import NorthpoleMapTarget

W4A4 = parse_precision("w4a4")
TINY = Decoder("tiny", 2, 64, 128, 4, 2, 512)


def cards(**fields: Any) -> Chip:
    """Cards with other figures in their own section."""
    chip = load_chip("northpole-16")
    assert chip.northpole is not None
    return replace(chip, northpole=replace(chip.northpole, **fields))


def stateless(network: Network) -> Network:
    """The same layers without caches, as of a model that generates nothing."""
    layers = tuple(
        replace(
            layer,
            blocks=tuple(
                replace(b, tasks=tuple(replace(t, kv_elements=0, kv_macs=0.0) for t in b.tasks))
                for b in layer.blocks
            ),
        )
        for layer in network.layers
    )
    return replace(network, context=0, layers=layers)


# ---------------------------------------------------------------------- mapping and time


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prefill_utilization": 0.0}, r"a prefill utilisation of 0.0 is not in \(0, 1\]"),
        ({"host_time_s": -1e-6}, "a host time of -1e-06 s is negative"),
        ({"prompt_share": 1.0}, "a prompt share of 1.0 is not between 0 and 1"),
        ({"route": "air"}, "unknown route 'air'"),
    ],
)
def test_assumptions(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ElkError, match=message):
        Assumptions(**fields)


def test_precisions() -> None:
    with pytest.raises(ElkError, match="'w4' is not a precision"):
        parse_precision("w4")
    with pytest.raises(ElkError, match=r"activations of 16 bits, .* take 2, 4 or 8"):
        parse_precision("w4a16")
    chip = replace(load_chip("northpole-16"), macs_per_cycle_int2=0)
    with pytest.raises(ChipError, match="cannot multiply int2"):
        Rates.of(chip).macs_per_s(2)


def test_one_card_for_all() -> None:
    """The layers fit, and with the output layer they do not."""
    network = TINY.network(16)
    map_network(network, shrunk(330), W4A4, cards=1, users=1)
    with pytest.raises(CapacityError, match=r"tiny with its output layer: needs 327 bytes"):
        map_network(network, shrunk(300), W4A4, cards=1, users=1)


def test_numbers_that_make_no_sense() -> None:
    with pytest.raises(ElkError, match="16 positions, 0 cards and 1 users do not make sense"):
        map_network(TINY.network(16), load_chip("northpole-16"), W4A4, cards=0, users=1)


def test_a_framebuffer_too_small() -> None:
    network = TINY.network(16)
    with pytest.raises(
        ElkError, match=r"a micro-batch of 2 need 1,024 bytes, the framebuffer has 64"
    ):
        map_network(network, cards(framebuffer_bytes=64), W4A4, users=4)
    with pytest.raises(
        ElkError, match=r"one sample need 2,304 bytes, .* has 64 \(2,240 too many\)"
    ):
        map_network(stateless(network), cards(framebuffer_bytes=64), W4A4)


def test_a_sample_too_large_for_the_cores() -> None:
    network = stateless(TINY.network(16))
    wide = replace(network.layers[0].blocks[0].tasks[0], working_elements=10**9)
    block = replace(network.layers[0].blocks[0], tasks=(wide,))
    layers = (replace(network.layers[0], blocks=(block,)), *network.layers[1:])
    with pytest.raises(CapacityError, match=r"norm: needs 7,812,578 bytes on each core"):
        map_network(replace(network, layers=layers), load_chip("northpole-16"), W4A4)


def test_a_context_too_short_to_simulate() -> None:
    mapping = map_network(TINY.network(2), load_chip("northpole-16"), W4A4, users=1)
    with pytest.raises(ElkError, match="a context of 2 leaves 1 prompt and 1 generated tokens"):
        simulate(mapping)


def test_options() -> None:
    with pytest.raises(ElkError, match="unknown mapping option 'speed'"):
        compiled(LLAMA, mapping={"speed": 3})
    with pytest.raises(ElkError, match="unknown format 'png'"):
        NorthpoleMapTarget(format="png").emit(context(), ModuleOp([]), StringIO())


# ---------------------------------------------------------------------- an appliance


def test_users_of_an_appliance() -> None:
    program = decoder()
    fit = program.report["users_by_memory"]
    with pytest.raises(ElkError, match=rf"are {2 * fit} users, the cards hold the caches of {fit}"):
        program.appliance(micro_batches=fit)
    appliance = program.appliance(micro_batches=1)
    with pytest.raises(UsageError, match="no pass of micro-batch 0 was put"):
        appliance.get(0)
    with pytest.raises(UsageError, match="there is no micro-batch 1 of 1"):
        appliance.put(1, {})
    with pytest.raises(UsageError, match="input 'input_ids' is missing"):
        appliance.put(0, {"position_ids": np.zeros((2, 1), np.int64)})


def test_a_cache_has_an_end() -> None:
    program = decoder()
    with pytest.raises(ElkError, match=r"need a cache of 13 entries, it holds 12 \(1 too many\)"):
        program.generate(np.zeros((2, 2), np.int64), 12)
    appliance = program.appliance(micro_batches=1)
    step = {"input_ids": np.zeros((2, 1), np.int64), "position_ids": np.zeros((2, 1), np.int64)}
    for _ in range(12):
        appliance.put(0, step)
        appliance.get(0)
    full = "(?s)is full: it holds 12 entries, 0 given and 13 appended.*a larger --kv-capacity"
    with pytest.raises(ElkError, match=full):
        appliance.put(0, step)
    appliance.reset(0)
    appliance.put(0, step)


def test_what_is_put() -> None:
    appliance = decoder().appliance(micro_batches=1)
    ids, positions = np.zeros((2, 1), np.int64), np.zeros((2, 1), np.int64)
    with pytest.raises(UsageError, match=r"'input_ids' is int64\[2, 2\], .* takes int64\[2, 1\]"):
        appliance.put(0, {"input_ids": np.zeros((2, 2), np.int64), "position_ids": positions})
    with pytest.raises(UsageError, match=r"an index is out of range: '.*' has 512 rows"):
        appliance.put(0, {"input_ids": ids + 512, "position_ids": positions})
    appliance.reset(0)
    name = next(n for stage in appliance.stages for n in sorted(stage.state_inputs))
    wrong = np.zeros((2, 1, 12, 16), np.float32)
    with pytest.raises(UsageError, match="with up to 11 entries along axis 2"):
        appliance.put(0, {"input_ids": ids, "position_ids": positions, name: wrong})
    appliance.put(0, {"input_ids": ids, "position_ids": positions})
    with pytest.raises(UsageError, match="micro-batch 0 is under way; get its outputs first"):
        appliance.put(0, {"input_ids": ids, "position_ids": positions, name: wrong[:, :, :0]})
    with pytest.raises(UsageError, match="-1 micro-batches"):
        decoder().appliance(micro_batches=-1)


def test_a_full_framebuffer_and_a_value_that_was_not_sent() -> None:
    appliance = decoder().appliance(micro_batches=1)
    step = {"input_ids": np.zeros((2, 1), np.int64), "position_ids": np.zeros((2, 1), np.int64)}
    with pytest.raises(ElkError, match="stage_0: a value was not sent here"):
        appliance.stages[0].run(0, {})
    appliance._framebuffer_bytes = 16
    with pytest.raises(ElkError, match=r"framebuffer of 'stage_0': [\d,]+ bytes wait, it has 16"):
        appliance.put(0, step)


def test_the_order_of_cache_entries() -> None:
    """Cards keep entries that later passes make in front of those that were given: a mask that they
    make themselves would not follow, and neither would several entries a pass."""
    text = SOURCE.read_text()
    mask = (
        "te.global weight @mask : tensor<8xf16> = dense<[0.,1.,2.,3.,4.,5.,6.,7.]> : tensor<8xf16>"
    )
    text = text.replace("  te.global state @k", f"  {mask}\n  te.global state @k", 1)
    text = text.replace(
        "%a = te.attention(%q, %k, %v)",
        "%m = te.load @mask : tensor<8xf16>\n      %a = te.attention(%q, %k, %v, %m)",
    )
    text = text.replace(
        "(b, h, p, n)] -> [(b, 8*h + n)]> {", "(b, h, p, n), (p)] -> [(b, 8*h + n)]> {state = @k, "
    )
    text = text.replace(
        "tensor<2x2x8x8xf16>, tensor<2x2x8x8xf16>) -> tensor<2x16xf16>",
        "tensor<2x2x8x8xf16>, tensor<2x2x8x8xf16>, tensor<8xf16>) -> tensor<2x16xf16>",
    )
    module = run_passes(parse(text), PIPELINE)
    ids = TensorSpec("ids", "int64", (2,))
    signature = Signature((ids,), (TensorSpec("logits", "float16", (2, 32)),))
    chip = load_chip("northpole-16")
    appliance = Appliance(module, lambda value: np.zeros(0), chip, signature, micro_batches=1)
    step = {"ids": np.zeros(2, np.int64)}
    appliance.put(0, step)
    appliance.get(0)
    append = next(op for op in module.walk() if isinstance(op, northpole.AppendOp))
    with pytest.raises(ElkError, match="'k' takes 2 entries a pass: one pass only"):
        appliance.stages[0]._append(append, 0, 0, buffered(np.zeros((2, 2, 2, 8), np.float16)))
    appliance.put(0, step)
    with pytest.raises(ElkError, match="a mask that the cards compute depends on the order"):
        appliance.get(0)


def test_what_does_not_generate() -> None:
    program = decoder()
    appliance = program.appliance(micro_batches=1)

    def refused(message: str, prompts: object = ((1,), (2,)), **changes: Any) -> None:
        changed = SimpleNamespace(
            signature=program.signature, report=program.report, target=program.target
        )
        vars(changed).update(changes)
        with pytest.raises(ElkError, match=message):
            generate(changed, appliance, np.asarray(prompts), 1)  # pyright: ignore[reportArgumentType]

    refused("prompts are integers", prompts=(0.5, 1.5))
    refused("3 users are not whole micro-batches of 2", prompts=((1,), (2,), (3,)))
    refused("4 users are not .*, or more than 1 of them", prompts=((1,), (2,), (3,), (4,)))
    refused("this graph keeps no cache, so it generates nothing", target=ModuleOp([]))
    states = [s | {"length": s["capacity"] - 3} for s in program.report["states"]]
    refused("this graph takes 3 tokens a pass, decoding takes one", report={"states": states})
    signature = program.signature
    more = (*signature.inputs, TensorSpec("bias", "float32", (7,)))
    refused(
        "not known what input 'bias' is while decoding", signature=replace(signature, inputs=more)
    )
    fixed = TensorSpec("fixed", "float32", (2, 1, 30, 16))
    both = replace(
        signature,
        inputs=(*signature.inputs, fixed),
        outputs=(*signature.outputs, replace(fixed, name="fixed.next")),
    )
    refused("the caches fixed are inputs and outputs of this graph", signature=both)


@pytest.mark.slow
def test_an_unquantised_graph_has_no_precision_of_its_own() -> None:
    message = r"6 of 6 products are of float32, the vector-matrix units take int8, int4 and int2"
    with pytest.raises(ElkError, match=message):
        compiled(LLAMA, mapping={"precision": "graph"})


@pytest.mark.slow
def test_users_and_context_too_large() -> None:
    with pytest.raises(ElkError, match=r"users × 13 positions need .* too many\): .* fit"):
        compiled(LLAMA, mapping={"users": 1_000_000})
    with pytest.raises(ElkError, match=r"needs .* bytes on each core, which has .* too many"):
        compiled(shared(SMALL), shrunk(1), dims={"batch": 1, "past_sequence_length": 3})


@pytest.mark.slow
def test_no_unit_for_an_operator() -> None:
    path = SHARED / "tiny" / "mixtral5_batched_mm_decode_static_dynamo.onnx"
    with pytest.raises(ElkError, match=r"no unit of a NorthPole core runs 'topk' \(16 operations"):
        compiled(shared(path))


# ---------------------------------------------------------------------- the verifier


SOURCE = Path(__file__).parent.parent / "lit_tests" / "passes" / "northpole_map_stages.mlir"
PIPELINE = (
    "northpole-map-stages{users=4},convert-te-to-icca,northpole-place,"
    "convert-icca-to-northpole,northpole-verify-program"
)


@cache
def _mapped() -> str:
    return str(run_passes(parse(SOURCE.read_text()), PIPELINE))


def broken(change) -> str:
    """What the verifier says after `change` to a good program."""
    module = parse(_mapped())
    change(module)
    with pytest.raises(DiagnosticException) as caught:
        run_passes(module, "northpole-verify-program")
    return str(caught.value)


def _sends(module: ModuleOp) -> list[northpole.SendOp]:
    return [op for op in module.walk() if isinstance(op, northpole.SendOp)]


def test_what_is_read_was_sent() -> None:
    def skip(module: ModuleOp) -> None:
        stages = stages_of(module)
        stages[1].operands[0] = _sends(module)[0].outs[0]

    assert "stage @stage_1 reads" in broken(skip)
    assert "which was not sent there" in broken(skip)

    def steal(module: ModuleOp) -> None:
        _sends(module)[2].operands[0] = _sends(module)[0].ins[0]

    assert "is sent from @stage_1, which does not have it" in broken(steal)


def test_sends_have_their_bytes() -> None:
    def lie(module: ModuleOp) -> None:
        _sends(module)[0].properties["bytes"] = IntegerAttr(63, i64)

    assert broken(lie) == "a send of 64 bytes says that it is 63"


def test_outputs_reach_the_host() -> None:
    def leave(module: ModuleOp) -> None:
        (output,) = [op for op in module.walk() if isinstance(op, northpole.OutputOp)]
        output.operands[0] = stages_of(module)[-1].outs[0]

    assert "output @logits was not sent to the host" in broken(leave)


def test_appends_stay_inside_their_cache() -> None:
    def far(module: ModuleOp) -> None:
        append = next(op for op in module.walk() if isinstance(op, northpole.AppendOp))
        append.properties["start"] = IntegerAttr(8, i64)

    assert broken(far) == "@k has 8 entries, entry 8 is appended"


def test_cores_hold_what_stays_and_what_works() -> None:
    def crowd(module: ModuleOp) -> None:
        program = next(op for op in module.walk() if isinstance(op, northpole.ProgramOp))
        program.properties["micro_batches"] = IntegerAttr(100_000, i64)
        program.properties["users"] = IntegerAttr(100_000, i64)

    assert "too many): fewer users or more cards" in broken(crowd)
    module = parse(_mapped())
    crowd(module)
    with pytest.raises(VerifyException, match=r"stage @stage_\d: .* bytes on a core that has"):
        module.verify()


def test_caches_are_those_of_the_users() -> None:
    """However the map groups them into micro-batches, and whatever the graph's batch is."""
    program = map_of(parse(_mapped()))
    assert (program.users.value.data, program.batch.value.data) == (4, 2)
    assert copies_of(program) == 2
    program.properties["micro_batches"] = IntegerAttr(4, i64)
    assert copies_of(program) == 2
    program.properties["users"] = IntegerAttr(1, i64)
    assert copies_of(program) == 1


def test_a_program_that_does_not_hold_together() -> None:
    """Outputs, residents and appends of the wrong kind; a call of another shape; a framebuffer."""

    def kinds(module: ModuleOp) -> dict[str, northpole.TensorOp]:
        return {op.sym_name.data: op for op in module.ops if isinstance(op, northpole.TensorOp)}

    def no_output(module: ModuleOp) -> None:
        output = next(op for op in module.walk() if isinstance(op, northpole.OutputOp))
        output.properties["target"] = SymbolRefAttr("wq")

    assert broken(no_output) == "@wq is no output of the graph"

    def no_state(module: ModuleOp) -> None:
        append = next(op for op in module.walk() if isinstance(op, northpole.AppendOp))
        append.properties["state"] = SymbolRefAttr("wq")

    assert broken(no_state) == "@wq is no state to append to"

    def leaves(module: ModuleOp) -> None:
        resident = next(
            op
            for block in module.ops
            if isinstance(block, northpole.BlockOp)
            for op in block.walk()
            if isinstance(op, northpole.ResidentOp)
        )
        resident.properties["source"] = SymbolRefAttr("ids")

    assert broken(leaves) == "@ids does not stay on a card"

    def misfit(module: ModuleOp) -> None:
        stage = stages_of(module)[0]
        head = next(
            op for op in module.ops if isinstance(op, northpole.BlockOp) and op.head is not None
        )
        call = next(stage.calls.__iter__())
        call.properties["block"] = SymbolRefAttr(head.sym_name.data)
        stage.properties["blocks"] = type(stage.blocks)(
            [SymbolRefAttr(c.block.root_reference.data) for c in stage.calls]
        )

    assert broken(misfit) == "the call does not fit block @block_2"
