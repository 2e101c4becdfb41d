"""The text of a grammar, as its readers walk along it: tokens, and where an error is.

Knows no notation.
"""

import re
from collections.abc import Iterable

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.regex.ranges import EVERY, inverted
from dlm.grammar.rules.nodes import Characters

MOST_CHARACTERS = 262_144  # of a grammar
MOST_NESTED = 64  # brackets within brackets
MOST_REPEATED = 1_000_000_000  # times that a repetition may ask for

_LAST = 0x10FFFF
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]+)|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.)|$)", re.DOTALL)
_NAMED = {
    **dict(zip("abefnrtv0", "\a\b\x1b\f\n\r\t\v\0", strict=True)),
    **{mark: mark for mark in "\"'\\/?"},
}


class Source:
    """A grammar's text. Raises `InvalidGrammarError` for what is too long, or no text at all."""

    def __init__(self, text: str, kind: str = "grammar"):
        self.text, self.kind = text, kind
        if len(text) > MOST_CHARACTERS:
            reason = f"{len(text)} characters are too many: it takes up to {MOST_CHARACTERS}"
            raise InvalidGrammarError(kind, reason)
        if half := re.search("[\ud800-\udfff]", text):
            raise self.error("half a surrogate pair is no text", half.start())

    def error(self, reason: str, at: int) -> InvalidGrammarError:
        line = self.text.count("\n", 0, at) + 1
        column = at - self.text.rfind("\n", 0, at)
        return InvalidGrammarError(self.kind, reason, f"line {line} column {column}")

    def unescaped(self, start: int, end: int, also: str = "") -> list[tuple[int, bool]]:
        """Code points between two places, and whether each was escaped; `also` may be, too."""
        text, at, found = self.text, start, []
        while (slash := text.find("\\", at, end)) >= 0:
            found += [(ord(c), False) for c in text[at:slash]]
            if (escape := _ESCAPE.match(text, slash, end)) is None:
                raise self.error(r"\u and \U take 4 and 8 hexadecimal digits", slash)
            point, at = self._point(escape, also), escape.end()
            low = _ESCAPE.match(text, at, end) if 0xD800 <= point < 0xDC00 else None
            if low and low[2] and 0xDC00 <= int(low[2], 16) < 0xE000:
                point = 0x10000 + ((point - 0xD800) << 10) + int(low[2], 16) - 0xDC00
                at = low.end()
            found.append((point, True))
        return found + [(ord(c), False) for c in text[at:end]]

    def literal(self, start: int, end: int) -> str:
        """The text that is written between two places."""
        points = [point for point, _ in self.unescaped(start, end)]
        if any(0xD800 <= point < 0xE000 for point in points):
            raise self.error("half a surrogate pair is no text", start)
        return "".join(map(chr, points))

    def _point(self, escape: re.Match[str], also: str) -> int:
        digits = escape[1] or escape[2] or escape[3]
        if escape[1] and len(escape[1]) != 2:
            reason = r"\x takes 2 hexadecimal digits: write \u or \U for more"
            raise self.error(reason, escape.start())
        if digits:
            if (point := int(digits, 16)) > _LAST:
                raise self.error(f"{escape[0]} is no character", escape.start())
            return point
        if (mark := escape[4]) is None or (mark not in _NAMED and mark not in also):
            raise self.error(f"{escape[0]!r} is no escape", escape.start())
        return ord(_NAMED.get(mark, mark))


def characters(ranges: Iterable[tuple[int, int]], negated: bool = False) -> Characters:
    """Ranges in any order as a node, without halves of surrogate pairs, which are no characters."""
    others = inverted(ranges)
    return Characters(others if negated else inverted(others))


ANY_CHARACTER = Characters(EVERY)
