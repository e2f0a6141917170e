"""Makes each lit test a pytest item, run in this process (see lit_inprocess.py)."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import lit_inprocess as lit


class LitFailure(Exception):
    """A RUN line failed; the message is the log."""


class LitFile(pytest.File):
    """A file with RUN lines."""

    def collect(self) -> Iterator[pytest.Item]:
        yield LitItem.from_parent(self, name="RUN")


class LitItem(pytest.Item):
    """The RUN lines of one file."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        try:
            self._script: lit.Script | lit.LitSyntaxError = lit.read_script(self.path)
        except lit.LitSyntaxError as error:
            self._script = error  # reported as this test's failure, not as a collection error
            return
        if "slow" in self._script.requires:
            self.add_marker("slow")
        if "shared" in self._script.requires and not lit.SHARED.is_dir():
            self.add_marker(pytest.mark.skip(reason=lit.FEATURES["shared"]))

    def runtest(self) -> None:
        if isinstance(self._script, lit.LitSyntaxError):
            raise self._script
        with tempfile.TemporaryDirectory(prefix="elk-lit-") as scratch:
            outcome = lit.run_script(self._script, Path(scratch))
        if not outcome.passed:
            raise LitFailure(outcome.log)

    def repr_failure(self, excinfo: Any, style: Any = None) -> Any:
        if isinstance(excinfo.value, LitFailure | lit.LitSyntaxError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, self.nodeid


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> LitFile | None:
    below = file_path.relative_to(Path(__file__).parent).parts
    if file_path.suffix not in lit.SUFFIXES or lit.EXCLUDED_DIRS & set(below):
        return None
    return LitFile.from_parent(parent, path=file_path)
