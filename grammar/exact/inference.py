"""Forward-backward over a token automaton (Dang and Ermon, arXiv:2607.07026), in log space.

A denoising step says what each position may be, independently of the others. This is the product of
these distributions, given that the whole is a text of the grammar which a budget can complete:
exact marginals, joint draws, the most likely text, and the probability of the condition. Padding
behind the stop is not scored. Numbers are float64: a product of 256 factors underflows even that,
so that sums are made of logarithms, each relative to its largest term.

Shapes: `L` positions, `S` states, `C` classes, `E` transitions, `P` pairs of states.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Float64, Int64

from dlm.grammar.exact.automaton import END, TokenAutomaton, Transitions

_BLOCK = 1 << 20  # numbers that are held at a time, beside the results

Reduce = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Of `values [n, m]` in segments that begin at `first`, all of them, none empty: one each."""


@dataclass(frozen=True, kw_only=True)
class Messages:
    """What the positions from each on are worth, by state: sums over texts, or the best of them."""

    automaton: TokenAutomaton
    scores: Float64[np.ndarray, "L C"]  # log-probabilities of classes; of the tail: 0
    pairs: Float64[np.ndarray, "n P"]  # the same of pairs of states; n: L, or what texts can take
    backward: Float64[np.ndarray, "n1 S"]  # from in front of each position to the canvas's end

    @property
    def length(self) -> int:
        """Positions behind which there is nothing but padding."""
        return len(self.pairs)

    def value(self, begin: int) -> float:
        """Of all texts that the state `begin` goes on with: nats; -inf if there are none."""
        return float(self.backward[0, begin])


def messages(
    automaton: TokenAutomaton,
    scores: Float64[np.ndarray, "L C"],
    budget: int,
    reduce: Reduce | None = None,
) -> Messages:
    """Of a canvas in front of which `budget` tokens are left, the stop among them.

    `scores` are log-probabilities of classes, of which those of `automaton.tail` are not looked at.
    A text has weight zero if it does not stop within the budget, be that on a later canvas. By
    default texts are summed; with `reduce=best`, the best of them counts.
    """
    reduce = reduce or log_sum
    scores = scores.copy()
    scores[:, automaton.tail] = 0
    L = min(len(scores), budget, automaton.longest)
    t = automaton.transitions
    pairs = np.empty((L, len(t.first)))
    size = max(1, _BLOCK // len(t.label))
    for at in range(0, L, size):
        pairs[at : at + size] = reduce(scores[at : min(at + size, L), t.label], t.first)
    backward = np.full((L + 1, len(automaton.to)), -np.inf)
    backward[L, automaton.distance <= budget - L] = 0
    begin = t.leaving[:-1]  # from each state there is a way on
    for at in range(L - 1, -1, -1):
        onward = pairs[at] + backward[at + 1, t.target]
        backward[at] = reduce(onward[None], begin)[0]
    return Messages(automaton=automaton, scores=scores, pairs=pairs, backward=backward)


def forward(sums: Messages, begin: int) -> Float64[np.ndarray, "n1 S"]:
    """What the texts up to each position are worth, by the state that they lead to from `begin`.

    Texts that cannot be completed within the budget are not counted.
    """
    t = sums.automaton.transitions
    order = np.argsort(t.target, kind="stable")
    reached, first = np.unique(t.target[order], return_index=True)
    found = np.full_like(sums.backward, -np.inf)
    found[0, begin] = 0
    for at in range(sums.length):
        onward = (found[at, t.source] + sums.pairs[at])[order]
        found[at + 1, reached] = log_sum(onward[None], first)[0]
        found[at + 1, np.isneginf(sums.backward[at + 1])] = -np.inf
    return found


def log_factors(
    sums: Messages, before: Float64[np.ndarray, "n1 S"], log_z: float
) -> Float32[np.ndarray, "L C"]:
    """What turns the probability of a token of each class into the posterior's: log factors.

    Of the tail, whose own probability counts as 1, it is the posterior itself. `before` is what
    `forward` says; `log_z` is above -inf.
    """
    automaton, t = sums.automaton, sums.automaton.transitions
    found = np.full((len(sums.scores), automaton.tail + 1), -np.inf, dtype=np.float32)
    found[sums.length :, automaton.tail] = 0
    order = np.lexsort((t.pair, t.label))
    label, first = np.unique(t.label[order], return_index=True)
    pair, size = t.pair[order], max(1, _BLOCK // len(order))
    for begin in range(0, sums.length, size):
        end = min(begin + size, sums.length)
        around = before[begin:end, t.source] + sums.backward[begin + 1 : end + 1, t.target]
        found[begin:end, label] = log_sum(around[:, pair], first) - log_z
    return found


def draw(
    sums: Messages, begin: int, uniform: Float64[np.ndarray, " L"]
) -> tuple[Int64[np.ndarray, " L"], Float64[np.ndarray, " L"]]:
    """A text's classes from the joint posterior; and a number in [0, 1) to draw each token by.

    `uniform` is all the randomness: what is left of each number once it has chosen a class is as
    uniform as it was, and independent of the class.
    """
    t, state = sums.automaton.transitions, begin
    labels = np.full(len(uniform), sums.automaton.tail)
    left = uniform.copy()
    for at in range(sums.length):
        if state == END:
            break
        one, rest = _drawn(_leaving(sums, at, state), float(left[at]))
        pair = int(t.leaving[state]) + one
        some = _members(t, pair)
        one, left[at] = _drawn(sums.scores[at, t.label[some]], rest)
        labels[at], state = t.label[some][one], int(t.target[pair])
    return labels, left


def most_likely(bests: Messages, begin: int) -> Int64[np.ndarray, " L"]:
    """The classes of the best text, of messages made with `best` of each class's best token.

    Of equals, always the same one.
    """
    t, state = bests.automaton.transitions, begin
    labels = np.full(len(bests.scores), bests.automaton.tail)
    for at in range(bests.length):
        if state == END:
            break
        pair = int(t.leaving[state]) + int(_leaving(bests, at, state).argmax())
        some = _members(t, pair)
        labels[at] = t.label[some][bests.scores[at, t.label[some]].argmax()]
        state = int(t.target[pair])
    return labels


def log_sum(values: np.ndarray, first: np.ndarray) -> np.ndarray:
    """The log of the sum of e^values in each segment."""
    top = np.maximum.reduceat(values, first, axis=1)
    top[np.isneginf(top)] = 0
    sizes = np.diff(first, append=values.shape[1])
    with np.errstate(divide="ignore"):  # of a segment that is -inf throughout
        sums = np.add.reduceat(np.exp(values - np.repeat(top, sizes, axis=1)), first, axis=1)
        return np.log(sums) + top


def best(values: np.ndarray, first: np.ndarray) -> np.ndarray:
    """The highest value in each segment."""
    return np.maximum.reduceat(values, first, axis=1)


def _leaving(messages: Messages, at: int, state: int) -> np.ndarray:
    """What the pairs that leave `state` are worth in front of position `at`."""
    t = messages.automaton.transitions
    some = slice(t.leaving[state], t.leaving[state + 1])
    return messages.pairs[at, some] + messages.backward[at + 1, t.target[some]]


def _members(t: Transitions, pair: int) -> slice:
    """The transitions of a pair."""
    end = t.first[pair + 1] if pair + 1 < len(t.first) else len(t.label)
    return slice(int(t.first[pair]), int(end))


def _drawn(logs: np.ndarray, uniform: float) -> tuple[int, float]:
    """One of some log-weights by inverse transform, and what is left of the number."""
    mass = np.exp(logs - logs.max())
    upto = mass.cumsum()
    aim = uniform * upto[-1]
    last = int(np.flatnonzero(mass)[-1])
    one = min(int(np.searchsorted(upto, aim, side="right")), last)
    left = (aim - (upto[one] - mass[one])) / mass[one]
    return one, float(min(max(left, 0.0), np.nextafter(1.0, 0.0)))
