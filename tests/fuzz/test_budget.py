"""A few cases of every kind, always the same; `make fuzz` runs on from there."""

from __future__ import annotations

import pytest

from fuzz.campaign import run_batch


@pytest.mark.parametrize(("kind", "number", "examples"), [("te", 1, 6), ("node", 2, 4)])
def test_no_difference(kind: str, number: int, examples: int) -> None:
    _, defect = run_batch(kind, number, examples, shrink=False)
    assert defect is None, defect and defect.what
