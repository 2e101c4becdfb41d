"""Directories of plain decoders with experts, or joined projections: read strictly, quantised."""

import json
from pathlib import Path

import pytest
import torch
from block_models import CONFIGS, LLADA2, Oracle
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from dlm.models import CheckpointError, checkpoint
from dlm.models.llada2.config import config_of
from dlm.models.quantise import quantise

WIDE = {"hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 32}


@pytest.fixture(scope="module")
def oracles() -> dict[str, Oracle]:
    return {name: Oracle(config) for name, config in CONFIGS.items()}


def logits_of(model, tokens: list[int]) -> torch.Tensor:
    return model.logits(model.encode([tokens], model.new_cache(1), [0]))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_is_written_as_it_was_read(name, oracles, tmp_path):
    source = oracles[name].write(tmp_path / "source")
    checkpoint.save(checkpoint.load(source), tmp_path / "copy", CONFIGS[name], {})
    before, after = (
        load_file(tmp_path / each / "model.safetensors") for each in ("source", "copy")
    )
    assert before.keys() == after.keys()
    assert all(torch.equal(before[tensor], after[tensor]) for tensor in before)


def test_kernels_are_chosen_for_all_operations_where_they_run(oracles, tmp_path):
    source = oracles["sdar"].write(tmp_path / "source")
    model = checkpoint.load(source, dtype=torch.bfloat16)
    assert model.backends == dict.fromkeys(model.backends, "torch")
    by_kernels = checkpoint.load(source, dtype=torch.bfloat16, kernels="triton")  # interpreted
    assert by_kernels.backends == dict.fromkeys(("attention", "layers", "vocabulary"), "triton")


@pytest.mark.parametrize(
    ("name", "tensor", "change", "message"),
    [
        ("sdar", "model.layers.1.self_attn.k_proj.weight", None, r"is missing, .* \[32, 32\]"),
        ("sdar", "model.layers.9.mlp.up_proj.weight", torch.ones(3), "no tensor of this archit"),
        ("sdar", "model.layers.0.self_attn.q_norm.weight", torch.ones(8), r"has shape \[8\]"),
        ("sdar", "lm_head.weight", None, r"is missing, expected in shape \[61, 32\]"),
        (
            "sdar_moe",
            "model.layers.2.mlp.experts.5.down_proj.weight",
            None,
            r"missing, .*\[32, 24\]",
        ),
        ("sdar_moe", "model.layers.2.mlp.experts.6.up_proj.weight", torch.ones(3), "no tensor of"),
        ("sdar_moe", "model.layers.0.mlp.gate.weight", torch.ones(6, 31), r"has shape \[6, 31\]"),
        ("llada2", "model.layers.1.mlp.gate.expert_bias", None, r"is missing, .* shape \[12\]"),
        ("llada2", "model.layers.0.mlp.gate.weight", torch.ones(12, 32), "no tensor of this arch"),
        (
            "llada2",
            "model.layers.0.attention.query_key_value.weight",
            torch.ones(64, 32),
            r"has shape \[64, 32\], expected \[128, 32\]",
        ),
        ("llada2", "model.word_embeddings.weight", torch.ones(61, 32).int(), "of I32"),
    ],
)
def test_a_missing_or_odd_tensor_is_named(name, tensor, change, message, oracles, tmp_path):
    directory = oracles[name].write(tmp_path)
    tensors = load_file(directory / "model.safetensors")
    tensors.pop(tensor, None)
    if change is not None:
        tensors[tensor] = change
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"{tensor} {message}|{tensor} is {message}"):
        checkpoint.load(directory)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("canvases", [0, 2])
def test_experts_or_dense_mlps_are_quantised(name, canvases, tmp_path):
    """With activations of four bits some tokens choose other experts."""
    oracle = Oracle({**CONFIGS[name], **WIDE})
    source = oracle.write(tmp_path / "source")
    quantise(source, tmp_path / "out", canvases=canvases)
    tokens = [i % 61 for i in range(3 * oracle.block)]
    exact = logits_of(checkpoint.load(source), tokens)
    for bits in (16,) if canvases == 0 else (16, 4):
        model = checkpoint.load(tmp_path / "out", activation_bits=bits)
        logits = logits_of(model, tokens)
        assert 1e-3 < (logits - exact).norm() / exact.norm() < {16: 0.3, 4: 0.6}[bits]
    with safe_open(next((tmp_path / "out").glob("*.safetensors")), "pt") as file:
        kept = set(file.keys())
    four = {tensor.removesuffix("_scale") for tensor in kept if tensor.endswith("weight_scale")}
    expected = "mlp." if name == "sdar" else "mlp.experts."
    assert four == {tensor for tensor in oracle.tensors() if expected in tensor}
    assert (f"{min(four).removesuffix('weight')}input_scale" in kept) == (canvases > 0)


def test_a_cache_of_eight_bits_has_nearly_the_same_logits(oracles, tmp_path):
    model = checkpoint.load(oracles["llada2"].write(tmp_path))
    tokens, canvas = [i % 61 for i in range(24)], torch.arange(8)[None]
    found = []
    for stored in (torch.float32, torch.float8_e4m3fn):
        cache = model.new_cache(1, stored)
        model.encode([tokens], cache, [0])
        found.append(model.denoise(canvas, None, cache, [0]))
    exact, rounded = found
    assert 1e-4 < (rounded - exact).norm() / exact.norm() < 0.1


def test_a_router_by_sigmoid_stays_in_fp32(oracles, tmp_path):
    """Scores and biases decide between experts that bf16 could not tell apart."""
    directory: Path = oracles["llada2"].write(tmp_path)
    model = checkpoint.load(directory, torch.bfloat16)
    tensors = load_file(directory / "model.safetensors")
    for name in ("weight", "expert_bias"):
        ours = model.get_parameter(f"layers.1.mlp.gate.{name}")
        assert torch.equal(ours, tensors[f"model.layers.1.mlp.gate.{name}"])
    assert model.get_parameter("layers.1.mlp.experts.down_proj").dtype == torch.bfloat16


@pytest.mark.parametrize("name", CONFIGS)
def test_a_tied_embedding_has_no_head_of_its_own(name, tmp_path):
    oracle = Oracle(CONFIGS[name])
    tensors = oracle.tensors()
    directory = oracle.write(tmp_path, tie_word_embeddings=True)
    embedding = next(tensor for key, tensor in tensors.items() if "embed" in key)
    del tensors["lm_head.weight"]
    save_file(tensors, directory / "model.safetensors")
    model = checkpoint.load(directory)
    states = torch.randn(2, 32)
    assert torch.equal(model.logits(states), states @ embedding.T)


@pytest.mark.parametrize(
    ("name", "field", "value", "message"),
    [
        ("sdar", "hidden_act", "gelu", 'hidden_act must be "silu", got "gelu"'),
        ("sdar", "hidden_size", None, "hidden_size must be an integer from 1 .* missing"),
        ("sdar", "head_dim", 15, "head_dim must be an even number, got 15"),
        ("sdar", "num_key_value_heads", 3, "must divide num_attention_heads, which is 4, got 3"),
        ("sdar", "rope_scaling", {"rope_type": "yarn"}, 'rope_type must be "default", got "yarn"'),
        ("sdar", "rope_scaling", 3, "rope_scaling must be an object, got 3"),
        ("sdar", "use_sliding_window", True, "use_sliding_window must be false, got true"),
        ("sdar", "partial_rotary_factor", 0.5, "partial_rotary_factor must be 1.0, got 0.5"),
        (
            "sdar",
            "rope_parameters",
            {"rope_theta": 1e4, "partial_rotary_factor": 0.5},
            r"rope_parameters\.partial_rotary_factor must be 1.0, got 0.5",
        ),
        ("sdar", "rms_norm_eps", 0, "rms_norm_eps must be a number above 0"),
        ("sdar", "tie_word_embeddings", 1, "tie_word_embeddings must be true or false, got 1"),
        ("sdar", "block_size", 0, "block_size must be an integer from 1"),
        ("sdar_moe", "num_experts_per_tok", 7, "at most num_experts, which is 6, got 7"),
        ("sdar_moe", "norm_topk_prob", False, "norm_topk_prob must be true, got false"),
        ("sdar_moe", "mlp_only_layers", [1], r"mlp_only_layers must be \[\], got \[1\]"),
        ("sdar_moe", "moe_intermediate_size", "9", 'moe_intermediate_size must be .* got "9"'),
        ("llada2", "n_group", 5, "n_group must divide num_experts, which is 12, got 5"),
        ("llada2", "topk_group", 5, "topk_group must be at most n_group, which is 4, got 5"),
        ("llada2", "num_experts_per_tok", 7, "at most the experts of its groups, which is 6"),
        ("llada2", "score_function", "softmax", 'score_function must be "sigmoid"'),
        ("llada2", "first_k_dense_replace", 4, "at most num_hidden_layers, which is 3, got 4"),
        ("llada2", "partial_rotary_factor", 0.1, "an even part of head_dim, got 1 of 16"),
        ("llada2", "rotary_dim", 4, "rotary_dim must be partial_rotary_factor of head_dim, 8"),
        ("llada2", "use_qkv_bias", True, "use_qkv_bias must be false, got true"),
        ("llada2", "use_qkv_bias", 0, "use_qkv_bias must be false, got 0"),
        ("llada2", "expert_capacity", 6, "expert_capacity must be null, got 6"),
        (
            "llada2",
            "rope_parameters",
            {"rope_theta": 1e4, "partial_rotary_factor": 0.25},
            r"rope_parameters\.partial_rotary_factor must be 0.5, got 0.25",
        ),
    ],
)
def test_a_config_that_is_not_computed_is_refused_by_field(name, field, value, message, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**CONFIGS[name], field: value}))
    with pytest.raises(CheckpointError, match=f"config.json: .*{message}"):
        checkpoint.config_of(tmp_path)


def test_newer_files_have_the_base_of_angles_in_rope_parameters(tmp_path):
    rope = {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5}
    directory = Oracle(LLADA2).write(tmp_path, rope_parameters=rope)
    assert checkpoint.config_of(directory).rotary.theta == 5000.0


def test_the_expert_of_all_tokens_may_have_a_size_of_its_own():
    fields = {**LLADA2, "num_shared_experts": 2}
    assert config_of(fields).routing.shared == 2 * 24
    assert config_of({**fields, "moe_shared_expert_intermediate_size": 40}).routing.shared == 2 * 40
