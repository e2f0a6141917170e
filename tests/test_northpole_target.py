"""From ONNX to the stage map: models that are not the published one map too."""

from __future__ import annotations

from functools import cache
from io import StringIO
from pathlib import Path

import pytest
from helpers import context
from xdsl.dialects.builtin import ModuleOp

from elk_ir.chips import load_chip
from elk_ir.errors import ElkError
from elk_ir.frontend.importer import import_model
from elk_ir.northpole.mapping import map_network
from elk_ir.northpole.network import Network, parse_precision
from elk_ir.northpole.pipeline import simulate, steady_state
from elk_ir.pipelines import PIPELINES
from elk_ir.targets.northpole.extract import network_of
from elk_ir.targets.northpole.stage_map import NorthpoleMapTarget
from elk_ir.tools.opt_pipeline import parse_passes
from elk_ir.universe import PASSES, lazy

MODELS = Path(__file__).parent / "models"
SHARED = Path(__file__).parent.parent.parent / "shared" / "models"
EIGHT = SHARED / "full" / "granite-8b-like_L36_b2_s1_kv2048_fp16_op23.onnx"


@cache
def te_module(path: Path) -> ModuleOp:
    if not path.exists():
        pytest.skip(f"{path.name} is in the shared models, which are not here")
    module = import_model(path)
    passes = parse_passes("convert-onnx-to-te,te-pipeline", lazy(PASSES), PIPELINES)
    for step in passes:
        step.apply(context(), module)
    return module


def network(path: Path) -> Network:
    return network_of(te_module(path))


@pytest.mark.slow
def test_eight_billion_parameters_need_more_cards() -> None:
    chip, precision = load_chip("northpole-16"), parse_precision("w4a4")
    with pytest.raises(ElkError, match=r"needs at least 38 cards, 16 are there \(22 too few\)"):
        map_network(network(EIGHT), chip, precision)
    mapping = map_network(network(EIGHT), chip, precision, cards=38, users=28)
    assert [len(s.cards) for s in mapping.stages] == [1] * 36 + [2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["llama2_decode_static_dynamo", "gemma2_decode_static_dynamo_op23"]
)
def test_small_decoders(name: str) -> None:
    mapping = map_network(
        network(MODELS / f"{name}.onnx"), load_chip("northpole-16"), parse_precision("w8a8")
    )
    assert mapping.network.head is not None
    assert len(mapping.layer_stages) >= 1
    assert (
        simulate(
            map_network(mapping.network, mapping.chip, mapping.precision, users=4)
        ).tokens_per_s
        > 0
    )


def test_a_vision_transformer_has_a_stem_on_the_cards() -> None:
    found = network(MODELS / "vit_static_legacy.onnx")
    assert found.context == 0
    assert found.layers[0].blocks[0].name.startswith("stem")
    mapping = map_network(found, load_chip("northpole-16"), parse_precision("w8a8"))
    assert steady_state(mapping).samples_per_s > 0
    with pytest.raises(ElkError, match="keeps no state"):
        simulate(mapping)


@pytest.mark.slow
def test_a_small_resnet_fits_one_card() -> None:
    paths = sorted((SHARED / "tiny").glob("resnet50*dynamo.onnx"))
    if not paths:
        pytest.skip("the shared models are not here")
    mapping = map_network(
        network(paths[0]), load_chip("northpole-16"), parse_precision("w8a8"), users=1
    )
    assert mapping.cards == 1
    working = max(t.working_elements for b in mapping.stages[0].blocks for t in b.tasks) * 2
    spare = 192_000_000 - mapping.stages[0].resident.fixed_bytes
    assert mapping.users_by_memory * working <= spare
    steady = steady_state(mapping)
    assert steady.samples_per_s < steady.peak_samples_per_s


def test_a_map_needs_a_mapped_module() -> None:
    with pytest.raises(ElkError, match="run northpole-map-stages first"):
        NorthpoleMapTarget(format="text").emit(
            context(), te_module(MODELS / "llama2_decode_static_dynamo.onnx"), StringIO()
        )
