"""Causal language models of transformers, for `Autoregressive` decoding: to compare models.

Each request has a forward pass of its own: with padding, its result would depend on the others.
Nothing is shared between requests.
"""

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from dlm.errors import DlmError


def cache_name(model: PreTrainedModel) -> str:
    """Return the name of a `forward`'s cache parameter: `cache` from transformers 5.24 on."""
    return "cache" if "cache" in signature(model.forward).parameters else "past_key_values"


def special_tokens(model: PreTrainedModel) -> tuple[tuple[int, ...], int]:
    """Return the stop tokens of a model's generation config, and its padding. Raises `DlmError` if
    it has no stop token."""
    settings: Any = model.generation_config
    stops, pad = settings.eos_token_id, settings.pad_token_id
    if stops is None:
        raise DlmError("the model's generation_config has no eos_token_id: no text could end")
    stops = (stops,) if isinstance(stops, int) else tuple(stops)
    return stops, stops[0] if pad is None else pad


class TransformersLM:
    """Adapter of what `AutoModelForCausalLM.from_pretrained` returns, for an engine.

    model = TransformersLM(AutoModelForCausalLM.from_pretrained(name))
    chat = Chat(AutoTokenizer.from_pretrained(name))
    config = DecodeConfig.from_hf(model.generation_config())
    engine = Engine(model, chat, config, decoding=Autoregressive())
    """

    softcap = None  # transformers has applied it

    def __init__(self, model: PreTrainedModel):
        self._model: Any = model.eval()
        self._cache_name = cache_name(model)
        text = model.config.get_text_config()
        self.vocab_size: int = text.vocab_size
        self.max_positions: int = getattr(text, "max_position_embeddings", 1 << 40)

    @property
    def device(self) -> torch.device:
        return self._model.device

    def generation_config(self) -> dict[str, Any]:
        """Return the model's stop and padding tokens, for `DecodeConfig.from_hf`."""
        stops, pad = special_tokens(self._model)
        return {"eos_token_id": list(stops), "pad_token_id": pad}

    def new_cache(self, slots: int) -> "SlotCaches":
        return SlotCaches(self._model.config, slots)

    @torch.inference_mode()
    def predict(
        self, tokens: Mapping[int, Sequence[int]], last: Mapping[int, int], cache: "SlotCaches"
    ) -> Float[Tensor, "n V"]:
        """Predict as `dlm.loop.interfaces.CausalLM.predict` does."""
        logits = {}
        for slot, new in tokens.items():
            keep, ids = last.get(slot, 1), torch.tensor([list(new)], device=self.device)
            past = {self._cache_name: cache.past[slot]}
            out = self._model(ids, **past, use_cache=True, logits_to_keep=keep)
            logits[slot] = out.logits[0, -keep:, : self.vocab_size]
        if not last:
            return torch.empty(0, self.vocab_size, device=self.device)
        return torch.cat([logits[slot] for slot in last])


class SlotCaches:
    """Caches of transformers, one for each slot."""

    capacity: int | None = None  # no bound
    usage = 0.0  # no share, since there is no bound

    def __init__(self, config: Any, slots: int):
        self._config = config
        self.past = [self._empty() for _ in range(slots)]

    def length(self, slot: int) -> int:
        return self.past[slot].get_seq_length()

    def fits(self, tokens: int) -> bool:
        return True

    def reserve(self, slot: int, tokens: int) -> None:
        """Do nothing: memory is allocated when it is needed."""

    def attach(self, slot: int, tokens: Sequence[int]) -> int | None:
        return 0

    def rewind(self, slot: int, length: int) -> int:
        """Keep the first `length` tokens, and return the number of tokens kept: none if a sliding
        window has dropped some that would be needed."""
        if excess := self.length(slot) - length:
            try:
                self.past[slot].crop(-excess)
            except RuntimeError:  # a sliding window has dropped tokens
                self.past[slot] = self._empty()
        return self.length(slot)

    def release(self, slot: int) -> None:
        self.past[slot] = self._empty()

    def _empty(self) -> DynamicCache:
        return DynamicCache(config=self._config)
