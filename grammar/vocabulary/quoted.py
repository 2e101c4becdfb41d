"""The tokens that may end or begin a key, an item or a string of JSON text."""

import re
from collections.abc import Sequence

import numpy as np

from dlm.grammar.masks.bits import packed, token_words

_ENDS_STRING, _STRUCTURES = re.compile(rb'["\\]'), re.compile(rb'[",{}\[\]]')
# Outside of strings: white space, and beginnings of a string.
_UNSTRUCTURED = re.compile(rb'[ \t\r\n]*|"[^"\\]*')


class QuotedTokens:
    """The tokens that hold a double quote, a comma or a backslash, by their effect on keys."""

    def __init__(self, pieces: Sequence[bytes]):
        self.pieces = {token: piece for token, piece in enumerate(pieces) if b'"' in piece}
        self.commas = {token for token, piece in enumerate(pieces) if b"," in piece}
        self.escapes = {token for token, piece in enumerate(pieces) if b"\\" in piece}
        self.joining = {  # tokens that can end a string and begin the next key
            t for t, piece in self.pieces.items() if t in self.commas or piece.count(b'"') > 1
        }
        self.odd = [  # an escape may spell any key; three quotes end one key and hold another
            t for t, piece in self.pieces.items() if b"\\u" in piece or piece.count(b'"') > 2
        ]
        self.escaping = self.escapes & self.pieces.keys()
        self.ending: dict[bytes, list[int]] = {}  # by the bytes before the first quote
        self.whole: dict[bytes, list[int]] = {}  # by the bytes between two quotes
        for token, piece in self.pieces.items():
            first, *enclosed, _ = piece.split(b'"')
            self.ending.setdefault(first, []).append(token)
            for text in enclosed:
                self.whole.setdefault(text, []).append(token)
        self._by_escape: dict[bytes, list[int]] = {}  # by the bytes before the first backslash
        for token in self.escapes:
            before, _, _ = pieces[token].partition(b"\\")
            self._by_escape.setdefault(before, []).append(token)
        self._longest = max(map(len, self._by_escape), default=0)
        opening = {t for t, piece in enumerate(pieces) if b"[" in piece and len(piece) > 1}
        kinds = {  # tokens that may end an item, or lead only to a repetition, by the position
            "opening": opening,
            "joining": self.joining,
            "unicode": {t for t, piece in enumerate(pieces) if piece[:1] == b"u"},
        }
        self.packed = {name: token_words(tokens, len(pieces)) for name, tokens in kinds.items()}
        structural = [not _UNSTRUCTURED.fullmatch(piece) for piece in pieces]
        self.packed["structural"] = packed(np.array(structural, bool))
        self.packed["any"] = packed(np.ones(len(pieces), bool))  # white space ends a number
        # Tokens that change no keys, within a string and outside of strings.
        self.within = np.array([not _ENDS_STRING.search(piece) for piece in pieces], bool)
        self.outside = np.array([not _STRUCTURES.search(piece) for piece in pieces], bool)

    def spelling(self, continuation: bytes) -> set[int]:
        """Return the tokens that may spell `continuation`, which ends a string with its quote.

        They end a string likewise, or agree with it up to an escape, which may spell any character.
        Beginnings of `continuation` are not included.
        """
        tokens = {*self.ending.get(continuation[:-1], ())}
        for size in range(min(len(continuation), self._longest + 1)):
            tokens.update(self._by_escape.get(continuation[:size], ()))
        return tokens
