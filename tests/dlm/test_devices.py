"""Whole answers on the available device: a GPU uses kernels, graphs and an fp8 cache."""

import json
import shutil

import jsonschema
import pytest
import torch
from block_models import LLADA2, SDAR_MOE, Oracle
from training import directory as layout

from dlm import Autoregressive, Engine, JsonSchema, Request
from dlm.engine import BUILT_IN
from dlm.models import DiffusionGemma, ModelConfig

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
}
LAYERS = ["sliding_attention", "full_attention"]
PROMPTS = ["Extract name, age as JSON. Ada is 36.", "7", "Say it in red. " * 20]
TINY_MASKED = BUILT_IN.with_name("tiny_masked")
# Files of the tokenizer, which random models of other families share with the built-in one.
TOKENIZER = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A checkpoint of random weights, with sizes that kernels accept."""
    path = tmp_path_factory.mktemp("weights")
    shutil.copytree(BUILT_IN, path, dirs_exist_ok=True)
    config = json.loads((path / "config.json").read_text())
    sizes = {"head_dim": 64, "hidden_size": 128, "moe_intermediate_size": 64}
    config["text_config"] |= sizes | {"num_hidden_layers": 2, "layer_types": LAYERS}
    config["text_config"]["per_layer_config"] = {"1": {"head_dim": 64}}
    weights = DiffusionGemma(ModelConfig.from_hf(config)).state_dict()
    for name, tensor in weights.items():
        if tensor.dim() > 1:
            torch.nn.init.normal_(
                tensor, std=0.05, generator=torch.Generator().manual_seed(len(name))
            )
    layout.write(weights, config, path)
    return path


def answer_all(directory, device, **options):
    """Answer all prompts validly; return the engine."""
    kv = "fp8" if device == "cuda" else "auto"
    engine = Engine.load(directory, device=device, slots=5, kv=kv, cache_tokens=4096, **options)
    requests = [
        Request(prompt=prompt, constraint=JsonSchema(SCHEMA), max_tokens=64, seed=i)
        for i, prompt in enumerate(PROMPTS)
    ]
    try:
        for result in engine.generate(requests):
            jsonschema.validate(result.parsed, SCHEMA)
            assert result.complete
    finally:
        engine.close()
    if device == "cuda":
        assert engine.backends["attention"] == "triton"
    return engine


@pytest.mark.parametrize("decoding", [None, Autoregressive(drafts=True)], ids=str)
def test_answers_are_valid_on_every_device(decoding, directory, device):
    engine = answer_all(directory, device, decoding=decoding)
    if device == "cuda":
        assert decoding or engine.backends["graphs"] == "captured"


@pytest.mark.parametrize("family", ["llada2", "sdar_moe", "nemotron"])
def test_answers_of_masked_models_are_valid_on_every_device(family, tmp_path, device):
    directory = tmp_path
    if family == "nemotron":
        directory = TINY_MASKED
    else:
        config = {"llada2": LLADA2, "sdar_moe": SDAR_MOE}[family]
        Oracle(config | {"vocab_size": 1536, "mask_token_id": 4}).write(directory)
        for name in TOKENIZER:
            shutil.copy(BUILT_IN / name, directory)
        ends = {"eos_token_id": [1, 106], "pad_token_id": 1}
        (directory / "generation_config.json").write_text(json.dumps(ends))
    engine = answer_all(directory, device)
    if device == "cuda":
        assert engine.backends["layers"] == "triton"
        assert engine.backends["graphs"] == "captured"
