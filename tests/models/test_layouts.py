"""A family of dense networks is read, written, quantised, planned and run by shared code."""

import json
from dataclasses import replace

import pytest
import torch
from dense_family import CONFIG, DENSE, DenseNetwork, config_of
from recorded import Recorder
from safetensors.torch import load_file

from dlm.cli import plan as plan_command
from dlm.kernels.nvfp4 import dequantize
from dlm.models import CheckpointError, checkpoint, families
from dlm.models.graphs import PassGraphs
from dlm.models.nvfp4 import NVFP4Linear
from dlm.models.quantise import quantise


@pytest.fixture(autouse=True)
def listed(monkeypatch):
    dense = replace(
        families.DEFAULT,
        name="dense",
        architectures=(),
        model_types=DENSE.model_types,
        layout=lambda: DENSE,
    )
    monkeypatch.setattr(families, "_FAMILIES", {"default": families.DEFAULT, "dense": dense})


@pytest.fixture
def model(rng) -> DenseNetwork:
    network = DenseNetwork(config_of(CONFIG))
    for tensor in network.parameters():
        tensor.data.normal_(std=0.3, generator=rng)
    return network.requires_grad_(False)


@pytest.fixture
def saved(model, tmp_path):
    checkpoint.save(model, tmp_path / "saved", CONFIG, {})
    return tmp_path / "saved"


def test_it_is_written_under_its_own_names_and_read_to_the_same_bits(model, saved):
    names = load_file(saved / "model.safetensors").keys()
    assert names == {f"transformer.{n}.weight" for n in ("embed_tokens", "qkv", "up", "down")}
    again = checkpoint.load(saved)
    assert type(again) is DenseNetwork
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)


def test_a_tensor_that_is_missing_is_named_as_in_the_file(saved):
    (saved / "config.json").write_text(json.dumps({**CONFIG, "inner": 64}))
    with pytest.raises(CheckpointError, match=r"transformer\.up\.weight has shape \[48, 32\]"):
        checkpoint.load(saved)


def test_another_model_type_is_refused_with_those_that_are_listed(saved):
    (saved / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(CheckpointError, match="'llama', not 'diffusion_gemma' or 'dense_toy'"):
        checkpoint.load(saved)


def test_its_own_matrices_are_quantised(model, saved, tmp_path):
    quantise(saved, tmp_path / "out", canvases=1)
    again = checkpoint.load(tmp_path / "out")
    for name in ("up", "down"):
        layer, floats = again.get_submodule(name), model.get_submodule(name).weight
        assert isinstance(layer, NVFP4Linear)
        numbers = dequantize(layer.weight.value)
        assert 0 < (numbers - floats).norm() / floats.norm() < 0.12
    assert again.up.input_scale == 0.5
    assert again.down.input_scale.isnan()
    declared = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert declared["ignore"] == ["lm_head"]


def test_its_memory_and_its_step_are_planned(saved, run_command):
    code, out, err = run_command(plan_command, "--model", saved, "--slots", 2, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    numbers = {"embedding": 40 * 32, "dense": 32 * 64 + 2 * 32 * 48}
    assert found["parameters"] == numbers
    packed = 2 * (32 * 48 * 9 // 16 + 4 + 4)  # codes, scales, a tensor scale, one of activations
    assert found["weights"] == {"embedding": 2 * 40 * 32, "dense": 2 * 32 * 64 + packed}
    assert found["fits"]["24 GB"] > 1000
    assert found["step"]["RTX 5090"].keys() == {"embedding", "dense", "attention", "step"}


def test_its_passes_run_over_the_cache_and_are_replayed_to_the_same_bits(model, rng):
    whole, parts = (model.new_cache(2, torch.bfloat16, capacity=64) for _ in range(2))
    prompt = list(range(20))
    states = model.encode(prompt, whole, 0)
    model.encode(prompt[:9], parts, 0)
    assert torch.allclose(model.encode(prompt[9:], parts, 0), states[9:], atol=1e-5)

    canvases = [torch.randint(40, (1, 8), generator=rng) for _ in range(4)]
    eager = [model.denoise(canvas, whole, [0]) for canvas in canvases]
    model.graphs = PassGraphs(whole, Recorder(), between=0)
    for canvas, expected in zip(canvases, eager, strict=True):
        assert torch.equal(model.denoise(canvas, whole, [0]), expected)
    assert model.graphs.replays > 1
