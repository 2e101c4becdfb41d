"""A judge of texts that knows no masks, no budget and no canvas: it reads bytes, and nothing else.

That it reads what rules mean is tested by itself, against a naive recogniser and xgrammar.
"""

from functools import lru_cache

import torch
from torch import Tensor

from dlm.grammar import Spec, Vocabulary
from dlm.grammar.limits import Meter
from dlm.grammar.parse import Network, Parser, scanner_of


@lru_cache(maxsize=256)
def _parser(spec: Spec, vocabulary: Vocabulary) -> Parser:
    return Parser(Network(spec.rules(vocabulary.call)), scanner_of, Meter())


class Judge:
    """Moves along a text. A refused part moves nothing."""

    def __init__(self, parser: Parser, vocabulary: Vocabulary):
        self._parser, self._vocabulary, self._state = parser, vocabulary, parser.start
        self._stopped = False

    def accept_string(self, text: str | bytes) -> bool:
        state = self._state
        for byte in text.encode() if isinstance(text, str) else text:
            state = self._parser.after_byte(state, byte)
            if state is None:
                return False
        self._state = state
        return True

    def accept_token(self, token: int) -> bool:
        if token in self._vocabulary.stops:
            self._stopped = not self._stopped and self.is_completed()
            return self._stopped
        if self._vocabulary.pieces[token]:
            return self.accept_string(self._vocabulary.pieces[token])
        state = self._parser.after(self._state, token, b"")
        self._state = state or self._state
        return state is not None

    def is_terminated(self) -> bool:
        return self._stopped

    def is_completed(self) -> bool:
        return self._state.cost == 0

    def allowed(self) -> Tensor:
        """The tokens that would be accepted, as packed bits `[words]`; found one by one."""
        bits = torch.zeros(-(-len(self._vocabulary) // 32) * 32, dtype=torch.bool)
        bits[len(self._vocabulary) :] = True
        for token in range(len(self._vocabulary)):
            judge = Judge(self._parser, self._vocabulary)
            judge._state = self._state
            bits[token] = judge.accept_token(token)
        powers = 1 << torch.arange(32, dtype=torch.int64)
        return (bits.view(-1, 32) * powers).sum(-1).to(torch.int32)


def judge(spec: Spec, vocabulary: Vocabulary) -> Judge:
    """At the beginning of a text that `spec` describes."""
    try:
        return Judge(_parser(spec, vocabulary), vocabulary)
    except TypeError:  # a schema that came as a dict cannot be hashed
        return Judge(_parser.__wrapped__(spec, vocabulary), vocabulary)
