"""A scanner of JSON text that arrives piece by piece, such as token by token.

It divides the text into lexemes, and knows whether the text is within a string. A lexeme of text
may be divided where a piece ends. The scanner checks nothing, and decodes nothing.
"""

import re
from collections.abc import Iterator
from enum import Enum, auto
from functools import lru_cache

_OUTSIDE = re.compile(rb'[ \t\r\n]+|["{}\[\],:]|[^ \t\r\n"{}\[\],:]+')
_WITHIN = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_SHORT = 32  # bytes of a piece whose lexemes are kept
_MARKS, _SPACE, _QUOTE = frozenset(b"{}[],:"), frozenset(b" \t\r\n"), ord('"')


class Kind(Enum):
    """Kinds of lexemes. White space outside of strings is none."""

    STRING = auto()  # the quote that opens a string
    CHARACTERS = auto()  # characters and escapes of a string, or some of them
    STRING_END = auto()  # the quote that closes it
    MARK = auto()  # one of { } [ ] , :
    SCALAR = auto()  # a number, true, false or null, or a part of one


STRING, CHARACTERS, STRING_END, MARK, SCALAR = Kind  # quicker than attributes of the class

Lexeme = tuple[Kind, bytes, int]  # with its index in the piece


class JsonScanner:
    """The place of a text between two pieces."""

    __slots__ = ("escaped", "string")

    def __init__(self, string: bool = False, escaped: bool = False):
        """`string` is whether the text is within a string, `escaped` whether after a backslash."""
        self.string, self.escaped = string, escaped

    def feed(self, piece: bytes) -> Iterator[Lexeme]:
        """Yield the lexemes of the next piece; the scanner moves along with them."""
        at, size = 0, len(piece)
        while at < size:
            begin = at
            if not self.string:
                lexeme = _OUTSIDE.match(piece, at)
                at = size if lexeme is None else lexeme.end()
                if piece[begin] == _QUOTE:
                    self.string = True
                    yield STRING, b'"', begin
                elif piece[begin] not in _SPACE:
                    kind = MARK if piece[begin] in _MARKS else SCALAR
                    yield kind, piece[begin:at], begin
                continue
            characters = _WITHIN.match(piece, at + self.escaped)
            at = size if characters is None else characters.end()
            self.escaped = at < size and piece[at] != _QUOTE  # a backslash ends the piece
            at += self.escaped
            if at > begin:
                yield CHARACTERS, piece[begin:at], begin
            if at < size:
                self.string = False
                yield STRING_END, b'"', at
                at += 1

    def read(self, piece: bytes) -> "JsonScanner":
        """Move past a piece, and return the scanner."""
        for _ in self.feed(piece):
            pass
        return self


def lexemes(piece: bytes, string: bool, escaped: bool) -> tuple[tuple[Lexeme, ...], bool, bool]:
    """Return what `JsonScanner(string, escaped)` yields for `piece`, and its state after it.

    Those of short pieces, such as tokens, are kept.
    """
    return (_kept_lexemes if len(piece) <= _SHORT else _lexemes)(piece, string, escaped)


def _lexemes(piece: bytes, string: bool, escaped: bool) -> tuple[tuple[Lexeme, ...], bool, bool]:
    scanner = JsonScanner(string, escaped)
    return (*scanner.feed(piece),), scanner.string, scanner.escaped


_kept_lexemes = lru_cache(maxsize=4096)(_lexemes)
