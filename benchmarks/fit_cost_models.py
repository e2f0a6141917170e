"""The shipped fits of IPU MK2 tiles: their cross-validated errors, and the files if asked for.

    python benchmarks/fit_cost_models.py [--write]

Reads ../shared/data. `--write` replaces elk_ir/cost/models/ipu-mk2.{txt,json}.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from elk_ir.cost import formulas
from elk_ir.cost.fit_files import SHIPPED, FitSet, load_fits, save_fits
from elk_ir.cost.linear_tree import Fit, cross_validate, fit, tree_trainer
from elk_ir.cost.profile_data import Measured, read_measurements

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"
FILES = ("ipu_mk2_tile_conv.csv", "ipu_mk2_tile_pool.csv")
SOURCE = (
    "tiles measured on one IPU MK2 core at 1.325 GHz: 300 convolutions and 55 poolings,"
    " tables of Elk's public research code"
)
PEAK = 64.0  # fp16 multiply-adds a cycle


def shipped_fits(folder: Path) -> FitSet:
    """The fits that ship, from the measured tables in `folder`."""
    fits: list[Fit] = []
    for name in FILES:
        for m in read_measurements(folder / name):
            fits.append(fit(m.kind, m.shapes, m.cycles, element_bytes=2, macs_per_cycle=PEAK))
    return FitSet("ipu-mk2", "ipu-mk2", SOURCE, tuple(fits))


def closed_form(m: Measured) -> np.ndarray:
    """What the published formulas say of the same tiles: products as im2col, reductions."""
    if m.kind == "conv":
        b, i, o, p, k = m.shapes.T
        return formulas.matmul_cycles(np.ones_like(b), b * p, o, i * k, 2)
    c, p, k = m.shapes.T
    return formulas.reduction_cycles(c * p, k)


def report(m: Measured, found: Fit) -> None:
    """Errors over all rows, by the values of columns that have few, and the worst rows."""
    held_out = cross_validate(m.shapes, m.cycles, tree_trainer(found))
    errors = np.abs(held_out / m.cycles - 1.0)
    closed = np.abs(closed_form(m) / m.cycles - 1.0)
    print(f"\n{m.kind}: {found.rows} rows; {found.leaves} leaves, product: {found.with_product}")
    print(f"{'':<28} {'rows':>5} {'median':>8} {'p90':>8} {'worst':>8}")
    _row("5-fold, all rows", errors)
    _row("closed form, all rows", closed)
    for j, column in enumerate(found.columns):
        values = np.unique(m.shapes[:, j])
        if len(values) <= 5:
            for value in values:
                _row(f"{column} = {value:g}", errors[:, m.shapes[:, j] == value])
    if m.kind == "conv":
        rate = m.shapes.prod(axis=1) / m.cycles
        print(f"above {PEAK:g} multiply-adds a cycle: {int((rate > PEAK).sum())} rows,")
        print(f"  at most {rate.max():.0f}; batches {np.unique(m.shapes[rate > PEAK, 0])}")
    print("worst rows: " + ", ".join(found.columns) + ": measured, predicted")
    mean = errors.mean(axis=0)
    for row in np.argsort(-mean)[:5]:
        shape = ", ".join(f"{v:g}" for v in m.shapes[row])
        print(f"  {shape}: {m.cycles[row]:,.0f}, {held_out[:, row].mean():,.0f}")


def _row(name: str, errors: np.ndarray) -> None:
    median, p90, worst = np.quantile(errors, [0.5, 0.9, 1.0])
    rows = errors.shape[-1]
    print(f"{name:<28} {rows:>5} {median:>8.1%} {p90:>8.1%} {worst:>8.1%}")


def main() -> None:
    """Fits, prints, and compares with what is shipped (or replaces it)."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true", help="replace the shipped files")
    args = parser.parse_args()
    if not (DATA / FILES[0]).is_file():
        print("the measured tables (../shared/data) are not here: nothing to fit")
        return
    start = time.process_time()
    fits = shipped_fits(DATA)
    print(f"fitted in {time.process_time() - start:.1f} CPU s")
    for name in FILES:
        for m in read_measurements(DATA / name):
            found = fits.of(m.kind)
            assert found is not None
            report(m, found)
    if args.write:
        save_fits(fits, SHIPPED)
    elif load_fits(SHIPPED).text == fits.text:
        print("\nequal to the shipped files, byte for byte")
    else:
        print("\nDIFFERENT from the shipped files (another version of LightGBM?)")


if __name__ == "__main__":
    main()
