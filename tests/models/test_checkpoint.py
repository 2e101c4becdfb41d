"""The loader refuses whatever it would have to guess, and says which thing it is."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dlm.models import CheckpointError, checkpoint, layout

Q_PROJ = "model.decoder.layers.1.self_attn.q_proj.weight"
ENCODER_SCALAR = "model.encoder.language_model.layers.1.layer_scalar"


def edit_tensors(directory: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def refusal(directory: Path) -> str:
    """What the loader says about `directory`."""
    with pytest.raises(CheckpointError) as error:
        checkpoint.load(directory)
    return str(error.value)


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
        "norm.weight",  # ours without the prefix
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


def test_many_problems_are_counted_not_listed(saved):
    edit_tensors(saved, lambda tensors: [tensors.pop(name) for name in list(tensors)[:30]])
    message = refusal(saved)
    assert message.count("is missing") == 8
    assert re.search(r" and \d+ more$", message)


def test_a_checkpoint_that_fits_another_config_is_refused(saved, reference):
    reference.edit_config(saved, moe_intermediate_size=20)
    assert "experts.down_proj has shape [4, 32, 24], expected [4, 32, 20]" in refusal(saved)


def test_vision_tensors_are_there_and_not_read(pair, saved):
    names = [*load_file(saved / "model.safetensors")]
    vision = [name for name in names if layout.parameter_name(name) is None]
    assert {name.split(".")[2] for name in vision} == {"vision_tower", "embed_vision"}
    edit_tensors(saved, lambda tensors: [tensors.pop(name) for name in vision])
    without = checkpoint.load(saved).state_dict()
    assert without.keys() == pair.ours.state_dict().keys()
    assert len(without) == len(names) - len(vision)


def test_every_text_tensor_has_one_name_here_and_one_on_disk(pair):
    names = load_file(pair.directory / "model.safetensors").keys()
    text = {name for name in names if layout.parameter_name(name) is not None}
    assert {layout.tensor_name(name) for name in pair.ours.state_dict()} == text
    for name in text:
        assert layout.tensor_name(str(layout.parameter_name(name))) == name


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


@pytest.mark.parametrize("model_type", ["gemma4", None])
def test_another_architecture_is_refused_by_name(saved, model_type):
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(config | {"model_type": model_type}))
    assert f"model_type is {model_type!r}, not 'diffusion_gemma'" in refusal(saved)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attention_bias", True),
        ("hidden_activation", "silu"),
    ],
)
def test_a_variant_that_is_not_computed_here_is_refused_by_name(saved, reference, field, value):
    reference.edit_config(saved, **{field: value})
    assert f"{field} is {value!r}" in refusal(saved)


@pytest.mark.parametrize("layer_types", [["sliding_attention", "linear_attention"] * 2, "full"])
def test_layers_of_an_unknown_kind_are_refused(saved, reference, layer_types):
    reference.edit_config(saved, layer_types=layer_types)
    assert "config.json: " in refusal(saved)


def test_a_text_config_that_is_none_is_refused(saved):
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(config | {"text_config": [1]}))
    assert "text_config is [1]: it takes an object" in refusal(saved)


def test_a_bidirectional_encoder_is_refused(saved, reference):
    reference.edit_config(saved, use_bidirectional_attention="all")
    assert "bidirectional encoder" in refusal(saved)


@pytest.mark.parametrize(
    "rope",
    [
        {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 256,
        },
        {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    ],
)
def test_an_unknown_rotary_embedding_is_refused_by_name(saved, reference, rope):
    reference.edit_config(saved, rope_parameters={"sliding_attention": rope})
    assert f"rope_type {rope['rope_type']!r}" in refusal(saved)


def test_a_missing_config_field_is_named(saved, reference):
    reference.edit_config(saved, num_experts=None)
    assert "no 'num_experts'" in refusal(saved)


def test_a_size_that_is_left_out_and_is_not_transformers_default_is_told_by_tensor(
    saved, reference
):
    reference.edit_config(saved, head_dim=None)
    name = "model.decoder.layers.0.self_attn.q_norm.weight"
    assert f"{name} has shape [16], expected [256]" in refusal(saved)


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
    """What `save` makes of the pair's own model, its vision tower passed through."""
    original = load_file(pair.directory / "model.safetensors")
    vision = {name: t for name, t in original.items() if layout.parameter_name(name) is None}
    config = json.loads((pair.directory / "config.json").read_text())
    checkpoint.save(pair.ours, tmp_path / "new" / "written", config, vision)
    return tmp_path / "new" / "written"


def test_what_was_saved_loads_to_the_same_bits(pair, written):
    again = checkpoint.load(written)
    assert again.config == pair.ours.config
    for name, tensor in pair.ours.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def test_transformers_loads_what_was_saved(pair, written):
    model, report = type(pair.theirs).from_pretrained(written, output_loading_info=True)
    assert not any(report.values()), report
    for name, tensor in pair.theirs.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name


def test_a_loaded_model_asks_for_no_gradient(pair):
    assert not any(parameter.requires_grad for parameter in pair.ours.parameters())
    assert not pair.ours.training
