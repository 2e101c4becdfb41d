"""Random plain decoders of transformers, and the same weights in ours."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import Ministral3Config, Ministral3ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from dlm.models.decoder import DecoderConfig, PlainDecoder
from dlm.models.rotary import QueryScale, RotaryEmbedding, Yarn
from dlm.models.shape import LayerConfig

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
CANVAS, VOCABULARY, HIDDEN = 6, 61, 32
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "pad_token_id": None,
    "attn_implementation": "eager",
}
ROPE = {  # of Ministral 3, with an original context so short that tests go far beyond it
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 12,
    "beta_fast": 1.0,
    "beta_slow": 0.1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}


class DecoderPair(NamedTuple):
    ours: PlainDecoder
    theirs: Any

    def states(self, tokens: Sequence[int], canvas: int = 0) -> Tensor:
        """Return transformers' states of `tokens`, of which the last `canvas` see one another."""
        count = len(tokens)
        seen = torch.ones(count, count).tril().bool()
        seen[count - canvas :, count - canvas :] = True
        mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]
        with torch.no_grad():
            return self.theirs.model(torch.tensor([tokens]), mask).last_hidden_state[0]

    def logits(self, states: Tensor) -> Tensor:
        with torch.no_grad():
            return self.theirs.lm_head(states)


def _config(**options: Any) -> DecoderConfig:
    layer = LayerConfig(kind="full_attention", head_dim=16, kv_heads=2)
    sizes: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "heads": 4}
    return DecoderConfig(
        **sizes,
        layers=(layer,) * 3,
        canvas_length=CANVAS,
        max_positions=4096,
        intermediate_size=48,
        eps=1e-5,
        **options,
    )


def _paired(ours: PlainDecoder, theirs: Any) -> DecoderPair:
    rng = torch.Generator().manual_seed(0)
    for name, parameter in theirs.named_parameters():
        drawn = torch.randn(parameter.shape, generator=rng)
        is_gain = "norm" in name
        parameter.data = 1 + drawn / 4 if is_gain else drawn * parameter.shape[-1] ** -0.5
    state = {name.removeprefix("model."): tensor for name, tensor in theirs.state_dict().items()}
    if ours.config.tied:
        del state["lm_head.weight"]
    ours.load_state_dict(state)
    return DecoderPair(ours.eval().requires_grad_(False), theirs.eval())


def ministral() -> DecoderPair:
    """Return decoders with YaRN, scaled queries and a head of their own."""
    yarn = Yarn(factor=16.0, original=12, beta_fast=1.0, beta_slow=0.1)
    scale = QueryScale(beta=0.1, original=12)
    rotary = RotaryEmbedding(theta=10_000.0, dim=16, yarn=yarn, query_scale=scale)
    theirs = Ministral3ForCausalLM(Ministral3Config(**_SIZES, rope_parameters=dict(ROPE)))
    return _paired(PlainDecoder(_config(rotary=rotary)), theirs)


def qwen() -> DecoderPair:
    """Return decoders with norms of queries and keys, whose head is the embedding."""
    rope = {"rope_type": "default", "rope_theta": 10_000.0}
    theirs = Qwen3ForCausalLM(Qwen3Config(**_SIZES, rope_parameters=rope, tie_word_embeddings=True))
    config = _config(rotary=RotaryEmbedding(theta=10_000.0, dim=16), qk_norm=True, tied=True)
    return _paired(PlainDecoder(config), theirs)


PAIRS: dict[str, Callable[[], DecoderPair]] = {"ministral3": ministral, "qwen3": qwen}
