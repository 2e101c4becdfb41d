"""Reads a regex, into a node of xgrammar's EBNF that matches the same texts.

It reads what ECMAScript and Python's `re`, which checks values later, mean alike, and where they
differ it keeps to what both match; it refuses the rest by name. xgrammar's own reader of regexes
lets some of that through under another meaning. Knows nothing of schemas.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.rules.ast import Either, Node, Repeat, Row

Ranges = tuple[tuple[int, int], ...]  # code points, both ends included


@dataclass(frozen=True, slots=True)
class Chars(Node):
    """One character."""

    ranges: Ranges

    def __str__(self) -> str:
        return charset(self.ranges)


@dataclass(frozen=True, slots=True)
class Ahead(Node):
    """Says of all that follows, to the end of the text, whether it is to match. Reads nothing."""

    part: Node
    wanted: bool

    def __str__(self) -> str:
        raise TypeError("EBNF does not look ahead: only an automaton can")


def looks_ahead(node: Node) -> bool:
    """Some part of it does, outside of what is repeated."""
    match node:
        case Row(parts) | Either(parts):
            return any(map(looks_ahead, parts))
    return isinstance(node, Ahead)


def parse(pattern: str, opened: bool = False) -> Node:
    """Matches whole texts. Where it is `opened`, an anchor at one end only opens the other end.

    Raises `InvalidGrammarError`, its `where` a place.
    """
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidGrammarError("pattern", str(error)) from error
    return _Reader(pattern, opened).whole()


def charset(ranges: Ranges) -> str:
    """An EBNF character class."""
    ends = (
        _escape(low) if low == high else f"{_escape(low)}-{_escape(high)}" for low, high in ranges
    )
    return f"[{''.join(ends)}]"


def _escape(point: int) -> str:
    return chr(point) if point < 128 and chr(point).isalnum() else f"\\U{point:08x}"


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return tuple(merged)


def minus(ranges: Ranges, points: Iterable[int]) -> Ranges:
    """The characters of `ranges` that are none of `points`."""
    return without((*without(ranges), *((point, point) for point in points)))


def without(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Every character but these."""
    left, start = [], 0
    for low, high in union((*ranges, *_NEVER)):
        if start < low:
            left.append((start, low - 1))
        start = high + 1
    return tuple(left)


_NEVER = ((0, 0), (0xD800, 0xDFFF), (0x110000, 0x110000))  # NUL, surrogates, what is no character
CHARACTERS = without(())


@dataclass(frozen=True, slots=True)
class _Set:
    """Characters that both dialects take for members, and those that one of them does."""

    sure: Ranges
    possible: Ranges

    def inverted(self) -> "_Set":
        return _Set(without(self.possible), without(self.sure))


def _exactly(low: int, high: int) -> _Set:
    return _Set(((low, high),), ((low, high),))


_DIGIT = ((0x30, 0x39),)
_WORD = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE = ((0x09, 0x0D), (0x20, 0x20))
_BREAK = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))  # no dot matches these in ECMAScript
_WIDE_SPACE = (  # Python adds the first and the second, ECMAScript the last
    *((0x1C, 0x1F), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
)
_FOREIGN = (0x80, 0x10FFFF)  # Python knows digits and letters beyond ASCII
_SETS = {
    "d": _Set(_DIGIT, (*_DIGIT, _FOREIGN)),
    "w": _Set(_WORD, (*_WORD, _FOREIGN)),
    "s": _Set(_SPACE, (*_SPACE, *_WIDE_SPACE)),
}
_DOT = _Set(without(_BREAK), without(_BREAK[:1]))
_NAMED = {"n": 0x0A, "t": 0x09, "r": 0x0D, "f": 0x0C, "v": 0x0B}
_REPEAT = re.compile(r"(?:([*+?])|\{(\d+)(,(\d*))?\})\??")
_MOST_LOOKS = 8
_CODE = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})")


def _counts(repeat: re.Match[str]) -> tuple[int, int | None]:
    """Least and most of a quantifier."""
    sign, low, more, high = repeat.groups()
    if sign:
        return int(sign == "+"), 1 if sign == "?" else None
    return int(low), int(low) if more is None else int(high) if high else None


class _Reader:
    def __init__(self, pattern: str, opened: bool):
        self._pattern, self._opened, self._at = pattern, opened, 0
        self._looks = 0  # how many parts look ahead
        self._wide = False  # reads all that a dialect may match, not only what all of them do

    def whole(self) -> Node:
        return self._options(top=True)

    def _error(self, reason: str) -> InvalidGrammarError:
        return InvalidGrammarError("pattern", reason, f"character {self._at}")

    def _next(self, text: str) -> bool:
        """Moves behind `text` if it is next."""
        found = self._pattern.startswith(text, self._at)
        self._at += len(text) * found
        return found

    def _ends(self) -> bool:
        return self._at == len(self._pattern) or self._pattern[self._at] in "|)"

    def _options(self, top: bool) -> Node:
        options = [self._sequence(top)]
        while self._next("|"):
            options.append(self._sequence(top))
        return Either(tuple(options))

    def _sequence(self, top: bool) -> Node:
        begins, ends = top and self._next("^"), False
        items: list[Node] = []
        while not self._ends():
            if self._next("$"):
                if not self._ends():
                    raise self._error("`$` can only be at the end")
                ends = top
                items += [] if top else [self._end()]
            elif self._pattern.startswith(("(?=", "(?!"), self._at):
                items.append(self._ahead())
            else:
                items.append(self._repeated())
        if self._opened and begins != ends:
            items.insert(len(items) if begins else 0, Repeat(Chars(without(_BREAK))))
        return Row(tuple(items))

    def _end(self) -> Ahead:
        """Nothing follows. In Python, `$` is also in front of a last line break."""
        last = Repeat(Chars(((0x0A, 0x0A),)), 0, 1)
        return self._counted(Ahead(last if self._wide else Row(()), True))

    def _ahead(self) -> Ahead:
        wide, wanted = self._wide, self._next("(?=")
        if not wanted:  # what is unwanted is unwanted in every dialect
            self._next("(?!")
            self._wide = not wide
        part = Row((self._options(top=False), Repeat(Chars(CHARACTERS))))
        self._next(")")
        self._wide = wide
        return self._counted(Ahead(part, wanted))

    def _counted(self, ahead: Ahead) -> Ahead:
        """Groups are written out once for each of their options if these look ahead."""
        self._looks += 1
        if self._looks > _MOST_LOOKS:
            raise self._error(f"it looks ahead, or ends in a group, over {_MOST_LOOKS} times")
        return ahead

    def _repeated(self) -> Node:
        item, begin = self._item(), self._at
        if not (found := _REPEAT.match(self._pattern, begin)):
            return item
        if looks_ahead(item):
            raise self._error("what looks ahead cannot be repeated")
        self._at = found.end()
        return Repeat(item, *_counts(found))

    def _item(self) -> Node:
        if self._next("("):
            if self._pattern.startswith("?", self._at) and not self._next("?:"):
                raise self._error("no look-behind, no named group, no flag")
            group = self._options(top=False)
            self._next(")")
            return group
        if self._next("["):
            found = self._class()
        elif self._next("."):
            found = _DOT
        elif self._pattern[self._at] in "^*+?" or self._pattern.startswith("{,", self._at):
            raise self._error(f"`{self._pattern[self._at]}` cannot be here")
        else:
            found = self._character()
        ranges = found.possible if self._wide else found.sure
        if not (kept := without(without(union(ranges)))):
            raise self._error("no character fits")
        return Chars(kept)

    def _character(self) -> _Set:
        """A character or an escape: the same in a class and outside of it."""
        if not self._next("\\"):
            self._at += 1
            point = ord(self._pattern[self._at - 1])
            return _exactly(point, point)
        if found := _CODE.match(self._pattern, self._at):
            self._at = found.end()
            point = int(found[1] or found[2], 16)
            return _exactly(point, point)
        letter = self._pattern[self._at]
        self._at += 1
        if letter.lower() in _SETS:
            found = _SETS[letter.lower()]
            return found.inverted() if letter.isupper() else found
        if letter in _NAMED or not letter.isalnum():
            point = _NAMED.get(letter, ord(letter))
            return _exactly(point, point)
        raise self._error(f"`\\{letter}` has no meaning here that all dialects share")

    def _class(self) -> _Set:
        inverted = self._next("^")
        sure: list[tuple[int, int]] = []
        possible: list[tuple[int, int]] = []
        if self._pattern.startswith("]", self._at):
            raise self._error("a class begins with `]`: escape it")
        escapes = set()
        while not self._next("]"):
            escapes.add(self._pattern[self._at : self._at + 2])
            member = self._character()
            behind = self._pattern[self._at : self._at + 2]
            if behind[:1] == "-" and behind[1:] != "]":
                self._at += 1
                member = _exactly(member.sure[0][0], self._character().sure[-1][1])
            sure += member.sure
            possible += member.possible
        if any({f"\\{letter}", f"\\{letter.upper()}"} <= escapes for letter in _SETS):
            sure = list(CHARACTERS)  # a set and its inverse, wherever a dialect draws the line
        found = _Set(union(sure), union((*possible, *sure)))
        return found.inverted() if inverted else found
