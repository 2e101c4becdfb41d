"""The markers around reasoning: control tokens, or words of text, in one token or in several.

Text is matched by its bytes, whatever tokens spell it, so that no other spelling of the marker can
stand in the reasoning by accident. Knows no grammar.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dlm.grammar.masks.bits import Bits
from dlm.grammar.vocabulary import Vocabulary

_CONTROL = 256  # symbols from here on are control tokens, those below are bytes


class Marker:
    """A sequence of symbols, found as it is read (Knuth, Morris and Pratt)."""

    def __init__(self, tokens: Sequence[int], vocabulary: Vocabulary):
        self._vocabulary, self.pieces = vocabulary, vocabulary.pieces
        self.symbols = [symbol for token in tokens for symbol in self._read(token)]
        self.size = sum(symbol < _CONTROL for symbol in self.symbols)  # bytes of its text
        self._rest = [self._spell(self.symbols[i:]) for i in range(len(self.symbols) + 1)]
        done = 0
        for i, token in enumerate(tokens):  # the tokenizer's own spelling, if none is shorter
            if len(tokens) - i <= len(self._rest[done]) or not self._rest[done]:
                self._rest[done] = list(tokens[i:])
            done += len(self._read(token))
        self.longest = max(map(len, self._rest))  # tokens that complete it, wherever it is begun
        self._allowed: dict[int, np.ndarray] = {}
        self._back = [0] * (len(self.symbols) + 1)  # the longest border of each beginning
        for i in range(1, len(self.symbols)):
            self._back[i + 1] = self._on(self._back[i], self.symbols[i])

    def after(self, done: int, token: int) -> int | None:
        """How many symbols are matched behind `token`, after `done`; None: it would hold the end
        of the marker within itself, or it is a control token that the marker does not go on with.
        """
        symbols = self._read(token)
        if symbols[0] >= _CONTROL and self.symbols[done : done + 1] != symbols:
            return None
        for symbol in symbols:
            if done == len(self.symbols):
                return None
            done = self._on(done, symbol)
        return done

    def find(self, tokens: Sequence[int]) -> tuple[int, int] | None:
        """The tokens of the marker's first occurrence, from and to; None: it is not there."""
        done, total, starts = 0, 0, []
        begin = self._begin(tokens)
        for at in range(begin, len(tokens)):
            starts.append(total)
            total += len(self._read(tokens[at]))
            done = self.after(done, tokens[at]) or 0
            if self.complete(done):
                return begin + bisect_right(starts, total - len(self.symbols)) - 1, at + 1
        return None

    def _begin(self, tokens: Sequence[int]) -> int:
        """In front of which it is not: a control token that it begins with is soon looked for."""
        first = self.symbols[0] - _CONTROL
        if first < 0:
            return 0
        return tokens.index(first) if first in tokens else len(tokens)

    def begun(self, tokens: Sequence[int]) -> int:
        """How many bytes at the end of `tokens` the marker, not complete yet, begins with."""
        done = 0
        if self.symbols[0] >= _CONTROL:  # it is not begun further back than it is long
            tokens = tokens[-len(self.symbols) :]
        for token in tokens:
            done = self.after(done, token) or 0
        return sum(symbol < _CONTROL for symbol in self.symbols[:done])

    def complete(self, done: int) -> bool:
        return done == len(self.symbols)

    def rest(self, done: int) -> list[int]:
        """Tokens that complete the marker."""
        return self._rest[done]

    def allowed(self, done: int) -> np.ndarray:
        """What `after` takes, as packed bits: a look at every token, so it is remembered."""
        if done not in self._allowed:
            self._allowed[done] = self._look(done)
        return self._allowed[done]

    def _look(self, done: int) -> np.ndarray:
        bits = Bits(1, len(self._vocabulary))
        bits.rows[0] = self._vocabulary.text_words
        if self.symbols[done] >= _CONTROL:
            bits.add(0, self.symbols[done] - _CONTROL)
        if self.symbols[-1] < _CONTROL:
            for token, piece in enumerate(self.pieces):
                if piece and self._may_end_in(piece) and self.after(done, token) is None:
                    bits.remove(0, token)
        return bits.rows[0]

    def _may_end_in(self, piece: bytes) -> bool:
        """A first look: the marker's last byte stands before the end of `piece`."""
        return self.symbols[-1] in piece[:-1]

    def _on(self, done: int, symbol: int) -> int:
        while done and (done == len(self.symbols) or self.symbols[done] != symbol):
            done = self._back[done]
        return done + (self.symbols[done] == symbol)

    def _read(self, token: int) -> list[int]:
        piece = self.pieces[token]
        return list(piece) if piece else [_CONTROL + token]

    def _spell(self, symbols: Sequence[int]) -> list[int]:
        text = [s - _CONTROL if s >= _CONTROL else bytes([s]) for s in symbols]
        return self._vocabulary.fewest(text) or []


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What opens and closes it, and how long it may get.

    `budget` counts tokens, both markers with them; None: as many as leave room for the answer.
    """

    open: Marker
    close: Marker
    budget: int | None = None

    @classmethod
    def of(cls, vocabulary: Vocabulary, budget: int | None = None) -> "Reasoning | None":
        """With the markers of the vocabulary, if it has any."""
        if vocabulary.thought is None:
            return None
        opens, closes = vocabulary.thought.open, vocabulary.thought.close
        return cls(Marker(opens, vocabulary), Marker(closes, vocabulary), budget)

    def split(self, tokens: Sequence[int], ended: bool = True) -> tuple[bytes, list[int]]:
        """What the reasoning says, between its markers, and the tokens of the answer.

        Text opens it at the beginning only: further on, an answer may quote it. What may become a
        marker is neither, until the answer has `ended`.
        """
        opened = self.open.find(tokens)
        if opened is None or (self.open.size and opened[0]):
            held = not ended and opened is None
            if held:
                size = sum(map(len, map(self.open.pieces.__getitem__, tokens)))
                held = self.open.begun(tokens) == size
            return b"", [] if held else list(tokens)
        behind = tokens[opened[1] :]
        closed = self.close.find(behind)
        end = len(behind) if closed is None else closed[1]
        said = b"".join(self.close.pieces[token] for token in behind[:end])
        if closed is not None:
            said = said[: len(said) - self.close.size]
        elif not ended:
            said = said[: len(said) - self.close.begun(behind)]
        return said, [*tokens[: opened[0]], *behind[end:]]
