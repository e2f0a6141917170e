"""`elk explore`: sweeps, their points, the file of results, what a killed run leaves behind."""

from __future__ import annotations

import csv
import io
import json
import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from elk_ir.errors import ElkError
from elk_ir.explore.run import Claims, explore
from elk_ir.explore.store import Row, Store
from elk_ir.explore.sweep import Sweep, Times, load_sweep, sweep_from_toml
from elk_ir.explore.table import flat, on_front, pivot
from elk_ir.explore.task import Task, dispatch_order, tasks_of
from elk_ir.tools.elk import main

BASE = '[base]\nmodel = "m.onnx"\nchip = "test-16"\n'


def parsed(text: str, folder: Path = Path()) -> Sweep:
    """A sweep from a text."""
    return sweep_from_toml(text, "s.toml", folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of one product, of any batch."""
    path = tmp_path_factory.mktemp("sweeps")
    weight = numpy_helper.from_array(np.ones((64, 32), np.float16), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, ["batch", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, ["batch", 32])],
        [weight],
    )
    opset = helper.make_opsetid("", 20)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), path / "m.onnx")
    return path


def write_sweep(folder: Path, name: str, body: str) -> Path:
    """A sweep file."""
    path = folder / f"{name}.toml"
    path.write_text(body)
    return path


GRID = (
    BASE
    + """dim.batch = 4
[axes]
policy = ["basic", "static"]
hbm.bandwidth_bytes_per_s = { from = 8e9, to = 64e9, steps = 3, scale = "log" }
sync_cycles = [50, 100]
"""
)


def content(path: Path) -> list[tuple[Any, ...]]:
    """What a file of results says, without what varies between runs."""
    store = Store(path, create=False)
    rows = [
        (r.key, r.sweep, r.position, r.settings, r.status, r.result, r.error) for r in store.rows()
    ]
    store.close()
    return rows


# ---------------------------------------------------------------------- sweeps


def test_a_grid_is_the_product_of_its_axes() -> None:
    sweep = parsed(
        BASE
        + """
[axes]
policy = ["basic", "static"]
hbm.bandwidth_bytes_per_s = { from = 1e9, to = 4e9, steps = 3, scale = "log" }
"dim.batch" = { from = 1, to = 8, steps = 2 }
[[together]]
"network.port_in_bytes_per_s" = { times = [0.5, 2] }
"network.port_out_bytes_per_s" = { times = [0.5, 2] }
"""
    )
    points = sweep.points()
    assert len(points) == 2 * 3 * 2 * 2
    assert [p["hbm.bandwidth_bytes_per_s"] for p in points[::4]] == [1e9, 2e9, 4e9] * 2
    assert {(p["dim.batch"], type(p["dim.batch"])) for p in points} == {(1, int), (8, int)}
    ports = {(p["network.port_in_bytes_per_s"], p["network.port_out_bytes_per_s"]) for p in points}
    assert ports == {(Times(0.5), Times(0.5)), (Times(2.0), Times(2.0))}


def test_samples_are_reproducible_and_a_hypercube_covers_every_slice() -> None:
    text = (
        BASE
        + """
[axes]
policy = ["basic", "static"]
hbm.bandwidth_bytes_per_s = { from = 0.0, to = 10.0 }
[sample]
kind = "KIND"
points = 10
seed = SEED
"""
    )

    def drawn(kind: str, seed: int) -> list[dict[str, Any]]:
        return parsed(text.replace("KIND", kind).replace("SEED", str(seed))).points()

    for kind in ("random", "latin-hypercube"):
        assert drawn(kind, 1) == drawn(kind, 1) != drawn(kind, 2)
    cube = drawn("latin-hypercube", 3)
    assert sorted(int(p["hbm.bandwidth_bytes_per_s"]) for p in cube) == list(range(10))
    assert sum(p["policy"] == "basic" for p in cube) == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[axes]\n", "'model' is missing"),
        ("[axis]\n", "unknown section 'axis'"),
        ("[axes\n", "not valid TOML"),
        (BASE + '[axes]\npolicy = "basic"\n', "must be a list"),
        (BASE + "[axes]\npolicy = []\n", "must be a list"),
        (BASE + "[axes]\npolicy = [1]\n", "must be a text"),
        (BASE + '[axes]\n"dim.b" = [1.5]\n', "must be an integer"),
        (BASE + '[axes]\n"dim.b" = { times = [2] }\n', "multiplies a field of the chip"),
        (BASE + "[axes]\nclock_hz = { from = 1, to = 2 }\n", "needs 'steps'"),
        (BASE + "[axes]\nclock_hz = { from = 2, to = 1, steps = 2 }\n", "the first one smaller"),
        (BASE + "[axes]\na = { from = 0, to = 1, steps = 2, scale = 'log' }\n", "above 0"),
        (BASE + "[axes]\na = [1]\n[[together]]\na = [1]\n", "on two axes"),
        (BASE + "[[together]]\na = [1]\nb = [1, 2]\n", "as many: a has 1, b has 2"),
        (BASE + "[sample]\npoints = 0\n", "points: must be a count"),
        (BASE + "[sample]\nkind = 'sobol'\npoints = 2\n", "'latin-hypercube'"),
        (BASE + "[axes]\na = { from = 1, to = 2, steps = 9999999 }\n", "at most"),
        ("together = 1\n" + BASE, "'together' must be tables"),
        ("together = [1]\n" + BASE, "'together' must be tables"),
        ("name = 1\n" + BASE, "'name' and 'description' must be texts"),
        ("description = 1\n" + BASE, "'name' and 'description' must be texts"),
        ("base = 1\n", "must be a table"),
        (BASE + "a.b = 1\n'a.b' = 2\n", r"\[base\] has 'a.b' twice"),
        (BASE + "clock_hz = nan\n", "'clock_hz' = nan: must be finite"),
        (BASE + "[axes]\na = [inf]\n", "'a' = inf: must be finite"),
        (BASE + f"[axes]\na = [1{'0' * 400}]\n", "'a' = …: must be finite"),
        (BASE + f"[axes]\na = {{ from = 1, to = 1{'0' * 400} }}\n", "must be numbers"),
        (BASE + "[axes]\na = { from = -inf, to = inf }\n[sample]\npoints = 2\n", "be numbers"),
        (BASE + "[axes]\na = { from = -1e308, to = 1e308, steps = 2 }\n", "too far apart"),
        (BASE + "[axes]\na = { times = [inf] }\n", "'times' takes a number"),
        (BASE + "[axes]\na = { from = 1, to = 2, scale = 'square' }\n", "scale is 'linear' or"),
        (BASE + "[axes]\na = { from = 1, to = 2, integer = 1 }\n", "integer is true or false"),
        (BASE + "[axes]\na = { from = 0, to = 1, scale = 'log' }\n", "a log scale must begin"),
        (BASE + "[axes]\na = { from = 0, to = 1 }\n", "'a': a grid needs 'steps'"),
        (
            BASE
            + "[axes]\n"
            + "".join(f"{a} = {{ from = 0, to = 1, steps = 2000 }}\n" for a in "ab"),
            "the grid has 4,000,000 points; at most 1,000,000",
        ),
        ("sample = 1\n" + BASE, "takes kind, points and seed"),
        (BASE + "[sample]\npoints = 2\nsize = 3\n", "takes kind, points and seed"),
        (BASE + "[sample]\npoints = 2\nseed = 1.5\n", "seed: must be an integer"),
        (BASE + "[axes]\na = [1]\n[[together]]\na = [2]\n", "'a' is on two axes"),
    ],
)
def test_a_mistake_is_one_message(text: str, message: str) -> None:
    with pytest.raises(ElkError, match=message) as caught:
        parsed(text).points()
    assert caught.value.where == "s.toml"


def test_points_that_share_plans_are_computed_together(folder: Path) -> None:
    sweep = parsed(
        BASE
        + '[axes]\n"dim.batch" = [1, 2]\nhbm.bandwidth_bytes_per_s = [1e9, 2e9]\n'
        + "cores_per_chip = [8, 16]\n",
        folder,
    )
    tasks = tasks_of(sweep)
    assert len({t.key for t in tasks}) == 8
    assert len({t.group for t in tasks}) == 4
    groups = [t.group for t in dispatch_order(tasks)]
    assert [groups[i] == groups[i + 1] for i in range(0, 8, 2)] == [True] * 4


def test_fronts_are_enumerated_once_for_chips_that_differ_elsewhere(
    folder: Path, tmp_path: Path
) -> None:
    from elk_ir.plan import enumerate as plans

    text = BASE.replace("test-16", "test-64") + 'policy = "basic"\ndim.batch = 3\n'
    text += "[axes]\nhbm.bandwidth_bytes_per_s = [1e9, 2e9, 3e9, 4e9]\n"
    plans.forget_fronts()
    explore(parsed(text, folder), str(tmp_path / "r.sqlite"))
    info = plans._front.cache_info()  # counted since the sweep began, which forgets as well
    assert info.misses == 1
    assert info.hits >= 3


# ---------------------------------------------------------------------- running


@pytest.fixture(scope="module")
def finished(folder: Path) -> Path:
    """The results of GRID, by one run that nothing disturbed."""
    path = folder / "finished.sqlite"
    summary = explore(load_sweep(write_sweep(folder, "grid", GRID)), str(path))
    assert (summary.points, summary.computed, summary.failed) == (12, 12, 0)
    return path


def test_rows_say_what_the_compiler_says(folder: Path, finished: Path) -> None:
    import elk_ir
    from elk_ir.chips import load_chip

    key, sweep, position, settings, status, result, error = content(finished)[-1]
    assert (sweep, position, status, error) == ("grid", 11, "ok", None)
    chip = load_chip("test-16").with_fields({"hbm.bandwidth_bytes_per_s": 64e9, "sync_cycles": 100})
    model = folder / "m.onnx"
    program = elk_ir.compile(model, chip=chip, policy="static", dims={"batch": 4})
    for name in ("time_s", "energy_j", "breakdown_s", "sram_peak_bytes"):
        assert result[name] == program.report[name]
    assert settings["policy"] == "static" and result["chip"] == "test-16"
    assert result["area_proxy_mm2"] > 0
    assert len(key) == 32


def test_a_second_run_computes_nothing(folder: Path, finished: Path) -> None:
    before = content(finished)
    summary = explore(load_sweep(folder / "grid.toml"), str(finished))
    assert (summary.before, summary.computed) == (12, 0)
    assert content(finished) == before


def test_failures_are_rows(folder: Path, tmp_path: Path) -> None:
    text = BASE + "dim.batch = 4\n[axes]\npolicy = ['basic', 'nonsense']\n"
    text += "sram_per_core_bytes = [65_536, 4_128, -1]\n"
    path = tmp_path / "r.sqlite"
    summary = explore(parsed(text, folder), str(path))
    assert (summary.computed, summary.failed) == (6, 5)
    errors = [row[6] for row in content(path)]
    assert errors[0] is None
    assert "bytes on each core" in errors[1] or "too many" in errors[1]
    assert "sram_per_core_bytes" in errors[2]
    assert "unknown policy 'nonsense'" in errors[3]
    again = explore(parsed(text, folder), str(path), retry_failures=True)
    assert (again.before, again.computed, again.failed) == (1, 5, 5)


def test_a_field_that_the_chip_lacks_is_not_multiplied(folder: Path) -> None:
    (task,) = tasks_of(parsed(BASE + "nonsense = { times = 2 }\n", folder))
    assert task.chip is None
    assert "chip 'test-16' has no number 'nonsense' to multiply" in str(task.problem)


def test_missing_models_and_chips_stop_the_sweep(folder: Path, tmp_path: Path) -> None:
    for text, message in (
        (BASE.replace("m.onnx", "none.onnx"), "cannot be read"),
        (BASE.replace("test-16", "test-17"), "unknown chip"),
    ):
        with pytest.raises(ElkError, match=message):
            explore(parsed(text, folder), str(tmp_path / "r.sqlite"))
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    with pytest.raises(ElkError, match="something else"):
        explore(parsed(BASE, folder), str(other))
    (tmp_path / "text").write_text("no database at all, " * 100)
    with pytest.raises(ElkError, match="cannot be used"):
        Store(tmp_path / "text")


def test_two_runs_share_a_file(folder: Path, finished: Path, tmp_path: Path) -> None:
    """Claims: what one run has taken the other leaves alone, until the first is dead."""
    path = tmp_path / "shared.sqlite"
    sweep = load_sweep(folder / "grid.toml")
    tasks = tasks_of(sweep)
    first, second = Store(path), Store(path)
    first.begin()
    second.begin()
    mine = [Claims(first, tasks).next() for _ in range(3)]
    assert [t.position for t in mine if t] == [0, 1, 2]
    theirs = Claims(second, tasks).next()
    assert theirs is not None and theirs.position == 3
    first.close()  # its claims end, although nothing was written
    second.close()
    context = multiprocessing.get_context("fork")
    runs = [context.Process(target=explore, args=(sweep, str(path))) for _ in range(2)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert [run.exitcode for run in runs] == [0, 0]
    assert content(path) == content(finished)


def test_points_of_a_machine_go_to_the_process_that_has_it(tmp_path: Path) -> None:
    def point(n: int, group: str, bandwidth: int, policy: str) -> Task:
        settings = {"chip": "c", "bandwidth": bandwidth, "policy": policy}
        return Task(f"{n}", n, settings, "m", None, group)

    policies = ("basic", "static", "search")
    machines = (("a", 1), ("a", 2), ("b", 3))
    tasks = [
        point(3 * k + n, group, bandwidth, policy)
        for k, (group, bandwidth) in enumerate(machines)
        for n, policy in enumerate(policies)
    ]
    store = Store(tmp_path / "c.sqlite")
    store.begin()
    claims = Claims(store, tasks)
    one = claims.next()
    two = claims.next(None, [one] if one else [])
    assert one and two
    assert (one.position, two.position) == (0, 6)  # another group, not the next point
    taken = {1: [one], 2: [two]}
    for k in (2, 2, 1, 2, 2, 1, 1, 1):
        other = taken[3 - k][-1]
        task = claims.next(taken[k][-1], [other])
        if task is not None:
            taken[k].append(task)
    # The second helps with the group of the first, but not with the machine that it is on.
    assert [t.position for t in taken[2]] == [6, 7, 8, 5, 3]
    assert [t.position for t in taken[1]] == [0, 1, 2]
    last = claims.next(taken[2][-1], [])
    assert last is not None and last.position == 4
    assert claims.next(taken[2][-1], []) is None
    store.close()


def _count(path: Path, mode: str = "ro") -> int:
    try:
        with sqlite3.connect(f"file:{path}?mode={mode}", uri=True) as db:
            return db.execute("SELECT count(*) FROM points").fetchone()[0]
    except sqlite3.Error:
        return 0


def test_killed_runs_resume(folder: Path, finished: Path, tmp_path: Path) -> None:
    sweep, path, draw = load_sweep(folder / "grid.toml"), tmp_path / "k.sqlite", random.Random(5)
    context = multiprocessing.get_context("fork")
    for target in (1, 4, 7):
        run = context.Process(target=explore, args=(sweep, str(path)))
        run.start()
        while _count(path) < target:
            time.sleep(0.002)
        time.sleep(draw.uniform(0, 0.03))
        assert run.pid is not None
        os.kill(run.pid, signal.SIGKILL)
        run.join()
        if target == 1:
            assert run.exitcode == -signal.SIGKILL
    explore(sweep, str(path))
    assert content(path) == content(finished)


LARGE = (
    BASE
    + """dim.batch = 4
[axes]
policy = ["basic", "static"]
hbm.bandwidth_bytes_per_s = { from = 8e9, to = 64e9, steps = 40, scale = "log" }
sync_cycles = [50, 100, 150]
"""
)


@pytest.mark.slow
def test_the_command_killed_ten_times_resumes(folder: Path, tmp_path: Path) -> None:
    """Ten kills of the command and its workers, at random moments: while it starts, or a random
    while after it has written some more rows. No row is lost or doubled."""
    sweep = load_sweep(write_sweep(folder, "large", LARGE))
    whole, path, draw = tmp_path / "whole.sqlite", tmp_path / "k.sqlite", random.Random(7)
    explore(sweep, str(whole))
    command = [sys.executable, "-m", "elk_ir.tools.elk", "explore", str(folder / "large.toml")]
    command += ["-o", str(path), "--jobs", "2"]
    rows = [0]
    for _ in range(10):
        run = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
        more = rows[-1] + draw.randrange(6)
        while run.poll() is None and _count(path) < more:
            time.sleep(0.002)
        time.sleep(draw.uniform(0, 0.3))
        assert run.poll() is None, "it ended before it was killed"
        os.killpg(run.pid, signal.SIGKILL)
        assert run.wait() == -signal.SIGKILL
        rows.append(_count(path, "rwc"))  # what was left half written is rolled back here
    assert rows == sorted(rows) and 0 < rows[-1] < 240
    subprocess.run(command, check=True, capture_output=True)
    assert content(path) == content(whole)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list[subprocess.Popen[Any]]]]:
    """A Dask scheduler and two workers, started by Dask's own commands."""
    pytest.importorskip("distributed", reason="Dask (extra 'cluster') is not installed")
    dask = shutil.which("dask", path=str(Path(sys.executable).parent))
    if dask is None:
        pytest.skip("the command `dask` is not beside this Python")
    file = tmp_path / "scheduler.json"
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    quiet |= {"start_new_session": True, "cwd": tmp_path}
    about = [f"--scheduler-file={file}", "--no-dashboard"]
    processes = [
        subprocess.Popen([dask, "scheduler", "--host=127.0.0.1", "--port=0", *about], **quiet)
    ]
    for _ in range(600):
        if file.exists() and file.read_text().strip():
            break
        time.sleep(0.1)
    workers = [
        subprocess.Popen([dask, "worker", "--nthreads=1", "--nworkers=1", *about], **quiet)
        for _ in range(2)
    ]
    yield json.loads(file.read_text())["address"], workers
    for process in [*workers, *processes]:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


@pytest.mark.slow
def test_dask_and_joblib_give_the_same_rows(
    folder: Path,
    finished: Path,
    tmp_path: Path,
    cluster: tuple[str, list[subprocess.Popen[Any]]],
) -> None:
    address, workers = cluster
    sweep = load_sweep(folder / "grid.toml")
    explore(sweep, str(tmp_path / "joblib.sqlite"), jobs=2)
    assert content(tmp_path / "joblib.sqlite") == content(finished)
    path, lines = tmp_path / "dask.sqlite", []

    def say(line: str) -> None:
        lines.append(line)
        if line.startswith("3 of"):
            os.killpg(workers[0].pid, signal.SIGKILL)  # in the middle; nothing may be lost

    explore(sweep, str(path), cluster=address, say=say)
    assert workers[0].wait() == -signal.SIGKILL
    assert content(path) == content(finished)
    assert lines[-1].startswith("12 of 12")


@pytest.mark.slow
def test_no_scheduler_is_one_message(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="Dask (extra 'cluster') is not installed")
    sweep = load_sweep(write_sweep(folder, "grid", GRID))
    with pytest.raises(ElkError, match="Dask"):
        explore(sweep, str(tmp_path / "r.sqlite"), cluster="nonsense://127.0.0.1:1")


# ---------------------------------------------------------------------- showing


def _row(settings: dict[str, Any], result: dict[str, Any] | None, error: str | None = None) -> Row:
    status = "ok" if error is None else "failed"
    return Row("k", "s", 0, settings, status, result, error, 0.0, 0, "")


def test_pivots_and_fronts() -> None:
    rows = [
        _row({"a": 2, "p": "x"}, {"time_s": 3.0, "energy_j": 1.0, "tokens_per_s": 1.0}),
        _row({"a": 1, "p": "x"}, {"time_s": 1.0, "energy_j": 2.0, "tokens_per_s": 2.0}),
        _row({"a": 1, "p": "x"}, {"time_s": 2.0, "energy_j": 2.0, "tokens_per_s": 9.0}),
        _row({"a": 1, "p": "y"}, {"time_s": 1.0, "energy_j": 2.0, "tokens_per_s": 1.0}),
        _row({"a": 2, "p": "y"}, None, "too large"),
    ]
    records = [flat(row) for row in rows]
    assert pivot(records, "p", "a", "time") == (["x", "y"], [1, 2], [[1.0, 3.0], [1.0, None]])
    assert pivot(records, "p", "a", "tokens_per_s")[2] == [[9.0, 1.0], [1.0, None]]
    assert on_front(records, ["time", "energy"]) == [True, True, False, True, False]
    assert on_front(records, ["tokens_per_s"]) == [False, False, True, False, False]
    with pytest.raises(ElkError, match="no row has a field 'tim'"):
        on_front(records, ["tim"])
    with pytest.raises(ElkError, match="'x': a front needs numbers"):
        on_front(records, ["p"])


def test_show(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "all.csv"
    show = ["explore", "show", str(finished)]
    assert main([*show, "--pareto", "time,energy,area", "--csv", str(file)]) == 0
    out = capsys.readouterr().out
    assert "12 points, 0 failed" in out and "area_proxy_mm2" in out and "*" in out
    records = list(csv.DictReader(io.StringIO(file.read_text())))
    expected = content(finished)
    assert [float(r["time_s"]) for r in records] == [row[5]["time_s"] for row in expected]
    assert main([*show, "--pivot", "hbm.bandwidth_bytes_per_s,policy,time"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2 + 3
    assert main([*show, "--json", "--pivot", "sync_cycles,policy,time"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["pivot"]["columns"] == ["basic", "static"]
    assert [p["result"] for p in found["points"]] == [row[5] for row in expected]


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["explore", "s.toml"], 2, "-o RESULTS.sqlite is needed"),
        (["explore", "s.toml", "-o", "r", "--csv", "x"], 2, "only for `elk explore show`"),
        (["explore", "s.toml", "-o", "r", "--jobs", "2", "--cluster", "x"], 2, "exclude"),
        (["explore", "none.toml", "-o", "r"], 1, "cannot read this sweep"),
        (["explore", "show"], 2, "which file"),
        (["explore", "show", "none.sqlite"], 1, "no such file"),
        (["explore", "show", "r", "--jobs", "2"], 2, "only to run a sweep"),
        (
            ["explore", "show", "FINISHED", "--pivot", "policy,time"],
            2,
            "--pivot takes three fields",
        ),
    ],
)
def test_wrong_usage(
    argv: list[str], code: int, message: str, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(finished) if a == "FINISHED" else a for a in argv]) == code
    assert message in capsys.readouterr().err


def test_ways_to_compute_that_are_not_there(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = parsed(BASE + "dim.batch = 4\n", folder)
    with pytest.raises(ElkError, match="0 jobs compute nothing"):
        explore(sweep, str(tmp_path / "r.sqlite"), jobs=0)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ElkError, match="--cluster needs Dask"):
        explore(sweep, str(tmp_path / "r.sqlite"), cluster="tcp://127.0.0.1:1")
