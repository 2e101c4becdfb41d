"""All texts of a small automaton, one by one: what its posterior means, by definition."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from dlm.grammar.exact.automaton import END, NOWHERE, TokenAutomaton, distances

PAD, STOP = 0, 1


@dataclass(frozen=True)
class Language:
    """Where each token leads to: `to [S, V]`. `STOP` leads to `END`, and nothing else does."""

    to: np.ndarray

    @classmethod
    def random(cls, rng: np.random.Generator, states: int, tokens: int) -> "Language":
        """From each state there is a way to the end."""
        to = rng.integers(1, states, (states, tokens), dtype=np.int32)
        to[to == END] = 0
        to[rng.random(to.shape) < 0.4] = NOWHERE
        to[:, PAD], to[END] = NOWHERE, NOWHERE
        to[:, STOP] = np.where(rng.random(states) < 0.4, END, NOWHERE)
        to[END, STOP] = NOWHERE
        to[(distances(to) < 0) & (np.arange(states) != END), STOP] = END
        return cls(to)

    @property
    def automaton(self) -> TokenAutomaton:
        nowhere = np.full(len(self.to), NOWHERE)
        columns = [nowhere, *np.unique(self.to, axis=1).T]
        of = [next(i for i, c in enumerate(columns) if (c == column).all()) for column in self.to.T]
        to = np.stack([*columns, nowhere], axis=1).astype(np.int32)
        to[END, -1] = END
        classes = torch.tensor(of, dtype=torch.int32)
        return TokenAutomaton(classes=classes, to=to, distance=distances(to))

    def texts(self, length: int, budget: int, state: int = 0) -> Iterator[tuple[int, ...]]:
        """What a canvas of `length` may hold where `budget` tokens are left; no padding."""
        if state == END:
            yield ()
            return
        if budget == 0:
            return
        if length == 0:
            if any(True for _ in self.texts(budget, budget, state)):
                yield ()
            return
        for token, behind in enumerate(self.to[state].tolist()):
            if behind != NOWHERE:
                for rest in self.texts(length - 1, budget - 1, behind):
                    yield (token, *rest)


def weights(
    language: Language,
    p: np.ndarray,
    budget: int,
    state: int = 0,
    pinned: tuple[int, ...] = (),
    without: Mapping[int, set[int]] | None = None,
) -> dict[tuple[int, ...], float]:
    """The product of `p [L, V]` over each text of a canvas. Pinned tokens are certain."""
    found = {}
    for text in language.texts(len(p), budget, state):
        barred = any(t in (without or {}).get(i, ()) for i, t in enumerate(text))
        if text[: len(pinned)] == pinned and not barred:
            free = range(len(pinned), len(text))
            found[text] = float(np.prod([p[i, text[i]] for i in free]))
    return found


def marginals(weighted: Mapping[tuple[int, ...], float], shape: tuple[int, int]) -> np.ndarray:
    """Of each position, with padding behind the texts."""
    found = np.zeros(shape)
    for text, weight in weighted.items():
        for position in range(shape[0]):
            found[position, text[position] if position < len(text) else PAD] += weight
    return found / found.sum(1, keepdims=True)
