"""Shapes of an SDAR checkpoint, read from a Hugging Face `config.json`.

The network is Qwen3's: dense, or with routed experts in every layer.
"""

from collections.abc import Mapping
from typing import Any

from dlm.models.config_fields import COUNT, WIDTH, Fields
from dlm.models.rotary import RotaryEmbedding
from dlm.models.routed import RoutedConfig, Routing

MODEL_TYPES = DENSE, ROUTED = "sdar", "sdar_moe"
_BLOCK = 4  # tokens, unless a file names another number
_COMPUTED = {
    "hidden_act": "silu",
    "attention_bias": False,
    "use_sliding_window": False,
    "partial_rotary_factor": 1.0,
}
_COMPUTED_ROUTED = {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}


def config_of(settings: Mapping[str, Any]) -> RoutedConfig:
    """Read the parsed `config.json` of an SDAR directory. Raises `CheckpointError` for another
    architecture, a missing field, and a variant that this implementation does not compute."""
    fields = Fields(settings)
    fields.model_type(MODEL_TYPES)
    fields.require(_COMPUTED)
    routing = None
    if settings["model_type"] == ROUTED:
        fields.require(_COMPUTED_ROUTED)
        experts = fields.number("num_experts", COUNT)
        routing = Routing(
            experts=experts,
            per_token=fields.at_most("num_experts_per_tok", COUNT, "num_experts", experts),
            size=fields.number("moe_intermediate_size", WIDTH),
        )
    geometry = fields.geometry()
    return RoutedConfig(
        **geometry,
        rotary=RotaryEmbedding(theta=fields.theta(), dim=geometry["layers"][0].head_dim),
        routing=routing,
        canvas_length=fields.number("block_size", COUNT, _BLOCK),
        caches="whole",
        qk_norm=True,
    )
