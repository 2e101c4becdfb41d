"""Escapes in the strings of JSON text, which give a string many spellings.

The canonical one has only the escapes that JSON needs, the short ones where there are any, as
`json.dumps` writes them without `ensure_ascii`.
"""

import json
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

# The characters with short escapes, and the letters of these (RFC 8259).
SHORT = {0x22: '"', 0x5C: "\\", 0x2F: "/", 8: "b", 12: "f", 10: "n", 13: "r", 9: "t"}

_HEX = rb"[0-9a-fA-F]"
_HIGH, _LOW = rb"[dD][89abAB]" + 2 * _HEX, rb"[dD][c-fC-F]" + 2 * _HEX  # surrogates
_PAIR, _SHORT = rb"\\u%s\\u%s" % (_HIGH, _LOW), rb'\\["\\/bfnrt]'
_ESCAPE = re.compile(rb"%s|\\u%s|%s" % (_PAIR, 4 * _HEX, _SHORT))
_CHARACTERS = re.compile(rb"(?:[^\\]+|%s|\\u(?!%s)%s|%s)*" % (_PAIR, _HIGH, 4 * _HEX, _SHORT))
_CHARACTER = re.compile(rb'\\u%s|%s|[^"\\][\x80-\xbf]*' % (4 * _HEX, _SHORT))
_UNIT = len(rb"\u0061")  # bytes of an escape by a number, which is one unit of UTF-16


def numbered(point: int) -> bytes:
    """Return an escape by number, without its first backslash."""
    if point <= 0xFFFF:
        return b"u%04x" % point
    high, low = divmod(point - 0x10000, 0x400)
    return b"u%04x\\u%04x" % (0xD800 + high, 0xDC00 + low)


Spelling = Sequence[bytes]  # for each place, the bytes that may stand there


@lru_cache(maxsize=1 << 12)  # entries of 1 KB
def spellings(point: int) -> tuple[Spelling, ...]:
    """Return all spellings of a character within a string.

    Each holds for each place the bytes that may stand there: a digit in lower or in upper case.
    """
    as_bytes = [] if point < 0x20 or point in (0x22, 0x5C) else [chr(point).encode()]
    short = [f"\\{SHORT[point]}".encode()] if point in SHORT else []
    by_number = tuple(
        bytes({byte, *bytes([byte]).upper()}) if byte in b"abcdef" else bytes([byte])
        for byte in b"\\" + numbered(point)
    )
    return (*(tuple(bytes([b]) for b in text) for text in [*as_bytes, *short]), by_number)


class Beginning(NamedTuple):
    """The beginning of JSON text, which may break off within a string or an escape."""

    text: bytes  # in the canonical spelling, without the escape that breaks off
    escape: bytes = b""  # the beginning of an escape, or of a surrogate pair

    def rests(self, text: bytes) -> Iterator[bytes]:
        """Yield rests of the canonical `text`, if it has this beginning.

        After an escape that breaks off, each goes on with an escape, in lower case.
        """
        if not text.startswith(self.text):
            return
        onward = text[len(self.text) :]
        if not self.escape:
            yield onward
            return
        character = _CHARACTER.match(onward)
        if character is None:  # the string ends
            return
        if self.escape == b"\\" and onward[:1] in (b"\\", b"/"):
            yield onward.removeprefix(b"\\")
        units = json.loads(b'"%s"' % character[0]).encode("utf-16-be", "surrogatepass").hex(" ", 2)
        escapes = "".join(rf"\u{unit}" for unit in units.split()).encode()
        if escapes.startswith(self.escape.lower()):
            yield escapes[len(self.escape) :] + onward[character.end() :]


def beginning(raw: bytes) -> Beginning:
    """Return the beginning of JSON text that is spelled `raw`."""
    if b"\\" not in raw:
        return Beginning(raw)
    characters = _CHARACTERS.match(raw)
    end = characters.end() if characters else 0
    return Beginning(unescaped(raw[:end]), raw[end:])


def missing(escape: bytes) -> int:
    """Return the number of bytes until the numbered escape, or the second one of a pair, ends."""
    return _UNIT - len(escape) % _UNIT


def unescaped(raw: bytes) -> bytes:
    """Return JSON text in the canonical spelling of its strings."""
    return _ESCAPE.sub(_canonical, raw) if b"\\" in raw else raw


def _canonical(escape: re.Match[bytes]) -> bytes:
    character = json.loads(b'"%s"' % escape[0])
    if "\ud800" <= character <= "\udfff":  # half of a character
        return escape[0].lower()
    return json.dumps(character, ensure_ascii=False)[1:-1].encode()
