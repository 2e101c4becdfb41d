"""Probabilities of some continuations of a prompt, by the causal model: the chain rule over tokens.

Continuations share their beginnings: each slot goes through some of them in sorted order, and
encodes only the new tokens of each. This module knows no canvas.
"""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from dlm.kernels.vocab_rows import heated
from dlm.loop.interfaces import Cache, CausalLM
from dlm.models.pages import CHUNK

TokenTuple = tuple[int, ...]


@torch.inference_mode()
def log_probabilities(
    model: CausalLM,
    cache: Cache,
    slots: Sequence[int],
    prompt: Sequence[int],
    texts: Sequence[Sequence[int]],
    stops: Sequence[int],
) -> Float64[Tensor, " n"]:
    """Return the log-probability of each of `texts` after `prompt`, with any of `stops` after it,
    in nats. No text is empty, and no two are equal. `slots` are empty before and after; as many of
    them are used as there is memory for, and at least the first."""
    tree, order, used = _Tree(texts, stops), sorted(map(tuple, texts)), list[int]()
    needed = len(prompt) + max(map(len, texts))
    try:
        for slot in slots[: len(order)]:
            if used and not cache.fits(needed):
                break
            cache.reserve(slot, needed)
            used.append(slot)
            _encode_prompt(model, cache, slot, prompt[:-1])
        share = -(-len(order) // len(used))
        plans = {slot: order[i * share : (i + 1) * share] for i, slot in enumerate(used)}
        for index in range(share):
            todo = {slot: plan[index] for slot, plan in plans.items() if index < len(plan)}
            begun = {slot: plans[slot][index - 1] if index else None for slot in todo}
            _read(model, cache, tree, prompt, todo, begun)
    finally:
        for slot in used:
            cache.release(slot)
    return torch.tensor([tree.total(tuple(text)) for text in texts], dtype=torch.float64)


class _Tree:
    """Tree of the beginnings of all texts, with the log-probabilities of the tokens after each."""

    def __init__(self, texts: Sequence[Sequence[int]], stops: Sequence[int]):
        self._whole, self._stops = {tuple(text) for text in texts}, list(stops)
        self._following: dict[TokenTuple, dict[int, None]] = {}
        for text in self._whole:
            for end in range(len(text)):
                self._following.setdefault(text[:end], {})[text[end]] = None
        self._logp: dict[TokenTuple, float] = {}  # of the last token after the ones before it
        self._stopped: dict[TokenTuple, float] = {}  # of a stop after a whole text

    def wanted(self, beginning: TokenTuple) -> list[int]:
        """Return the tokens that may come next; stops of a whole text are last."""
        stops = self._stops if beginning in self._whole else []
        return [*self._following.get(beginning, ()), *stops]

    def learn(self, beginning: TokenTuple, logp: Float[Tensor, " wanted"]) -> None:
        """Note the log-probabilities of `wanted(beginning)`."""
        following = self._following.get(beginning, {})
        for token, value in zip(following, logp.tolist(), strict=False):
            self._logp[(*beginning, token)] = value
        if beginning in self._whole:
            self._stopped[beginning] = float(logp[len(following) :].double().logsumexp(0))

    def total(self, text: TokenTuple) -> float:
        return sum(self._logp[text[: end + 1]] for end in range(len(text))) + self._stopped[text]


def _encode_prompt(model: CausalLM, cache: Cache, slot: int, prompt: Sequence[int]) -> None:
    """Encode a prompt in pieces; pages that another slot holds are shared."""
    cache.attach(slot, prompt)
    while (begin := cache.length(slot)) < len(prompt):
        model.predict({slot: prompt[begin : begin + CHUNK - begin % CHUNK]}, {}, cache)


def _read(
    model: CausalLM,
    cache: Cache,
    tree: _Tree,
    prompt: Sequence[int],
    todo: dict[int, TokenTuple],
    begun: dict[int, TokenTuple | None],
) -> None:
    """Encode the texts in `todo`, by slot, in one pass; `begun` are the texts that the slots
    hold."""
    rest: dict[int, list[int]] = {}
    last: dict[int, int] = {}  # number of tokens in `rest` after which something is wanted
    beginnings: list[TokenTuple] = []
    for slot, text in todo.items():
        before = begun[slot]
        kept = cache.length(slot)
        if before is not None:
            kept = cache.rewind(slot, len(prompt) + _common(before, text))
        rest[slot] = [*prompt, *text][kept:]
        ends = range(max(0, kept - len(prompt) + 1), len(text) + 1)
        last[slot] = len(ends)
        beginnings += [text[:end] for end in ends]
    logits = model.predict(rest, last, cache)
    logp = heated(logits, torch.ones_like(logits[:, 0].float()), model.softcap).log_softmax(-1)
    for text, values in _gathered(logp, tree, beginnings):
        tree.learn(text, values)


def _gathered(
    logp: Float[Tensor, "n V"], tree: _Tree, texts: Sequence[TokenTuple]
) -> Iterator[tuple[TokenTuple, Tensor]]:
    """Yield the values wanted after each of `texts`; they are fetched in one copy."""
    wanted = [tree.wanted(text) for text in texts]
    sizes = [len(tokens) for tokens in wanted]
    rows = torch.arange(len(texts)).repeat_interleave(torch.tensor(sizes))
    tokens = torch.tensor([token for each in wanted for token in each])
    found = logp[rows.to(logp.device), tokens.to(logp.device)].cpu()
    yield from zip(texts, found.split(sizes), strict=True)


def _common(one: TokenTuple, other: TokenTuple) -> int:
    """Return how many leading tokens are the same."""
    same = (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(same, min(len(one), len(other)))
