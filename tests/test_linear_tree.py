"""Fitted cost models: determinism, errors, ranges, files, and the operators that they price."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from elk_ir.chips.load import load_chip
from elk_ir.cost.device import CoreRates, IpuFormulas, Roofline, device_model
from elk_ir.cost.fit_files import SHIPPED, FitSet, load_fits, save_fits, sidecar_of
from elk_ir.cost.fitted import FittedIpu, FittedRoofline, tile_shape
from elk_ir.cost.linear_tree import LEAST_ROWS, Fit, fit
from elk_ir.cost.model import CostModel
from elk_ir.cost.profile_data import read_measurements
from elk_ir.errors import ElkError
from elk_ir.plan.domain import Access, AxisExpr, Dim, DimKind, Operator, Stat

P, R, L = DimKind.PARALLEL, DimKind.REDUCTION, DimKind.LOCAL
DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"
needs_data = pytest.mark.skipif(
    not (DATA / "ipu_mk2_tile_conv.csv").is_file(), reason="needs the measured tiles of ../shared"
)
CHIP = load_chip("ipu-mk2")
IPU = device_model(CHIP)
CLOSED = IpuFormulas(CoreRates.of(CHIP))


def one(d: int, k: int = 1) -> AxisExpr:
    return AxisExpr(((d, k),))


def window(d: int, k: int, stride: int = 1) -> AxisExpr:
    return AxisExpr(((d, stride), (k, 1)))


def conv(dtype: str = "float16", swapped: bool = False, groups: int = 1) -> Operator:
    """n, m, c, y, x, ky, kx and, with groups, g: the activation is (n, g·c, y + ky, x + kx)."""
    dims = [Dim("n", 4), Dim("m", 32), Dim("c", 48, R), Dim("y", 64), Dim("x", 64)]
    dims += [Dim("ky", 3, L), Dim("kx", 3, L)]
    channel, out, extra = one(2), one(1), ()
    if groups > 1:
        dims.append(Dim("g", groups))
        channel = AxisExpr(((7, 48), (2, 1)))
        out = AxisExpr(((7, 32), (1, 1)))
        extra = (7,)
    shape = (4, 48 * groups, 66, 66)
    x = Access(shape, dtype, (one(0), channel, window(3, 5), window(4, 6)))
    w = Access((32 * groups, 48, 3, 3), dtype, (out, one(2), one(5), one(6)))
    return Operator(
        "contract",
        tuple(dims),
        (w, x) if swapped else (x, w),
        (Access((4, 32 * groups, 64, 64), dtype, (one(0), out, one(3), one(4))),),
        (Stat("acc", (0, 1, 3, 4, *extra), "float32", 0.0),),
        (),
        2.0,
    )


def pool() -> Operator:
    """n, c, y, x, ky, kx, stride 2."""
    dims = (Dim("n", 2), Dim("c", 32), Dim("y", 64), Dim("x", 64), Dim("ky", 3, L), Dim("kx", 3, L))
    return Operator(
        "reduce",
        dims,
        (Access((2, 32, 129, 129), "float16", (one(0), one(1), window(2, 4, 2), window(3, 5, 2))),),
        (Access((2, 32, 64, 64), "float16", tuple(map(one, range(4)))),),
        (Stat("acc", (0, 1, 2, 3), "float16", float("-inf")),),
        (("combiner", "max"),),
        1.0,
    )


def product() -> Operator:
    return Operator(
        "contract",
        (Dim("m", 64), Dim("n", 64), Dim("k", 64, R)),
        (
            Access((64, 64), "float16", (one(0), one(2))),
            Access((64, 64), "float16", (one(2), one(1))),
        ),
        (Access((64, 64), "float16", (one(0), one(1))),),
        (Stat("acc", (0, 1), "float32", 0.0),),
        (),
        2.0,
    )


def synthetic(rows: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Products whose cycles follow a law a tree can learn: 100 + points / 8."""
    rng = np.random.default_rng(3)
    shapes = 2.0 ** rng.integers(0, 7, (rows, 4))
    return shapes, 100.0 + shapes.prod(axis=1) / 8.0


@cache
def synthetic_fit() -> Fit:
    return fit("product", *synthetic())


# ---------------------------------------------------------------------- fits


def test_fits_are_deterministic_and_know_their_errors() -> None:
    shapes, cycles = synthetic()
    first, second = synthetic_fit(), fit("product", shapes, cycles)
    assert first == second
    assert 0 < first.errors.median <= first.errors.p90 <= first.errors.worst
    worst = dict(first.errors.worst_at)
    assert first.errors.worst == pytest.approx(abs(worst["predicted"] / worst["cycles"] - 1), 1e-2)
    # Equal rows get equal answers, in the order asked, fractions included.
    asked = shapes[[5, 1, 5, 0]]
    found = first.predict(asked)
    assert found[0] == found[2]
    assert found.tolist() == [float(first.predict(row[None])[0]) for row in asked]
    assert first.predict(asked + 0.5).shape == (4,)
    assert first.predict(np.zeros((0, 4))).shape == (0,)


def test_lines_are_exact_and_never_fall() -> None:
    size = np.linspace(64, 65536, LEAST_ROWS)[:, None]
    found = fit("shift", size, 236 + 0.28 * size[:, 0])
    assert (found.intercept, found.slope) == pytest.approx((236, 0.28))
    assert found.errors.worst < 1e-6
    rng = np.random.default_rng(1)
    for cycles in (1e5 - size[:, 0], np.maximum(1.0, size[:, 0] - 60.0), rng.uniform(1, 9, 20)):
        line = fit("shift", size, cycles)
        assert line.intercept >= 0 and line.slope >= 0


def test_too_few_rows() -> None:
    shapes, cycles = synthetic(LEAST_ROWS - 1)
    with pytest.raises(ValueError, match="at least 20"):
        fit("product", shapes, cycles)


def test_ranges_hold_products_too() -> None:
    shapes, found = synthetic()[0], synthetic_fit()
    assert found.covers(shapes).all()
    corner = shapes.max(axis=0)[None]
    assert corner.prod() > shapes.prod(axis=1).max()
    assert found.covers(corner).tolist() == [False]
    assert found.covers(np.asarray([[0.0, 1, 1, 1], [1e9, 1, 1, 1]])).tolist() == [False, False]


@needs_data
@pytest.mark.parametrize(
    ("file", "median", "p90", "worst"),
    [("ipu_mk2_tile_conv.csv", 0.07, 0.32, 1.8), ("ipu_mk2_tile_pool.csv", 0.06, 0.18, 0.4)],
)
def test_shipped_fits_are_those_of_the_data(
    file: str, median: float, p90: float, worst: float
) -> None:
    """The stated errors, the goal of a median below 10 %, and a fit that gives the same again."""
    (m,) = read_measurements(DATA / file)
    shipped = load_fits(SHIPPED).of(m.kind)
    assert shipped is not None and shipped.rows == len(m.cycles)
    again = fit(m.kind, m.shapes, m.cycles, macs_per_cycle=64.0)
    assert again.predict(m.shapes) == pytest.approx(shipped.predict(m.shapes), rel=1e-6)
    assert again.errors.median == pytest.approx(shipped.errors.median, rel=1e-3)
    assert shipped.covers(m.shapes).all()
    e = shipped.errors
    assert e.median < median and e.p90 < p90 and e.worst < worst


# ---------------------------------------------------------------------- operators


def test_operators_read_as_tiles() -> None:
    shape = tile_shape(conv())
    assert shape is not None and shape.kind == "conv"
    assert shape.columns == ((0,), (2,), (1,), (3, 4), (5, 6)) and shape.repeats == ()
    assert tile_shape(conv(swapped=True)) == shape
    grouped = tile_shape(conv(groups=2))
    assert grouped is not None
    assert (grouped.columns, grouped.repeats) == (shape.columns, (7,))
    pooled = tile_shape(pool())
    assert pooled is not None
    assert (pooled.kind, pooled.columns) == ("pool", ((0, 1), (2, 3), (4, 5)))
    plain = tile_shape(product())
    assert plain is not None and plain.columns == ((), (0,), (1,), (2,))


def test_covered_tiles_are_the_fit_and_others_the_closed_form() -> None:
    fits = load_fits(SHIPPED)
    found = fits.of("conv")
    assert found is not None
    tiles = np.asarray(
        [[1, 16, 16, 16, 16, 3, 3], [1, 16, 16, 4, 4, 3, 3], [4, 32, 48, 64, 64, 3, 3]]
    )
    cycles = IPU.tile_cycles(conv(), tiles)
    assert IPU.flags(conv(), tiles).tolist() == [False, True, True]
    assert cycles[0] == found.predict(np.asarray([[1.0, 16, 16, 256, 9]]))[0]
    assert cycles[1:].tolist() == CLOSED.tile_cycles(conv(), tiles[1:]).tolist()
    # Two groups are two tiles.
    both = np.asarray([[1, 16, 16, 16, 16, 3, 3, 2]])
    assert IPU.tile_cycles(conv(groups=2), both)[0] == pytest.approx(2 * cycles[0])
    # Measured on fp16 only.
    assert IPU.flags(conv("float32"), tiles[:1]).tolist() == [True]
    assert IPU.tile_cycles(conv("float32"), tiles[:1])[0] == pytest.approx(
        CLOSED.tile_cycles(conv("float32"), tiles[:1])[0]
    )
    pools = np.asarray([[1, 8, 16, 16, 3, 3], [2, 32, 64, 64, 3, 3]])
    assert IPU.flags(pool(), pools).tolist() == [False, True]


def test_other_rates_than_the_measured_core_s_are_not_covered() -> None:
    faster = device_model(CHIP.with_fields({"macs_per_cycle_fp16": 128}))
    tile = np.asarray([[1, 16, 16, 16, 16, 3, 3]])
    assert faster.flags(conv(), tile).tolist() == [True]


@pytest.mark.parametrize("op", [conv(), conv(groups=2), pool()])
def test_floors_hold_for_blocks(op: Operator) -> None:
    """n · tile_cycles(⌈t / n⌉) >= floor_cycles(t), inside and outside the measured range."""
    rng = np.random.default_rng(11)
    tiles = rng.integers(1, np.asarray(op.extents) + 1, (500, len(op.dims)))
    cuts = rng.integers(1, 5, tiles.shape)
    local = [i for i, d in enumerate(op.dims) if d.kind is L]
    tiles[:, local], cuts[:, local] = np.asarray(op.extents)[local], 1
    cuts = np.minimum(cuts, tiles)
    blocks = -(-tiles // cuts)
    assert 0.05 < IPU.flags(op, blocks).mean() < 1
    total = cuts.prod(axis=1) * IPU.tile_cycles(op, blocks)
    assert (total >= IPU.floor_cycles(op, tiles) - 1e-6).all()
    assert (IPU.tile_cycles(op, tiles) >= Roofline.tile_cycles(CLOSED, op, tiles)).all()


# ---------------------------------------------------------------------- files and chips


def own(tmp_path: Path, base: str = "roofline") -> Path:
    size = np.linspace(64, 65536, 30)[:, None]
    fits = (
        synthetic_fit(),
        fit("shift", size, 50 + 0.5 * size[:, 0]),
        fit("exchange", size, 70 + 0.5 * size[:, 0]),
    )
    path = tmp_path / "mine.txt"
    save_fits(FitSet("mine", base, "made up", fits), path)
    return path


def test_files_round_trip(tmp_path: Path) -> None:
    path = own(tmp_path)
    shapes, made = synthetic()[0], synthetic_fit()
    read = load_fits(path).of("product")
    assert isinstance(read, Fit)
    assert (read.ranges, read.errors, read.columns) == (made.ranges, made.errors, made.columns)
    assert read.predict(shapes).tolist() == made.predict(shapes).tolist()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine.json", "mine.txt"]
    assert load_fits(path) is load_fits(path)


def test_chips_name_a_fitted_model(tmp_path: Path) -> None:
    path = own(tmp_path)
    chip = CHIP.with_fields({"cost_model": str(path)})
    model = device_model(chip)
    assert type(model) is FittedRoofline and isinstance(model, CostModel)
    assert model.name == "mine" and hash(model) == hash(device_model(chip))
    assert model == device_model(chip) and model != IPU
    tiles = np.asarray([[16, 16, 16], [5000, 16, 16]])
    assert model.flags(product(), tiles).tolist() == [False, True]
    assert model.tile_cycles(product(), tiles)[0] == pytest.approx(100 + 4096 / 8, rel=0.1)
    size = np.asarray([0.0, 1000.0])
    assert model.shift_cycles(size) == pytest.approx([0, 550])
    assert model.exchange_cycles(size, 2 * size) == pytest.approx([0, 1070])
    closed = device_model(CHIP.with_fields({"cost_model": "roofline"}))
    assert model.copy_cycles(size).tolist() == closed.copy_cycles(size).tolist()
    # Kinds without a fit are the base's.
    tile = np.asarray([[1, 16, 16, 16, 16, 3, 3]])
    assert model.tile_cycles(conv(), tile).tolist() == closed.tile_cycles(conv(), tile).tolist()
    ipu = device_model(CHIP.with_fields({"cost_model": str(own(tmp_path, "ipu-mk2"))}))
    assert type(ipu) is FittedIpu
    assert ipu.copy_cycles(size).tolist() == CLOSED.copy_cycles(size).tolist()


def test_files_that_are_no_good(tmp_path: Path) -> None:
    with pytest.raises(ElkError, match="cannot read this file"):
        device_model(CHIP.with_fields({"cost_model": str(tmp_path / "none.txt")}))
    path = own(tmp_path)
    good = path.read_text()
    path.write_text(good.replace("leaf", "leave", 1))
    with pytest.raises(ElkError, match="not the one that its"):
        load_fits(path)
    path.write_text(good)
    for text in ("[]", "{", '{"text_sha256": 3}'):
        sidecar_of(path).write_text(text)
        with pytest.raises(ElkError, match="not a cost model"):
            load_fits(path)


def test_sidecars_that_lack_something(tmp_path: Path) -> None:
    path = own(tmp_path)
    data = json.loads(sidecar_of(path).read_text())
    for key, value, message in (
        ("base", "mars", "format 1, base mars"),
        ("format", 99, "format 99, base "),
        ("fits", [{"kind": "warp", "columns": []}], r"kind 'warp' with columns \[\]"),
    ):
        sidecar_of(path).write_text(json.dumps(data | {key: value}))
        with pytest.raises(ElkError, match=f"not a cost model's description: {message}"):
            load_fits(path)
