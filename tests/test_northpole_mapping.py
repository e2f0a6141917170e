"""The mapping to NorthPole cards: the published one is found, and limits are named with numbers."""

from __future__ import annotations

import pytest

from elk_ir.chips import Chip, load_chip
from elk_ir.errors import CapacityError, ChipError, ElkError
from elk_ir.northpole.bytes import split_grid
from elk_ir.northpole.mapping import Mapping, map_network
from elk_ir.northpole.network import Decoder, parse_precision
from elk_ir.northpole.published import GRANITE_3B, GRANITE_8B

W4A4 = parse_precision("w4a4")


@pytest.fixture(scope="module")
def chip() -> Chip:
    return load_chip("northpole-16")


@pytest.fixture(scope="module")
def paper(chip: Chip) -> Mapping:
    return map_network(GRANITE_3B.network(2048), chip, W4A4)


def test_the_published_mapping_is_found(paper: Mapping) -> None:
    assert [s.cards for s in paper.stages[:14]] == [(i,) for i in range(14)]
    assert paper.stages[14].cards == (14, 15)
    assert (paper.mini_batch, paper.micro_batches, paper.micro_batch) == (28, 14, 2)
    assert paper.users_by_memory == 39
    assert paper.table == ((12, 36), (13, 39), (14, 28), (15, 30), (16, 32))
    assert "39 users" in paper.limit
    assert "14 micro-batches" in paper.limit


def test_bytes_of_the_published_mapping(paper: Mapping) -> None:
    layer, head = paper.stages[0], paper.stages[-1]
    assert layer.resident.weight_bytes == (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336) / 2
    assert layer.resident.fixed_bytes == pytest.approx(109.1e6, rel=1e-3)
    assert 28 * layer.resident.kv_bytes_per_user == pytest.approx(58.7e6, rel=1e-3)
    assert paper.card_bytes(layer) == pytest.approx(167.8e6, rel=1e-3)
    assert paper.card_bytes(head) == pytest.approx(100.7e6, rel=1e-3)


def test_every_core_holds_its_part(paper: Mapping, chip: Chip) -> None:
    for stage in paper.stages:
        assert paper.core_bytes(stage) <= chip.usable_sram_per_core_bytes
        assert paper.core_bytes(stage) * chip.cores_per_chip >= paper.card_bytes(stage)


@pytest.mark.parametrize(("rows", "cols"), [(4096, 14336), (8, 2048), (7, 300), (1, 5), (3, 3)])
def test_split_grid_is_the_best_one(rows: int, cols: int) -> None:
    def part(f: int, g: int) -> int:
        return -(-rows // f) * -(-cols // g)

    f, g = split_grid(rows, cols, 64)
    best = min(part(a, b) for a in range(1, 65) for b in range(1, 64 // a + 1))
    assert f * g <= 64
    assert part(f, g) == best


def test_fewer_cards_hold_several_layers_each(chip: Chip) -> None:
    mapping = map_network(GRANITE_3B.network(2048), chip, parse_precision("w2a2"), cards=9)
    assert [len(s.blocks) for s in mapping.layer_stages] == [4] * 7
    assert mapping.cards <= 9
    assert mapping.mini_batch % mapping.micro_batches == 0


def test_a_layer_too_large_for_a_card_is_cut_at_its_blocks(chip: Chip) -> None:
    mapping = map_network(
        GRANITE_8B.network(2048), chip, parse_precision("w4a8"), cards=96, users=28
    )
    assert len(mapping.layer_stages) == 80
    assert mapping.cards == 82


def test_a_block_too_large_for_a_card_is_shared(chip: Chip) -> None:
    wide = Decoder("wide", 2, 8192, 28672, 64, 8, 32000)
    mapping = map_network(wide.network(512), chip, W4A4)
    assert [len(s.cards) for s in mapping.layer_stages] == [1, 2, 1, 2]
    shared = mapping.layer_stages[1]
    assert shared.resident.weight_bytes == 3 * 8192 * 28672 // 4
    assert mapping.cost(shared).exchange_s > 0


def test_one_card_holds_a_small_model() -> None:
    small = Decoder("small", 2, 64, 128, 4, 2, 512)
    mapping = map_network(small.network(16), load_chip("northpole"), W4A4, users=2)
    assert mapping.cards == 1
    assert len(mapping.stages) == 1


def test_a_longer_context_leaves_fewer_users(chip: Chip) -> None:
    mapping = map_network(GRANITE_3B.network(4096), chip, W4A4)
    assert mapping.users_by_memory == 19
    assert (mapping.mini_batch, mapping.micro_batches) == (14, 14)


def test_too_few_users_for_the_pipeline_is_said(chip: Chip) -> None:
    mapping = map_network(GRANITE_3B.network(16384), chip, W4A4)
    assert mapping.mini_batch == mapping.micro_batches == mapping.users_by_memory == 4
    assert "cannot be filled" in mapping.limit


def test_too_few_cards(chip: Chip) -> None:
    with pytest.raises(ElkError, match=r"needs at least 42 cards, 16 are there \(26 too few\)"):
        map_network(GRANITE_8B.network(2048), chip, W4A4)


def test_too_many_users(chip: Chip) -> None:
    with pytest.raises(ElkError, match="40 users × 2048 positions need 193,040,384 bytes") as found:
        map_network(GRANITE_3B.network(2048), chip, W4A4, users=40)
    assert "1,040,384 too many" in str(found.value)
    assert "39 fit" in str(found.value)


def test_a_context_that_no_card_holds(chip: Chip) -> None:
    with pytest.raises(CapacityError) as found:
        map_network(GRANITE_3B.network(10_000_000), chip, W4A4)
    assert "users × positions = 1 × 10000000" in str(found.value)


@pytest.mark.parametrize("text", ["w4a16", "w16a16", "fp16", "w3a4"])
def test_integers_are_required(text: str) -> None:
    with pytest.raises(ElkError):
        parse_precision(text)


def test_only_northpole_machines() -> None:
    with pytest.raises(ChipError, match="no NorthPole machine"):
        map_network(GRANITE_3B.network(2048), load_chip("test-16"), W4A4)
