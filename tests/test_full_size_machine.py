"""What lets the virtual machine run full-size programs: batches, long runs, weights row by row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers import Weights, lower, machine_of, planned, program, random_array

from elk_ir.frontend.weights import WeightPart, WeightRef, stacked_rows
from elk_ir.plan.layout import replicated
from elk_ir.plan.moves import moves
from elk_ir.targets.ipu import transfers, vertex
from elk_ir.weight_source import Rows, WeightSource

PLANS = (
    'icca-set-plan{op=q grid="m=2,n=2,k=4" exec="0:k=2;1:k=2" reduce=scatter scatter=n},'
    'icca-set-plan{op=o grid="m=2,n=2,k=4" exec="1:k=1" preload="1:k=2" reduce=all},'
    'icca-set-plan{op=norm grid="m=2,k=4" reduce=all}'
)


def test_batches_do_not_change_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """One core and one transfer at a time, masks computed anew: the same bytes."""
    module = lower(planned(program("slice"), PLANS))
    h = {"h": random_array(np.random.default_rng(0), (6, 64), "float32")}
    machine = machine_of(module, Weights())
    wanted = machine.run(h)["y"]
    monkeypatch.setattr(vertex, "BATCH_BYTES", 1)
    monkeypatch.setattr(vertex, "KEPT_MASK_BYTES", 0)
    monkeypatch.setattr(transfers, "BATCH_ELEMENTS", 1)
    small = machine_of(module, Weights())
    assert small.run(h)["y"].tobytes() == wanted.tobytes()
    assert small.counters == machine.counters


def test_contiguous_boxes_move_as_one_run() -> None:
    """A whole tensor to another core is one element of a wide type."""
    plan = moves(replicated((4, 6)), replicated((4, 6), 3))
    batches = list(transfers.batches(plan, 24, 24))
    assert [b.run for b in batches] == [24]
    memory = np.arange(24, dtype=np.float32).reshape(1, 24)
    target = np.zeros((3, 24), np.float32)
    for b in batches:
        transfers.as_runs(target, b.run)[b.target] = transfers.as_runs(memory, b.run)[b.source]
    assert (target == memory).all()


def parts(folder: Path, layers: int) -> tuple[WeightPart, ...]:
    """Weights of 6 x 4 in a file, one behind another."""
    data = np.random.default_rng(1).standard_normal((layers, 6, 4)).astype(np.float32)
    (folder / "w.bin").write_bytes(data.tobytes())
    return tuple(WeightPart("w.bin", 96 * i, 96, "", "f32", (6, 4), f"w{i}") for i in range(layers))


@pytest.mark.parametrize(
    "recipe", [("stack",), ("transpose 1 0", "stack"), ("concat 0 2", "stack 2")]
)
@pytest.mark.parametrize("seed", [None, 5])
def test_rows_are_those_of_the_stack(
    recipe: tuple[str, ...], seed: int | None, tmp_path: Path
) -> None:
    """A row loaded alone, from disk or made up, is the row of the whole tensor."""
    ref = WeightRef(parts(tmp_path, 4), recipe)
    base = tmp_path if seed is None else tmp_path / "nowhere"
    source = WeightSource(base, random_seed=seed)
    whole = source.load_ref(ref)
    found = stacked_rows(ref, len(whole))
    assert found is not None
    rows = Rows(WeightSource(base, random_seed=seed), found)
    assert rows.shape == whole.shape
    for i in reversed(range(len(whole))):
        np.testing.assert_array_equal(rows[i], whole[i])


def test_rows_that_need_the_others(tmp_path: Path) -> None:
    """A step after the stack, or a stack of another size: no row can be had alone."""
    four = parts(tmp_path, 4)
    assert stacked_rows(WeightRef(four, ("stack", "transpose 1 0 2")), 4) is None
    assert stacked_rows(WeightRef(four, ("stack",)), 3) is None
    assert stacked_rows(WeightRef(four[:1]), 1) is None
