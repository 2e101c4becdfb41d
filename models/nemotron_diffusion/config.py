"""Shape of a Nemotron-Labs-Diffusion checkpoint, read from its `config.json`.

No field has a default, except for flags of what is not computed here: a model whose angles or
scales differ a little is wrong without a sign of it.
"""

from collections.abc import Mapping
from typing import Any

from dlm.models import CheckpointError
from dlm.models.decoder import DecoderConfig
from dlm.models.json_files import Range, check_number, shown
from dlm.models.rotary import QueryScale, RotaryEmbedding, Yarn
from dlm.models.shape import LayerConfig

MODEL_TYPE, ARCHITECTURE = "nemotron_labs_diffusion", "NemotronLabsDiffusionModel"

_POSITIONS = Range(int, 1, 2**31 - 1)
_HEADS = Range(int, 1, 2**16)
_TOKEN = Range(int, 0, 2**24)
_NUMBERS = {  # far beyond any model, and small enough for arithmetic in 64 bits
    "vocab_size": Range(int, 1, 2**24),
    "hidden_size": Range(int, 1, 2**20),
    "intermediate_size": Range(int, 1, 2**22),
    "num_hidden_layers": Range(int, 1, 1000),
    "num_attention_heads": _HEADS,
    "num_key_value_heads": _HEADS,
    "head_dim": _HEADS,
    "max_position_embeddings": _POSITIONS,
    "block_size": Range(int, 1, 2**16),
    "rms_norm_eps": Range(float, 0, 1),
    "mask_token_id": _TOKEN,
    "eos_token_id": _TOKEN,
}
_TURNS = Range(float, 0, 1e6)
_ROPE = {
    "rope_theta": Range(float, 1, 1e12),
    "factor": Range(float, 1, 1e6, closed=True),
    "original_max_position_embeddings": _POSITIONS,
    "beta_fast": _TURNS,
    "beta_slow": _TURNS,
    "mscale": _TURNS,
    "mscale_all_dim": _TURNS,
    "llama_4_scaling_beta": Range(float, 0, 100, closed=True),
}
_COMPUTED = {  # fields that may be missing, and the only values that are computed
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "sliding_window": None,
}


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    """Read a parsed `config.json`. Raises `CheckpointError` for a field that is missing, that
    cannot be meant, or whose value is not computed here."""
    _check(config)
    rope = config["rope_parameters"]
    head_dim, original = config["head_dim"], rope["original_max_position_embeddings"]
    yarn = Yarn(
        factor=rope["factor"],
        original=original,
        beta_fast=rope["beta_fast"],
        beta_slow=rope["beta_slow"],
    )
    layer = LayerConfig(
        kind="full_attention", head_dim=head_dim, kv_heads=config["num_key_value_heads"]
    )
    return DecoderConfig(
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        heads=config["num_attention_heads"],
        layers=(layer,) * config["num_hidden_layers"],
        rotary=RotaryEmbedding(
            theta=rope["rope_theta"],
            dim=head_dim,
            yarn=yarn,
            query_scale=QueryScale(beta=rope["llama_4_scaling_beta"], original=original),
        ),
        eps=config["rms_norm_eps"],
        canvas_length=config["block_size"],
        max_positions=config["max_position_embeddings"],
    )


def _check(config: Mapping[str, Any]) -> None:
    if config.get("model_type") != MODEL_TYPE:
        raise _unlike("model_type", config.get("model_type"), MODEL_TYPE)
    if config.get("architectures") != [ARCHITECTURE]:
        raise _unlike("architectures", config.get("architectures"), [ARCHITECTURE])
    for name, value in _COMPUTED.items():
        if config.get(name, value) != value:
            raise _unlike(name, config[name], value)
    for name, allowed in _NUMBERS.items():
        check_number(f"config.json: {name}", config.get(name), allowed)
    for name in ("mask_token_id", "eos_token_id"):
        if config[name] >= config["vocab_size"]:
            size = config["vocab_size"]
            raise CheckpointError(
                f"config.json: {name} must be less than vocab_size, {size}, got {config[name]}"
            )
    if config["mask_token_id"] == config["eos_token_id"]:
        raise CheckpointError(
            f"config.json: mask_token_id must not be eos_token_id, got {config['mask_token_id']}"
        )
    if config["head_dim"] % 2:
        raise CheckpointError(f"config.json: head_dim must be even, got {config['head_dim']}")
    if config["num_attention_heads"] % config["num_key_value_heads"]:
        raise CheckpointError(
            "config.json: num_key_value_heads must divide num_attention_heads, "
            f"{config['num_attention_heads']}, got {config['num_key_value_heads']}"
        )
    _check_rope(config.get("rope_parameters"))


def _check_rope(rope: Any) -> None:
    place = "rope_parameters"
    if not isinstance(rope, Mapping):
        raise CheckpointError(f"config.json: {place} must be an object, got {shown(rope)}")
    if rope.get("rope_type") != "yarn":
        raise _unlike(f"{place}.rope_type", rope.get("rope_type"), "yarn")
    for name, allowed in _ROPE.items():
        check_number(f"config.json: {place}.{name}", rope.get(name), allowed)
    if rope["mscale"] != rope["mscale_all_dim"]:  # the attention factor would not be 1
        raise _unlike(f"{place}.mscale_all_dim", rope["mscale_all_dim"], rope["mscale"])
    for name, value in (("attention_factor", 1.0), ("partial_rotary_factor", 1.0)):
        if rope.get(name) not in (None, value):
            raise _unlike(f"{place}.{name}", rope[name], value)
    if rope.get("truncate", True) is not True:
        raise _unlike(f"{place}.truncate", rope["truncate"], True)


def _unlike(name: str, value: Any, expected: Any) -> CheckpointError:
    return CheckpointError(f"config.json: {name} must be {shown(expected)}, got {shown(value)}")
