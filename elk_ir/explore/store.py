"""The file of results: SQLite, one row a point, shared by any number of runs at the same time.

A run claims points before it computes them; a claim holds as long as the run that made it gives
signs of life, so a run that was killed blocks nothing. A row and the end of its claim are one
transaction, and a key is stored once: no row is lost or doubled, whoever dies when.
"""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elk_ir.errors import ElkError
from elk_ir.explore.task import Outcome, Task

FORMAT = 1
ALIVE_S = 60.0
"""A run of another machine that has not been heard of for this long is taken for dead."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS points (
    key TEXT PRIMARY KEY,
    sweep TEXT NOT NULL,
    position INTEGER NOT NULL,
    settings TEXT NOT NULL,
    status TEXT NOT NULL,
    result TEXT,
    error TEXT,
    cpu_s REAL NOT NULL,
    peak_rss_bytes INTEGER NOT NULL,
    finished_at TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS runs (
    run TEXT PRIMARY KEY,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    started TEXT NOT NULL,
    beat REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS claims (
    key TEXT PRIMARY KEY,
    run TEXT NOT NULL
);
"""

_TAKEN = "SELECT 1 FROM points WHERE key = ? UNION ALL SELECT 1 FROM claims WHERE key = ?"


@dataclass(frozen=True)
class Row:
    """A finished point. `result` is None for a failure, whose message is `error`; the last three
    vary between runs, all else is determined by the point."""

    key: str
    sweep: str
    position: int
    settings: dict[str, Any]
    status: str
    result: dict[str, Any] | None
    error: str | None
    cpu_s: float
    peak_rss_bytes: int
    finished_at: str


class Store:
    """An open file of results. Raises ElkError for a file that is none, or can't be written."""

    def __init__(self, path: str | Path, *, create: bool = True) -> None:
        self.path = Path(path)
        if not create and not self.path.is_file():
            raise ElkError("no such file of results", where=str(path))
        self._lock = threading.RLock()
        self.run: str | None = None
        try:
            # Transactions are begun by hand: claims need the write lock before they read.
            self._db = sqlite3.connect(
                self.path, timeout=60.0, isolation_level=None, check_same_thread=False
            )
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            tables = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if version != FORMAT and (version or tables):
                raise ElkError(
                    "this SQLite file holds something else, or results of another version",
                    where=str(path),
                    hint="choose another file",
                )
            if create:
                with self._transaction():
                    for statement in _SCHEMA.split(";"):
                        self._db.execute(statement)
                    self._db.execute(f"PRAGMA user_version = {FORMAT}")
        except sqlite3.Error as error:
            raise ElkError(
                f"cannot be used as a file of results: {error}", where=str(path)
            ) from None

    def close(self) -> None:
        """End this run's claims, and close the file."""
        with self._lock:
            if self.run is not None:
                with self._transaction():
                    self._db.execute("DELETE FROM claims WHERE run = ?", (self.run,))
                    self._db.execute("DELETE FROM runs WHERE run = ?", (self.run,))
                self.run = None
            self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    yield
                except BaseException:
                    self._db.execute("ROLLBACK")
                    raise
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                raise ElkError(f"cannot be written: {error}", where=str(self.path)) from None

    # ------------------------------------------------------------------ runs and claims

    def begin(self) -> None:
        """Register this process as a run. Claims of runs that are dead are dropped."""
        self.run = uuid.uuid4().hex
        with self._transaction():
            self._bury()
            self._db.execute(
                "INSERT INTO runs VALUES (?, ?, ?, ?, ?)",
                (self.run, socket.gethostname(), os.getpid(), _started(os.getpid()), time.time()),
            )

    def beat(self) -> None:
        """A sign of life."""
        with self._transaction():
            self._db.execute("UPDATE runs SET beat = ? WHERE run = ?", (time.time(), self.run))

    def claim(self, tasks: Sequence[Task], limit: int) -> list[Task]:
        """At most `limit` of `tasks`, in their order, that are neither done nor claimed by a living
        run; they are this run's now."""
        with self._transaction():
            self._bury()
            mine: list[Task] = []
            for task in tasks:
                if len(mine) == limit:
                    break
                if not self._db.execute(_TAKEN, (task.key, task.key)).fetchone():
                    mine.append(task)
            self._db.executemany(
                "INSERT INTO claims VALUES (?, ?)", [(task.key, self.run) for task in mine]
            )
        return mine

    def release(self, keys: Iterable[str]) -> None:
        """End claims without a row."""
        with self._transaction():
            self._db.executemany("DELETE FROM claims WHERE key = ?", [(k,) for k in keys])

    def _bury(self) -> None:
        host, now = socket.gethostname(), time.time()
        rows = self._db.execute("SELECT run, host, pid, started, beat FROM runs").fetchall()
        for run, where, pid, started, beat in rows:
            if run == self.run:
                continue
            here = where == host
            alive = _started(pid) == started if here else now - beat < ALIVE_S
            if not alive:
                self._db.execute("DELETE FROM claims WHERE run = ?", (run,))
                self._db.execute("DELETE FROM runs WHERE run = ?", (run,))

    # ------------------------------------------------------------------ rows

    def done(self) -> set[str]:
        """Keys of all finished points."""
        with self._lock:
            return {key for (key,) in self._db.execute("SELECT key FROM points")}

    def write(self, sweep: str, task: Task, outcome: Outcome) -> None:
        """Store a finished point, and end its claim."""
        status = "ok" if outcome.error is None else "failed"
        result = None if outcome.result is None else json.dumps(outcome.result, sort_keys=True)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with self._transaction():
            self._db.execute(
                "INSERT OR IGNORE INTO points VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    task.key,
                    sweep,
                    task.position,
                    json.dumps(task.settings, sort_keys=True),
                    status,
                    result,
                    outcome.error,
                    outcome.cpu_s,
                    outcome.peak_rss_bytes,
                    stamp,
                ),
            )
            self._db.execute("DELETE FROM claims WHERE key = ?", (task.key,))

    def forget_failures(self, keys: Sequence[str]) -> int:
        """Drop those of the given points that failed, so that they are tried again; how many."""
        with self._transaction():
            before = self._db.total_changes
            self._db.executemany(
                "DELETE FROM points WHERE key = ? AND status = 'failed'", [(k,) for k in keys]
            )
            return self._db.total_changes - before

    def rows(self, sweep: str | None = None) -> list[Row]:
        """All finished points, or those of one sweep, ordered by sweep and position."""
        query = (
            "SELECT key, sweep, position, settings, status, result, error, cpu_s, peak_rss_bytes,"
            " finished_at FROM points"
        )
        with self._lock:
            try:
                found = self._db.execute(query + " ORDER BY sweep, position, key").fetchall()
            except sqlite3.Error as error:
                raise ElkError(f"cannot be read: {error}", where=str(self.path)) from None
        rows = [
            Row(k, s, p, json.loads(a), st, None if r is None else json.loads(r), e, c, m, f)
            for k, s, p, a, st, r, e, c, m, f in found
        ]
        return [row for row in rows if sweep is None or row.sweep == sweep]


def _started(pid: int) -> str:
    """When a process of this machine began, as the kernel says; '' if there is none. Process ids
    are used again, so a living one may not be the run that made a claim."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        if Path("/proc/self/stat").exists():
            return ""
        return _alive(pid)
    fields = text.rpartition(")")[2].split()
    # A zombie still has an entry, and will never write again.
    return "" if fields[0] in ("Z", "X") else fields[19]


def _alive(pid: int) -> str:
    """The same where there is no /proc: only whether the id is in use."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "alive"
