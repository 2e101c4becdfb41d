"""The tokens that may end or begin a key, an item or a string of JSON text."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dlm.grammar.json_escapes import beginning, unescaped
from dlm.grammar.json_scanner import CHARACTERS, MARK, STRING, STRING_END, JsonScanner
from dlm.grammar.masks.bits import packed, token_words

_ENDS_STRING, _STRUCTURES = re.compile(rb'["\\]'), re.compile(rb'[",{}\[\]]')
_NEW_ITEM = re.compile(rb"\[.*,", re.DOTALL)
# Outside of strings: white space, and beginnings of a string.
_UNSTRUCTURED = re.compile(rb'[ \t\r\n]*|"[^"\\]*')


class QuotedTokens:
    """The tokens that hold a double quote, a comma or a backslash, by their effect on keys.

    They are looked up by keys, and by parts of strings, in the canonical spelling.
    """

    def __init__(self, pieces: Sequence[bytes]):
        self.quotes = {token for token, piece in enumerate(pieces) if b'"' in piece}
        self.ending: dict[bytes, list[int]] = {}  # by what they add to a string that they end
        self.holding: dict[bytes, list[int]] = {}  # by keys that they may hold as a whole
        self.repeating: dict[bytes, list[int]] = {}  # by keys that they may end and hold again
        self.several = {token for token in self.quotes if pieces[token].count(b'"') > 2}
        self.doubling = set[int]()  # those that may hold a key twice
        joining: tuple[set[int], set[int]] = (set(), set())
        self._opening: dict[bytes, list[int]] = {}  # beginnings of a string
        self._escaping: dict[bytes, list[int]] = {}  # parts of a string, by what they add to it
        separating = set[int]()  # those that end a string, with a comma after it
        for token, piece in enumerate(pieces):
            if _ENDS_STRING.search(piece) or b"," in piece:
                outside, within = _strings(piece, False), _strings(piece, True)
                escaped = _strings(piece, True, escaped=True)
                for strings in (outside, within, escaped):
                    self._add_keys(token, strings)
                    joining[strings is not outside].update([token] * strings.joins)
                separating.update([token] * (within.commas or escaped.commas))
                if within.ended is not None:
                    self.ending.setdefault(within.ended, []).append(token)
                if within.part is not None and b"\\" in piece:
                    self._escaping.setdefault(within.part, []).append(token)
                if outside.part is not None:
                    self._opening.setdefault(outside.part, []).append(token)
        # Tokens after which a key comes, or is begun, that is not the first of its object: read
        # outside of a string, and within one.
        self.joining = [np.array(sorted(tokens), np.int32) for tokens in joining]
        self._longest = max(map(len, (*self._opening, *self._escaping)), default=0)
        kinds = {  # tokens that may end an item, or lead only to a repetition, by the position
            "opening": {token for token, piece in enumerate(pieces) if _NEW_ITEM.search(piece)},
            "joining": separating,
            "unicode": {t for t, piece in enumerate(pieces) if piece[:1] == b"u"},
        }
        self.packed = {name: token_words(tokens, len(pieces)) for name, tokens in kinds.items()}
        structural = [not _UNSTRUCTURED.fullmatch(piece) for piece in pieces]
        self.packed["structural"] = packed(np.array(structural, bool))
        self.packed["any"] = packed(np.ones(len(pieces), bool))  # white space ends a number
        # Tokens that change no keys, within a string and outside of strings.
        self.within = np.array([not _ENDS_STRING.search(piece) for piece in pieces], bool)
        self.outside = np.array([not _STRUCTURES.search(piece) for piece in pieces], bool)
        # The same for a look-up by token: outside of strings, and within one.
        self.plain = self.outside.tobytes(), self.within.tobytes()

    def _add_keys(self, token: int, strings: "_Strings") -> None:
        keys = {*strings.keys}
        for key in keys:
            self.holding.setdefault(key, []).append(token)
            if strings.ended is not None and key.endswith(strings.ended):
                before = key.removesuffix(strings.ended)
                self.repeating.setdefault(before, []).append(token)
        if len(keys) < len(strings.keys):
            self.doubling.add(token)

    def spelling(self, continuation: bytes) -> set[int]:
        """Return the tokens that may spell `continuation`, which ends a string with its quote.

        They end the string likewise, or they are beginnings of it with an escape, or after white
        space. Other beginnings of `continuation` may be missing.
        """
        begins = len(continuation) > 1 and continuation.startswith(b'"')
        text = continuation[begins:-1]
        tokens = set[int]() if begins else {*self.ending.get(text, ())}
        parts = self._opening if begins else self._escaping
        for size in range(min(len(text), self._longest) + 1):
            tokens.update(parts.get(text[:size], ()))
        return tokens


class _Strings(NamedTuple):
    """The strings of a token, read from one place, in the canonical spelling."""

    ended: bytes | None  # what it adds to the string that it is read in, if it ends that one
    keys: list[bytes]  # the others that it holds as a whole, if they may be keys
    part: bytes | None  # what it adds to a string, if it does nothing else
    joins: bool  # a key may come after it, or is begun, that is not the first of its object
    commas: bool  # it holds a comma outside of strings


def _strings(piece: bytes, string: bool, escaped: bool = False) -> _Strings:
    """`string` is whether `piece` is read within a string, `escaped` whether after a backslash."""
    ended, keys, alone, joins, commas = None, list[bytes](), True, False, False
    text, is_first, is_key, key_next = b"", string, False, not string
    scanner = JsonScanner(string, escaped)
    for kind, lexeme, _ in scanner.feed(piece):
        if kind is STRING:
            text, is_key = b"", key_next
        elif kind is CHARACTERS:
            text = lexeme
        elif kind is STRING_END:
            if is_first:
                ended = unescaped(text)
            elif is_key:
                keys.append(unescaped(text))
            is_first = is_key = key_next = alone = joins = False
            text = b""
        else:
            alone, joins = False, lexeme == b","
            commas |= joins
            if kind is MARK:
                key_next = lexeme in b"{,"
    part = beginning(text).text if alone and scanner.string else None
    return _Strings(ended, keys, part, joins, commas)
