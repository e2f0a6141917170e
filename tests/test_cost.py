"""The cost model: published formulas at hand-computed points, floors, transfers, selection."""

from __future__ import annotations

import numpy as np
import pytest

from elk_ir.chips.load import load_chip
from elk_ir.cost import formulas
from elk_ir.cost.device import CoreRates, IpuFormulas, Roofline, device_model
from elk_ir.cost.model import CostModel
from elk_ir.cost.shapes import attention_of, product_of
from elk_ir.errors import ChipError
from elk_ir.plan.domain import Access, AxisExpr, Dim, DimKind, Operator, Phase, Stat

P, R, L = DimKind.PARALLEL, DimKind.REDUCTION, DimKind.LOCAL
IPU = device_model(load_chip("ipu-mk2"))


def axes(*dims: int) -> tuple[AxisExpr, ...]:
    return tuple(AxisExpr(((d, 1),)) for d in dims)


def contract(m: int, n: int, k: int, dtype: str = "float16") -> Operator:
    return Operator(
        "contract",
        (Dim("m", m), Dim("n", n), Dim("k", k, R)),
        (Access((m, k), dtype, axes(0, 2)), Access((k, n), dtype, axes(2, 1))),
        (Access((m, n), dtype, axes(0, 1)),),
        (Stat("sum", (0, 1), "float32", 0.0),),
        (),
        2.0,
    )


def attention(b: int, g: int, r: int, kv: int, d: int) -> Operator:
    """Grouped queries: r heads share the keys and values of one of g groups."""
    low = float("-inf")
    return Operator(
        "attention",
        (
            Dim("b", b),
            Dim("g", g),
            Dim("r", r),
            Dim("kv", kv, R),
            Dim("d", d, L),
            Dim("e", d, L),
        ),
        (
            Access((b, g, r, d), "float16", axes(0, 1, 2, 4)),
            Access((b, g, kv, d), "float16", axes(0, 1, 3, 4)),
            Access((b, g, kv, d), "float16", axes(0, 1, 3, 5)),
        ),
        (Access((b, g, r, d), "float16", axes(0, 1, 2, 5)),),
        (
            Stat("max", (0, 1, 2), "float32", low),
            Stat("sum", (0, 1, 2), "float32", 0.0),
            Stat("out", (0, 1, 2, 5), "float32", 0.0),
        ),
        (("scale", 1.0),),
        4.0,
    )


def column(*values: float) -> np.ndarray:
    return np.asarray(values, dtype=np.float64)


# ---------------------------------------------------------------------- published formulas


@pytest.mark.parametrize(
    ("b", "m", "n", "k", "e", "expected"),
    [
        # One 6 x 16 x 16 block: 24 + 514 + 113 + 173.
        (1, 6, 16, 16, 2, 824),
        # fp32: inner blocks of 8, 48 cycles each: 2 · (48 + 514) + 113 + 173.
        (1, 6, 16, 16, 4, 1410),
        # 16 rows or fewer on both sides: the smaller side streams, one column block.
        (1, 16, 6, 16, 2, 824),
        # m = 100 streams (17 blocks), n = 32 is stationary (2): 2 · (17·24 + 514) + 2·113 + 173.
        (1, 100, 32, 16, 2, 2243),
        # The same after swapping, three times over.
        (3, 32, 100, 16, 2, 6729),
        # A batch of 16 is stationary while 167 columns of weights stream: 10 · (28·24 + 514) + …
        (1, 16, 167, 160, 2, 12146),
    ],
)
def test_matmul(b: int, m: int, n: int, k: int, e: int, expected: float) -> None:
    found = formulas.matmul_cycles(column(b), column(m), column(n), column(k), e)
    assert found.tolist() == [expected]


def test_elementwise() -> None:
    p = column(0, 1000, 10969, 16432, 16433)
    assert formulas.binary_cycles(p).tolist() == [290, 1040, 8516.75, 8517, 8516.5]
    assert formulas.unary_cycles(p).tolist() == [200, 700, 5684.5, 8416, 8416.5]


def test_reductions() -> None:
    outputs = column(1, 3, 5, 13, 17, 24, 25, 49)
    assert formulas.aligned_outputs(outputs).tolist() == [1, 4, 8, 16, 24, 24, 48, 96]
    # w = 40 and 480 are on the first branch, 481 on the second.
    found = formulas.reduction_cycles(column(1, 1, 1), column(40, 480, 481))
    assert found.tolist() == [235, 295.25, 295.25]


def test_gather_and_slice() -> None:
    # 4 rows of 9 elements: 300 + 5 · 4 + 4.
    assert formulas.gather_cycles(column(36), column(4)).tolist() == [324]
    assert formulas.slice_cycles(column(1000)).tolist() == [280]


def test_the_unit_peaks_at_the_published_rates() -> None:
    """Long streams reach 64 fp16 and 16 fp32 multiply-adds a cycle, less the 514 a block."""
    big = column(6e6)
    for e, rate in ((2, 64), (4, 16)):
        cycles = formulas.matmul_cycles(column(1), big, column(16), column(32 / e), e)
        assert float(big[0] * 16 * 32 / e / cycles[0]) == pytest.approx(rate, rel=1e-3)


# ---------------------------------------------------------------------- operators


def test_products_are_recognised() -> None:
    product = product_of(contract(4, 8, 16))
    assert product is not None
    assert (product.batch, product.rows, product.cols, product.inner) == ((), (0,), (1,), (2,))
    shape = attention_of(attention(2, 4, 8, 100, 64))
    assert (shape.batch, shape.rows) == ((0, 1), (2,))
    assert (shape.keys, shape.head, shape.columns) == ((3,), (4,), (5,))


def test_windows_price_as_im2col() -> None:
    conv = Operator(
        "contract",
        (Dim("o", 32), Dim("x", 30), Dim("c", 16, R), Dim("w", 3, L)),
        (
            Access((16, 32), "float16", (axes(2)[0], AxisExpr(((1, 1), (3, 1))))),
            Access((32, 16, 3), "float16", axes(0, 2, 3)),
        ),
        (Access((32, 30), "float16", axes(0, 1)),),
        (Stat("sum", (0, 1), "float32", 0.0),),
        (),
        2.0,
    )
    tile = np.asarray([[32, 30, 16, 3]])
    expected = formulas.matmul_cycles(column(1), column(30), column(32), column(48), 2)
    assert IPU.tile_cycles(conv, tile).tolist() == expected.tolist()
    assert IPU.flags(conv, tile).tolist() == [True]


def test_vectors_use_dot_products() -> None:
    """Decode attention does not waste 15/16 of the matrix unit."""
    op = contract(1, 512, 128)
    tile = np.asarray([[1, 512, 128]])
    unit = formulas.matmul_cycles(column(1), column(1), column(512), column(128), 2)
    found = float(IPU.tile_cycles(op, tile)[0])
    # 65,536 multiply-adds at 4 a cycle, 8 a row, 200 to start; the unit: 21,566.
    assert found == min(65536 / 4 + 8 * 512 + 200, float(unit[0]))
    one = attention(1, 1, 1, 512, 128)
    whole = IPU.tile_cycles(one, np.asarray([[1, 1, 1, 512, 128, 128]]))
    assert float(whole[0]) < 2 * 21566 + 3000
    flagged = IPU.flags(op, np.asarray([[1, 512, 128], [2, 512, 128], [2, 16, 5000]]))
    assert flagged.tolist() == [True, False, True]


def test_grouped_heads_are_rows() -> None:
    """Eight heads that share their keys cost less than eight that do not."""
    grouped = IPU.tile_cycles(attention(1, 1, 8, 256, 128), np.asarray([[1, 1, 8, 256, 128, 128]]))
    apart = IPU.tile_cycles(attention(1, 8, 1, 256, 128), np.asarray([[1, 8, 1, 256, 128, 128]]))
    assert grouped[0] < apart[0]


@pytest.mark.parametrize(
    "op", [contract(60, 70, 80), contract(1, 300, 64), attention(2, 2, 4, 96, 32)]
)
@pytest.mark.parametrize("model", [IPU, device_model(load_chip("northpole"))])
def test_floors_hold_for_blocks(op: Operator, model: CostModel) -> None:
    """n · tile_cycles(⌈t / n⌉) >= floor_cycles(t), whatever the cuts; and the floor is not idle."""
    rng = np.random.default_rng(7)
    tiles = rng.integers(1, np.asarray(op.extents) + 1, (400, len(op.dims)))
    tiles[0] = op.extents
    cuts = rng.integers(1, 9, tiles.shape)
    local = [i for i, d in enumerate(op.dims) if d.kind is L]
    cuts[:, local] = 1
    cuts = np.minimum(cuts, tiles)
    blocks = -(-tiles // cuts)
    total = cuts.prod(axis=1) * model.tile_cycles(op, blocks)
    floor = model.floor_cycles(op, tiles)
    assert (total >= floor - 1e-6).all()
    assert (floor >= 0.4 * model.tile_cycles(op, tiles)).all()


def test_statistics_apply_and_combine() -> None:
    norm = Operator(
        "normalize",
        (Dim("m", 4), Dim("k", 256, R)),
        (
            Access((4, 256), "float16", axes(0, 1), Phase.BOTH),
            Access((256,), "float16", axes(1), Phase.APPLY),
        ),
        (Access((4, 256), "float16", axes(0, 1)),),
        tuple(Stat(n, (0,), "float32", 0.0) for n in ("count", "mean", "squares")),
        (("form", "rms"), ("epsilon", 1e-5), ("affine", ("scale",))),
        3.0,
    )
    tile = np.asarray([[4, 256]])
    # One reduction of w = 1,024 and one unary pass over 1,024 elements.
    assert IPU.tile_cycles(norm, tile).tolist() == [0.25 * 1024 + 175 + 0.5 * 1024 + 200]
    assert IPU.apply_cycles(norm, tile)[0] > formulas.binary_cycles(column(1024))[0]
    op = contract(8, 8, 8)
    found = IPU.combine_cycles(op, np.asarray([1, 4]), np.asarray([100, 100]))
    # 100 outputs align to 144; fp32 counts twice: w = 144 · 8.
    assert found.tolist() == [0, 0.25 * 144 * 8 + 175]


def test_operators_without_a_formula_fall_back() -> None:
    three = Operator(
        "contract",
        (Dim("m", 8), Dim("k", 64, R)),
        tuple(Access((8, 64), "float16", axes(0, 1)) for _ in range(3)),
        (Access((8,), "float16", axes(0)),),
        (Stat("sum", (0,), "float32", 0.0),),
        (),
        2.0,
    )
    tile = np.asarray([[8, 64]])
    # 3 · 1,024 bytes and 32 of the statistic at 16 bytes a cycle, and 200 to start.
    assert IPU.tile_cycles(three, tile).tolist() == [(3 * 1024 + 32) / 16 + 200]


# ---------------------------------------------------------------------- transfers and selection


def test_exchange_is_the_port() -> None:
    chip = load_chip("ipu-pod4-hbm")
    model = device_model(chip)
    per_byte = chip.clock_hz / chip.network.port_in_bytes_per_s
    assert per_byte == pytest.approx(0.241, rel=1e-2)
    moved = column(0, 1000)
    assert model.exchange_cycles(moved, moved) == pytest.approx([0, 1000 * per_byte])
    assert model.exchange_cycles(column(10), column(1000)) == pytest.approx([1000 * per_byte])
    published = device_model(load_chip("ipu-pod4-hbm-exchange"))
    assert published.shift_cycles(column(1000)) == pytest.approx([280], rel=1e-2)


def test_mesh_ports_are_bounded_by_the_bisection() -> None:
    chip = load_chip("test-16-mesh")
    rates = CoreRates.of(chip)
    limit = 4 * chip.bisection_bytes_per_s / chip.cores_per_chip / chip.clock_hz
    assert rates.in_bytes == pytest.approx(
        min(limit, chip.network.port_in_bytes_per_s / chip.clock_hz)
        / chip.network.exchange_overhead_factor
    )


def test_copies_and_fills() -> None:
    assert IPU.copy_cycles(column(1000)).tolist() == [280]
    assert IPU.fill_cycles(column(1600)).tolist() == [100]


def test_selection_and_equality() -> None:
    chip = load_chip("ipu-pod4-hbm")
    assert isinstance(device_model(chip), IpuFormulas)
    assert isinstance(device_model(chip), CostModel)
    assert device_model(chip).name == "ipu-mk2"
    # Equal where only HBM differs, so that cached plans serve both.
    other = chip.with_fields({"hbm.bandwidth_bytes_per_s": 4e12})
    assert device_model(other) == device_model(chip)
    assert type(device_model(load_chip("northpole"))) is Roofline
    with pytest.raises(ChipError, match="no such cost model"):
        device_model(chip.with_fields({"cost_model": "wishful"}))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int8", "float64", "int32"])
def test_every_type_has_a_price(dtype: str) -> None:
    op = contract(8, 16, 32, dtype)
    tile = np.asarray([[8, 16, 32]])
    for name in ("ipu-mk2", "northpole"):
        model = device_model(load_chip(name))
        assert np.isfinite(model.tile_cycles(op, tile)).all()
        assert (model.tile_cycles(op, tile) > 0).all() and (model.apply_cycles(op, tile) > 0).all()
