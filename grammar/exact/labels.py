"""Which of some labels a canvas says: each label's probability, summed over all of its spellings.

An automaton for `Choice` merges labels that end alike. Here each keeps a state of its own to end
in, and forward sums alone are the answer: its states are the prefixes of the labels.

Shapes: `n` labels, `L` positions, `C` classes of tokens, `E` transitions.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float64, Int32
from torch import Tensor

from dlm.grammar.constraint import ClassScores
from dlm.grammar.errors import GrammarError
from dlm.grammar.exact.inference import log_sum
from dlm.grammar.vocabulary import Vocabulary

_STOP = 1  # the class of stop tokens; 0 has all tokens that spell no part of a label
_TRANSITIONS = 256  # that a unit of work, about 10 us, sums over


class Labels:
    """The texts that are one of some labels and a stop, in any tokens. Never changes.

    What it is to know of a canvas is `count` sums over `classes [V]` of tokens, at its first
    `length` positions at most.
    """

    def __init__(self, labels: Sequence[str], vocabulary: Vocabulary):
        """Raises `GrammarError` for a label that no tokens spell."""
        states = _Prefixes()
        self._ends = np.array([states.path(label.encode())[-1] for label in labels])
        class_of: dict[int, int] = {}  # by node of the vocabulary's trie: tokens are spelled alike
        found: set[tuple[int, int, int]] = set()  # targets, sources, classes
        for label in labels:
            raw = label.encode()
            path, spelled = states.path(raw), {0}  # lengths of prefixes that tokens spell
            for start, source in enumerate(path[:-1]):
                if start not in spelled:
                    continue
                for end, node in enumerate(vocabulary.trie.along(raw, start), start + 1):
                    if vocabulary.trie.token_count[node]:
                        label_class = class_of.setdefault(node, _STOP + 1 + len(class_of))
                        found.add((path[end], source, label_class))
                        spelled.add(end)
            if len(raw) not in spelled:
                raise GrammarError(f"the label {label!r:.80} cannot be spelled in this vocabulary")
        self._target, self._source, self._class = np.array(sorted(found), dtype=np.int32).T
        self._reached, self._first = np.unique(self._target, return_index=True)
        self._states, self._vocabulary = len(states), vocabulary
        self._nodes = np.array([*class_of], dtype=np.int32)
        self.count = _STOP + 1 + len(class_of)
        self.length = max(len(label.encode()) for label in labels) + 1
        self.work = 1 + len(found) // _TRANSITIONS  # units that a position takes `forward`

    @property
    def classes(self) -> Int32[Tensor, " V"]:
        """Of all tokens; made anew each time, since a vocabulary is large."""
        vocabulary = self._vocabulary
        tokens, owner = vocabulary.trie.tokens_at(self._nodes)
        classes = torch.zeros(len(vocabulary), dtype=torch.int32)
        classes[list(vocabulary.stops)] = _STOP
        classes[torch.from_numpy(tokens).long()] = torch.from_numpy(owner) + _STOP + 1
        return classes

    def forward(self, scores: ClassScores) -> Iterator[Float64[np.ndarray, " n"]]:
        """Log-probabilities of the texts on a canvas that spell a label and stop: at the first
        position, then at the first two, and so on. The last are those of the labels."""
        reached = np.full(self._states, -np.inf)
        reached[0] = 0
        found = np.full(len(self._ends), -np.inf)
        for mass in scores.mass[: self.length]:
            found = np.logaddexp(found, reached[self._ends] + mass[_STOP])
            onward = reached[self._source] + mass[self._class]
            reached = np.full_like(reached, -np.inf)
            reached[self._reached] = log_sum(onward[None], self._first)[0]
            yield found


class FirstTokens:
    """Labels that their first tokens tell apart, by these alone. In use it is like `Labels`."""

    length = work = 1

    def __init__(self, tokens: Sequence[int], vocab_size: int):
        """No two of `tokens` are equal."""
        self._tokens, self._vocab_size = list(tokens), vocab_size
        self.count = len(self._tokens) + 1

    @property
    def classes(self) -> Int32[Tensor, " V"]:
        classes = torch.zeros(self._vocab_size, dtype=torch.int32)
        classes[self._tokens] = torch.arange(1, self.count, dtype=torch.int32)
        return classes

    def forward(self, scores: ClassScores) -> Iterator[Float64[np.ndarray, " n"]]:
        """The log-probabilities of the first tokens, at once."""
        yield scores.mass[0, 1:]


class _Prefixes:
    """A state for each prefix of some texts; 0 is that of the empty one."""

    def __init__(self):
        self._children: list[dict[int, int]] = [{}]  # by state: the states behind its next bytes

    def __len__(self) -> int:
        return len(self._children)

    def path(self, raw: bytes) -> list[int]:
        """The states of all prefixes of `raw`, those made that are new."""
        path = [0]
        for byte in raw:
            children = self._children[path[-1]]
            if byte not in children:
                children[byte] = len(self._children)
                self._children.append({})
            path.append(children[byte])
        return path
