"""Interfaces of models that an engine can decode, and of their caches."""

from collections import abc
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dlm.kernels.expectation import Distributions
from dlm.models.image_tokens import EncodedImage


@runtime_checkable
class Model(Protocol):
    """Properties of every model, however it is decoded."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_positions(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def softcap(self) -> float | None:
        """Bound on logits: l counts as softcap * tanh(l / softcap); None: as it is."""
        ...

    def new_cache(self, slots: int) -> Any: ...  # a `Cache` of the model's own kind


@runtime_checkable
class Cache(Protocol):
    """Keys and values of each slot's committed tokens."""

    @property
    def capacity(self) -> int | None:
        """Number of tokens of all slots together; None: it grows."""
        ...

    @property
    def usage(self) -> float:
        """Share of its memory that is held; any thread may read it."""
        ...

    def length(self, slot: int) -> int: ...

    def fits(self, tokens: int) -> bool:
        """Whether a slot could reserve `tokens` tokens now."""
        ...

    def reserve(self, slot: int, tokens: int) -> None: ...

    def attach(self, slot: int, tokens: abc.Sequence[int]) -> int | None:
        """Begin a prompt in an empty slot; returns how many of its tokens are cached already. None:
        other slots are about to encode a good part of it; try again after the next pass."""
        ...

    def rewind(self, slot: int, length: int) -> int:
        """Keep at most the first `length` tokens; returns how many are kept."""
        ...

    def release(self, slot: int) -> None: ...


@runtime_checkable
class Denoiser(Model, Protocol):
    """Interface of a model that denoises canvases."""

    @property
    def canvas_length(self) -> int: ...

    def encode(
        self, tokens: abc.Sequence[abc.Sequence[int]], cache: Any, slots: abc.Sequence[int]
    ) -> Tensor:
        """Append `tokens[i]` to slot `slots[i]`.

        A family that caches "causally" gets any tokens, each of which sees those before it. One
        that caches "whole" gets whole blocks of `canvas_length`: a slot's length is a multiple of
        it, before and after. The tokens of a block see one another, and the blocks before theirs.
        """
        ...

    def denoise(
        self,
        canvas: Int[Tensor, "B L"],
        soft_embedding: Float[Tensor, "B L hidden"] | None,
        cache: Any,
        slots: abc.Sequence[int],
        encode: Mapping[int, abc.Sequence[int]],
    ) -> Float[Tensor, "B L V"]:
        """Append `encode[slot]` as `encode` does, and denoise a canvas after each slot's tokens.

        Returns logits in the model's own dtype; the softcap is not applied yet. `soft_embedding`
        is None for a sampler that carries none. The loop may write to the logits until the next
        pass. If blocks are cached "whole", a canvas is the slot's next block, and the end of the
        prompt may be the beginning of the first one.
        """
        ...


@runtime_checkable
class SelfConditioned(Denoiser, Protocol):
    """A denoiser that is shown what it expected in the pass before, as samplers that carry a soft
    embedding need."""

    def no_soft_embedding(self) -> Float[Tensor, "L hidden"]: ...

    def expected_embedding(self, distributions: Distributions) -> Float[Tensor, "n hidden"]:
        """Return the soft embeddings that the next pass gets. For a model with a table of
        embeddings this is `distributions.expected(table)`."""
        ...


@runtime_checkable
class CausalLM(Model, Protocol):
    """A model that predicts the next token."""

    def predict(
        self, tokens: Mapping[int, abc.Sequence[int]], last: Mapping[int, int], cache: Any
    ) -> Float[Tensor, "n V"]:
        """Append `tokens[slot]` to each slot and predict. Returns the logits of the next token
        after each of the last `last[slot]` tokens, slot by slot in the order of `last`; the softcap
        is not applied yet."""
        ...


@runtime_checkable
class DraftingLM(CausalLM, Denoiser, Protocol):
    """A causal model that denoises canvases by the same weights."""

    def predict_and_denoise(
        self,
        tokens: Mapping[int, abc.Sequence[int]],
        last: Mapping[int, int],
        canvas: Int[Tensor, "B L"],
        soft_embedding: Float[Tensor, "B L hidden"] | None,
        cache: Any,
    ) -> tuple[Float[Tensor, "n V"], Float[Tensor, "B L V"]]:
        """Run `predict`, and in the same pass denoise a canvas after each slot of `last`. Returns
        the logits of `predict` and those of the canvases."""
        ...


@runtime_checkable
class ImageTokens(Protocol):
    """Token ids by which a chat template and a model mark an image."""

    image: int  # written by the template; a soft token
    begin: int
    end: int


@runtime_checkable
class ImageReader(Protocol):
    """Vision tower: it turns images into soft tokens of a prompt. Any number of threads may use
    it."""

    @property
    def markers(self) -> ImageTokens: ...

    def patches(self, image: Any) -> Any:
        """Return a PIL image in the tower's form, whose `tokens` is the number of soft tokens.
        Raises `ModelError` for one that it cannot take."""
        ...

    def encode(self, patches: Any) -> EncodedImage:
        """Return the image's soft tokens, which the model reads as long as the result lives."""
        ...
