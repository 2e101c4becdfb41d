"""Shapes of a DiffusionGemma checkpoint, read from a Hugging Face `config.json`.

transformers' own config class reads the file, with its defaults. Values that this implementation
does not compute are refused by name.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from dlm.models import CheckpointError
from dlm.models.json_files import Range, check_number, check_numbers, shown
from dlm.models.shape import LayerConfig, LayerType, ModelShape

MODEL_TYPES = "diffusion_gemma", "diffusion_gemma_text"  # of the whole, and of its text stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotary:
    """Rotary embedding of one layer type: angles `position * theta^(-2i / head_dim) / factor`.

    Only the first `fraction` of the `head_dim / 2` pairs turn; the others stay (arXiv:2104.09864;
    "proportional" in transformers: the exponent is relative to the whole head, not to the part).
    """

    theta: float
    fraction: float
    factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(ModelShape):
    """Geometry of the text stack. Every number comes from the checkpoint."""

    intermediate_size: int  # of the dense MLP and of self-conditioning
    expert_size: int  # of one routed expert
    experts: int
    experts_per_token: int
    rotary: Mapping[LayerType, Rotary]
    eps: float  # added to the mean square in every RMSNorm
    softcap: float  # logits are `softcap * tanh(x / softcap)`

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "ModelConfig":
        """Read the parsed `config.json` of a DiffusionGemma directory as transformers does.

        The fields of the text stack are in `text_config`, or at the top level of a file without it.
        Raises `CheckpointError` for another architecture, a missing field, a value that
        transformers refuses, and a variant that this implementation does not compute.
        """
        canvas_length = config.get("canvas_length", 256)
        check_number("config.json: canvas_length", canvas_length, _CANVAS)
        text = _read(config)
        _check(text)
        if config.get("tie_word_embeddings", True) is not True:
            value = config["tie_word_embeddings"]
            raise CheckpointError(f"config.json: tie_word_embeddings is {value!r}, not True")
        rope, layer_types = text.rope_parameters or {}, text.layer_types or []
        layers = {kind: _layer(text, kind) for kind in dict.fromkeys(layer_types)}
        return cls(
            vocab_size=text.vocab_size,
            hidden_size=text.hidden_size,
            intermediate_size=text.intermediate_size,
            expert_size=text.moe_intermediate_size,
            experts=text.num_experts,
            experts_per_token=text.top_k_experts,
            heads=text.num_attention_heads,
            layers=tuple(layers[kind] for kind in layer_types),
            window=text.sliding_window,
            rotary={kind: _rotary(kind, rope.get(kind)) for kind in layers},
            eps=text.rms_norm_eps,
            softcap=text.final_logit_softcapping,
            canvas_length=canvas_length,
            max_positions=text.max_position_embeddings,
            images_see_all=text.use_bidirectional_attention == "vision",
        )


def _read(config: Mapping[str, Any]) -> Any:
    """Return the text stack's `DiffusionGemmaTextConfig`: its fields as transformers reads them."""
    fields = copy.deepcopy(_text_fields(config))  # transformers modifies its arguments
    inner = "" if config.get("text_config") is None else "text_config."
    check_numbers(f"config.json: {inner}", fields, _RANGES)  # it makes lists of these sizes
    own = fields.get("per_layer_config")
    if own is not None and not isinstance(own, dict):
        raise CheckpointError(
            f"config.json: {inner}per_layer_config must be an object by layer, got {shown(own)}"
        )
    if (rope_scaling := fields.pop("rope_scaling", None)) is not None:
        fields["rope_parameters"] = rope_scaling  # the older name has precedence there
    # Importing this takes a second, and most users of shapes read no file.
    from transformers import DiffusionGemmaTextConfig

    try:
        text = DiffusionGemmaTextConfig(**fields)
        text.standardize_rope_params()  # as the rotary embedding of transformers does
    except Exception as error:  # whatever its checks of a stranger's file raise
        reason = " ".join(str(error.args[0] if error.args else error).split())[:400]
        raise CheckpointError(f"config.json: transformers refuses text_config: {reason}") from error
    return text


def _text_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    model_type, text = config.get("model_type"), config.get("text_config")
    if model_type not in MODEL_TYPES:
        raise CheckpointError(f"config.json: model_type is {model_type!r}, not 'diffusion_gemma'")
    if text is None:
        return {name: value for name, value in config.items() if name != "text_config"}
    if not isinstance(text, Mapping):
        raise CheckpointError(f"config.json: text_config must be an object, got {shown(text)}")
    return dict(text)


_COMPUTED = {"hidden_activation": "gelu_pytorch_tanh", "attention_bias": False}
_INT32 = 2**31 - 1
_CANVAS = Range(int, 1, 2**16)
_HEADS = Range(int, 1, 2**16)
_WIDTH = Range(int, 1, 2**22)
_RANGES = {  # far beyond any model, and small enough for arithmetic in 64 bits
    "vocab_size": Range(int, 1, 2**24),
    "hidden_size": Range(int, 1, 2**20),
    "intermediate_size": _WIDTH,
    "num_hidden_layers": Range(int, 1, 1000),
    "num_attention_heads": _HEADS,
    "num_key_value_heads": _HEADS,
    "num_global_key_value_heads": _HEADS,
    "head_dim": _HEADS,
    "global_head_dim": _HEADS,
    "num_experts": _HEADS,
    "top_k_experts": _HEADS,
    "moe_intermediate_size": _WIDTH,
    "sliding_window": Range(int, 1, _INT32),
    "max_position_embeddings": Range(int, 1, _INT32),
    "rms_norm_eps": Range(float, 0, 1),
    "final_logit_softcapping": Range(float, 0, 1e6),
}
_BY_LAYER = {"head_dim", "num_key_value_heads"}  # fields that may differ between kinds of layers
_GLOBAL = {"num_global_key_value_heads", "global_head_dim"}  # the same for full layers
_REQUIRED = [name for name in _RANGES if name not in _BY_LAYER | _GLOBAL]
_FREQUENCY = Range(float, 0, 1e12)


def _check(text: Any) -> None:
    """Raise `CheckpointError` for a missing field and for a variant that is not computed here."""
    if text.use_bidirectional_attention == "all":
        raise CheckpointError(
            "config.json: use_bidirectional_attention must be null or 'vision', got 'all', a "
            "bidirectional encoder"
        )
    for index, own in text.to_dict().get("per_layer_config", {}).items():
        if other := sorted(own.keys() - _BY_LAYER):
            raise CheckpointError(
                f"config.json: per_layer_config gives layer {int(index)} a {other[0]} of its own: "
                f"only {' and '.join(sorted(_BY_LAYER))} may differ"
            )
    for name, value in _COMPUTED.items():
        if getattr(text, name) != value:
            raise CheckpointError(f"config.json: {name} is {getattr(text, name)!r}, not {value!r}")
    for name in _REQUIRED:
        if getattr(text, name) is None:
            raise CheckpointError(f"config.json: text_config has no {name!r}")
        check_number(f"config.json: text_config.{name}", getattr(text, name), _RANGES[name])
    if text.top_k_experts > text.num_experts:
        raise CheckpointError(
            f"config.json: top_k_experts is {text.top_k_experts}: num_experts, "
            f"{text.num_experts}, is the most"
        )
    known = get_args(LayerType)
    if unknown := [kind for kind in text.layer_types or () if kind not in known]:
        raise CheckpointError(f"config.json: layer type {unknown[0]!r} is none of {known}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _layer(text: Any, kind: LayerType) -> LayerConfig:
    """Return the geometry of the layers of `kind`, all of which must have the same."""
    try:
        own = text.per_layer_config[kind]
    except ValueError as error:
        names = " or ".join(sorted(_BY_LAYER))
        raise CheckpointError(
            f"config.json: per_layer_config gives layers of kind {kind} another {names} than "
            "others of that kind: they must be alike"
        ) from error
    head_dim, heads, kv_heads = own.head_dim, text.num_attention_heads, own.num_key_value_heads
    check_number(f"config.json: head_dim of {kind}", head_dim, _HEADS)
    check_number(f"config.json: num_key_value_heads of {kind}", kv_heads, _HEADS)
    if head_dim % 2:
        raise CheckpointError(f"config.json: head_dim must be an even number, got {head_dim}")
    if heads % kv_heads:
        raise CheckpointError(
            f"config.json: {kind} has {kv_heads} key and value heads: they must divide the "
            f"{heads} of num_attention_heads"
        )
    return LayerConfig(kind=kind, head_dim=head_dim, kv_heads=kv_heads)


def _rotary(kind: LayerType, rope: Mapping[str, Any] | None) -> Rotary:
    if rope is None:
        raise CheckpointError(
            f"config.json: rope_parameters must be an object by layer type, or left out; it has no "
            f"{kind!r}"
        )
    rope_type: Any = rope.get("rope_type", "default")
    fraction: Any = rope.get("partial_rotary_factor", 1.0)
    if rope_type not in ("default", "linear", "proportional"):
        raise CheckpointError(
            f"config.json: rope_type of {kind} must be default, linear or proportional, got "
            f"{rope_type!r}"
        )
    factor = 1.0 if rope_type == "default" else rope.get("factor", 1.0)
    numbers: dict[str, Any] = {"rope_theta": rope.get("rope_theta"), "factor": factor}
    for name, value in numbers.items():
        check_number(f"config.json: rope_parameters.{kind}.{name}", value, _FREQUENCY)
    least = 0.0 if rope_type == "proportional" else 1.0
    if not _is_number(fraction) or not least <= fraction <= 1:
        raise CheckpointError(
            f"config.json: partial_rotary_factor of {kind} must be 1, or 0 to 1 with rope_type "
            f"'proportional', got {fraction!r} with {rope_type!r}"
        )
    return Rotary(theta=rope["rope_theta"], fraction=fraction, factor=factor)
