"""Training steps in little SRAM: what waits in HBM, what runs in chunks, and the numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers import (
    VERIFIED,
    assert_close,
    check_both_landings,
    load_dense,
    parse,
    run,
    run_passes,
)
from xdsl.dialects.builtin import IntegerAttr

import elk_ir
from elk_ir.chips import Chip, load_chip
from elk_ir.dialects.chip import ChipAttr
from elk_ir.errors import ElkError
from elk_ir.schedule.spill import Resident, choose_spills, resident_bytes

TRAINING = Path(__file__).parents[2] / "shared" / "models" / "tiny"
LLAMA = TRAINING / "train_llama-tiny_L2_b2_s16_fp32.onnx"
DIT = TRAINING / "train_dit-tiny_b2_fp32.onnx"


def test_the_furthest_reader_waits() -> None:
    """Room for two tensors beside execute 3: of the three there, the one read last goes."""
    tensors = (
        Resident(10, made=0, uses=(4,)),
        Resident(10, made=0, uses=(1, 6)),
        Resident(10, made=1, uses=(5,)),
    )
    assert resident_bytes(tensors, {}, 3) == 30
    found = choose_spills(tensors, [0, 0, 0, 80, 0, 0, 0], 100)
    assert found == {1: 3}
    assert resident_bytes(tensors, found, 3) == 20


def test_readers_in_front_of_the_tight_place_read_on_chip() -> None:
    tensor = Resident(10, made=0, uses=(2, 3, 7))
    assert choose_spills([tensor], [0, 0, 0, 0, 0, 95, 0, 0], 100) == {0: 5}
    assert tensor.last(5) == 3 and tensor.last(None) == 7
    # The store reads it until the execute after its maker has ended.
    assert Resident(10, made=0, uses=(7,)).last(5) == 1


def test_what_cannot_be_fetched_or_has_just_been_made_stays() -> None:
    assert choose_spills([Resident(10, 0, (5,), movable=False)], [95] * 6, 100) == {}
    assert choose_spills([Resident(10, 0, (1,))], [95] * 2, 100) == {}


def test_a_smaller_share_spills_no_less() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        count = 12
        made = rng.integers(0, count - 2, 8)
        tensors = [
            Resident(int(rng.integers(1, 40)), int(m), (int(rng.integers(m + 1, count)),))
            for m in made
        ]
        own = [int(n) for n in rng.integers(0, 100, count)]
        last = -1
        for share in (1.0, 0.5, 0.0):
            found = choose_spills(tensors, own, 100, share)
            assert len(found) >= last
            last = len(found)
        # With nothing allowed to stay, what lies there was made by the execute before.
        assert all(t.last(found.get(k)) <= t.made + 1 for k, t in enumerate(tensors))


def _chip(usable_bytes: int) -> Chip:
    base = load_chip("test-64")
    return base.with_fields({"sram_per_core_bytes": usable_bytes + base.reserved_per_core_bytes})


def _error(program: elk_ir.Program, model: Path) -> float:
    with np.load(model.with_suffix(".npz")) as data:
        inputs = {k[3:]: data[k] for k in data.files if k.startswith("in/")}
        expected = {k[4:]: data[k] for k in data.files if k.startswith("out/")}
    outputs = program.run(inputs)
    return max(float(np.abs(outputs[k] - v).max() / np.abs(v).max()) for k, v in expected.items())


def _spilled_bytes(program: elk_ir.Program) -> int:
    attr = program.icca.attributes.get("icca.spilled_bytes")
    return attr.value.data if isinstance(attr, IntegerAttr) else 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "roomy_bytes", "tight_bytes"), [(LLAMA, 20_000, 8_000), (DIT, 20_000, 10_000)]
)
def test_a_training_step_in_half_the_sram(model: Path, roomy_bytes: int, tight_bytes: int) -> None:
    """Activations of the forward pass wait in HBM for the backward pass: where everything fits,
    nothing is spilled; where it does not, bytes to and from HBM grow by what is, and the numbers
    are the framework's."""
    if not model.exists():
        pytest.skip("shared/models is not beside the repository")
    roomy = elk_ir.compile(model, chip=_chip(roomy_bytes), policy="basic")
    tight = elk_ir.compile(model, chip=_chip(tight_bytes), policy="basic")
    assert _spilled_bytes(roomy) == 0
    assert _spilled_bytes(tight) > 0
    # Each is written once and read at least once.
    assert tight.report["hbm_bytes"] >= roomy.report["hbm_bytes"] + 2 * _spilled_bytes(tight)
    assert tight.report["sram_peak_bytes"] <= tight_bytes < roomy.report["sram_peak_bytes"]
    assert _error(roomy, model) < 1e-4
    assert _error(tight, model) < 1e-4


SCORES = """
func.func @main(%q: tensor<8x8x4xf32> {onnx.name = "q"}, %k: tensor<8x4x8xf32> {onnx.name = "k"})
    -> (tensor<8x8x4xf32> {onnx.name = "y"}, tensor<8x8x4xf32> {onnx.name = "z"}) {
  %s = te.contract(%q, %k) <(b = 2, h = 4, m = 8, n = 8, k = 4 reduce),
    [(4*b + h, m, k), (4*b + h, k, n)] -> [(b, h, m, n)]>
    : (tensor<8x8x4xf32>, tensor<8x4x8xf32>) -> tensor<2x4x8x8xf32> loc("s")
  %p = te.softmax(%s) <(b = 2, h = 4, m = 8, n = 8 reduce), [(b, h, m, n)] -> [(b, h, m, n)]>
    : (tensor<2x4x8x8xf32>) -> tensor<2x4x8x8xf32> loc("p")
  %t = te.reduce(%p) <(b = 2, h = 4, m = 8, n = 8 reduce), [(b, h, m, n)] -> [(b, h, m, 0)]>
    {combiner = #te<combiner max>} : (tensor<2x4x8x8xf32>) -> tensor<2x4x8x1xf32> loc("t")
  %d = te.map(%p, %s, %t) <(b = 2, h = 4, m = 8, n = 8),
    [(b, h, m, n), (b, h, m, n), (b, h, m, 0)] -> [(4*b + h, m, n)]>
    {body = #te.body<(x0, x1, x2) {t0 = mul(x0, x1), t1 = sub(t0, x2)} -> (t1)>}
    : (tensor<2x4x8x8xf32>, tensor<2x4x8x8xf32>, tensor<2x4x8x1xf32>) -> tensor<8x8x8xf32> loc("d")
  %y = te.contract(%d, %q) <(g = 8, m = 8, n = 4, k = 8 reduce),
    [(g, m, k), (g, k, n)] -> [(g, m, n)]>
    : (tensor<8x8x8xf32>, tensor<8x8x4xf32>) -> tensor<8x8x4xf32> loc("y")
  %r = te.map(%y) <(g = 8, m = 8, n = 4), [(g, m, n)] -> [(g, m, n)]>
    {body = #te.body<(x0) {t0 = neg(x0)} -> (t0)>}
    : (tensor<8x8x4xf32>) -> tensor<8x8x4xf32> loc("r")
  %z = te.contract(%d, %k) <(g = 8, m = 8, n = 4, k = 8 reduce),
    [(g, k, m), (g, n, k)] -> [(g, m, n)]>
    : (tensor<8x8x8xf32>, tensor<8x4x8xf32>) -> tensor<8x8x4xf32> loc("z")
  func.return %r, %z : tensor<8x8x4xf32>, tensor<8x8x4xf32>
}
"""


@pytest.mark.parametrize("chunks", [1, 2])
def test_scores_in_chunks_are_the_same_numbers(chunks: int) -> None:
    """Attention of two sequences of four heads with a gradient: in chunks of a sequence, with all
    that may wait in HBM there, on the virtual machine. A reader of a joined result that stands
    among the operators in chunks (`r`) moves behind them."""
    rng = np.random.default_rng(0)
    q = rng.standard_normal((8, 8, 4)).astype(np.float32)
    k = rng.standard_normal((8, 4, 8)).astype(np.float32)
    s = q @ k
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    p = e / e.sum(axis=-1, keepdims=True)
    d = p * s - p.max(axis=-1, keepdims=True)
    module = run_passes(
        parse(SCORES),
        f"te-chunk-large{{chunks={chunks} large=2048}},convert-te-to-icca{{chip=test-16}},"
        f"icca-spill{{share=0.0}},icca-schedule{{policy=basic}},{VERIFIED}",
    )
    got = run(module, {"q": q, "k": k}, load_dense).outputs
    assert_close(got["y"], -(d @ q), 1e-5)
    assert_close(got["z"], d.swapaxes(1, 2) @ k.swapaxes(1, 2), 1e-5)


CHAIN = """
func.func @main(%x: tensor<64x256xf32> {onnx.name = "x"})
    -> (tensor<64x256xf32> {onnx.name = "y"}) {
  %early = te.map(%x) <(i = 64, j = 256), [(i, j)] -> [(i, j)]>
    {body = #te.body<(x0) {t0 = exp(x0)} -> (t0)>}
    : (tensor<64x256xf32>) -> tensor<64x256xf32> loc("early")
  %two = te.map(%early) <(i = 64, j = 256), [(i, j)] -> [(i, j)]>
    {body = #te.body<(x0) {t0 = neg(x0)} -> (t0)>}
    : (tensor<64x256xf32>) -> tensor<64x256xf32> loc("two")
  %a = te.map(%two) <(i = 64, j = 256), [(i, j)] -> [(i, j)]>
    {body = #te.body<(x0) {t0 = neg(x0)} -> (t0)>}
    : (tensor<64x256xf32>) -> tensor<64x256xf32> loc("a")
  %b = te.map(%a) <(i = 64, j = 256), [(i, j)] -> [(i, j)]>
    {body = #te.body<(x0) {t0 = tanh(x0)} -> (t0)>}
    : (tensor<64x256xf32>) -> tensor<64x256xf32> loc("b")
  %c = te.map(%b) <(i = 64, j = 256), [(i, j)] -> [(i, j)]>
    {body = #te.body<(x0) {t0 = neg(x0)} -> (t0)>}
    : (tensor<64x256xf32>) -> tensor<64x256xf32> loc("c")
  %s = te.reduce(%c) <(i = 64, j = 256 reduce), [(i, j)] -> [(i, 0)]>
    {combiner = #te<combiner sum>}
    : (tensor<64x256xf32>) -> tensor<64x1xf32> loc("s")
  %y = te.map(%early, %two, %s) <(i = 64, j = 256), [(i, j), (i, j), (i, 0)] -> [(i, j)]>
    {body = #te.body<(x0, x1, x2) {t0 = mul(x0, x1), t1 = add(t0, x2)} -> (t1)>}
    : (tensor<64x256xf32>, tensor<64x256xf32>, tensor<64x1xf32>) -> tensor<64x256xf32> loc("y")
  func.return %y : tensor<64x256xf32>
}
"""


@pytest.mark.parametrize(("usable_bytes", "spills"), [(24_000, False), (13_000, True)])
def test_what_does_not_fit_is_spilled_by_the_scheduler(usable_bytes: int, spills: bool) -> None:
    """4 KiB a core for every tensor: an operator reads one where it lies and makes another; `early`
    and `two` lie there meanwhile unless they are spilled."""
    base = load_chip("test-16")
    sram = usable_bytes + base.reserved_per_core_bytes
    module = run_passes(parse(CHAIN), "convert-te-to-icca{chip=test-16}")
    chip = base.with_fields({"sram_per_core_bytes": sram})
    module.attributes["icca.chip"] = ChipAttr.from_chip(chip)
    run_passes(module, f"icca-schedule{{policy=basic}},{VERIFIED}")
    assert ("icca.spilled_bytes" in module.attributes) is spills
    x = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
    early = np.exp(x)
    expected = early * -early - np.tanh(early).sum(axis=1, keepdims=True)
    check_both_landings(module, {"x": x}, {"y": expected})


def test_what_hbm_has_no_room_for_is_not_spilled() -> None:
    """Found by fuzzing: scratch tensors were put into an HBM that could not hold them, and the
    verifier refused the schedule."""
    base = load_chip("test-16")
    sram = 13_000 + base.reserved_per_core_bytes
    full = {"sram_per_core_bytes": sram, "hbm.capacity_bytes": 2 * 64 * 256 * 4 + 1000}
    module = run_passes(parse(CHAIN), "convert-te-to-icca{chip=test-16}")
    module.attributes["icca.chip"] = ChipAttr.from_chip(base.with_fields(full))
    with pytest.raises(ElkError, match="too many") as refusal:
        run_passes(module, "icca-schedule{policy=basic}")
    assert "smallest of every operator" not in str(refusal.value)


def test_what_spilling_cannot_help_is_refused_as_it_was() -> None:
    model = Path(__file__).parent / "models" / "llama2_decode_static_dynamo.onnx"
    with pytest.raises(ElkError, match="too many"):
        elk_ir.compile(model, chip=_chip(1_024), policy="basic")
