"""`elk verify` names the pass that changes the numbers: one break in each lowering, on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import BlockArgument, SSAValue
from xdsl.passes import ModulePass

from elk_ir.chips import load_chip
from elk_ir.compiler import context, import_source, pipeline, run_passes, split_at
from elk_ir.dialects import icca, ipu
from elk_ir.dialects.te import AppendOp, LoadOp
from elk_ir.errors import ElkError
from elk_ir.numerics.tensors import read_npz
from elk_ir.passes.icca_support import executes, plan_of, program_of, tensor_of
from elk_ir.tools import elk
from elk_ir.verify import Verification, verify_levels, with_plans

MODELS = Path(__file__).parent / "models"
LLAMA = MODELS / "llama2_decode_static_dynamo.onnx"
SLICE = Path(__file__).parent / "programs" / "slice.mlir"

Break = Callable[[ModuleOp], None]


@dataclass(frozen=True)
class BrokenPass(ModulePass):
    """A pass of the pipeline that damages what it made. Only here, never registered."""

    name = "broken"

    inner: ModulePass
    damage: Break

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        self.inner.apply(ctx, op)
        self.damage(op)


def verify_with(position: int, damage: Break | None, *, drop: str = "") -> Verification:
    """Verify the Llama graph with the pass at `position` broken by `damage`."""
    passes = list(pipeline(load_chip("test-16"), policy="basic"))
    if damage is not None:
        inner = passes[position]
        broken = type("Broken", (BrokenPass,), {"name": inner.name})
        passes[position] = broken(inner, damage)
    inputs = read_npz(LLAMA.with_suffix(".npz"), "in/")
    kept = [p for p in passes if not drop or not p.name.endswith(drop)]
    return verify_levels(LLAMA, chip="test-16", inputs=inputs, passes=kept)


def names() -> list[str]:
    return [p.name for p in pipeline(load_chip("test-16"), policy="basic")]


def swap_weights(module: ModuleOp) -> None:
    """Two loads of the same type read each other's weight; where products are merged and no two
    weights are of one type, keys go where values belong."""
    by_type: dict[object, LoadOp] = {}
    for op in module.walk():
        if not isinstance(op, LoadOp):
            continue
        other = by_type.setdefault(op.result.type, op)
        if other.source != op.source and len(op.result.type.get_shape()) == 2:
            other.properties["source"], op.properties["source"] = op.source, other.source
            return
    appends = [op for op in module.walk() if isinstance(op, AppendOp)]
    for one, other in pairwise(appends):
        if one.state != other.state and one.result.type == other.result.type:
            one.properties["state"], other.properties["state"] = other.state, one.state
            return
    raise AssertionError("nothing to break")


def swap_preloads(module: ModuleOp) -> None:
    """Two preloads of the same type fetch each other's weight."""
    by_type: dict[object, icca.PreloadOp] = {}
    for op in module.walk():
        if isinstance(op, icca.PreloadOp):
            other = by_type.setdefault(op.result.type, op)
            if other.source != op.source and other.layer is op.layer:
                other.properties["source"], op.properties["source"] = op.source, other.source
                return
    raise AssertionError("nothing to break")


def wrong_layer(module: ModuleOp) -> None:
    """A preload of a stacked weight fetches that of the other layer."""
    for op in module.walk():
        if not isinstance(op, icca.PreloadOp) or op.layer is None:
            continue
        if len(tensor_of(op.result).get_shape()) != 2:
            continue
        other = icca.LayerOp(1 - first_layer(op.layer))
        block = op.parent_block()
        assert block is not None
        block.insert_op_before(other, op)
        op.operands[0] = other.result
        return
    raise AssertionError("nothing to break")


def first_layer(layer: SSAValue) -> int:
    """The layer that a value stands for the first time it is used."""
    if isinstance(layer, BlockArgument):
        repeat = layer.owner.parent_op()
        assert isinstance(repeat, icca.RepeatOp)
        return repeat.first.value.data
    assert isinstance(layer.owner, icca.LayerOp)
    base = layer.owner.base_layer
    return layer.owner.offset.value.data + (0 if base is None else first_layer(base))


def overlap_buffers(module: ModuleOp) -> None:
    """A result and the operand from which it is computed share their bytes."""
    from elk_ir.passes.icca_support import buffers_of, executes, offset_of, program_of, set_offset

    for execute in executes(program_of(module)):
        roles = {(b.role, b.index) for b in buffers_of(execute)}
        if ("result", 0) in roles and ("execute", 0) in roles and execute.reduce is None:
            offset = offset_of(execute, "execute", 0)
            assert offset is not None
            set_offset(execute, "result", 0, offset + 4)
            return
    raise AssertionError("nothing to break")


def swap_copies(module: ModuleOp) -> None:
    """Two copies from HBM into variables of one type read each other's remote buffer."""
    variables = {op.sym_name.data: op for op in module.walk() if isinstance(op, ipu.VarOp)}
    by_type: dict[object, ipu.CopyStartOp] = {}
    for op in module.walk():
        if isinstance(op, ipu.CopyStartOp) and op.row is not None:
            key = variables[op.target.root_reference.data].type
            other = by_type.setdefault(key, op)
            if other.source != op.source:
                other.properties["source"], op.properties["source"] = op.source, other.source
                return
    raise AssertionError("nothing to break")


def test_every_level_agrees() -> None:
    result = verify_with(0, None)
    assert result.culprit is None and result.failed is None
    assert {c.level for c in result.checks} == {"te", "icca", "ipu"}
    assert all(c.errors for c in result.checks)


@pytest.mark.parametrize("position", [i for i, n in enumerate(names()) if "te" in n.split("-")])
def test_break_in_a_te_pass(position: int) -> None:
    name = names()[position]
    damage = swap_preloads if name == "convert-te-to-icca" else swap_weights
    result = verify_with(position, damage)
    assert result.culprit is not None
    assert result.culprit.split("#")[0] == name
    assert [c.after for c in result.checks if not c.ok] == [result.culprit]
    assert result.checks[-1].max_abs_error > 1e-3


def test_the_node_is_named() -> None:
    result = verify_with(names().index("convert-onnx-to-te"), swap_weights)
    assert result.failed is not None and result.failed.node is not None
    assert result.failed.node.startswith("node_linear")


def test_break_in_the_schedule() -> None:
    result = verify_with(names().index("icca-schedule"), wrong_layer)
    assert result.culprit == "icca-schedule"


@pytest.mark.parametrize("drop", ["", "-verify-program"])
def test_break_in_the_addresses(drop: str) -> None:
    """With and without the verifiers, which see the overlap before the numbers do."""
    result = verify_with(names().index("icca-allocate"), overlap_buffers, drop=drop)
    assert result.culprit == "icca-allocate"


@pytest.mark.parametrize("drop", ["", "-verify-program"])
def test_break_in_the_target(drop: str) -> None:
    result = verify_with(names().index("convert-icca-to-ipu"), swap_copies, drop=drop)
    assert result.culprit == "convert-icca-to-ipu"
    assert result.checks[-1].level == "ipu"


def test_a_wrong_import_is_seen() -> None:
    """Outputs that the exporter never gave: the import itself is blamed."""
    data = LLAMA.with_suffix(".npz")
    expected = {n: a + np.float32(1) for n, a in read_npz(data, "out/").items()}
    result = verify_levels(
        LLAMA, chip="test-16", inputs=read_npz(data, "in/"), expected=expected, passes=()
    )
    assert result.culprit == "import"


PLAN = 'icca-set-plan{op="o" grid="m=2,n=2,k=2" reduce=root}'


def test_plans_set_by_hand_are_kept() -> None:
    chip = load_chip("test-16")
    passes = with_plans(pipeline(chip, policy="basic", source="te"), PLAN)
    scheduled, _ = split_at(passes, "icca-allocate")
    module, _ = import_source(SLICE, chip)
    run_passes(context(), module, scheduled, model="slice")
    grids = {e.label.data: plan_of(e).grid for e in executes(program_of(module))}
    assert grids["o"] == (2, 2, 2)


def test_verify_takes_plans(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["verify", str(SLICE), "--chip", "test-16", "--policy", "basic"]
    assert elk.main([*argv, "--before-schedule", PLAN]) == 0
    assert "icca-set-plan" in capsys.readouterr().out
    assert elk.main([*argv, "--before-schedule", "icca-set-plan{op=none}"]) == 1
    assert "no execute is called 'none'" in capsys.readouterr().err
    assert elk.main([*argv, "--before-schedule", "icca-set-plans"]) == 1
    assert "before-schedule:1:1: unknown pass" in capsys.readouterr().err


def test_without_a_schedule_there_are_no_plans_to_keep() -> None:
    passes, _ = split_at(pipeline(load_chip("test-16")), "icca-schedule")
    with pytest.raises(ElkError, match="there is no icca-schedule to set plans for"):
        with_plans(passes, "")
