"""The markers around reasoning, found in a text as it grows.

Markers are control tokens, or words of text, each of one or several tokens. Text is matched by its
bytes, so a marker is found in every spelling. The module knows no grammar.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np

from dlm.grammar.masks.bits import token_words
from dlm.grammar.vocabulary.vocabulary import Vocabulary

CONTROL = 256  # symbols below are bytes; from here on, control tokens
_BLANKS = frozenset(b" \t\r\n")


class Marker:
    """A sequence of symbols, searched for incrementally (Knuth, Morris and Pratt)."""

    def __init__(self, tokens: Sequence[int], vocabulary: Vocabulary):
        self._vocabulary, self.pieces = vocabulary, vocabulary.pieces
        self.symbols = [symbol for token in tokens for symbol in self._read(token)]
        self.size = sum(symbol < CONTROL for symbol in self.symbols)  # bytes of its text
        self._rest = [self.spell(self.symbols[i:]) for i in range(len(self.symbols) + 1)]
        matched = 0
        for i, token in enumerate(tokens):  # prefer the tokenizer's spelling if none is shorter
            if len(tokens) - i <= len(self._rest[matched]) or not self._rest[matched]:
                self._rest[matched] = list(tokens[i:])
            matched += len(self._read(token))
        self.longest = max(map(len, self._rest))  # the most tokens that `rest` returns
        self._allowed: dict[int, np.ndarray] = {}
        self._longer: dict[int, list[int]] = {}
        self._back = [0] * (len(self.symbols) + 1)  # the longest border of each beginning
        for i in range(1, len(self.symbols)):
            self._back[i + 1] = self._matched(self._back[i], self.symbols[i])

    def after(self, matched: int, token: int) -> int | None:
        """Return the number of symbols matched after `token`, if `matched` were matched before it.

        None if the marker would end within the token, or if the token is a control token with
        which the marker does not continue.
        """
        symbols = self._read(token)
        if symbols[0] >= CONTROL and self.symbols[matched : matched + 1] != symbols:
            return None
        for symbol in symbols:
            if matched == len(self.symbols):
                return None
            matched = self._matched(matched, symbol)
        return matched

    def spelled(self, matched: int, token: int) -> int | None:
        """Return the number of symbols matched after `token`, if all of its symbols are the next of
        the marker after `matched`; otherwise None."""
        symbols = self._read(token)
        end = matched + len(symbols)
        return end if self.symbols[matched:end] == symbols else None

    def ends_within(self, matched: int, token: int) -> bool:
        """Whether `token` has all symbols of the marker after `matched`, and text after them."""
        symbols, missing = self._read(token), self.symbols[matched:]
        return len(symbols) > len(missing) and symbols[: len(missing)] == missing

    def leading(self, tokens: Sequence[int], matched: int = 0) -> tuple[int, int]:
        """Return the number of first `tokens` that spell symbols of the marker, after `matched`
        ones, and the number of symbols matched after them."""
        for count, token in enumerate(tokens):
            onward = None if self.complete(matched) else self.spelled(matched, token)
            if onward is None:
                return count, matched
            matched = onward
        return len(tokens), matched

    def find(self, tokens: Sequence[int]) -> tuple[int, int] | None:
        """Return start and end of the marker's first occurrence in `tokens`; None if absent."""
        matched, total, starts = 0, 0, []
        begin = self._begin(tokens)
        for at in range(begin, len(tokens)):
            starts.append(total)
            total += len(self._read(tokens[at]))
            matched = self.after(matched, tokens[at]) or 0
            if self.complete(matched):
                return begin + bisect_right(starts, total - len(self.symbols)) - 1, at + 1
        return None

    def _begin(self, tokens: Sequence[int]) -> int:
        """Return an index before which the marker does not begin."""
        first = self.symbols[0] - CONTROL
        if first < 0:
            return 0
        return tokens.index(first) if first in tokens else len(tokens)

    def ends(self, tokens: Sequence[int]) -> bool:
        """Whether `tokens` end with the marker, but for blanks at the end of either."""
        marker, end = _without_blanks(self.symbols), list[int]()
        for token in reversed(tokens):
            if token >= len(self.pieces):  # a part of an image, whose ids are above all others
                break
            end = _without_blanks(self._read(token)) if not end else [*self._read(token), *end]
            if len(end) >= len(marker):
                break
        return bool(marker) and end[-len(marker) :] == marker

    def begun(self, tokens: Sequence[int]) -> int:
        """Return the number of bytes at the end of `tokens` that may be the marker's beginning."""
        matched = 0
        if self.symbols[0] >= CONTROL:  # it can not have begun further back
            tokens = tokens[-len(self.symbols) :]
        for token in tokens:
            matched = self.after(matched, token) or 0
        return sum(symbol < CONTROL for symbol in self.symbols[:matched])

    def complete(self, matched: int) -> bool:
        return matched == len(self.symbols)

    def spell(self, symbols: Sequence[int]) -> list[int]:
        """Return the fewest tokens that spell `symbols`; none if no tokens do."""
        text = [s - CONTROL if s >= CONTROL else bytes([s]) for s in symbols]
        return self._vocabulary.fewest(text) or []

    def rest(self, matched: int) -> list[int]:
        """Return the tokens that complete the marker after `matched` of its symbols."""
        return self._rest[matched]

    def allowed(self, matched: int) -> np.ndarray:
        """Return the tokens for which `after` is not None, as packed bits. The result is cached."""
        if matched not in self._allowed:
            self._allowed[matched] = self._compute_allowed(matched)
        return self._allowed[matched]

    def beginnings(self, matched: int) -> list[int]:
        """Return the tokens for which `spelled` is not None."""
        if self.symbols[matched] >= CONTROL:
            return [self.symbols[matched] - CONTROL]
        return self._vocabulary.beginnings(self._text(matched))

    def longer(self, matched: int) -> list[int]:
        """Return the tokens for which `ends_within` is true. The result is cached."""
        if matched not in self._longer:
            text = self._text(matched)
            pieces = self.pieces if len(text) == len(self.symbols) - matched else ()
            self._longer[matched] = [
                token
                for token, piece in enumerate(pieces)
                if len(piece) > len(text) and piece.startswith(text)
            ]
        return self._longer[matched]

    def _text(self, matched: int) -> bytes:
        """Return the text after `matched` symbols, up to a control token."""
        return bytes(takewhile(CONTROL.__gt__, self.symbols[matched:]))

    def _compute_allowed(self, matched: int) -> np.ndarray:
        next_, last, size = self.symbols[matched], self.symbols[-1], len(self.pieces)
        words = self._vocabulary.text_words
        if next_ >= CONTROL:
            words = words | token_words([next_ - CONTROL], size)
        refused = [
            token
            for token, piece in enumerate(self.pieces if last < CONTROL else ())
            if last in piece[:-1] and self.after(matched, token) is None
        ]
        return words & ~token_words(refused, size)

    def _matched(self, matched: int, symbol: int) -> int:
        while matched and (matched == len(self.symbols) or self.symbols[matched] != symbol):
            matched = self._back[matched]
        return matched + (self.symbols[matched] == symbol)

    def _read(self, token: int) -> list[int]:
        piece = self.pieces[token]
        return list(piece) if piece else [CONTROL + token]


def _without_blanks(symbols: Sequence[int]) -> list[int]:
    """Return `symbols` without the blanks at their end."""
    size = len(symbols)
    while size and symbols[size - 1] in _BLANKS:
        size -= 1
    return [*symbols[:size]]


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The markers and the limits of reasoning, in tokens.

    `budget` bounds the reasoning, its markers included; None: it has no limit of its own.
    `reserve` is the part of the whole budget that is left to the answer and its stop. `opened`: the
    prompt ends with the opening marker, so that the text begins within the reasoning.
    """

    open: Marker
    close: Marker
    budget: int | None = None
    reserve: int = 0
    opened: bool = False

    @classmethod
    def of(cls, vocabulary: Vocabulary, budget: int | None = None) -> "Reasoning | None":
        """Return reasoning with the vocabulary's markers; None if it has none."""
        if vocabulary.thought is None:
            return None
        opens, closes = vocabulary.thought.open, vocabulary.thought.close
        return cls(Marker(opens, vocabulary), Marker(closes, vocabulary), budget)

    @property
    def limited(self) -> bool:
        """Whether anything but the answer's own needs limits it."""
        return self.budget is not None or self.reserve > 0

    def after(self, prompt: Sequence[int]) -> "Reasoning":
        """Return this reasoning, opened if `prompt` ends with the opening marker and blanks."""
        return replace(self, opened=self.open.ends(prompt))

    def closed(self, prompt: Sequence[int]) -> list[int]:
        """Return `prompt`, with the closing marker after it if it opens reasoning."""
        return [*prompt, *(self.close.rest(0) if self.open.ends(prompt) else ())]

    def constrained(self, requested: bool) -> "Reasoning | None":
        """Return the reasoning before an answer under a constraint. Unless it is `requested`, there
        is none, or what the prompt has opened is closed at once."""
        if requested:
            return self
        return replace(self, budget=0) if self.opened else None

    def opening(self, tokens: Sequence[int]) -> tuple[int, int] | None:
        """Return start and end of the opening marker in `tokens`; None if there is none.

        A marker of text counts only at the beginning, since an answer may quote it.
        """
        if self.opened:
            return 0, 0
        if not self.open.size:
            return self.open.find(tokens)
        count, matched = self.open.leading(tokens)
        return (0, count) if self.open.complete(matched) else None

    def answer_places(self, tokens: Sequence[int], ended: bool = True) -> list[int]:
        """Return the indices of the tokens that `split` returns as the answer."""
        removed = len(tokens) - len(self.split(tokens, ended)[1])
        opened = self.opening(tokens) if removed else None
        begin = 0 if opened is None else opened[0]
        return [*range(begin), *range(begin + removed, len(tokens))]

    def split(self, tokens: Sequence[int], ended: bool = True) -> tuple[bytes, list[int]]:
        """Return the text between the markers, and the tokens of the answer.

        Until the answer has `ended`, a possible beginning of a marker belongs to neither.
        """
        opened = self.opening(tokens)
        if opened is None:
            waits = not ended and self.open.leading(tokens)[0] == len(tokens)
            return b"", [] if waits else list(tokens)
        after = tokens[opened[1] :]
        closed = self.close.find(after)
        end = len(after) if closed is None else closed[1]
        text = b"".join(self.close.pieces[token] for token in after[:end])
        if closed is not None:
            text = text[: len(text) - self.close.size]
        elif not ended:
            text = text[: len(text) - self.close.begun(after)]
        return text, [*tokens[: opened[0]], *after[end:]]
