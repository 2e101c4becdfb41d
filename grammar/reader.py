"""Reads tokens left to right: first the reasoning of a request that thinks, then its grammar."""

from collections.abc import Sequence
from enum import Enum, auto

import numpy as np
import xgrammar as xgr

from dlm.grammar.vocabulary import Markers, Vocabulary


class _Phase(Enum):
    OPENING = auto()  # the answer may begin, or reasoning may
    REASONING = auto()  # any text, until the marker closes it
    ANSWER = auto()  # the grammar's


class Bits:
    """Rows of allowed tokens in xgrammar's packed form: bit `v % 32` of word `v // 32`."""

    def __init__(self, rows: int, vocab_size: int):
        self.tensor = xgr.allocate_token_bitmask(rows, vocab_size)
        self.rows = self.tensor.numpy().view(np.uint32)  # shares memory

    def allows(self, row: int, token: int) -> bool:
        return bool(int(self.rows[row, token >> 5]) >> (token & 31) & 1)

    def add(self, row: int, token: int) -> None:
        self.rows[row, token >> 5] |= np.uint32(1 << (token & 31))

    def only(self, row: int, token: int) -> None:
        self.rows[row] = 0
        self.add(row, token)


class Reader:
    """A matcher behind a gate: until reasoning is closed, tokens are not the grammar's business.

    `read` moves forward, `forget` back; `fill` and `forced` only look.
    """

    def __init__(self, compiled: xgr.CompiledGrammar, vocabulary: Vocabulary, thinking: bool):
        self._matcher = xgr.GrammarMatcher(
            compiled, override_stop_tokens=list(vocabulary.stops), max_rollback_tokens=-1
        )
        self._thought: Markers | None = vocabulary.thought if thinking else None
        self._phase = _Phase.ANSWER if self._thought is None else _Phase.OPENING
        self._trail: list[_Phase] = []  # the phase before each token read
        self._reasoning = Bits(1, len(vocabulary))  # what may stand between the markers
        if self._thought is not None:
            self._reasoning.rows[0] = vocabulary.text_words
            self._reasoning.add(0, self._thought.close)

    @property
    def ended(self) -> bool:
        """A stop token was read."""
        return self._matcher.is_terminated()

    @property
    def answering(self) -> bool:
        return self._phase is _Phase.ANSWER

    def fill(self, bits: Bits, row: int) -> None:
        """Write the tokens that `read` would take now."""
        if self._phase is _Phase.REASONING:
            bits.rows[row] = self._reasoning.rows[0]
            return
        self._matcher.fill_next_token_bitmask(bits.tensor, row)
        if self._phase is _Phase.OPENING and self._thought is not None:
            bits.add(row, self._thought.open)

    def forced(self) -> str:
        """The text that every sentence goes on with from here."""
        if not self.answering:
            return ""
        try:
            return self._matcher.find_jump_forward_string()
        except UnicodeDecodeError as error:  # what is certain ends within a character
            return error.object[: error.start].decode()

    def read(self, token: int) -> bool:
        """Move past `token`; False, and no move, if it is not allowed here."""
        before, thought = self._phase, self._thought
        if before is _Phase.OPENING and thought is not None and token == thought.open:
            self._phase = _Phase.REASONING
        elif before is _Phase.REASONING and thought is not None:
            if not self._reasoning.allows(0, token):
                return False
            if token == thought.close:
                self._phase = _Phase.ANSWER
        elif self._matcher.accept_token(token):
            self._phase = _Phase.ANSWER
        else:
            return False
        self._trail.append(before)
        return True

    def forget(self, count: int) -> None:
        """Undo the last `count` reads."""
        undone = self._trail[len(self._trail) - count :]
        del self._trail[len(self._trail) - count :]
        after = [*undone[1:], self._phase]
        moves = zip(undone, after, strict=True)
        read_by_grammar = [a is _Phase.ANSWER and b is not _Phase.REASONING for b, a in moves]
        if count:
            self._matcher.rollback(sum(read_by_grammar))
            self._phase = undone[0]

    def read_all(self, tokens: Sequence[int]) -> int:
        """Read as many of `tokens` as are allowed; says how many that were."""
        for position, token in enumerate(tokens):
            if self.ended or not self.read(token):
                return position
        return len(tokens)
