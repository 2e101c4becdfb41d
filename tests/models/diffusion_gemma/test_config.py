"""Configs are read as transformers reads them: its own classes and modules are the oracle."""

import copy
import json
import warnings
from typing import Any

import pytest
import torch
from transformers import DiffusionGemmaConfig, DiffusionGemmaTextConfig
from transformers.models.diffusion_gemma.modeling_diffusion_gemma import (
    DiffusionGemmaTextRotaryEmbedding,
)

from dlm.models import CheckpointError, ModelConfig, checkpoint
from dlm.models.diffusion_gemma.layers import rotary_angles

SLIDING, FULL = "sliding_attention", "full_attention"
WHOLE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_global_key_value_heads": 1,
    "head_dim": 16,
    "global_head_dim": 32,
    "hidden_activation": "gelu_pytorch_tanh",
    "attention_bias": False,
    "tie_word_embeddings": True,
    "use_bidirectional_attention": None,
    "sliding_window": 6,
    "rms_norm_eps": 1e-5,
    "final_logit_softcapping": 20.0,
    "max_position_embeddings": 1024,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 24,
    "layer_types": ([SLIDING] * 2 + [FULL]) * 4,
    "rope_parameters": {
        SLIDING: {"rope_type": "default", "rope_theta": 2e4},
        FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 3e6},
    },
}
REQUIRED = ("num_experts", "top_k_experts", "moe_intermediate_size")
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 256,
}
OLDER = {"type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e5, "factor": 4.0}


def config(*left_out: str, **text: Any) -> dict[str, Any]:
    """Return a parsed config.json with `text` in its text_config, without the fields `left_out`."""
    merged = {name: value for name, value in (WHOLE | text).items() if name not in left_out}
    return {"model_type": "diffusion_gemma", "canvas_length": 8, "text_config": merged}


def read(parsed: dict[str, Any]) -> ModelConfig:
    return ModelConfig.from_hf(parsed)


def theirs(text: dict[str, Any]) -> DiffusionGemmaTextConfig:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of rope_scaling
        return DiffusionGemmaTextConfig(**copy.deepcopy(text))


def check_alike(ours: ModelConfig, text: DiffusionGemmaTextConfig) -> None:
    """Assert that `ours` has all values of `text` that transformers' modules read."""
    layers = [text.per_layer_config[index] for index in range(text.num_hidden_layers)]
    assert [layer.kind for layer in ours.layers] == text.layer_types
    assert [layer.head_dim for layer in ours.layers] == [one.head_dim for one in layers]
    assert [layer.kv_heads for layer in ours.layers] == [one.num_key_value_heads for one in layers]
    for name, value in {
        "vocab_size": ours.vocab_size,
        "hidden_size": ours.hidden_size,
        "intermediate_size": ours.intermediate_size,
        "moe_intermediate_size": ours.expert_size,
        "num_experts": ours.experts,
        "top_k_experts": ours.experts_per_token,
        "num_attention_heads": ours.heads,
        "sliding_window": ours.window,
        "rms_norm_eps": ours.eps,
        "final_logit_softcapping": ours.softcap,
        "max_position_embeddings": ours.max_positions,
    }.items():
        assert value == getattr(text, name), name
    rotary, positions = DiffusionGemmaTextRotaryEmbedding(text), torch.tensor([[0, 1, 5, 900]])
    for kind in ours.rotary:
        head_dim = next(layer.head_dim for layer in ours.layers if layer.kind == kind)
        angles = rotary_angles(ours.rotary[kind], head_dim, positions[0])
        for mine, other in zip(angles, rotary(torch.ones(1), positions, kind), strict=True):
            torch.testing.assert_close(mine[:, 0], other[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("field", sorted(WHOLE.keys() - {*REQUIRED, "num_hidden_layers"}))
def test_a_missing_field_has_transformers_default(field):
    parsed = config(field)
    check_alike(read(parsed), theirs(parsed["text_config"]))


@pytest.mark.parametrize("layers", [1, 4, 6, 7, 12, 30])
def test_by_default_five_sliding_layers_precede_each_full_one_and_the_last_is_full(layers):
    parsed = config("layer_types", num_hidden_layers=layers)
    ours = read(parsed)
    check_alike(ours, theirs(parsed["text_config"]))
    kinds = [layer.kind for layer in ours.layers]
    assert kinds[:-1] == [FULL if i % 6 == 5 else SLIDING for i in range(layers - 1)]
    assert kinds[-1] == FULL


def test_only_fields_of_experts_are_required():
    parsed = config(*(WHOLE.keys() - {*REQUIRED}))
    ours = read(parsed)
    check_alike(ours, theirs(parsed["text_config"]))
    assert (len(ours.layers), ours.hidden_size, ours.window) == (30, 2304, 512)
    assert (ours.layers[-1].head_dim, ours.max_positions, ours.softcap) == (512, 131_072, 30.0)
    del parsed["canvas_length"]
    assert read(parsed).canvas_length == 256


@pytest.mark.parametrize("field", REQUIRED)
@pytest.mark.parametrize("null", [False, True])
def test_a_missing_field_of_experts_is_named(field, null):
    with pytest.raises(CheckpointError, match=f"text_config has no '{field}'"):
        read(config(**{field: None}) if null else config(field))


@pytest.mark.parametrize(
    "text",
    [
        {"use_bidirectional_attention": "vision"},
        {"tie_word_embeddings": False},  # the field of the whole config counts
        {"attention_dropout": 0.1},  # only for training
        {"num_global_key_value_heads": None},
        {"per_layer_config": {}},
        {"per_layer_config": None},
        {"per_layer_config": {str(i): {"head_dim": 64} for i in (2, 5, 8, 11)}},
        {"per_layer_config": {f"{i:02}": {"num_key_value_heads": 4} for i in (2, 5, 8, 11)}},
        {"layer_types": [SLIDING] * 12},  # the last one is full all the same
        {"layer_types": [FULL] * 12},
        {"rope_parameters": None},
        {"rope_parameters": {SLIDING: {"rope_theta": 5e3, "rope_type": "default"}, FULL: OLDER}},
        {"rope_parameters": {SLIDING: {"rope_theta": 5e3}, FULL: {"rope_theta": 7e5}}},
        {
            "rope_parameters": {
                SLIDING: {"rope_theta": 1e4, "rope_type": "default"},
                FULL: {"rope_theta": 1e6, "rope_type": "linear", "factor": 8.0},
            }
        },
        {"rope_scaling": {SLIDING: {"rope_theta": 5e3}, FULL: OLDER}},
        {"rope_theta": 5e5, "rope_local_base_freq": 123.0},  # not read where the newer field is
        {
            "rope_theta": 5e5,
            "rope_parameters": {SLIDING: {"rope_type": "default"}, FULL: OLDER},
        },
    ],
    ids=str,
)
def test_old_and_new_fields_are_read_as_transformers_reads_them(text):
    parsed = config(**text)
    before = copy.deepcopy(parsed)
    check_alike(read(parsed), theirs(parsed["text_config"]))
    assert parsed == before  # it is not changed


def test_old_rope_fields_alone_are_read_as_transformers_reads_them():
    parsed = config("rope_parameters", rope_theta=5e5, rope_local_base_freq=123.0)
    check_alike(read(parsed), theirs(parsed["text_config"]))


def test_rope_scaling_may_be_null():
    """Older configs have it so, from which transformers 5.23 fails to build a model."""
    assert read(config(rope_scaling=None)) == read(config())


@pytest.mark.parametrize("model_type", ["diffusion_gemma", "diffusion_gemma_text"])
def test_fields_of_the_text_stack_may_be_in_the_outer_config(model_type):
    flat = {"model_type": model_type, "canvas_length": 8, **WHOLE}
    assert read(flat) == read(config())
    assert read(flat | {"text_config": None}) == read(config())


@pytest.mark.parametrize(("head_dim", "kv_heads"), [(32, 1), (32, 2), (16, 1), (16, 2)])
def test_numbers_of_full_layers_are_read_from_the_file_that_transformers_writes(
    head_dim, kv_heads, tmp_path
):
    """transformers 5.23 writes those that differ from other layers' to `per_layer_config`, with the
    number of the sixth of 12 layers as "05", to sort them."""
    own = {"global_head_dim": head_dim, "num_global_key_value_heads": kv_heads}
    text = config("layer_types", **own)["text_config"]
    DiffusionGemmaConfig(text_config=text).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert not own.keys() & written["text_config"].keys()
    differing = {"05", "11"} if (head_dim, kv_heads) != (16, 2) else set()
    assert {*written["text_config"]["per_layer_config"]} == differing
    layers = read(written).layers
    assert [layer.kind for layer in layers] == ([SLIDING] * 5 + [FULL]) * 2
    assert [layer.head_dim for layer in layers] == ([16] * 5 + [head_dim]) * 2
    assert [layer.kv_heads for layer in layers] == ([2] * 5 + [kv_heads]) * 2


REFUSED = [
    (
        {"use_bidirectional_attention": "all"},
        "use_bidirectional_attention must be null or 'vision', got 'all'",
    ),
    ({"use_bidirectional_attention": "some"}, "'use_bidirectional_attention'"),
    (
        {"hidden_size": "32"},
        'text_config.hidden_size must be an integer from 1 to 1,048,576, got "32"',
    ),
    ({"hidden_size": 32.0}, "text_config.hidden_size must be an integer"),
    ({"hidden_size": 0}, "text_config.hidden_size must be an integer from 1 to 1,048,576, got 0"),
    (
        {"num_attention_heads": -4},
        "num_attention_heads must be an integer from 1 to 65,536, got -4",
    ),
    ({"sliding_window": None}, "Field 'sliding_window' expected int"),
    ({"head_dim": None}, "Field 'head_dim' expected int"),
    ({"global_head_dim": None}, "Field 'head_dim' expected int"),
    ({"head_dim": 15}, "head_dim must be an even number, got 15"),
    ({"num_key_value_heads": 3}, "sliding_attention has 3 key and value heads"),
    ({"num_global_key_value_heads": 3}, "full_attention has 3 key and value heads"),
    ({"top_k_experts": 5}, "top_k_experts is 5: num_experts, 4, is the most"),
    ({"final_logit_softcapping": None}, "text_config has no 'final_logit_softcapping'"),
    (
        {"final_logit_softcapping": "30"},
        'final_logit_softcapping must be a number above 0 and at most 1e+06, got "30"',
    ),
    ({"hidden_activation": "silu"}, "hidden_activation is 'silu', not 'gelu_pytorch_tanh'"),
    ({"attention_bias": True}, "attention_bias is True, not False"),
    ({"num_hidden_layers": 15}, "`num_hidden_layers` (15) must be equal to the number of"),
    ({"layer_types": "full_attention"}, "Field 'layer_types'"),
    ({"layer_types": [*["linear_attention"] * 11, FULL]}, "'linear_attention' is none of"),
    ({"layer_types": [*["other"] * 11, FULL]}, "`layer_types` entries must be in"),
    ({"per_layer_config": {"2": {"intermediate_size": 16}}}, "gives layer 2 a intermediate_size"),
    ({"per_layer_config": {"0": {"skip": ["mlp"]}}}, "gives layer 0 a skip of its own"),
    ({"per_layer_config": {"1": {"head_dim": 8}}}, "they must be alike"),
    ({"per_layer_config": {"12": {"head_dim": 8}}}, "range [0, 12); got [12]"),
    ({"per_layer_config": {"full": {"head_dim": 8}}}, "transformers refuses text_config"),
    ({"per_layer_config": [1]}, "text_config.per_layer_config must be an object by layer, got [1]"),
    ({"rope_parameters": {}}, "it has no 'sliding_attention'"),
    (
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        "has no 'sliding_attention'",
    ),
    ({"rope_parameters": {FULL: {"rope_theta": 1e4}}}, "has no 'sliding_attention'"),
    ({"rope_parameters": {SLIDING: None, FULL: {"rope_theta": 1e4}}}, "no 'sliding_attention'"),
    (
        {"rope_parameters": {SLIDING: {}, FULL: {"rope_theta": 1e4}}},
        "sliding_attention.rope_theta must be a number above 0 and at most 1e+12, got null",
    ),
    (
        {"rope_parameters": {SLIDING: {"rope_theta": 0}, FULL: OLDER}},
        "rope_theta must be a number above 0 and at most 1e+12, got 0",
    ),
    ({"rope_parameters": {SLIDING: 1, FULL: OLDER}}, "transformers refuses text_config"),
    ({"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, "has no 'sliding_attention'"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor of sliding_attention must be 1"),
    (
        {"rope_parameters": {SLIDING: YARN, FULL: OLDER}},
        "must be default, linear or proportional, got 'yarn'",
    ),
]


@pytest.mark.parametrize(("text", "reason"), REFUSED, ids=str)
def test_a_field_of_the_text_stack_that_cannot_be_computed_is_named(text, reason):
    with pytest.raises(CheckpointError) as error:
        read(config(**text))
    assert str(error.value).startswith("config.json: ")
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("outer", "reason"),
    [
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False, not True"),
        ({"canvas_length": 0}, "canvas_length must be an integer from 1 to 65,536, got 0"),
        ({"canvas_length": None}, "canvas_length must be an integer from 1 to 65,536, got null"),
        ({"canvas_length": "8"}, 'canvas_length must be an integer from 1 to 65,536, got "8"'),
        ({"text_config": 3}, "text_config must be an object, got 3"),
        ({"text_config": [1]}, "text_config must be an object, got [1]"),
        ({"text_config": {}}, "text_config has no 'num_experts'"),
        ({"model_type": "gemma4"}, "model_type is 'gemma4', not 'diffusion_gemma'"),
        ({"model_type": None}, "model_type is None, not 'diffusion_gemma'"),
    ],
    ids=str,
)
def test_a_wrong_field_of_the_outer_config_is_named(outer, reason):
    with pytest.raises(CheckpointError) as error:
        read(config() | outer)
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("text", "left_out"),
    [
        ({"num_hidden_layers": 6}, ("layer_types", "rope_parameters", "per_layer_config")),
        ({"rope_parameters": {SLIDING: {"rope_theta": 1e3}, FULL: OLDER}}, ()),
        (
            {"use_bidirectional_attention": "vision"},
            ("layer_types", "rope_parameters", "hidden_activation"),
        ),
    ],
)
def test_a_model_whose_config_has_few_fields_computes_what_transformers_does(
    reference, tmp_path, text, left_out
):
    model = reference.make(tmp_path, **dict.fromkeys(left_out[:2]), **text)
    path = tmp_path / "config.json"
    written = json.loads(path.read_text())
    own = {"global_head_dim": 32, "num_global_key_value_heads": 1}
    merged = own | {k: v for k, v in written["text_config"].items() if k not in left_out}
    path.write_text(json.dumps(written | {"text_config": merged | text}))
    prompt, canvas = [5, 9, 2, 40, 11, 7, 30, 8], torch.arange(reference.CANVAS)
    reference.assert_parity(checkpoint.load(tmp_path), model, prompt, canvas)
