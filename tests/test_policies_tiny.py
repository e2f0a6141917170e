"""Every graph under every executable policy, on 16 and 64 cores, with SRAM shrunk until plans must
rotate, split and preload less: schedules do not change answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from test_matrix import GRAPHS, TINY, TOO_LARGE
from test_schedule_programs import chip_with
from test_shrunk_sram import plan_features

from elk_ir.chips import Chip
from elk_ir.compiler import compile_model
from elk_ir.errors import ElkError
from elk_ir.numerics.compare import compare_outputs
from elk_ir.numerics.tensors import check_inputs, read_npz
from elk_ir.schedule.policies import EXECUTABLE

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

    import elk_ir

SHARES = (0.5, 0.6, 0.7, 0.85, 1.0)
"""Parts of the SRAM that the fastest plans take, the least first: the first in which the graph can
be compiled is taken."""
SAMPLE = {("opt_decode_static_dynamo", "test-64"): ("elk-full",)}
"""What `make test` runs."""


def cases() -> list[ParameterSet]:
    """Every graph on both chips; all but the sample are slow."""
    found: list[ParameterSet] = []
    for chip in ("test-16", "test-64"):
        for graph in GRAPHS:
            if (graph, chip) in TOO_LARGE:
                continue
            quick = SAMPLE.get((graph, chip))
            if quick:
                found.append(pytest.param(graph, chip, quick, id=f"{graph}-{chip}-sample"))
            found.append(
                pytest.param(graph, chip, EXECUTABLE, id=f"{graph}-{chip}", marks=pytest.mark.slow)
            )
    return found


def compiled(graph: str, chip: Chip | str, policy: str) -> elk_ir.Program:
    """A graph with the shapes of its recorded inputs."""
    path = TINY / f"{graph}.onnx"
    given = read_npz(path.with_suffix(".npz"), "in/")
    shapes = {k: v.shape for k, v in given.items()}
    return compile_model(
        path, chip=chip, policy=policy, input_shapes=shapes, time_budget_s=0.2, simulate=False
    )


def tight_chip(graph: str, name: str) -> Chip:
    """The chip with the least of `SHARES` of the SRAM in which `basic` still finds plans."""
    peak = compiled(graph, name, "basic").report["sram_peak_bytes"]
    for share in SHARES[:-1]:
        chip = chip_with(name, int(peak * share) // 64 * 64)
        try:
            compiled(graph, chip, "basic")
        except ElkError:
            continue
        return chip
    return chip_with(name, peak)


@pytest.mark.parametrize(("graph", "name", "policies"), cases())
def test_numbers_in_little_sram(graph: str, name: str, policies: tuple[str, ...]) -> None:
    path = TINY / f"{graph}.onnx"
    if not path.exists():
        pytest.skip("../shared/models/tiny is not here")
    given = read_npz(path.with_suffix(".npz"), "in/")
    expected = read_npz(path.with_suffix(".npz"), "out/")
    chip = tight_chip(graph, name)
    features: set[str] = set()
    for policy in policies:
        program = compiled(graph, chip, policy)
        assert program.report["sram_peak_bytes"] <= chip.usable_sram_per_core_bytes
        outputs = program.run(check_inputs(given, program.signature.inputs))
        for comparison in compare_outputs(outputs, expected):
            assert comparison.ok, f"{policy}: {comparison}"
        features |= set(plan_features(program))
    print(graph, name, chip.usable_sram_per_core_bytes, *sorted(features))
