"""Compiles models into folders, one after the other or in one thread each: for test_threads.py.

    python compile_at_once.py FOLDER turn|once SWITCH_INTERVAL_S MODEL:CHIP:POLICY ...

In one thread each they start at the same moment, with nothing compiled before and so nothing that
is kept from one compilation for the next; the interpreter changes threads every SWITCH_INTERVAL_S.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import elk_ir


def main(folder: Path, mode: str, interval_s: float, jobs: list[str]) -> int:
    sys.setswitchinterval(interval_s)
    barrier = threading.Barrier(len(jobs))
    done: list[int] = []

    def work(i: int) -> None:
        model, chip, policy = jobs[i].rsplit(":", 2)
        if mode == "once":
            barrier.wait()
        elk_ir.compile(model, chip=chip, policy=policy or None).save(folder / str(i))
        done.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
        if mode == "turn":
            thread.join()
    for thread in threads:
        thread.join()
    return len(done) != len(jobs)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4:]))
