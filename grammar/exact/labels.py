"""Which of some labels a canvas says: each label's probability, summed over all of its spellings.

An automaton for `Choice` merges labels that end alike. Here each keeps a state of its own to end
in, and forward sums alone are the answer: its states are the prefixes of the labels.

Shapes: `n` labels, `L` positions, `C` classes of tokens, `E` transitions.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float64

from dlm.grammar.constraint import ClassScores
from dlm.grammar.errors import GrammarError
from dlm.grammar.exact.inference import log_sum
from dlm.grammar.vocabulary import Vocabulary

_STOP = 1  # the class of stop tokens; 0 has all tokens that spell no part of a label


class Labels:
    """The texts that are one of some labels and a stop, in any tokens.

    What it is to know of a canvas is `count` sums over `classes [V]` of tokens.
    """

    def __init__(self, labels: Sequence[str], vocabulary: Vocabulary):
        """Raises `GrammarError` for a label that no tokens spell."""
        self._children: list[dict[int, int]] = [{}]  # by state: the states behind its next bytes
        self._ends = np.array([self._end_of(label.encode()) for label in labels])
        class_of: dict[int, int] = {}  # by node of the vocabulary's trie: tokens are spelled alike
        found: set[tuple[int, int, int]] = set()  # targets, sources, classes
        for label in labels:
            raw = label.encode()
            if vocabulary.fewest([raw]) is None:
                raise GrammarError(f"the label {label!r:.80} cannot be spelled in this vocabulary")
            path = self._path(raw)
            for start, source in enumerate(path[:-1]):
                for target, node in zip(
                    path[start + 1 :], vocabulary.trie.along(raw, start), strict=False
                ):
                    if vocabulary.trie.token_count[node]:
                        label_class = class_of.setdefault(node, _STOP + 1 + len(class_of))
                        found.add((target, source, label_class))
        self._target, self._source, self._class = np.array(sorted(found)).T
        self._reached, self._first = np.unique(self._target, return_index=True)
        self.count = _STOP + 1 + len(class_of)
        self.classes = torch.zeros(len(vocabulary), dtype=torch.int32)
        self.classes[list(vocabulary.stops)] = _STOP
        nodes = np.array([*class_of], dtype=np.int32)
        tokens, owner = vocabulary.trie.tokens_at(nodes)
        self.classes[torch.from_numpy(tokens).long()] = torch.from_numpy(owner) + _STOP + 1
        self._longest = max(len(label.encode()) for label in labels)

    def log_masses(self, scores: ClassScores) -> Float64[np.ndarray, " n"]:
        """The log-probability of each label: of the texts on a canvas that spell it and stop."""
        L = min(len(scores.mass), self._longest + 1)
        reached = np.full(len(self._children), -np.inf)
        reached[0] = 0
        found = np.full(len(self._ends), -np.inf)
        for at in range(L):
            found = np.logaddexp(found, reached[self._ends] + scores.mass[at, _STOP])
            onward = reached[self._source] + scores.mass[at, self._class]
            reached = np.full_like(reached, -np.inf)
            reached[self._reached] = log_sum(onward[None], self._first)[0]
        return found

    def _end_of(self, raw: bytes) -> int:
        """The state behind a label, made with all those in front of it."""
        state = 0
        for byte in raw:
            if byte not in self._children[state]:
                self._children[state][byte] = len(self._children)
                self._children.append({})
            state = self._children[state][byte]
        return state

    def _path(self, raw: bytes) -> list[int]:
        """The states of all its prefixes."""
        path = [0]
        for byte in raw:
            path.append(self._children[path[-1]][byte])
        return path
