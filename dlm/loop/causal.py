"""Interface of a model that writes left to right."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from dlm.loop.decoding import Model
from dlm.loop.denoise import Denoiser


@runtime_checkable
class CausalLM(Model, Protocol):
    """A model that predicts the next token; `DiffusionGemma` is one, by its encoder."""

    def predict(
        self, tokens: Mapping[int, Sequence[int]], last: Mapping[int, int], cache: Any
    ) -> Float[Tensor, "n V"]:
        """Append `tokens[slot]` to each slot and predict. Returns the logits of the next token
        after each of the last `last[slot]` tokens, slot by slot in the order of `last`; the softcap
        is not applied yet."""
        ...


@runtime_checkable
class DraftingLM(CausalLM, Denoiser, Protocol):
    """A causal model that denoises canvases by the same weights; `DiffusionGemma` is one."""

    def predict_and_denoise(
        self,
        tokens: Mapping[int, Sequence[int]],
        last: Mapping[int, int],
        canvas: Int[Tensor, "B L"],
        soft_embedding: Float[Tensor, "B L hidden"],
        cache: Any,
    ) -> tuple[Float[Tensor, "n V"], Float[Tensor, "B L V"]]:
        """Run `predict`, and in the same pass denoise a canvas after each slot of `last`. Returns
        the logits of `predict` and those of the canvases."""
        ...
