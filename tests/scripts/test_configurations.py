"""Kernels are timed at a model's shapes, in all of their configurations, with the same results."""

import json
from dataclasses import replace
from pathlib import Path

import interpreter
import pytest
import reference
import torch
from exhaustive import by_default
from measure import configurations
from measure.configurations import configuration_cases
from published_configs import PUBLISHED

from dlm.models import ModelConfig
from dlm.models.json_files import read_json
from dlm.models.layouts import layout_of
from dlm.models.routed import RoutedConfig

CPU = torch.device("cpu")
EXAMPLES = Path(__file__).parents[2] / "examples"
SETTINGS = PUBLISHED | {
    path.stem: json.loads(path.read_text()) for path in EXAMPLES.glob("nemotron*.json")
}


def small(directory: Path, **sizes: int) -> ModelConfig:
    """Return a config of a layer of each kind, whose heads have several configurations."""
    sizes = {"hidden_size": 64, "moe_intermediate_size": 64, "intermediate_size": 128, **sizes}
    more = {"num_experts": 2, "top_k_experts": 1, "head_dim": 256, "global_head_dim": 512}
    kinds = {"layer_types": reference.KINDS[-2:], "num_hidden_layers": 2}
    reference.make(directory, **{**more, **sizes}, **kinds)
    return ModelConfig.from_hf(read_json(directory / "config.json"))


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> ModelConfig:
    return small(tmp_path_factory.mktemp("small"))


@pytest.mark.interpreted
@pytest.mark.parametrize("weights", by_default(["nvfp4", "bf16"]))
def test_every_case_runs_in_all_its_configurations_with_the_same_result(weights, config):
    names = set()
    for case in configuration_cases(config, weights, [1], 40, CPU):
        first, *others = (case.run(each).float() for each in case.candidates(CPU))
        assert others
        assert first.isfinite().all()
        assert first.abs().max() > 0
        for other in others:
            assert torch.allclose(first, other, rtol=0.02, atol=0.02 * float(first.abs().max()))
        names.add(case.kernel.name)
    everywhere = {"gate_up", "down", "attention", "vocabulary"}
    assert names == everywhere | ({"w4a16"} if weights == "nvfp4" else set())


@pytest.mark.interpreted
def test_products_of_four_bits_are_timed_where_a_gpu_has_them(config, monkeypatch):
    interpreter.install()
    monkeypatch.setattr(configurations, "major", lambda device: 12)
    monkeypatch.setattr(configurations, "multiplies_four_bits", lambda device: True)
    names = set()
    for case in configuration_cases(config, "nvfp4", [1], 40, CPU):
        if not case.kernel.name.endswith("w4a4"):
            continue
        first, *others = (case.run(each).float() for each in case.candidates(CPU))
        assert others
        assert first.abs().max() > 0
        assert all(torch.equal(first, other) for other in others)
        names.add(case.kernel.name)
    assert names == {"gate_up_w4a4", "down_w4a4", "w4a4"}


def test_the_shapes_are_those_of_the_model(config):
    found = [
        (c.kernel.name, tuple(c.shape.values()))
        for c in configuration_cases(config, "nvfp4", [1, 3], 40, CPU)
    ]
    L, k = config.canvas_length, config.experts_per_token
    assert found == [
        *(("gate_up", (4, n * L * k, 2, 64, 64)) for n in (1, 3)),
        *(("down", (4, n * L * k, 2, 64, 64)) for n in (1, 3)),
        *(("w4a16", (n * L, 128, 64)) for n in (1, 3)),
        *(("w4a16", (n * L, 64, 128)) for n in (1, 3)),
        *(("attention", (D, size)) for D in (256, 512) for size in (1, 2)),
        ("vocabulary", (config.vocab_size, 2)),
    ]


def test_rows_that_no_kernel_takes_and_kernels_with_one_configuration_are_left_out(
    tmp_path,
):
    odd = small(tmp_path, hidden_size=96, head_dim=32, global_head_dim=64)
    cases = configuration_cases(odd, "nvfp4", [1], 40, CPU)
    found = {(case.kernel.name, *case.shape.values()) for case in cases}
    assert found == {("w4a16", odd.canvas_length, 96, 128), ("vocabulary", odd.vocab_size, 2)}


def test_plain_decoders_are_timed_at_their_shapes():
    """A model without experts has no products of them."""
    found = {}
    for name in ("nemotron-labs-diffusion-3b", "SDAR-30B-A3B"):
        settings = SETTINGS[name] | {"num_hidden_layers": 2, "vocab_size": 200_000}
        config = layout_of(settings).config(settings)
        small = replace(config, hidden_size=64, intermediate_size=128, vocab_size=64)
        if isinstance(small, RoutedConfig) and small.routing is not None:
            small = replace(small, routing=replace(small.routing, experts=4, per_token=2, size=64))
        cases = [*configuration_cases(small, "nvfp4", [2], 40, CPU)]
        found[name] = {case.kernel.name for case in cases}
        attended = [case for case in cases if case.kernel.name == "attention"]
        assert [case.shape for case in attended] == [
            {"head_dim": 128, "bytes": size} for size in (1, 2)
        ]
        assert all(len(case.candidates(CPU)) > 2 for case in attended)
    plain = {"w4a16", "attention", "vocabulary"}
    assert found["nemotron-labs-diffusion-3b"] == plain
    assert found["SDAR-30B-A3B"] == plain | {"gate_up", "down"}
