"""Denoisers without weights, for benchmarks of everything but the model."""

from typing import Any, Self

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

import dlm
from dlm.chat import Chat
from dlm.kernels.expectation import Distributions


class Weightless:
    """A model without weights that is its own cache, of which it keeps the lengths.

    A subclass adds `denoise`.
    """

    softcap = capacity = None
    max_positions, device = 1_000_000, torch.device("cpu")
    usage: float = 0.0

    def __init__(self, vocab_size: int, canvas_length: int):
        self.vocab_size, self.canvas_length = vocab_size, canvas_length
        self._lengths: dict[int, int] = {}

    def new_cache(self, slots: int) -> Self:
        return self

    def length(self, slot: int) -> int:
        return self._lengths.get(slot, 0)

    def fits(self, tokens: int) -> bool:
        return True

    def reserve(self, slot: int, tokens: int) -> None:
        pass

    def attach(self, slot: int, tokens: Any) -> int:
        return 0

    def rewind(self, slot: int, length: int) -> int:
        self._lengths[slot] = length
        return length

    def release(self, slot: int) -> None:
        self._lengths[slot] = 0

    def encode(self, tokens: Any, cache: Any, slots: Any) -> Tensor:
        for row, slot in zip(tokens, slots, strict=True):
            self._lengths[slot] = self.length(slot) + len(row)
        return torch.zeros(sum(map(len, tokens)), 1)

    def no_soft_embedding(self) -> Tensor:
        return torch.zeros(self.canvas_length, 1)

    def expected_embedding(self, distributions: Distributions) -> Tensor:
        return torch.zeros(distributions.n, 1)


def fill_(tokenizer: PreTrainedTokenizerBase, size: int) -> None:
    """Add tokens to a tokenizer until it has one for each of a model's `size` logits."""
    tokenizer.add_tokens([f"<extra {i}>" for i in range(size - len(tokenizer))])


class TokenChat(Chat):
    """A chat without a template: prompts are token ids, by default a single one."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer = tokenizer

    def prompt(self, request: dlm.Request) -> list[int]:
        return list(request.token_ids or (2,))
