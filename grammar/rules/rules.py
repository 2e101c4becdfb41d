"""Rules of one grammar, and the text and tokens that notations of grammars are parsed from.

Knows no notation: a parser passes the patterns of its tokens.
"""

import re
from collections.abc import Iterable, Mapping
from itertools import count
from typing import NoReturn, cast

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.json_text import SURROGATES
from dlm.grammar.regex.nodes import (
    EMPTY,
    EVERY,
    Alternation,
    Characters,
    Concatenation,
    Node,
    Reference,
    Repetition,
    inverted,
)


class Rules:
    """Named rules of a grammar; a text matches the rule `root`."""

    def __init__(self, root: str = "root"):
        self.root = root
        self.nodes: dict[str, Node] = {}
        self.inexact: tuple[tuple[str, str], ...] = ()  # where the rules allow too much, and why
        self.free_keys = False  # texts are JSON, and the rules allow an object to repeat a key
        self.few_keys = False  # an object may run out of keys that are not used yet
        self.distinct: set[str] = set()  # rules of JSON arrays whose items have to be distinct
        self._numbers = count()

    def new(self, stem: str = "rule") -> Reference:
        """Return a reference with an unused name, to be defined later."""
        return Reference(next(n for i in self._numbers if (n := f"{stem}_{i}") not in self.nodes))

    def define(self, reference: Reference, node: Node) -> Reference:
        self.nodes[reference.name] = node
        return reference

    def add(self, node: Node, stem: str = "rule") -> Reference:
        return self.define(self.new(stem), node)

    def include(self, other: "Rules") -> Reference:
        """Add the rules of another grammar under new names, and return a reference to its root."""
        names = {name: self.add(EMPTY, "rule") for name in other.nodes}
        for name, node in other.nodes.items():
            self.define(names[name], _renamed(node, names))
        return names[other.root]


def _renamed(node: Node, names: dict[str, Reference]) -> Node:
    match node:
        case Reference(name):
            return names[name]
        case Concatenation(parts):
            return Concatenation(tuple(_renamed(part, names) for part in parts))
        case Alternation(options):
            return Alternation(tuple(_renamed(option, names) for option in options))
        case Repetition(part, low, high):
            return Repetition(_renamed(part, names), low, high)
    return node


MOST_CHARACTERS = 262_144  # of a grammar
MOST_NESTED = 64  # levels of brackets
MOST_REPEATED = 1_000_000_000  # times in a repetition

_LAST = 0x10FFFF
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]+)|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.)|$)", re.DOTALL)
_NAMED = {
    **dict(zip("abefnrtv0", "\a\b\x1b\f\n\r\t\v\0", strict=True)),
    **{mark: mark for mark in "\"'\\/?"},
}


class NotationText:
    """Text of a grammar. Raises `InvalidGrammarError` if it is too long or has surrogates."""

    def __init__(self, text: str, kind: str = "grammar"):
        self.text, self.kind = text, kind
        if len(text) > MOST_CHARACTERS:
            reason = f"{len(text)} characters are too many: the limit is {MOST_CHARACTERS}"
            raise InvalidGrammarError(kind, reason)
        if half := SURROGATES.search(text):
            raise self.error("half a surrogate pair is no text", half.start())

    def error(self, reason: str, at: int) -> InvalidGrammarError:
        """Return an error with the line and column of the index `at`."""
        line = self.text.count("\n", 0, at) + 1
        column = at - self.text.rfind("\n", 0, at)
        return InvalidGrammarError(self.kind, reason, f"line {line} column {column}")

    def unescaped(self, start: int, end: int, also: str = "") -> list[tuple[int, bool]]:
        """Return the code points of `text[start:end]`, each with whether it was escaped.

        The characters of `also` may be escaped besides the usual ones.
        """
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
        """Return the text that `text[start:end]` stands for, without escapes."""
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
    """Return a node of `ranges`, in any order, or of all others if `negated`; no surrogates."""
    others = inverted(ranges)
    return Characters(others if negated else inverted(others))


ANY_CHARACTER = Characters(EVERY)


class NamedTokens:
    """Tokenizer with a current token: its match, its kind (a group's name) and its index `at`.

    `mark` is the text of a token of the kind "mark". At the end of the text, the kind is "end".
    """

    def __init__(
        self,
        source: NotationText,
        forms: "re.Pattern[str]",
        between: "re.Pattern[str]",
        unfinished: Mapping[str, str],
    ):
        """Start at the first token. `forms` matches tokens, `between` what separates them.

        `unfinished` has errors for characters that begin a token but do not complete it.
        """
        self.source = source
        self._forms, self._between, self._unfinished = forms, between, unfinished
        self.token = cast("re.Match[str]", re.match("", ""))
        self.move(0)

    def move(self, at: int) -> None:
        """Make the first token from the index `at` on the current one."""
        self.at = self.after_separators(at)
        found = self._forms.match(self.source.text, self.at)
        if found is None and self.at < len(self.source.text):
            mark = self.source.text[self.at]
            self.fail(self._unfinished.get(mark, f"{mark!r} has no meaning here"))
        self.kind = (found and found.lastgroup) or "end"
        self.token = found or self.token
        self.mark = found["mark"] if found else None

    def after_separators(self, at: int) -> int:
        """Return the index after white space and comments that may begin at `at`."""
        between = self._between.match(self.source.text, at)
        return between.end() if between else at

    def next(self) -> None:
        self.move(self.token.end())

    def fail(self, reason: str) -> NoReturn:
        raise self.source.error(reason, self.at)

    def first_on_its_line(self) -> bool:
        start = self.source.text.rfind("\n", 0, self.at) + 1
        return not self.source.text[start : self.at].strip()
