"""Plans set by hand, one for each thing that a plan can say, on the virtual machine."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
import pytest
from helpers import (
    Weights,
    check_both_landings,
    lower,
    parse,
    planned,
    program,
    random_array,
    run,
    run_passes,
)
from xdsl.dialects.builtin import ModuleOp

from elk_ir.dialects import ipu
from elk_ir.dialects.icca.ops import ExecuteOp


def of(label: str, options: str) -> str:
    """The pass that sets the plan of one execute."""
    return f"icca-set-plan{{op={label} {options}}}"


# What each plan shows, the plan of "q", and what must then be found in the ipu program.
PLANS: dict[str, tuple[str, set[str]]] = {
    "one core": ('grid="m=1"', set()),
    "a ring on the weight": ('grid="m=2,n=2,k=2" exec="1:k=2"', {"ring 1"}),
    "a ring on the weight's columns": ('grid="m=3,n=4" exec="1:n=3"', {"ring 1"}),
    "a ring on the activation": ('grid="m=2,n=4" exec="0:k=4"', {"ring 0"}),
    "a ring on the activation's rows": ('grid="m=2,n=3" exec="0:m=3"', {"ring 0"}),
    "two operands rotating together": ('grid="m=2,n=6" exec="0:k=6;1:k=2"', {"ring 0", "ring 1"}),
    "Cannon's square": ('grid="m=3,n=3" exec="0:k=3;1:k=3"', {"ring 0", "ring 1"}),
    "rings on two axes": ('grid="m=2,n=4" exec="0:k=2;1:n=2"', {"ring 0", "ring 1"}),
    "rings on two axes, the other way": (
        'grid="m=2,n=4" exec="0:k=2;1:n=2" rings="n,k"',
        {"ring 0", "ring 1"},
    ),
    "three rings": ('grid="m=2,n=4" exec="0:m=2,k=2;1:n=2"', {"ring 0", "ring 1"}),
    "split reduction, scattered": ('grid="n=4,k=4" reduce=scatter scatter=n', {"reduce"}),
    "split reduction, scattered over few rows": (
        'grid="n=3,k=5" reduce=scatter scatter=m',
        {"reduce"},
    ),
    "split reduction to a root": ('grid="m=2,n=2,k=4" reduce=root', {"reduce"}),
    "split reduction to all": ('grid="n=5,k=3" reduce=all', {"reduce"}),
    "a scattered reduction with a ring": (
        'grid="m=2,n=2,k=4" exec="1:n=2" scatter=n',
        {"ring 1", "reduce"},
    ),
    "preload-state unlike execute-state": ('grid="m=6,n=2" preload="1:k=3"', {"distribute 1"}),
    "preload pieces of ring pieces": (
        'grid="m=6,n=2" exec="1:k=2" preload="1:k=2,n=3"',
        {"ring 1", "distribute 1"},
    ),
    "idle cores and ragged tiles": ('grid="m=1,n=7,k=2" scatter=n', {"idle", "ragged", "reduce"}),
    "ragged rings": ('grid="m=3,n=5" exec="0:k=5;1:k=3"', set()),
    "ragged pieces": ('grid="m=3,n=5" preload="1:k=3"', set()),
}


def features(module: ModuleOp) -> set[str]:
    """What the lowered "q" shows: which operands rotate or are distributed, reductions, and
    whether cores idle or have ragged tiles."""
    found: set[str] = set()
    for op in module.walk():
        if isinstance(op, ipu.ExchangeOp) and op.target.data.name.startswith("q.landing"):
            found.add(f"ring {op.target.data.name[-1]}")
        elif isinstance(op, ipu.ReshardOp):
            source = op.source.root_reference.data
            if source.startswith("q.preload"):
                found.add(f"distribute {source[-1]}")
            elif source.startswith("q.partial"):
                found.add("reduce")
        elif isinstance(op, ipu.ExecuteOp) and op.sym_name.data == "q.local":
            if op.iterate.data.cores < 16:
                found.add("idle")
            if not op.iterate.data.is_full:
                found.add("ragged")
    return found


def numbers(rng: np.random.Generator, weights: Weights) -> tuple[dict, dict]:
    """Inputs and expected outputs of the slice."""
    h = random_array(rng, (6, 64), "float32")
    n = h / np.sqrt((h**2).mean(-1, keepdims=True) + 1e-5) * weights.values["g"]
    return {"h": h}, {"y": n @ weights.values["wq"] @ weights.values["wo"]}


@pytest.mark.parametrize("what", [w for w in PLANS if w != "ragged rings"])
def test_plan(what: str) -> None:
    """The product `q` under one plan, between a split norm and a split product."""
    options, expected = PLANS[what]
    pipeline = ",".join(
        [of("norm", 'grid="m=2,k=4"'), of("q", options), of("o", 'grid="m=2,n=4,k=2" scatter=n')]
    )
    module = lower(planned(program("slice"), pipeline))
    assert expected <= features(module), features(module)
    weights = Weights()
    for op in module.walk():
        if isinstance(op, ipu.RemoteOp) and op.value is not None:
            weights(op)
    inputs, outputs = numbers(np.random.default_rng(1), weights)
    check_both_landings(module, inputs, outputs, weights)
    # Bytes are conserved: HBM gives each byte of each tensor once, and takes the result once.
    counters = run(module, inputs, weights).machine.counters
    assert counters.hbm_read_bytes == 4 * (6 * 64 + 64 + 64 * 60 + 60 * 44)
    assert counters.hbm_written_bytes == 4 * 6 * 44


def test_two_operands_need_a_common_number_of_steps() -> None:
    """Rings of 5 and 3 blocks on one axis do not move in lockstep."""
    from elk_ir.diagnostics import LocatedFailure

    options, _ = PLANS["ragged rings"]
    with pytest.raises(LocatedFailure, match="3 does not divide 5 ring steps"):
        planned(program("slice"), of("q", options))


@pytest.mark.parametrize("label", ["norm", "q", "o"])
def test_neighbours_share_layouts(label: str) -> None:
    """An operand that is already in its execute-state is read where it lies."""
    plans = [of("q", 'grid="m=2,n=4"'), of("o", 'grid="m=2,k=4" scatter=n')]
    module = planned(program("slice"), ",".join(plans))
    lowered = lower(module)
    moved = {o.target.root_reference.data for o in lowered.walk() if isinstance(o, ipu.ReshardOp)}
    # o splits k exactly as q splits n: what q leaves is what o needs.
    assert "o.execute0" not in moved
    assert f"{label}.result0" in {
        o.sym_name.data for o in lowered.walk() if isinstance(o, ipu.VarOp)
    }


def peak(options: str) -> tuple[int, ModuleOp]:
    """Bytes that `big` takes under a plan, and its program; on the larger chip."""
    module = planned(program("big"), of("big", options), chip="test-64")
    lower(module)
    return max(
        o.at.value.data + o.bytes.value.data for o in module.walk() if isinstance(o, ipu.VarOp)
    ), module


def test_rings_split_k_and_partial_preloads_save_memory() -> None:
    """The plans that a small SRAM forces take less of it, and give the same numbers."""
    weights = Weights()
    sizes: dict[str, int] = {}
    for what, options in {
        "whole": 'grid="m=8,n=8"',
        "ring": 'grid="m=8,n=8" exec="1:k=8"',
        "two rings": 'grid="m=8,n=8" exec="0:k=8;1:k=8"',
        "partial preload": 'grid="m=8,n=8" preload="1:k=8"',
        "split k": 'grid="m=1,n=8,k=8" scatter=n',
    }.items():
        sizes[what], module = peak(options)
        remote = next(
            o for o in module.walk() if isinstance(o, ipu.RemoteOp) and o.sym_name.data == "w"
        )
        x = random_array(np.random.default_rng(2), (16, 128), "float32")
        check_both_landings(module, {"x": x}, {"y": x @ weights(remote)}, weights, 2e-5)
    slice_bytes = 4 * prod((128, 60))
    assert sizes["whole"] > slice_bytes
    assert sizes["ring"] < slice_bytes / 3
    assert sizes["two rings"] < sizes["ring"]
    assert sizes["split k"] < slice_bytes / 3


def test_one_execute_per_operator_whatever_the_grid() -> None:
    """Program size does not depend on the number of cores."""
    counts = {
        sum(1 for _ in lower(planned(program("slice"), of("q", f'grid="{grid}"'))).walk())
        for grid in ("n=2,k=2", "n=5,k=3", "m=2,n=4,k=2")
    }
    assert len(counts) == 1
    assert sum(isinstance(o, ExecuteOp) for o in planned(program("slice")).walk()) == 3


def test_golden_slice_gives_the_right_numbers() -> None:
    """The program whose IR lit_tests/pipelines/golden_slice.mlir shows, from its own RUN line."""
    path = Path(__file__).parent.parent / "lit_tests" / "pipelines" / "golden_slice.mlir"
    text = path.read_text()
    line = next(x for x in text.splitlines() if "RUN:" in x and "ipu-verify-program" in x)
    module = run_passes(parse(text), line.split("'")[1])
    weights = Weights()
    for op in module.walk():
        if isinstance(op, ipu.RemoteOp) and op.value is not None:
            weights(op)
    h = random_array(np.random.default_rng(0), (2, 64), "float32")
    n = h / np.sqrt((h**2).mean(-1, keepdims=True) + 1e-5) * weights.values["g"]
    expected = n @ weights.values["wq"] @ weights.values["wo"]
    check_both_landings(module, {"h": h}, {"y": expected}, weights)
