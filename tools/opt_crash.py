"""Reproducers of `elk-opt`: the input of the pass that crashed, and the command that replays it."""

from __future__ import annotations

import os
import re
import shlex
import traceback
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Reproducer:
    """A file that makes a pass crash again; `pipeline` is what to run on `text`."""

    pass_name: str
    pipeline: str
    text: str
    flags: tuple[str, ...]
    error: BaseException

    @property
    def file_name(self) -> str:
        return f"elk-opt-crash-{re.sub(r'[^A-Za-z0-9_.-]', '_', self.pass_name)}.mlir"

    def command(self, path: Path) -> str:
        """The command line that replays the crash from the file at `path`."""
        return shlex.join(["elk-opt", str(path), "-p", self.pipeline, *self.flags])

    def write(self, directory: Path) -> Path:
        """Write the file, atomically, and return its path. Raises OSError."""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / self.file_name
        trace = "".join(traceback.format_exception(self.error)).rstrip("\n")
        header = [
            f"Pass '{self.pass_name}' of elk-opt crashed on the module below. Replay with:",
            f"  {self.command(path)}",
            *trace.split("\n"),
        ]
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            temporary.write_text(
                "".join(f"// {line}".rstrip() + "\n" for line in header) + self.text + "\n",
                encoding="utf-8",
            )
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        return path
