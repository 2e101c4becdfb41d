"""Probabilities of labels on a canvas: each label's, summed over all its spellings in tokens.

A canvas is read as classes of tokens: tokens of one class spell the same bytes. States are the
prefixes of labels, so forward sums over states give the probability of each label, which ends in
its own state.

Shapes: `n` labels, `m` tokens that spell parts of labels, `C` classes, `L` positions, `V` tokens of
the vocabulary.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float64, Int64

from dlm.grammar import GrammarError, Vocabulary

_STOP = 0  # the class of stop tokens
_TRANSITIONS = 256  # transitions between states that a unit of work, about 10 us, sums over


class Labels:
    """Labels, each followed by a stop, in all their spellings. Never changed. They need `count`
    sums over classes of `tokens` at the first `length` positions of a canvas."""

    def __init__(self, labels: Sequence[str], vocabulary: Vocabulary):
        """Raise `GrammarError` for a label that no tokens spell."""
        states, trie = _Prefixes(), vocabulary.trie
        self._ends = np.array([states.path(label.encode())[-1] for label in labels])
        class_of: dict[int, int] = {}  # by trie node
        found: set[tuple[int, int, int]] = set()  # target, source, class
        for label in labels:
            raw = label.encode()
            path, spelled = states.path(raw), {0}  # lengths of the prefixes that tokens spell
            for start, source in enumerate(path[:-1]):
                if start not in spelled:
                    continue
                for end, node in enumerate(trie.along(raw, start), start + 1):
                    if trie.token_count[node]:
                        label_class = class_of.setdefault(node, _STOP + 1 + len(class_of))
                        found.add((path[end], source, label_class))
                        spelled.add(end)
            if len(raw) not in spelled:
                raise GrammarError(f"the label {label!r:.80} cannot be spelled in this vocabulary")
        self._target, self._source, self._class = np.array(sorted(found), dtype=np.int32).T
        self._reached, self._first = np.unique(self._target, return_index=True)
        self._states = len(states)
        tokens, owner = trie.tokens_at(np.array([*class_of], dtype=np.int32))
        stops = np.array(vocabulary.stops, dtype=np.int64)
        self.tokens: Int64[np.ndarray, " m"] = np.concatenate((stops, tokens))
        self.classes: Int64[np.ndarray, " m"] = np.concatenate(
            (np.full(len(stops), _STOP), owner + _STOP + 1)
        )
        self.count = _STOP + 1 + len(class_of)
        self.length = max(len(label.encode()) for label in labels) + 1
        self.work = 1 + len(found) // _TRANSITIONS  # units that `forward` takes for a position

    def forward(self, mass: Float64[np.ndarray, "L C"]) -> Iterator[Float64[np.ndarray, " n"]]:
        """Yield log-probabilities of the labels, each followed by a stop. First from the first
        position alone, then from the first two, and so on; the last ones are the result. `mass` are
        log-probabilities of classes, in nats."""
        reached = np.full(self._states, -np.inf)
        reached[0] = 0
        found = np.full(len(self._ends), -np.inf)
        for row in mass[: self.length]:
            found = np.logaddexp(found, reached[self._ends] + row[_STOP])
            onward = reached[self._source] + row[self._class]
            reached = np.full_like(reached, -np.inf)
            reached[self._reached] = np.logaddexp.reduceat(onward, self._first)
            yield found


class FirstTokens:
    """Labels that differ in their first tokens, which are compared. Has the interface of
    `Labels`."""

    length = work = 1

    def __init__(self, tokens: Sequence[int]):
        """No two of `tokens` are equal."""
        self.tokens = np.array(tokens, dtype=np.int64)
        self.classes, self.count = np.arange(len(tokens)), len(tokens)

    def forward(self, mass: Float64[np.ndarray, "1 n"]) -> Iterator[Float64[np.ndarray, " n"]]:
        """Yield the log-probabilities of the first tokens, at once."""
        yield mass[0]


class _Prefixes:
    """States of the prefixes of some texts; 0 is the empty prefix."""

    def __init__(self):
        self._children: list[dict[int, int]] = [{}]  # by state: the next state for each byte

    def __len__(self) -> int:
        return len(self._children)

    def path(self, raw: bytes) -> list[int]:
        """Return the states of all prefixes of `raw`, and add the missing ones."""
        path = [0]
        for byte in raw:
            children = self._children[path[-1]]
            if byte not in children:
                children[byte] = len(self._children)
                self._children.append({})
            path.append(children[byte])
        return path
