"""Shapes of a LLaDA2 checkpoint, read from a Hugging Face `config.json`.

After the first layers, whose MLPs are dense, each layer has routed experts and one that all tokens
pass. Half of a head's numbers turn with the position.
"""

from collections.abc import Mapping
from typing import Any

from dlm.models import CheckpointError
from dlm.models.config_fields import (
    COUNT,
    FRACTION,
    NONE_OR_MORE,
    SCALE,
    WIDTH,
    Fields,
)
from dlm.models.rotary import RotaryEmbedding
from dlm.models.routed import RoutedConfig, Routing

MODEL_TYPES = ("llada2_moe",)
_BLOCK = 32  # tokens, unless a file names another number
_COMPUTED = {
    "hidden_act": "silu",
    "use_bias": False,
    "use_qkv_bias": False,
    "use_qk_norm": True,
    "use_sliding_window": False,
    "norm_topk_prob": True,
    "score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "norm_head": False,
    "expert_capacity": None,  # most experts of a block, as LLaDA2.2 has it
}


def config_of(settings: Mapping[str, Any]) -> RoutedConfig:
    """Read the parsed `config.json` of a LLaDA2 directory. Raises `CheckpointError` for another
    architecture, a missing field, and a variant that this implementation does not compute."""
    fields = Fields(settings)
    fields.model_type(MODEL_TYPES)
    fields.require(_COMPUTED)
    geometry = fields.geometry()
    layers, part = len(geometry["layers"]), fields.number("partial_rotary_factor", FRACTION)
    return RoutedConfig(
        **geometry,
        rotary=RotaryEmbedding(
            theta=fields.theta(part),
            dim=_rotary_dim(fields, geometry["layers"][0].head_dim, part),
        ),
        routing=_routing(fields),
        dense_layers=fields.at_most(
            "first_k_dense_replace", NONE_OR_MORE, "num_hidden_layers", layers
        ),
        canvas_length=fields.number("block_size", COUNT, _BLOCK),
        caches="whole",
        qk_norm=True,
    )


def _routing(fields: Fields) -> Routing:
    experts = fields.number("num_experts", COUNT)
    size = fields.number("moe_intermediate_size", WIDTH)
    groups = fields.divisor("n_group", COUNT, "num_experts", experts)
    chosen = fields.at_most("topk_group", COUNT, "n_group", groups)
    most = experts // groups * chosen
    shared = fields.number("moe_shared_expert_intermediate_size", WIDTH, size)
    return Routing(
        experts=experts,
        per_token=fields.at_most("num_experts_per_tok", COUNT, "the experts of its groups", most),
        size=size,
        scores="sigmoid",
        groups=groups,
        groups_per_token=chosen,
        scale=fields.number("routed_scaling_factor", SCALE),
        shared=shared * fields.number("num_shared_experts", NONE_OR_MORE),
    )


def _rotary_dim(fields: Fields, head_dim: int, part: float) -> int:
    """Return how many numbers of a head turn, which are a `part` of them."""
    size = int(head_dim * part)
    if size < 2 or size % 2:
        raise CheckpointError(
            f"config.json: partial_rotary_factor must give an even part of head_dim, got {size} of "
            f"{head_dim}"
        )
    if fields.number("rotary_dim", COUNT, size) != size:
        raise CheckpointError(
            f"config.json: rotary_dim must be partial_rotary_factor of head_dim, {size}"
        )
    return size
