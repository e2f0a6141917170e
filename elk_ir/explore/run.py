"""Running a sweep: points are claimed, computed by joblib or Dask, and written as they finish."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from elk_ir.errors import ElkError
from elk_ir.explore.evaluate import evaluate
from elk_ir.explore.store import Store
from elk_ir.explore.sweep import Sweep
from elk_ir.explore.task import Outcome, Task, dispatch_order, machine_of, tasks_of

BEAT_S = 10.0
"""Seconds between signs of life."""

POLL_S = 0.2
"""How often a run whose last points another run computes looks whether they are done."""

ATTEMPTS = 3
"""How often a point may lose its worker process before it counts as a failure."""

WORKER = {
    f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "BLIS", "NUMEXPR")
} | {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
"""Environment of the processes of `--jobs`. Their number is the number of cores in use; what is
large goes back to the system when it is freed (glibc keeps up to 32 MB apiece otherwise)."""

Say = Callable[[str], None]


@dataclass
class Progress:
    """How far a run is. `computed`: points of this run; `before`: those that were there."""

    total: int
    before: int
    say: Say
    computed: int = 0
    failed: int = 0
    elsewhere: int = 0
    started: float = field(default_factory=time.monotonic)

    def point(self, outcome: Outcome) -> None:
        """One more."""
        self.computed += 1
        self.failed += outcome.error is not None
        self.show()

    def show(self) -> None:
        """Tell `say`."""
        self.say(self.line())

    def line(self) -> str:
        """Points done, failures, and an estimate of the time left: what the rest takes at the pace
        so far."""
        done = self.before + self.computed + self.elsewhere
        text = f"{done:,} of {self.total:,} points"
        if self.failed:
            text += f", {self.failed:,} failed"
        elapsed = time.monotonic() - self.started
        if self.computed and done < self.total:
            pace = elapsed / (self.computed + self.elsewhere)
            text += f", about {duration(pace * (self.total - done))} left"
        return text


def duration(seconds: float) -> str:
    """A time for people: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@dataclass(frozen=True)
class Summary:
    """What a run did: points of the sweep, those that were there, computed and failed now, computed
    meanwhile by other runs on the same file."""

    points: int
    before: int
    computed: int
    failed: int
    elsewhere: int
    wall_s: float


def explore(
    sweep: Sweep,
    path: str,
    *,
    jobs: int = 1,
    cluster: str | None = None,
    retry_failures: bool = False,
    say: Say = lambda _: None,
) -> Summary:
    """Compute all points of a sweep that the file does not have. Raises ElkError for a sweep, a
    file or a cluster that is no good; a point that fails is a row like any other."""
    tasks = dispatch_order(tasks_of(sweep))
    store = Store(path)
    try:
        if retry_failures:
            store.forget_failures([task.key for task in tasks])
        store.begin()
        done = store.done()
        todo = [task for task in tasks if task.key not in done]
        shown = Progress(len(tasks), len(tasks) - len(todo), say)
        shown.show()
        with _beating(store):
            _all(sweep.name, store, todo, shown, jobs, cluster)
    finally:
        store.close()
    wall_s = time.monotonic() - shown.started
    return Summary(len(tasks), shown.before, shown.computed, shown.failed, shown.elsewhere, wall_s)


def _all(
    name: str, store: Store, todo: list[Task], shown: Progress, jobs: int, cluster: str | None
) -> None:
    runner = _dask(cluster) if cluster is not None else _joblib(jobs)
    lost: dict[str, int] = {}
    while todo:
        claims = Claims(store, todo)
        by_key = {task.key: task for task in todo}
        try:
            for outcome in runner(claims):
                store.write(name, by_key[outcome.key], outcome)
                claims.flying.discard(outcome.key)
                shown.point(outcome)
        except WorkerLost:
            for key in claims.flying:
                lost[key] = lost.get(key, 0) + 1
                if lost[key] >= ATTEMPTS:
                    outcome = _killed(key)
                    store.write(name, by_key[key], outcome)
                    shown.point(outcome)
            store.release(claims.flying)
        before = len(todo)
        done = store.done()
        todo = [task for task in todo if task.key not in done]
        shown.elsewhere = shown.total - shown.before - shown.computed - len(todo)
        if len(todo) == before and not claims.given:
            time.sleep(POLL_S)  # the rest is claimed by another run
            shown.show()


def _killed(key: str) -> Outcome:
    message = (
        f"the worker process died {ATTEMPTS} times while it computed this point, or one beside it\n"
        "  hint: it may have run out of memory; use fewer jobs"
    )
    return Outcome(key, None, message, 0.0, 0)


class WorkerLost(Exception):
    """A worker process died; the points in flight have to be computed again."""


class Claims:
    """Hands out tasks one by one, each claimed when it is asked for. `flying`: handed out, and not
    written yet; `given`: how many have been."""

    def __init__(self, store: Store, tasks: Sequence[Task]) -> None:
        self._store, self._tasks = store, list(tasks)
        self.flying: set[str] = set()
        self.given = 0
        self._lock = threading.Lock()
        self._machine = {task.key: machine_of(task) for task in tasks}

    def __iter__(self) -> Iterator[Task]:
        while True:
            task = self.next()
            if task is None:
                return
            yield task

    def next(self, last: Task | None = None, others: Sequence[Task] = ()) -> Task | None:
        """The next task, None if all others are done, claimed elsewhere, or better left to the
        process that is on their machine. last: what the process that asks has computed before;
        others: what other processes are on. Safe between threads."""
        with self._lock:
            offered = _offered(self._tasks, self._machine, last, others)
            found = self._store.claim(offered, 1)
            taken = offered if not found else offered[: offered.index(found[0]) + 1]
            # What was passed over is done or taken; a later pass looks at it again.
            gone = {task.key for task in taken}
            self._tasks = [task for task in self._tasks if task.key not in gone]
            if not found:
                return None
            self.flying.add(found[0].key)
            self.given += 1
            return found[0]


SHARED = 6
"""From how many points of one machine on two processes share them, each preparing it."""


def _offered(
    tasks: Sequence[Task], machines: Mapping[str, str], last: Task | None, others: Sequence[Task]
) -> list[Task]:
    """The tasks for a process, best first: of the machine and the group that it has ready, then of
    groups that no other process is on, then machines of these groups, the last ones first.
    machines: by key."""
    if last is None and not others:
        return list(tasks)
    machine, group = (machines[last.key], last.group) if last is not None else (None, None)
    busy_groups = {task.group for task in others} - {group}
    busy_machines = {machines[task.key] for task in others} - {machine}
    left = Counter(machines[task.key] for task in tasks)
    ranked: list[tuple[int, int, Task]] = []
    for position, task in enumerate(tasks):
        own = machines[task.key]
        if own == machine:
            rank = 0
        elif own in busy_machines:
            if left[own] < SHARED:
                continue
            rank = 4
        elif task.group == group:
            rank = 1
        else:
            rank = 3 if task.group in busy_groups else 2
        ranked.append((rank, -position if rank > 2 else position, task))
    return [task for _, _, task in sorted(ranked, key=lambda entry: entry[:2])]


@contextmanager
def _beating(store: Store) -> Iterator[None]:
    """Signs of life from a thread."""
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(BEAT_S):
            # One that is missed (a file locked for long) is no reason to stop.
            with suppress(ElkError):
                store.beat()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


Runner = Callable[[Claims], Iterator[Outcome]]


def _keep_memory() -> None:
    """In a new process of a pool: it may grow. loky replaces one that has grown by 300 MB, and with
    it what it keeps of the points before."""
    from joblib.externals.loky import process_executor

    setattr(process_executor, "_MAX_MEMORY_LEAK_SIZE", float("inf"))  # noqa: B010 - not declared


def _joblib(jobs: int) -> Runner:
    if jobs < 1:
        raise ElkError(f"{jobs} jobs compute nothing", hint="give --jobs 1 or more")

    def run(claims: Claims) -> Iterator[Outcome]:
        if jobs == 1:
            yield from map(evaluate, claims)
            return
        from joblib.externals.loky import ProcessPoolExecutor
        from joblib.externals.loky.process_executor import TerminatedWorkerError

        # A pool for each process: which of them computes a point matters, since they keep what
        # points share.
        pools: list[Any] = [
            ProcessPoolExecutor(1, env=WORKER, initializer=_keep_memory) for _ in range(jobs)
        ]
        flying: dict[Future[Outcome], tuple[int, Task]] = {}
        last: list[Task | None] = [None] * jobs

        def submit(k: int) -> None:
            others = [task for n, task in flying.values() if n != k]
            task = claims.next(last[k], others)
            if task is not None:
                last[k] = task
                flying[pools[k].submit(evaluate, task)] = k, task

        try:
            for k in range(jobs):
                submit(k)
            while flying:
                for future in wait(flying, return_when=FIRST_COMPLETED).done:
                    k, _ = flying.pop(future)
                    outcome = future.result()
                    idle = [n for n in range(jobs) if n not in {m for m, _ in flying.values()}]
                    for n in [k, *(n for n in idle if n != k)]:
                        submit(n)
                    yield outcome
        except TerminatedWorkerError:
            raise WorkerLost from None
        finally:
            for pool in pools:
                pool.shutdown(wait=True, kill_workers=True)

    return run


def _dask(address: str) -> Runner:
    try:
        from distributed import Client, as_completed  # pyright: ignore[reportMissingImports]
        from distributed.scheduler import KilledWorker  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ElkError(
            "--cluster needs Dask", hint="pip install 'elk-ir[cluster]', here and on the workers"
        ) from None

    def run(claims: Claims) -> Iterator[Outcome]:
        try:
            client: Any = Client(address, timeout=30)
        except (OSError, ValueError) as error:
            raise ElkError(f"no Dask scheduler answers: {error}", where=address) from None
        with client:
            width = max(1, 2 * sum(client.nthreads().values()))
            names: dict[Any, str] = {}
            finished: Any = as_completed()

            def submit() -> bool:
                task = claims.next()
                if task is None:
                    return False
                # Not pure: a row of an earlier run must not come out of the cluster's memory.
                future = client.submit(evaluate, task, pure=False)
                names[future] = task.key
                finished.add(future)
                return True

            while len(names) < width and submit():
                pass
            for future in finished:
                key = names.pop(future)
                try:
                    yield future.result()
                except KilledWorker:
                    yield _killed(key)
                submit()

    return run


def default_jobs() -> int:
    """Processes to use unless told: the cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
