"""Denoisers of masked canvases, and what has to hold of the canvases that they are shown."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

import torch
from doubles import Double, Ledger
from torch import Tensor
from values import V

MASK = 4  # a control token of the built-in tokenizer
Wish = Callable[[list[int], Tensor], Tensor]
"""Logits `[L, V]`, from the tokens before a canvas and the canvas."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Canvas that a pass showed."""

    slot: int
    before: tuple[int, ...]  # tokens that the slot had encoded
    tokens: list[int]


class Revealing(Double):
    """Denoiser of masked canvases, which notes what it is shown."""

    def __init__(self, canvas_length: int):
        super().__init__(V, canvas_length)
        self.wants(endless(0, canvas_length))

    def wants(self, wish: Wish) -> None:
        """Want something else from now on, and forget what was shown."""
        self._wish, self.shown, self.encoded = wish, list[Shown](), list[list[int]]()

    def encode(
        self, tokens: Sequence[Sequence[int]], cache: Ledger, slots: Sequence[int]
    ) -> Tensor:
        self.encoded += [list(row) for row in tokens]
        return super().encode(tokens, cache, slots)

    def denoise(
        self,
        canvas: Tensor,
        soft_embedding: Tensor | None,
        cache: Ledger,
        slots: Sequence[int],
        encode: Mapping[int, Sequence[int]] = MappingProxyType({}),
    ) -> Tensor:
        assert soft_embedding is None
        self.encode(list(encode.values()), cache, list(encode))
        rows = []
        for slot, row in zip(slots, canvas, strict=True):
            before = cache.tokens[slot]
            self.shown.append(Shown(slot, tuple(before), row.tolist()))
            rows.append(self._wish(list(before), row))
        return torch.stack(rows)


def garbage(seed: int, sigma: float, L: int) -> Wish:
    """Return a model that wants something else in each pass; it is sure of it with a large `sigma`,
    and likes masks best."""
    rng = torch.Generator().manual_seed(seed)

    def wish(before: list[int], canvas: Tensor) -> Tensor:
        logits = sigma * torch.randn(L, V, generator=rng)
        logits[:, MASK] += 3 * sigma
        return logits

    return wish


def spiteful(seed: int, L: int) -> Wish:
    """Return a model that is sure at masks of a token that it wants to replace in the next pass."""
    rng = torch.Generator().manual_seed(seed)

    def wish(before: list[int], canvas: Tensor) -> Tensor:
        logits = torch.randn(L, V, generator=rng)
        wanted = torch.randint(V, (L,), generator=rng)
        logits[torch.arange(L), wanted] = 30.0
        logits[torch.arange(L), canvas] = -30.0
        return logits

    return wish


def endless(token: int, L: int) -> Wish:
    """Return a model that is sure of one token, at each position of every canvas."""
    logits = torch.zeros(L, V)
    logits[:, token] = 50.0
    return lambda before, canvas: logits.clone()


def canvases(shown: Sequence[Shown]) -> list[list[Shown]]:
    """Return the passes over each canvas of a single request."""
    grouped: dict[int, list[Shown]] = {}
    for each in shown:
        grouped.setdefault(len(each.before), []).append(each)
    return [*grouped.values()]


def check_passes(passes: Sequence[Shown], L: int, edit_passes: int | None = None) -> None:
    """Assert what holds of the passes over one canvas: each reveals a token, none is masked again,
    and without edits none changes."""
    assert len(passes) <= L + (edit_passes or 0)
    for earlier, later in pairwise(passes):
        stood = {p for p, token in enumerate(earlier.tokens) if token != MASK}
        stands = {p for p, token in enumerate(later.tokens) if token != MASK}
        assert stood <= stands
        if edit_passes is None:
            assert stood < stands
            assert all(earlier.tokens[p] == later.tokens[p] for p in stood)


def out_of_order(passes: Sequence[Shown]) -> bool:
    """Whether a pass showed a token right of a mask."""
    masked = [[token == MASK for token in each.tokens] for each in passes]
    return any(flags != sorted(flags) for flags in masked)
