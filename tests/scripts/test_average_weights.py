"""The mean of two models is a model."""

import shutil

import average_weights
import pytest
import torch
from safetensors.torch import load_file, save_file

import dlm
from dlm.engine import BUILT_IN


@pytest.fixture
def other(tmp_path):
    """The built-in model with other weights, and a training's state beside them."""
    shutil.copytree(BUILT_IN, tmp_path / "other")
    weights = load_file(BUILT_IN / "model.safetensors")
    torch.manual_seed(0)
    noisy = {name: t + 0.01 * torch.randn_like(t) for name, t in weights.items()}
    save_file(noisy, tmp_path / "other" / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "other" / "training.pt").write_bytes(b"state")
    return tmp_path / "other"


def test_weights_are_between_those_of_the_two_and_generate(other, tmp_path, run_command):
    args = BUILT_IN, other, "--share", 0.25, "--out", tmp_path / "out"
    assert run_command(average_weights, *args).code == 0
    before, after, mean = (
        load_file(each / "model.safetensors") for each in (BUILT_IN, other, tmp_path / "out")
    )
    for name, tensor in mean.items():
        wanted = 0.75 * before[name].float() + 0.25 * after[name].float()
        assert tensor.dtype == before[name].dtype
        torch.testing.assert_close(tensor.float(), wanted, rtol=0.005, atol=1e-6)
    assert not (tmp_path / "out" / "training.pt").exists()
    engine = dlm.Engine.load(tmp_path / "out")
    request = dlm.Request(prompt="Yes?", constraint=dlm.Choice(["yes", "no"]), max_tokens=8)
    assert engine.generate(request).text in ("yes", "no")
    engine.close()


def test_the_mean_of_a_model_and_itself_is_that_model(tmp_path, run_command):
    assert run_command(average_weights, BUILT_IN, BUILT_IN, "--out", tmp_path / "out").code == 0
    mean = load_file(tmp_path / "out" / "model.safetensors")
    for name, tensor in load_file(BUILT_IN / "model.safetensors").items():
        assert torch.equal(mean[name], tensor)


def test_models_without_a_mean_are_refused(other, tmp_path, refusal_of):
    weights = load_file(other / "model.safetensors")
    name = min(weights)
    save_file({**weights, name: weights[name][:1].clone()}, other / "model.safetensors")
    packed = tmp_path / "packed"
    packed.mkdir()
    save_file({name: torch.zeros(2, dtype=torch.uint8)}, packed / "model.safetensors")
    nowhere = tmp_path / "nowhere"
    cases = {
        f"{name} is not in both models, or not of one shape": [BUILT_IN, other],
        f"{name} is not of floats: quantised weights have no mean": [packed, packed],
        f"{nowhere} holds neither model.safetensors nor": [BUILT_IN, nowhere],
        "--share is 1.5: it is from 0 to 1": [BUILT_IN, BUILT_IN, "--share", "1.5"],
    }
    for problem, args in cases.items():
        assert problem in refusal_of(average_weights, *args, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
