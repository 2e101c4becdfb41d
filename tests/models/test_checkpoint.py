"""The loader guesses nothing: it refuses files that do not fit, and names the misfit."""

import json
import re
from pathlib import Path

import pytest
import torch
from checkpoint_files import edit_tensors, refusal
from safetensors.torch import load_file, save_file

from dlm.models import checkpoint
from dlm.models.diffusion_gemma import tensors

Q_PROJ = "model.decoder.layers.1.self_attn.q_proj.weight"
ENCODER_SCALAR = "model.encoder.language_model.layers.1.layer_scalar"


@pytest.mark.parametrize(
    "name",
    [
        Q_PROJ,
        ENCODER_SCALAR,
        "model.decoder.embed_tokens.weight",
        "model.decoder.layers.3.experts.down_proj",
        "model.decoder.self_conditioning.pre_norm.weight",
    ],
)
def test_a_missing_tensor_is_named(saved, name):
    shape = [*load_file(saved / "model.safetensors")[name].shape]
    edit_tensors(saved, lambda tensors: tensors.pop(name))
    assert f"{name} is missing, expected in shape {shape}" in refusal(saved)


@pytest.mark.parametrize(
    "name",
    [
        "model.decoder.layers.4.layer_scalar",  # one layer too many
        "model.decoder.layers.1.self_attn.v_proj.weight",  # full layers have none
        "model.decoder.layers.0.self_attn.q_proj.bias",
        "model.encoder.language_model.layers.4.layer_scalar",
        "model.encoder.language_model.norm.weight",  # the encoder has only scalars of its own
        "lm_head.weight",  # tied
        "norm.weight",  # our name without the prefix
        "model.decoder.layers.0.encoder_scalar",  # our name for another tensor
    ],
)
def test_a_text_tensor_without_a_place_is_named(saved, name):
    edit_tensors(saved, lambda tensors: tensors.update({name: torch.ones(1)}))
    message = refusal(saved)
    assert f"{name} is no tensor of this architecture" in message
    assert "missing" not in message


def test_a_wrong_shape_is_named_with_both_shapes(saved):
    edit_tensors(saved, lambda tensors: tensors.update({Q_PROJ: torch.ones(32, 128)}))
    message = refusal(saved)
    assert f"{Q_PROJ} has shape [32, 128], expected [128, 32]" in message
    assert "missing" not in message


def test_the_first_of_many_problems_are_listed_and_the_rest_counted(saved):
    edit_tensors(saved, lambda tensors: [tensors.pop(name) for name in list(tensors)[:30]])
    message = refusal(saved)
    assert message.count("is missing") == 8
    assert re.search(r" and \d+ more$", message)


def test_a_checkpoint_that_fits_another_config_is_refused(saved, reference):
    reference.edit_config(saved, moe_intermediate_size=20)
    assert "experts.down_proj has shape [4, 32, 24], expected [4, 32, 20]" in refusal(saved)


def test_vision_tensors_are_not_read(pair, saved):
    names = [*load_file(saved / "model.safetensors")]
    vision = [name for name in names if tensors.parameter_name(name) is None]
    assert {name.split(".")[2] for name in vision} == {"vision_tower", "embed_vision"}
    edit_tensors(saved, lambda tensors: [tensors.pop(name) for name in vision])
    without = checkpoint.load(saved).state_dict()
    assert without.keys() == pair.ours.state_dict().keys()
    assert len(without) == len(names) - len(vision)


def test_every_text_tensor_has_one_name_here_and_one_on_disk(pair):
    names = load_file(pair.directory / "model.safetensors").keys()
    text = {name for name in names if tensors.parameter_name(name) is not None}
    assert {tensors.tensor_name(name) for name in pair.ours.state_dict()} == text
    for name in text:
        assert tensors.tensor_name(str(tensors.parameter_name(name))) == name


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(saved, missing):
    (saved / missing).unlink()
    message = refusal(saved)
    assert missing in message
    assert str(saved) in message


def test_a_directory_that_is_not_there_is_named(tmp_path):
    assert str(tmp_path / "nowhere") in refusal(tmp_path / "nowhere")


@pytest.mark.parametrize("content", ["{", "[1]", "\xff"])
def test_a_config_that_is_no_json_object_is_named(saved, content):
    (saved / "config.json").write_text(content, encoding="latin-1")
    assert str(saved / "config.json") in refusal(saved)


def test_a_file_of_tensors_that_is_cut_short_is_named(saved):
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    assert f"{path} cannot be read" in refusal(saved)


@pytest.mark.parametrize(
    ("text", "message"),
    [({"hidden_activation": "silu"}, "is 'silu'"), ({"num_experts": None}, "no 'num_experts'")],
)
def test_a_config_that_is_refused_is_not_loaded(saved, reference, text, message):
    """More configs that are refused are in test_config.py."""
    reference.edit_config(saved, **text)
    assert message in refusal(saved)


@pytest.fixture
def sharded(pair, tmp_path) -> Path:
    pair.theirs.save_pretrained(tmp_path / "sharded", max_shard_size="40KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    return tmp_path / "sharded"


def test_shards_load_as_one_file_does(pair, sharded):
    loaded = checkpoint.load(sharded).state_dict()
    for name, tensor in pair.ours.state_dict().items():
        assert torch.equal(loaded[name], tensor), name


def test_a_missing_shard_is_named(sharded):
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.unlink()
    message = refusal(sharded)
    assert shard.name in message
    assert "index.json lists files that are missing" in message


def test_a_tensor_in_two_shards_is_named(sharded):
    for shard in sharded.glob("*.safetensors"):
        tensors = load_file(shard)
        if Q_PROJ not in tensors:
            save_file({**tensors, Q_PROJ: torch.ones(128, 32)}, shard)
            break
    assert f"{Q_PROJ} is there twice" in refusal(sharded)


@pytest.fixture
def written(pair, tmp_path) -> Path:
    """Return the directory that `save` writes of the pair's model, with its vision tower."""
    original = load_file(pair.directory / "model.safetensors")
    vision = {name: t for name, t in original.items() if tensors.parameter_name(name) is None}
    config = json.loads((pair.directory / "config.json").read_text())
    checkpoint.save(pair.ours, tmp_path / "new" / "written", config, vision)
    return tmp_path / "new" / "written"


def test_a_saved_model_loads_to_the_same_bits(pair, written):
    again = checkpoint.load(written)
    assert again.config == pair.ours.config
    for name, tensor in pair.ours.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def test_transformers_loads_a_saved_model(pair, written):
    model, report = type(pair.theirs).from_pretrained(written, output_loading_info=True)
    assert not any(report.values()), report
    for name, tensor in pair.theirs.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name


def test_a_loaded_model_has_no_gradients(pair):
    assert not any(parameter.requires_grad for parameter in pair.ours.parameters())
    assert not pair.ours.training
