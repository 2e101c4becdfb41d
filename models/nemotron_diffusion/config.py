"""Shape of a Nemotron-Labs-Diffusion checkpoint, read from its `config.json`.

No field has a default, except for flags of what is not computed here: a model whose angles or
scales differ a little is wrong without a sign of it.
"""

from collections.abc import Mapping
from typing import Any

from dlm.models import CheckpointError
from dlm.models.config_fields import COUNT, POSITIONS, TOKEN, Fields
from dlm.models.decoder import DecoderConfig
from dlm.models.json_files import Range, shown
from dlm.models.rotary import QueryScale, RotaryEmbedding, Yarn

MODEL_TYPE, ARCHITECTURE = "nemotron_labs_diffusion", "NemotronLabsDiffusionModel"

_TURNS = Range(float, 0, 1e6)  # far beyond any model
_YARN_THETA = Range(float, 1, 1e12)
_FACTOR = Range(float, 1, 1e6, closed=True)
_BETA = Range(float, 0, 100, closed=True)
_COMPUTED = {  # fields that may be missing, and the only values that are computed
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "sliding_window": None,
    "partial_rotary_factor": 1.0,
}


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    """Read a parsed `config.json`. Raises `CheckpointError` for a field that is missing, that
    cannot be meant, or whose value is not computed here."""
    fields = Fields(config)
    fields.model_type((MODEL_TYPE,))
    if config.get("architectures") != [ARCHITECTURE]:
        value = shown(config.get("architectures"))
        raise CheckpointError(f'config.json: architectures must be ["{ARCHITECTURE}"], got {value}')
    fields.require(_COMPUTED)
    head_dim, geometry = fields.number("head_dim", COUNT), fields.geometry()
    _check_tokens(fields, geometry["vocab_size"])
    return DecoderConfig(
        **geometry,
        rotary=_rotary(fields, head_dim),
        canvas_length=fields.number("block_size", COUNT),
    )


def _check_tokens(fields: Fields, vocab_size: int) -> None:
    mask, end = (
        fields.at_most(name, TOKEN, "the last token", vocab_size - 1)
        for name in ("mask_token_id", "eos_token_id")
    )
    if mask == end:
        raise CheckpointError(f"config.json: mask_token_id must not be eos_token_id, got {mask}")


def _rotary(fields: Fields, head_dim: int) -> RotaryEmbedding:
    rope = fields.rope("rope_parameters", "yarn")
    if rope is None:
        raise CheckpointError("config.json: rope_parameters must be an object, and it is missing")
    mscale = rope.number("mscale", _TURNS)
    rope.number("mscale_all_dim", _TURNS)
    rope.require({"mscale_all_dim": mscale})  # else the attention factor would not be 1
    rope.require({"attention_factor": 1.0, "truncate": True})
    original = rope.number("original_max_position_embeddings", POSITIONS)
    return RotaryEmbedding(
        theta=rope.number("rope_theta", _YARN_THETA),
        dim=head_dim,
        yarn=Yarn(
            factor=rope.number("factor", _FACTOR),
            original=original,
            beta_fast=rope.number("beta_fast", _TURNS),
            beta_slow=rope.number("beta_slow", _TURNS),
        ),
        query_scale=QueryScale(beta=rope.number("llama_4_scaling_beta", _BETA), original=original),
    )
