"""Configs of Nemotron-Labs-Diffusion are read strictly, and those of the published sizes are."""

import json
from pathlib import Path
from typing import Any

import pytest
from nemotron import CONFIG

from dlm.kernels.gpus import CARDS
from dlm.models import CheckpointError, plan
from dlm.models.nemotron_diffusion.config import read_config
from dlm.models.nemotron_diffusion.layout import LAYOUT
from dlm.models.plan import Load
from dlm.models.rotary import QueryScale, Yarn

EXAMPLES = Path(__file__).parents[3] / "examples"


def changed(name: str, value: Any) -> dict[str, Any]:
    """The small config with another value, by dotted name; `...` leaves the field out."""
    config = {**CONFIG, "rope_parameters": dict(CONFIG["rope_parameters"])}
    *outer, last = name.split(".")
    place = config["rope_parameters"] if outer else config
    place[last] = value
    if value is ...:
        del place[last]
    return config


def test_all_numbers_come_from_the_file():
    read = read_config(CONFIG)
    assert (read.vocab_size, read.hidden_size, read.intermediate_size) == (1536, 32, 48)
    assert (read.heads, read.canvas_length, read.max_positions) == (4, 16, 4096)
    assert [(layer.head_dim, layer.kv_heads) for layer in read.layers] == [(16, 2)] * 2
    assert (read.eps, read.tied, read.qk_norm, read.caches) == (1e-5, False, False, "causally")
    yarn = Yarn(factor=16.0, original=12, beta_fast=1.0, beta_slow=0.1)
    assert (read.rotary.theta, read.rotary.dim, read.rotary.yarn) == (10_000.0, 16, yarn)
    assert read.rotary.query_scale == QueryScale(beta=0.1, original=12)


def test_null_counts_as_absent_and_older_files_name_the_kind_of_angles_type():
    older = changed("rope_parameters.rope_type", ...)
    older["rope_parameters"]["type"] = "yarn"
    assert read_config({**older, "attention_bias": None}) == read_config(CONFIG)


REQUIRED = [
    *("model_type", "architectures", "vocab_size", "hidden_size", "intermediate_size"),
    *("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("max_position_embeddings", "rms_norm_eps", "block_size", "mask_token_id", "eos_token_id"),
    *("rope_parameters", *(f"rope_parameters.{name}" for name in CONFIG["rope_parameters"])),
]


@pytest.mark.parametrize("name", REQUIRED)
@pytest.mark.parametrize("value", [..., "odd", -1, True])
def test_a_missing_or_odd_value_is_refused_by_name(name, value):
    with pytest.raises(CheckpointError, match=rf"config\.json: {name} must "):
        read_config(changed(name, value))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tie_word_embeddings", True),
        ("hidden_act", "gelu"),
        ("attention_bias", True),
        ("sliding_window", 128),
        ("partial_rotary_factor", 0.5),
        ("mask_token_id", 1536),
        ("mask_token_id", 1),
        ("head_dim", 15),
        ("num_key_value_heads", 3),
        ("rope_parameters.mscale_all_dim", 0.5),
        ("rope_parameters.attention_factor", 1.3),
        ("rope_parameters.partial_rotary_factor", 0.5),
        ("rope_parameters.truncate", False),
    ],
)
def test_what_is_not_computed_is_refused_by_name(name, value):
    with pytest.raises(CheckpointError, match=rf"config\.json: {name} must "):
        read_config(changed(name, value))


@pytest.mark.parametrize(
    ("size", "billions", "file"),
    [("3b", 3.83, None), ("8b", 8.49, 15.95), ("14b", 13.5, 25.33)],
)
def test_published_sizes_have_the_bytes_of_their_files(size, billions, file):
    """Files in GiB, as caches report them, with an adapter of rank 128 in fp32."""
    settings = json.loads((EXAMPLES / f"nemotron-labs-diffusion-{size}.json").read_text())
    config = read_config(settings)
    costs = LAYOUT.unfilled(config, "bf16").costs
    assert sum(costs.parameters().values()) / 1e9 == pytest.approx(billions, abs=0.01)
    weights = costs.weight_bytes()
    assert weights == {part: 2 * count for part, count in costs.parameters().items()}
    if file is not None:
        adapter = 4 * 128 * len(config.layers) * (config.hidden_size + 4096)
        assert (sum(weights.values()) + adapter) / 2**30 == pytest.approx(file, abs=0.02)
    half = plan.step_times(costs, load := Load(slots=1, context=2048, weights="bf16"), CARDS[1])
    four_bit = LAYOUT.unfilled(config, "nvfp4").costs
    assert four_bit.parameters() == costs.parameters()
    assert four_bit.weight_bytes()["dense"] == pytest.approx(weights["dense"] * 9 / 32, rel=1e-3)
    quarter = plan.step_times(four_bit, Load(slots=1, context=2048), CARDS[1])
    least = 1e3 * (weights["dense"] + weights["head"]) / CARDS[1].bandwidth
    assert least < half["step"] < 1.2 * least
    assert quarter["step"] < half["step"]
    assert plan.total_bytes(costs, load) > sum(weights.values())
