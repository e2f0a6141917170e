"""What computing the figures used: seconds of waiting, and memory of all its processes together."""

from __future__ import annotations

import json
import os
import threading
from collections import defaultdict
from pathlib import Path
from types import TracebackType

INTERVAL_S = 1.0


def together_bytes(process: int) -> int:
    """Proportional set sizes of a process and all below it, in bytes; 0 where Linux isn't.

    A page that n processes share counts as 1/n of it in each, so that the sum is what they take.
    """
    below: dict[int, list[int]] = defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:  # It ended meanwhile.
            continue
        below[int(stat.rpartition(")")[2].split()[1])].append(int(folder.name))
    total, left = 0, [process]
    while left:
        current = left.pop()
        left += below[current]
        try:
            lines = Path(f"/proc/{current}/smaps_rollup").read_text(encoding="utf-8").splitlines()
        except OSError:
            continue
        total += 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total


class Used:
    """Totals of all runs into a folder, in its `used.json`; as a context, it watches the memory."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "used.json"
        known = json.loads(self._path.read_text("utf-8")) if self._path.is_file() else {}
        self.wall_s: float = known.get("wall_s", 0.0)
        self.peak_bytes: int = known.get("peak_bytes", 0)
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def waited(self, wall_s: float) -> None:
        """Add seconds of waiting."""
        self.wall_s += wall_s
        self._keep()

    def _keep(self) -> None:
        known = {"wall_s": self.wall_s, "peak_bytes": self.peak_bytes}
        self._path.write_text(json.dumps(known) + "\n", encoding="utf-8")

    def _watch(self) -> None:
        while not self._over.wait(INTERVAL_S):
            found = together_bytes(os.getpid())
            if found > self.peak_bytes:
                self.peak_bytes = found
                self._keep()

    def __enter__(self) -> Used:
        self._watcher.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._watcher.join()
        self._keep()
