"""Published figures of GPUs beside an appliance: what is stated, what follows, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from elk_ir.chips import load_chip
from elk_ir.errors import ElkError
from elk_ir.northpole.gpus import compare, compared_fields, compared_lines, load_gpus, row_of
from elk_ir.northpole.mapping import map_network
from elk_ir.northpole.network import parse_precision
from elk_ir.northpole.pipeline import simulate
from elk_ir.northpole.published import GRANITE_3B, LLAMA_7B, POWER_W, TOKENS_PER_S, gpu_comparisons
from elk_ir.tools.elk import main

OWN = """
[[gpu]]
name = "mine"
power_w = 100
transistors = 1_000_000_000
source = "its label"

[[point]]
gpu = "mine"
gpus = 2
model = "granite-3b"
batch = 8
ms_per_token = 4
power_w = 160
source = "measured"
"""


def test_only_what_is_stated_or_follows_is_in_the_table() -> None:
    table = load_gpus()
    derived = [r for r in table.rows if r.derived]
    assert [(r.machine, r.tokens_per_s) for r in derived] == [("H100", None), ("L4", None)]
    energy, latency = derived
    assert energy.tokens_per_s_per_w == pytest.approx(TOKENS_PER_S / POWER_W / 72.7)
    assert energy.latency_s is None
    assert latency.latency_s == pytest.approx(28 / TOKENS_PER_S * 46.9)
    assert latency.tokens_per_s_per_w is None
    # Published by the vendor: batch and tokens/s; the rest follows from them and the board.
    stated = next(r for r in table.rows if r.model == "llama-7b")
    assert (stated.batch, stated.tokens_per_s, stated.power_is) == (48, 2740, "board limit")
    assert stated.latency_s == pytest.approx(48 / 2740)
    assert stated.tokens_per_s_per_w == pytest.approx(2740 / 700)
    assert stated.tokens_per_s_per_transistor == pytest.approx(2740 / 80e9)
    assert all(r.source for r in table.rows)
    assert any("tokens/s/W" in gap.what for gap in table.missing)


def test_the_published_ratios_come_back() -> None:
    """The fitted appliance beside the points that the ratios give, and a model of the same name
    and workload beside those of the vendor."""
    chip = load_chip("northpole-16")
    (ours, first), (llama, second) = gpu_comparisons(chip, load_gpus())
    assert ours.model == GRANITE_3B.name
    assert first[0].energy == pytest.approx(72.7, rel=1e-3)
    assert first[1].latency == pytest.approx(46.9, rel=1e-3)
    assert (first[0].latency, first[0].space, first[1].energy) == (None, None, None)
    assert (llama.model, llama.prompt_tokens, llama.generated_tokens) == (
        LLAMA_7B.name, 2048, 2048,
    )  # fmt: skip
    assert all(c.same_model and c.latency is not None for c in second)
    lines = list(compared_lines(llama, second))
    assert len(lines) == 2 + len(second)
    assert all("board limit" in line for line in lines[2:])


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "gpus.toml"
    path.write_text(OWN)
    row = load_gpus(path).rows[-1]
    assert (row.machine, row.count, row.tokens_per_s) == ("mine", 2, 2000)
    assert (row.power_w, row.power_is) == (160, "stated")
    assert row.tokens_per_s_per_transistor == pytest.approx(2000 / 2e9)
    mapping = map_network(
        GRANITE_3B.network(2048), load_chip("northpole-16"), parse_precision("w4a4")
    )
    ours = row_of(mapping, simulate(mapping))
    (only,) = compare(ours, [row])
    assert ours.latency_s is not None
    assert only.latency == pytest.approx(4e-3 / ours.latency_s)
    (fields,) = compared_fields([only])
    assert fields["better_energy"] == only.energy
    assert fields["same_model"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"power_w = 100": "power_w = 0"},
            r"\[\[gpu\]\] 1: power_w is 0, it must be a number above 0",
        ),
        ({"power_w = 100": "power_w = inf"}, "power_w is inf, it must be a number above 0"),
        ({"batch = 8": f"batch = 1{'0' * 400}"}, "batch is 10+, it must be a number above 0"),
        ({"ms_per_token = 4": "ms_per_token = 5e-324"}, "it must be a number above 0"),
        ({"power_w = 100": ""}, "power_w is missing, it must be a number above 0"),
        ({"batch = 8": "batch = 8.5"}, "batch is 8.5, it must be a whole number"),
        ({"ms_per_token = 4": ""}, "tokens_per_s is missing, it must be given, or ms_per_token"),
        ({"batch = 8": "users = 8"}, ": unknown field 'users'"),
        ({'gpu = "mine"': 'gpu = "other"'}, "there is no GPU 'other'"),
        ({'source = "measured"': ""}, "source is missing, it must be a text"),
        ({"[[point]]": "[[points]]"}, ": unknown field 'points'"),
        ({"[[point]]": "[point]"}, "must be an array of tables"),
        ({"[[point]]": "["}, ": not TOML: "),
        ({"[[point]]": "[[ratio]]\nfactor = 2\n[[point]]"}, r"needs a \[reference\]"),
    ],
)
def test_wrong_files(tmp_path: Path, change: dict[str, str], message: str) -> None:
    text = OWN
    for old, new in change.items():
        text = text.replace(old, new)
    path = tmp_path / "gpus.toml"
    path.write_text(text)
    with pytest.raises(ElkError, match=message):
        load_gpus(path)


def test_gpus_are_for_cards(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(Path(__file__).parent / "models" / "llama2_decode_static_dynamo.onnx")
    assert main(["simulate", model, "--chip", "ipu-mk2", "--gpus", "published"]) == 2
    assert "--gpus is for cards" in capsys.readouterr().err


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ElkError, match="No such file"):
        load_gpus(tmp_path / "none.toml")


def test_a_ratio_of_an_unknown_metric(tmp_path: Path) -> None:
    path = tmp_path / "gpus.toml"
    path.write_text(
        '[reference]\nmodel = "m"\ntokens_per_s = 1\nbatch = 1\n'
        '[[ratio]]\ngpu = "L4"\nmetric = "price"\nfactor = 2\nat = "all"\nsource = "s"\n'
    )
    with pytest.raises(ElkError, match=": metric 'price'"):
        load_gpus(path)
