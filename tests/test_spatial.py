"""Spatial pipelining: stages by hand, and beside the temporal model of the same scheduler."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from elk_ir.chips import Chip, load_chip
from elk_ir.dialects.icca.ops import RepeatOp
from elk_ir.errors import ElkError
from elk_ir.passes.icca_schedule import schedule_by_name
from elk_ir.passes.icca_support import program_of
from elk_ir.schedule.model import evaluate
from elk_ir.schedule.pipeline import Network, Pipeline, balance, stage_chip, transfer_s
from elk_ir.spatial import spatial_results
from elk_ir.tools.cmd_compare import prepare

MODEL = Path(__file__).parent / "models" / "llama2_decode_static_dynamo.onnx"


def never(_: int) -> float | None:
    """No weights stay on chip."""
    return None


def test_two_stages_by_hand() -> None:
    """Four layers of 3 s, 1 s before and 5 s behind them, 0.5 s from stage to stage: 1 + 3 x 3 s
    and 3 + 5 s, so a micro-batch leaves every 10.5 s."""
    found = balance(Network(4, 3.0, never, 1.0, 5.0), 2)
    assert [(s.first, s.layers, s.seconds) for s in found] == [(0, 3, 10.0), (3, 1, 8.0)]
    three = Pipeline(found, 3, 0.5)
    assert three.cycle_s == 10.5
    assert three.latency_s == 18.5
    assert three.fill_s == 18.5 + 2 * 10.5
    assert three.interval_s == 31.5
    # One micro-batch cannot begin again before it has left.
    assert Pipeline(found, 1, 0.5).interval_s == 18.5
    assert Pipeline(found, 1, 0.5, feedback=False).interval_s == 10.5


def test_weights_stay_where_they_fit_and_help() -> None:
    """Up to two layers fit on a stage, in 2 s instead of 3 s: three stages for five layers hold all
    but one layer's, or none of a stage with three."""
    found = balance(Network(5, 3.0, lambda n: 2.0 if n <= 2 else None), 3)
    assert [s.layers for s in found] == [1, 2, 2]
    assert all(s.resident for s in found)
    assert max(s.seconds for s in found) == 4.0
    slower = balance(Network(4, 3.0, lambda _: 3.5), 2)
    assert not any(s.resident for s in slower)


def test_balance_is_the_best_of_all_cuts() -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        layers, stages = int(rng.integers(3, 9)), int(rng.integers(2, 4))
        fits = int(rng.integers(1, 5))
        before, behind = rng.uniform(0, 5, 2)
        network = Network(layers, 2.0, lambda n: 1.2 if n <= fits else None, before, behind)  # noqa: B023
        best = min(
            max(
                (b - a) * (1.2 if b - a <= fits else 2.0)
                + before * (a == 0)
                + behind * (b == layers)
                for a, b in zip((0, *cuts), (*cuts, layers), strict=True)
            )
            for cuts in combinations(range(1, layers), stages - 1)
        )
        assert max(s.seconds for s in balance(network, stages)) == pytest.approx(best)


def test_more_stages_of_the_same_speed_are_never_slower() -> None:
    cycles = [
        Pipeline(balance(Network(12, 1.0, never, 0.5, 2.0), n), n, 0.0).cycle_s
        for n in range(1, 13)
    ]
    assert cycles == sorted(cycles, reverse=True)
    assert cycles[0] == 14.5 and cycles[-1] == 3.0


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(ElkError, match="3 stages for 2 layers"):
        balance(Network(2, 1.0, never), 3)
    with pytest.raises(ElkError, match="can't be cut into 0 stages"):
        stage_chip(load_chip("ipu-pod4-hbm"), 0)


def test_stages_share_cores_and_bandwidth() -> None:
    pod = load_chip("ipu-pod4-hbm")
    assert stage_chip(pod, 1) is pod
    two, eight = stage_chip(pod, 2), stage_chip(pod, 8)
    assert (two.chips, two.cores) == (2, pod.cores // 2)
    assert (eight.chips, eight.cores) == (1, pod.cores // 8)
    for part, stages in ((two, 2), (eight, 8)):
        assert part.hbm_bytes_per_s * stages == pytest.approx(pod.hbm_bytes_per_s)
        assert part.hbm is not None and pod.hbm is not None
        egress = part.hbm.controller_egress_bytes_per_s * part.hbm.controllers_per_chip
        whole = pod.hbm.controller_egress_bytes_per_s * pod.hbm.controllers_per_chip
        assert egress * part.chips * stages == pytest.approx(whole * pod.chips)
    mesh = stage_chip(load_chip("ipu-pod4-hbm-mesh"), 8)
    assert (mesh.network.rows, mesh.network.cols) == (16, 46)
    with pytest.raises(ElkError, match="neither divides"):
        stage_chip(pod, 6)
    with pytest.raises(ElkError, match="32 rows do not divide"):
        stage_chip(load_chip("ipu-pod4-hbm-mesh"), 12)
    with pytest.raises(ElkError, match="no HBM"):
        stage_chip(load_chip("ipu-mk2"), 2)


def test_transfers_by_hand() -> None:
    """64 KiB over 32 cores of test-64: 2 KiB a core through its port, and both barriers."""
    chip = load_chip("test-64")
    net = chip.network
    seconds = 2048 / min(net.port_in_bytes_per_s, net.port_out_bytes_per_s) + 2 * chip.sync_s
    seconds += net.transfer_latency_cycles / chip.clock_hz
    assert transfer_s(chip, 32, 65_536) == pytest.approx(seconds)


def _slow_hbm() -> Chip:
    return load_chip("test-64").with_fields({"hbm.bandwidth_bytes_per_s": 8e9})


def test_one_stage_is_the_temporal_program() -> None:
    """The scheduler's model of the program: iterations of its loop, and what is around it."""
    chip = _slow_hbm()
    prepared = prepare(str(MODEL), chip, {})
    module = prepared.module.clone()
    scheduling = schedule_by_name(module, "elk-dyn", tables=prepared.tables)
    (count,) = (op.count.value.data for op in program_of(module).walk() if isinstance(op, RepeatOp))
    expected = sum(
        (count if program.periodic else 1) * evaluate(program, schedule).time_s
        for program, schedule in scheduling.schedules
    )
    (one,) = spatial_results(str(MODEL), chip, [1], policy="elk-dyn")
    assert one["time_s"] == pytest.approx(expected, rel=1e-9)
    assert one["layers_per_stage"] == [2] and one["resident_stages"] == 0


def test_two_stages_hold_their_weights_where_hbm_is_slow() -> None:
    """With 8 GB/s the temporal program waits for weights. Two stages hold a layer each; with two
    runs under way, a run takes less, and each of them longer from end to end than its own share."""
    one, two, three = spatial_results(str(MODEL), _slow_hbm(), [1, 2, 3], policy="elk-dyn")
    assert two["resident_stages"] == 2 and two["layers_per_stage"] == [1, 1]
    assert two["runs_at_once"] == 2
    assert two["run_s"] < one["run_s"]
    assert two["cycle_s"] >= max(two["stage_s"])
    assert two["flow_s"] == pytest.approx(sum(two["stage_s"]) + two["transfer_s"])
    assert two["latency_s"] >= two["flow_s"]
    assert "3 stages for 2 layers" in three["error"]
