"""Shapes of a DiffusionGemma checkpoint, read from a Hugging Face `config.json`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from dlm.models.errors import CheckpointError

LayerType = Literal["sliding_attention", "full_attention"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotary:
    """Rotary embedding of one layer type: angles `position * theta^(-2i / head_dim)`.

    Only the first `fraction` of the `head_dim / 2` pairs turn; the others stay (arXiv:2104.09864;
    "proportional" in transformers: the exponent is relative to the whole head, not to the part).
    """

    theta: float
    fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConfig:
    """Attention geometry of one layer."""

    kind: LayerType
    head_dim: int
    kv_heads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Geometry of the text stack. Every number comes from the checkpoint; there are no defaults."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int  # of the dense MLP and of self-conditioning
    expert_size: int  # of one routed expert
    experts: int
    experts_per_token: int
    heads: int
    layers: tuple[LayerConfig, ...]
    window: int  # tokens a sliding layer sees, the current one included
    rotary: Mapping[LayerType, Rotary]
    eps: float  # added to the mean square in every RMSNorm
    softcap: float  # logits are `softcap * tanh(x / softcap)`
    canvas_length: int
    max_positions: int

    def window_of(self, kind: LayerType) -> int | None:
        """Tokens that a layer sees, the current one included; None: all of them."""
        return self.window if kind == "sliding_attention" else None

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "ModelConfig":
        """From the parsed `config.json` of a DiffusionGemma checkpoint.

        Raises `CheckpointError` for another architecture, a missing field, or a variant that this
        implementation does not compute.
        """
        if config.get("model_type") != "diffusion_gemma":
            raise CheckpointError(
                f"config.json: model_type is {config.get('model_type')!r}, not 'diffusion_gemma'"
            )
        try:
            return cls._from_text(config["text_config"], int(config.get("canvas_length", 256)))
        except KeyError as missing:
            raise CheckpointError(f"config.json: text_config has no {missing}") from missing
        except (AttributeError, TypeError, ValueError) as error:
            raise CheckpointError(f"config.json: a field has the wrong type: {error}") from error

    @classmethod
    def _from_text(cls, text: Mapping[str, Any], canvas_length: int) -> "ModelConfig":
        expected = {
            "hidden_activation": "gelu_pytorch_tanh",
            "attention_bias": False,
            "tie_word_embeddings": True,
        }
        for name, value in expected.items():
            if text.get(name, value) != value:
                raise CheckpointError(f"config.json: {name} is {text[name]!r}, not {value!r}")
        if text.get("use_bidirectional_attention") == "all":
            raise CheckpointError("config.json: a bidirectional encoder is not DiffusionGemma's")
        known = get_args(LayerType)
        if unknown := [kind for kind in text["layer_types"] if kind not in known]:
            raise CheckpointError(f"config.json: layer type {unknown[0]!r} is none of {known}")
        if canvas_length < 1:
            raise CheckpointError(f"config.json: canvas_length is {canvas_length}: at least 1")
        return cls(
            vocab_size=text["vocab_size"],
            hidden_size=text["hidden_size"],
            intermediate_size=text["intermediate_size"],
            expert_size=text["moe_intermediate_size"],
            experts=text["num_experts"],
            experts_per_token=text["top_k_experts"],
            heads=text["num_attention_heads"],
            layers=tuple(_layer(text, i, kind) for i, kind in enumerate(text["layer_types"])),
            window=text["sliding_window"],
            rotary={kind: _rotary(rope) for kind, rope in text["rope_parameters"].items()},
            eps=text["rms_norm_eps"],
            softcap=text.get("final_logit_softcapping", 30.0),
            canvas_length=canvas_length,
            max_positions=text.get("max_position_embeddings", 131_072),
        )


def _layer(text: Mapping[str, Any], index: int, kind: LayerType) -> LayerConfig:
    """transformers writes exceptions as `per_layer_config`, by numbers with leading zeros; older
    files as `global_*` fields."""
    special = {int(i): each for i, each in text.get("per_layer_config", {}).items()}.get(index, {})
    if kind == "full_attention" and "per_layer_config" not in text:
        special = {
            "head_dim": text.get("global_head_dim", 512),
            "num_key_value_heads": text.get("num_global_key_value_heads"),
        }
    return LayerConfig(
        kind=kind,
        head_dim=special.get("head_dim") or text["head_dim"],
        kv_heads=special.get("num_key_value_heads") or text["num_key_value_heads"],
    )


def _rotary(rope: Mapping[str, Any]) -> Rotary:
    kind, fraction = rope["rope_type"], rope.get("partial_rotary_factor", 1.0)
    if kind == "proportional" or (kind == "default" and fraction == 1.0):
        return Rotary(theta=rope["rope_theta"], fraction=fraction)
    raise CheckpointError(
        f"config.json: rope_type {kind!r} with partial_rotary_factor {fraction} is not supported"
    )
