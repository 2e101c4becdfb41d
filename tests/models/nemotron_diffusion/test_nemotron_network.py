"""Checkpoints of Nemotron-Labs-Diffusion's layout, read strictly, against transformers' Ministral 3
with masks for blocks; adapters of drafts; layers in NVFP4."""

import json
from types import SimpleNamespace

import nemotron
import pytest
import torch
from nemotron import ALPHA, CONFIG, RANK
from plain_decoders import CLOSE, DecoderPair
from safetensors.torch import load_file
from transformers import Ministral3Config, Ministral3ForCausalLM

from dlm.models import CheckpointError, checkpoint
from dlm.models.families import family_of
from dlm.models.nemotron_diffusion import adapter
from dlm.models.quantise import quantise

BLOCK, VOCABULARY = CONFIG["block_size"], CONFIG["vocab_size"]


def theirs(seed: int = 0):
    """Return transformers' model of the same weights."""
    fields = {name: CONFIG[name] for name in CONFIG.keys() - {"architectures", "model_type"}}
    config = Ministral3Config(**fields, pad_token_id=None, attn_implementation="eager")
    model = Ministral3ForCausalLM(config)
    names = (("encoder.", "model."), ("diffusion_head.", "lm_head."))
    state = {}
    for name, tensor in nemotron.tensors(seed).items():
        for old, new in names:
            name = name.replace(old, new)
        state[name] = tensor
    model.load_state_dict(state)
    return model.eval()


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return nemotron.write(tmp_path_factory.mktemp("nemotron") / "checkpoint")


@pytest.fixture(scope="module")
def pair(directory):
    return DecoderPair(checkpoint.load(directory), theirs())


def drawn(rng, length):
    return torch.randint(VOCABULARY, (length,), generator=rng).tolist()


@pytest.mark.parametrize("length", [1, 20, 70])
def test_a_checkpoint_has_the_logits_of_ministral_causal_and_with_a_full_mask_for_a_block(
    pair, rng, length
):
    tokens, block, cache = drawn(rng, length), drawn(rng, BLOCK), pair.ours.new_cache(1)
    states = pair.states(tokens)
    canvas, last = torch.tensor([block]), {0: length}
    causal, blocks = pair.ours.predict_and_denoise({0: tokens}, last, canvas, None, cache)
    torch.testing.assert_close(causal, pair.logits(states), **CLOSE)
    expected = pair.logits(pair.states(tokens + block, BLOCK)[-BLOCK:])
    torch.testing.assert_close(blocks[0], expected, **CLOSE)
    torch.testing.assert_close(pair.ours.denoise(canvas, None, cache, [0])[0], expected, **CLOSE)
    following = pair.ours.encode([block], cache, [0])  # a finished block is cached causally
    torch.testing.assert_close(following, pair.states(tokens + block)[length:], **CLOSE)


def test_sharded_files_are_read_as_one(pair, rng, tmp_path):
    shards = checkpoint.load(nemotron.write(tmp_path / "shards", shards=3))
    for name, tensor in pair.ours.state_dict().items():
        assert torch.equal(tensor, shards.state_dict()[name])


def test_a_saved_model_has_the_tensors_of_its_file(pair, tmp_path):
    checkpoint.save(pair.ours, tmp_path, CONFIG, {})
    written = load_file(tmp_path / "model.safetensors")
    expected = nemotron.tensors()
    assert {name: [*tensor.shape] for name, tensor in written.items()} == {
        name: [*tensor.shape] for name, tensor in expected.items()
    }
    assert all(torch.equal(written[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("name", "shape", "problem"),
    [
        ("diffusion_head.weight", None, "diffusion_head.weight is missing"),
        ("encoder.layers.1.mlp.up_proj.weight", (48, 31), "up_proj.weight has shape [48, 31]"),
        ("encoder.layers.2.mlp.up_proj.weight", (48, 32), "is no tensor of this architecture"),
        ("lm_head.weight", (1536, 32), "lm_head.weight is no tensor of this architecture"),
        ("embed_tokens.weight", (2, 2), "embed_tokens.weight is no tensor of this architecture"),
    ],
)
def test_missing_odd_and_further_tensors_are_named(directory, tmp_path, name, shape, problem):
    named = nemotron.tensors()
    named.pop(name, None)
    if shape is not None:
        named[name] = torch.zeros(shape)
    (tmp_path / "config.json").write_text((directory / "config.json").read_text())
    nemotron.write_tensors(tmp_path, named)
    with pytest.raises(CheckpointError) as raised:
        checkpoint.load(tmp_path)
    assert problem in str(raised.value)


def loaded(directory):
    """Return the model as an engine loads it."""
    family = family_of(json.loads((directory / "config.json").read_text()))
    options = SimpleNamespace(
        **{"device": torch.device("cpu"), "dtype": torch.float32, "stored": torch.float32},
        **{"slots": 2, "cache_tokens": None, "graphs": "off", "images": False},
        read=lambda: checkpoint.load(directory),
    )
    return family.load(directory, options).model


def drafts_of(model, tokens, canvas):
    """Return the logits after the tokens, and those of drafts, for a fresh cache; and the cache."""
    cache, last = model.new_cache(1), {0: len(tokens)}
    return *model.predict_and_denoise({0: tokens}, last, canvas, None, cache), cache


def test_an_adapter_changes_the_rows_of_drafts_and_nothing_else(pair, rng, tmp_path):
    nemotron.write_adapter(nemotron.write(tmp_path))
    adapted, tokens, canvas = loaded(tmp_path), drawn(rng, 20), torch.tensor([drawn(rng, BLOCK)])
    verified, drafts, cache = drafts_of(adapted, tokens, canvas)
    expected, plain_drafts, plain_cache = drafts_of(pair.ours, tokens, canvas)
    assert torch.equal(verified, expected)
    assert (drafts - plain_drafts).abs().max() > 0.1
    block = adapted.denoise(canvas, None, cache, [0])  # no draft: it is not verified
    assert torch.equal(block, pair.ours.denoise(canvas, None, plain_cache, [0]))
    following = adapted.encode([[7, 8]], cache, [0])
    assert torch.equal(following, pair.ours.encode([[7, 8]], plain_cache, [0]))


def test_drafts_are_those_of_a_model_with_the_adapter_merged_into_its_weights(rng, tmp_path):
    """With one layer: keys of the tokens before a draft do not depend on it."""
    layer, named, parts = "layers.1.", nemotron.tensors(), nemotron.adapter_tensors()
    named, parts = ({n: t for n, t in each.items() if layer not in n} for each in (named, parts))
    tokens, canvas, models = drawn(rng, 20), torch.tensor([drawn(rng, BLOCK)]), []
    for folder in ("adapted", "merged"):
        directory = nemotron.write(tmp_path / folder, num_hidden_layers=1)
        if folder == "merged":
            b, a = (t for n, t in sorted(parts.items(), reverse=True))
            named["encoder.layers.0.self_attn.o_proj.weight"] += ALPHA / RANK * b @ a
        else:
            nemotron.write_adapter(directory, parts)
        nemotron.write_tensors(directory, named)
        models.append(loaded(directory))
    adapted, merged = (drafts_of(model, tokens, canvas)[1] for model in models)
    torch.testing.assert_close(adapted, merged, **CLOSE)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"r": 0}, "adapter_config.json: r must be an integer"),
        ({"r": 5}, "has shape [4, 64], expected [5, 64]"),
        ({"lora_alpha": None}, "lora_alpha must be a number"),
        ({"target_modules": ["q_proj"]}, 'target_modules must be ["o_proj"]'),
        ({"use_rslora": True}, "use_rslora must be false"),
    ],
)
def test_an_odd_adapter_is_refused_by_name(directory, tmp_path, change, problem):
    nemotron.write_adapter(tmp_path, **change)
    config = checkpoint.config_of(directory)
    with pytest.raises(CheckpointError) as raised:
        adapter.read(tmp_path, config, torch.float32, torch.device("cpu"))
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("layers.1.self_attn.o_proj.lora_A", None, "lora_A of layer 1 is missing"),
        ("layers.1.self_attn", "layers.2.self_attn", "layer 2 is none of this model"),
        ("o_proj", "q_proj", "is no tensor of an adapter of o_proj"),
    ],
)
def test_tensors_of_an_adapter_are_matched_by_name(directory, tmp_path, old, new, problem):
    named = {
        name if new is None else name.replace(old, new): tensor
        for name, tensor in nemotron.adapter_tensors().items()
        if new is not None or old not in name
    }
    nemotron.write_adapter(tmp_path, named)
    config = checkpoint.config_of(directory)
    with pytest.raises(CheckpointError) as raised:
        adapter.read(tmp_path, config, torch.float32, torch.device("cpu"))
    assert problem in str(raised.value)


def test_layers_in_nvfp4_are_read_and_near_the_floats(directory, pair, rng, tmp_path):
    quantise(directory, tmp_path / "four", canvases=1)
    four = checkpoint.load(tmp_path / "four")
    tokens = drawn(rng, 20)
    half, quarter = (model.encode([tokens], model.new_cache(1), [0]) for model in (pair.ours, four))
    assert 0 < (half - quarter).square().mean().sqrt() < 0.5 * half.square().mean().sqrt()
    kinds = {type(module).__name__ for module in four.layers[0].modules()}
    assert "NVFP4Linear" in kinds
    assert "Linear" not in kinds
    assert type(four.lm_head).__name__ == "Linear"
    rounded = four.new_cache(1, torch.float8_e4m3fn)
    assert (four.encode([tokens], rounded, [0]) - quarter).abs().max() > 0
