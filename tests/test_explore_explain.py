"""`elk explain` and `elk diff`: they say what enumeration, allocation and simulation say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import elk_ir
from elk_ir.errors import UsageError
from elk_ir.program import Program
from elk_ir.report.diff import difference
from elk_ir.report.explain import explain
from elk_ir.tools.elk import main

MODEL = Path(__file__).parent / "models" / "statickv_scatter_dynamo.onnx"


@pytest.fixture(scope="module")
def basic() -> Program:
    return elk_ir.compile(MODEL, chip="test-16", policy="basic")


@pytest.fixture(scope="module")
def full() -> Program:
    return elk_ir.compile(MODEL, chip="test-16", policy="elk-full")


def test_the_chosen_plan_is_the_program_s(basic: Program) -> None:
    for row in basic.report["operators"]:
        found = explain(basic, row["name"])
        assert found.chosen.grid == row["grid"]
        assert found.chosen.cores == row["cores"]
        assert found.chosen.execute_bytes == row["sram_bytes"]
        assert sum(o.chosen for o in found.options) == 1
        assert found.chosen.execute_bytes <= found.room_bytes <= found.capacity_bytes


def test_reasons_follow_from_the_numbers(full: Program) -> None:
    found = explain(full, "node_view_3")
    chosen = found.chosen
    assert len(found.options) > 3
    for option in found.options:
        if option.chosen:
            continue
        assert ("slower" in option.reason) == (option.execute_s > chosen.execute_s)
        assert ("could use" in option.reason) == (option.execute_bytes > chosen.execute_bytes)
    assert explain(full, found.nodes[1]) == found  # by a node's name
    with pytest.raises(
        UsageError, match="no operator and no node is called 'node_vew_3'"
    ) as caught:
        explain(full, "node_vew_3")
    assert "node_view_3" in str(caught.value)


def test_a_plan_without_room_says_so() -> None:
    """On a core that has room for little more than the plan in use."""
    from elk_ir.chips import load_chip

    chip = load_chip("test-16").with_fields({"sram_per_core_bytes": 4_096 + 9_728})
    program = elk_ir.compile(MODEL, chip=chip, policy="basic")
    reasons = [
        (o.execute_bytes > found.room_bytes, "free beside the others" in o.reason)
        for found in (explain(program, r["name"]) for r in program.report["operators"])
        for o in found.options
        if not o.chosen
    ]
    assert all(a == b for a, b in reasons)
    assert any(a for a, _ in reasons)


def test_differences_add_up(basic: Program, full: Program) -> None:
    found = difference(basic, full)
    totals = {name: (a, b) for name, a, b in found.totals}
    assert totals["time_s"] == (basic.report["time_s"], full.report["time_s"])
    assert totals["sram_peak_bytes"][1] == full.report["sram_peak_bytes"]
    busy = [sum(r.end_s - r.start_s for r in p.simulate().operators()) for p in (basic, full)]
    delta = sum(p.delta_s for p in found.operators)
    assert delta == pytest.approx(busy[1] - busy[0], rel=1e-6)
    assert sum(v for _, v in found.spent) == pytest.approx(delta, rel=1e-6)
    assert sum(b - a for _, a, b in found.breakdown) == pytest.approx(
        full.report["time_s"] - basic.report["time_s"]
    )
    moved = [p for p in found.operators if p.a and p.b and p.a.preload_ahead != p.b.preload_ahead]
    assert moved and all("ahead" in p.why for p in moved)
    same = difference(full, full)
    assert all(p.delta_s == 0 and not p.why for p in same.operators)
    assert not same.spent


def test_the_commands(
    basic: Program,
    full: Program,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = str(basic.save(tmp_path / "a")), str(full.save(tmp_path / "b"))
    assert main(["diff", a, b]) == 0
    out = capsys.readouterr().out
    assert "B takes −" in out and "what changed" in out
    assert main(["diff", a, str(tmp_path)]) == 1
    # Reading programs is slow, and has tests of its own.
    monkeypatch.setattr("elk_ir.program.load", {a: basic, b: full}.__getitem__)
    assert main(["diff", a, b, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["totals"]["time_s"] == {"a": basic.report["time_s"], "b": full.report["time_s"]}
    assert main(["explain", b, "node_view_3"]) == 0
    out = capsys.readouterr().out
    assert "→" in out and "room" in out
    assert main(["explain", b, "node_view_3", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["chosen"] in told["options"]
    assert main(["explain", b, "nothing"]) == 2
