"""From ONNX to the stage map: the paper's mapping is found on the graph, other models map too."""

from __future__ import annotations

import json
from functools import cache
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
from helpers import context, run_passes
from xdsl.dialects.builtin import ModuleOp

from elk_ir.chips import load_chip
from elk_ir.errors import ElkError
from elk_ir.frontend.importer import import_model
from elk_ir.northpole.mapping import map_network
from elk_ir.northpole.network import Network, parse_precision
from elk_ir.northpole.pipeline import simulate, steady_state
from elk_ir.northpole.published import GRANITE_3B
from elk_ir.pipelines import PIPELINES
from elk_ir.targets.northpole.extract import network_of
from elk_ir.targets.northpole.read import mapping_of
from elk_ir.targets.northpole.stage_map import NorthpoleMapTarget
from elk_ir.tools.opt_pipeline import parse_passes
from elk_ir.universe import PASSES, lazy

MODELS = Path(__file__).parent / "models"
SHARED = Path(__file__).parent.parent.parent / "shared" / "models"
GRANITE = SHARED / "full" / "granite-3b-8blike_L14_b2_s1_kv2048_fp16.onnx"
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


def emitted(module: ModuleOp, form: str) -> str:
    output = StringIO()
    NorthpoleMapTarget(format=form).emit(context(), module, output)
    return output.getvalue()


def test_the_graph_gives_the_published_mapping() -> None:
    mapping = map_network(network(GRANITE), load_chip("northpole-16"), parse_precision("w4a4"))
    assert mapping.cards == 16
    assert [len(s.cards) for s in mapping.stages] == [1] * 14 + [2]
    assert (mapping.mini_batch, mapping.micro_batches) == (28, 14)
    assert mapping.table == ((12, 36), (13, 39), (14, 28), (15, 30), (16, 32))
    assert mapping.card_bytes(mapping.stages[0]) == pytest.approx(167.8e6, rel=1e-3)
    assert mapping.card_bytes(mapping.stages[-1]) == pytest.approx(100.7e6, rel=1e-3)
    assert mapping.stages[0].phases == 12


def test_the_graph_and_its_figures_agree() -> None:
    chip, precision = load_chip("northpole-16"), parse_precision("w4a4")
    graph = simulate(map_network(network(GRANITE), chip, precision))
    figures = simulate(map_network(GRANITE_3B.network(2048), chip, precision))
    assert graph.tokens_per_s == pytest.approx(figures.tokens_per_s, rel=2e-3)


def test_the_map_survives_the_ir() -> None:
    module = te_module(GRANITE).clone()
    run_passes(module, "northpole-map-stages{precision=w4a4}")
    read = mapping_of(module)
    direct = map_network(network(GRANITE), load_chip("northpole-16"), parse_precision("w4a4"))
    assert read.stages == direct.stages
    assert simulate(read) == simulate(direct)
    result = json.loads(emitted(module, "json"))
    assert (result["cards"], result["mini_batch"], result["micro_batches"]) == (16, 28, 14)
    assert result["power_w"] == 672
    for field in ("tokens_per_s", "latency_s", "latency_per_token_s"):
        assert result[field] > 0
    assert emitted(module, "text") == emitted(module, "text")
    ElementTree.fromstring(emitted(module, "svg"))


def test_eight_billion_parameters_need_more_cards() -> None:
    chip, precision = load_chip("northpole-16"), parse_precision("w4a4")
    with pytest.raises(ElkError, match=r"needs at least 38 cards, 16 are there \(22 too few\)"):
        map_network(network(EIGHT), chip, precision)
    mapping = map_network(network(EIGHT), chip, precision, cards=38, users=28)
    assert [len(s.cards) for s in mapping.stages] == [1] * 36 + [2]


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
        emitted(te_module(MODELS / "llama2_decode_static_dynamo.onnx"), "text")
