"""Errors of commands, and of what they call, that only unusual inputs meet: one clear message."""

from __future__ import annotations

import sqlite3
import sys
from functools import cache
from pathlib import Path
from shutil import copyfile
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from northpole_programs import LLAMA, shrunk
from onnx import TensorProto, helper, numpy_helper
from sim_programs import chip as sim_chip
from sim_programs import compute, program
from test_northpole_refusals import TINY, W4A4, stateless
from test_schedule import FREE, op, table

import elk_ir
from elk_ir.chips import load_chip
from elk_ir.errors import CapacityError, ElkError, UsageError
from elk_ir.explore.evaluate import evaluate, forget
from elk_ir.explore.store import FORMAT
from elk_ir.explore.sweep import sweep_from_toml
from elk_ir.explore.task import tasks_of
from elk_ir.northpole.mapping import map_network
from elk_ir.report.data import report_data
from elk_ir.schedule.allocate import Weights
from elk_ir.schedule.basic import Step
from elk_ir.schedule.inductive import elk_dyn
from elk_ir.schedule.model import Op, Program, Schedule
from elk_ir.schedule.policies import policy
from elk_ir.schedule.repair import repair
from elk_ir.schedule.resident import choose_resident
from elk_ir.schedule.static import basic, static
from elk_ir.sim import run as sim_run
from elk_ir.sim.run import SimulationError, simulate
from elk_ir.spatial import spatial_results
from elk_ir.tools import elk_opt
from elk_ir.tools.elk import main

CHIP = ("--chip", "test-16")


def refused(capsys: pytest.CaptureFixture[str], code: int, message: str, *argv: object) -> None:
    """The command says `message`, and nothing else."""
    capsys.readouterr()
    assert main([str(a) for a in argv]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("elk: error: ") and message in err, err
    assert err.count("error:") == 1


@cache
def product(nodes: int = 1) -> onnx.ModelProto:
    """Products by square weights, one after another; no loop, no state."""
    weight = numpy_helper.from_array(np.ones((32, 32), np.float16), "w")
    names = ["x", *(f"t{i}" for i in range(1, nodes)), "y"]
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", [names[i], "w"], [names[i + 1]], name=f"product_{i}")
            for i in range(nodes)
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, ["batch", 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, ["batch", 32])],
        [weight],
    )
    opset = helper.make_opsetid("", 20)
    return helper.make_model(graph, opset_imports=[opset], ir_version=9)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A file with one product, of any batch."""
    path = tmp_path / "m.onnx"
    onnx.save(product(), path)
    return path


# ---------------------------------------------------------------------- commands


def test_arguments_without_sense(capsys: pytest.CaptureFixture[str]) -> None:
    compare = ("compare", LLAMA, *CHIP, "--policies", "basic,quick")
    refused(capsys, 2, "unknown policy 'quick'\n  hint: the policies are: basic", *compare)
    refused(capsys, 2, "--steps takes a number from 1", "run", LLAMA, *CHIP, "--steps", "0")
    refused(capsys, 1, r"'a\x00.toml': no file can have this name", "chips", "a\0.toml")


def test_nothing_to_compare_without_hbm(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = "chip 'ipu-mk2' has no HBM, so there is nothing to preload"
    refused(capsys, 1, message, "compare", model, "--chip", "ipu-mk2", "--dim", "batch=2")


def test_gpus_beside_a_graph_without_state(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cards = ("--chip", "northpole-16", "--dim", "batch=1", "--gpus", "published")
    message = "--gpus compares tokens, and this graph generates none"
    refused(capsys, 2, message, "simulate", model, *cards)


def test_elk_opt_does_not_write_over_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.mlir").write_text("builtin.module {}\n")
    assert elk_opt.main([str(tmp_path / "in.mlir"), "-o", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out == "" and f"{tmp_path}: " in err and "cannot write: is a directory" in err


def test_programs_of_cards_have_no_plans(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = elk_ir.compile(model, chip="northpole-16", dims={"batch": 1})
    with pytest.raises(UsageError, match="--report shows programs of the target ipu, not northp"):
        report_data(found)
    folder = model.with_name("cards")
    found.save(folder)
    message = "plans are those of the target ipu, not of northpole"
    refused(capsys, 2, message, "explain", folder, "product_0")


def test_files_of_two_compilations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A target.mlir of another model in the folder of a program."""
    for name, nodes in (("a", 1), ("b", 2)):
        onnx.save(product(nodes), tmp_path / f"{name}.onnx")
        found = elk_ir.compile(
            tmp_path / f"{name}.onnx", chip="test-16", policy="basic", dims={"batch": 2}
        )
        found.save(tmp_path / name)
    copyfile(tmp_path / "b" / "target.mlir", tmp_path / "a" / "target.mlir")
    message = "program.mlir and target.mlir are not of one compilation: compile again"
    refused(capsys, 1, message, "explain", tmp_path / "a", "product_0")


def test_measurements_without_a_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "d.csv"
    data.write_text("kind,batch,rows,cols,cycles\n" + "product,1,8,8,100\n" * 40)
    fit = ("profile", "fit", data, "-o", tmp_path / "m.txt")
    refused(capsys, 1, "d.csv: no column 'inner'\n  has: kind, batch, rows, cols, cycles", *fit)
    assert not (tmp_path / "m.txt").exists()


def test_a_cost_model_that_is_a_folder(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fitted, chip = model.with_name("fitted.txt"), model.with_name("chip.toml")
    fitted.mkdir()
    fitted.with_suffix(".json").write_text("{}")
    chip.write_text('extends = "test-16"\ncost_model = "fitted.txt"\n')
    options = ("--chip", chip, "--dim", "batch=2", "--policy", "basic")
    message = f"{fitted}: cannot read this file: Is a directory"
    refused(capsys, 1, message, "compile", model, *options, "-o", model.with_name("out"))


# ---------------------------------------------------------------------- sweeps


BASE = '[base]\nmodel = "m.onnx"\nchip = "test-16"\n'


def test_results_without_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.sqlite"
    database = sqlite3.connect(path)
    database.execute(f"PRAGMA user_version = {FORMAT}")
    database.close()
    refused(capsys, 1, "r.sqlite: cannot be read: no such table", "explore", "show", path)


def test_values_of_a_sweep_that_are_none() -> None:
    with pytest.raises(ElkError, match=r"'clock_hz' = \[1\]: must be a number, a text or true"):
        sweep_from_toml(BASE + "clock_hz = [1]\n", "s.toml", Path())


def test_a_model_that_fails_fails_at_every_point(tmp_path: Path) -> None:
    """The failure is kept: the second policy says it, too."""
    (tmp_path / "m.onnx").write_bytes(b"no model")
    text = BASE + '[axes]\npolicy = ["basic", "static"]\n'
    forget()
    try:
        found = [evaluate(task) for task in tasks_of(sweep_from_toml(text, "s.toml", tmp_path))]
    finally:
        forget()
    assert len(found) == 2
    for outcome in found:
        assert outcome.result is None
        assert outcome.error is not None and "m.onnx: not an ONNX model" in outcome.error


def test_no_scheduler_answers(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a Dask whose client finds nobody."""

    def client(address: str, timeout: float) -> Any:
        raise OSError("timed out")

    distributed, scheduler = ModuleType("distributed"), ModuleType("distributed.scheduler")
    vars(distributed).update(Client=client, as_completed=None, scheduler=scheduler)
    vars(scheduler)["KilledWorker"] = RuntimeError
    monkeypatch.setitem(sys.modules, "distributed", distributed)
    monkeypatch.setitem(sys.modules, "distributed.scheduler", scheduler)
    sweep = model.with_name("s.toml")
    sweep.write_text(BASE + "dim.batch = 2\n")
    run = ("explore", sweep, "-o", model.with_name("r.sqlite"), "--cluster", "tcp://here:1")
    refused(capsys, 1, "tcp://here:1: no Dask scheduler answers: timed out", *run)


# ---------------------------------------------------------------------- cards


def test_more_samples_than_a_card_takes() -> None:
    """No caches, so the cards hold the graph for any number of users; their framebuffer does
    not."""
    network = stateless(TINY.network(16))
    by_memory = map_network(network, load_chip("northpole-16"), W4A4).users_by_memory
    message = f"^{by_memory + 1} samples at once: framebuffer and cores hold {by_memory}"
    with pytest.raises(ElkError, match=message):
        map_network(network, load_chip("northpole-16"), W4A4, users=by_memory + 1)


def test_an_output_layer_too_large_for_all_cards() -> None:
    message = r"^head: needs 67 bytes on each core, which has 40 \(27 too many\)"
    with pytest.raises(CapacityError, match=message) as caught:
        map_network(TINY.network(16), shrunk(40), W4A4, cards=2, users=1)
    assert "weights on each of 2 cards" in str(caught.value)


# ---------------------------------------------------------------------- schedules


HUGE = Program((op("small", 1.0, 10, 1.0), op("huge", 1.0, 2000, 1.0)), FREE)
NOTHING = Program((Op("none", table([], [], [], 0.0), smallest_bytes=4000),), FREE)


def test_operators_that_do_not_fit() -> None:
    with pytest.raises(CapacityError, match="huge: needs 2,000 bytes"):
        basic(HUGE, Weights())
    with pytest.raises(CapacityError, match="huge: needs 2,000 bytes"):
        elk_dyn(HUGE, Weights())
    with pytest.raises(CapacityError, match="huge: needs 2,000 bytes") as caught:
        repair(HUGE, Schedule((0, 0), (0, 1), (0, 1)), Weights())
    assert "the operator's plan" in str(caught.value)
    with pytest.raises(CapacityError, match="none: needs 4,000 bytes"):
        static(NOTHING, Weights())


def test_an_order_that_does_not_fit() -> None:
    """Each operator fits; the second one's preload, issued first, does not wait beside the
    first."""
    ops = (op("first", 1.0, 600, 1.0), op("second", 1.0, 600, 1.0))
    elk_dyn(Program(ops, FREE), Weights())
    with pytest.raises(CapacityError, match="first: needs 600 bytes"):
        elk_dyn(Program(ops, FREE), Weights(), order=(1, 0))


def test_weights_that_do_not_stay_together() -> None:
    def step(label: str, size: int) -> Step:
        sizes = np.asarray([size])
        return Step(label, sizes + 10, sizes, np.asarray([1.0]))

    steps = [step("a", 300), step("b", 500)]
    assert choose_resident(steps, 810) == (0, 0)
    with pytest.raises(CapacityError, match="needs 810 bytes") as caught:
        choose_resident(steps, 809)
    assert "all weights together" in str(caught.value)


def test_a_policy_that_does_not_exist() -> None:
    with pytest.raises(KeyError, match="quick"):
        policy("quick")


# ---------------------------------------------------------------------- simulator


def test_a_compute_that_never_ends() -> None:
    with pytest.raises(ElkError, match="the simulation is stuck: nothing that is awaited can"):
        simulate(program(4, compute([np.inf] * 4)), sim_chip(4))


def test_checks_of_a_simulation() -> None:
    """What the engine must never return."""
    sim_run._check(1.0, 1.0, {"hbm": 1.0}, (8.0, 8.0))
    with pytest.raises(SimulationError, match=r"simulated 1 s, below the bound 'hbm' of 2 s"):
        sim_run._check(1.0, 1.0, {"hbm": 2.0}, (8.0, 8.0))
    with pytest.raises(SimulationError, match=r"the parts of the time add up to 0\.5 of 1 s"):
        sim_run._check(1.0, 0.5, {}, (8.0, 8.0))
    with pytest.raises(SimulationError, match="HBM moved 7 bytes of the program's 8"):
        sim_run._check(1.0, 1.0, {}, (7.0, 8.0))
    sim_run._check_exchanged(8.0, 8.0)
    with pytest.raises(SimulationError, match="exchanges moved 9 bytes of the program's 8"):
        sim_run._check_exchanged(9.0, 8.0)


# ---------------------------------------------------------------------- stages


def test_pipelines_that_are_none(model: Path) -> None:
    def error(**options: Any) -> str:
        (found,) = spatial_results(str(model), load_chip("test-16"), [1], **options)
        return found["error"]

    assert error(micro_batches=0) == "0 micro-batches are none"
    odd = error(dims={"batch": 3}, micro_batches=2)
    assert odd.startswith("a batch of 3 does not divide into 2 micro-batches")
    assert error(dims={"batch": 2}).startswith(
        "the program has no loop of identical layers, which stages could share"
    )
