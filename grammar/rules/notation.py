r"""Parser of any notation of grammars, and that of EBNF: xgrammar's dialect and llama.cpp's GBNF.

An expression is an alternation of sequences of parts, and a part may be repeated. `Notation` is the
syntax of one notation as data; a parser of it adds the parts, and whatever surrounds expressions.
Repetitions are not unrolled, and time is linear in the text. In EBNF:

    root ::= "a" item{2,5} (" " | [^0-9\n])*   # a comment
    item ::= . | "\x41" | root?

Differences between the two dialects are accepted, unless a notation is ambiguous (`\x41B`). Macros,
token ids and rule options are not supported; an error names them. `(= ...)` is a hint of xgrammar's
that changes no text and is skipped.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn, cast

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.regex.characters import EVERY, SURROGATES, inverted
from dlm.grammar.regex.nodes import (
    Characters,
    Literal,
    Node,
    Reference,
    Repetition,
    alternation,
    concatenation,
)
from dlm.grammar.rules.rules import Rules

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

    def __init__(self, text: str):
        self.text = text
        if len(text) > MOST_CHARACTERS:
            reason = f"{len(text)} characters are too many: the limit is {MOST_CHARACTERS}"
            raise InvalidGrammarError("grammar", reason)
        if lone := SURROGATES.search(text):
            raise self.error("a lone surrogate is not text", lone.start())

    def error(self, reason: str, at: int) -> InvalidGrammarError:
        """Return an error with the line and column of the index `at`."""
        line = self.text.count("\n", 0, at) + 1
        column = at - self.text.rfind("\n", 0, at)
        return InvalidGrammarError("grammar", reason, f"line {line} column {column}")

    def unescaped(self, start: int, end: int, also: str = "") -> list[tuple[int, bool]]:
        """Return the code points of `text[start:end]`, each with whether it was escaped.

        The characters of `also` may be escaped besides the usual ones.
        """
        text, at, points = self.text, start, []
        while (slash := text.find("\\", at, end)) >= 0:
            points += [(ord(c), False) for c in text[at:slash]]
            if (escape := _ESCAPE.match(text, slash, end)) is None:
                raise self.error(r"\u must have 4 hexadecimal digits, and \U 8", slash)
            point, at = self._point(escape, also), escape.end()
            low = _ESCAPE.match(text, at, end) if 0xD800 <= point < 0xDC00 else None
            if low and low[2] and 0xDC00 <= int(low[2], 16) < 0xE000:
                point = 0x10000 + ((point - 0xD800) << 10) + int(low[2], 16) - 0xDC00
                at = low.end()
            points.append((point, True))
        return points + [(ord(c), False) for c in text[at:end]]

    def literal(self, start: int, end: int) -> str:
        """Return the text that `text[start:end]` stands for, without escapes."""
        points = [point for point, _ in self.unescaped(start, end)]
        if any(0xD800 <= point < 0xE000 for point in points):
            raise self.error("a lone surrogate is not text", start)
        return "".join(map(chr, points))

    def _point(self, escape: re.Match[str], also: str) -> int:
        digits = escape[1] or escape[2] or escape[3]
        if escape[1] and len(escape[1]) != 2:
            reason = r"\x must have 2 hexadecimal digits; write \u or \U for more"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Notation:
    """Syntax of one notation."""

    tokens: re.Pattern[str]  # the name of the last group is the token's kind; "mark": punctuation
    separators: re.Pattern[str]  # white space and comments between tokens
    unfinished: Mapping[str, str]  # errors for characters that begin a token but complete none
    ends: frozenset[str]  # kinds and marks that end a sequence of parts
    # Groups of the lower limit, the sign of a range and the upper limit, by kind of repetition.
    repetitions: Mapping[str, tuple[str, str, str]]


class NotationParser(ABC):
    """Recursive descent parser with a current token: its match, its kind and its index `at`.

    `mark` is the text of a token of the kind "mark". At the end of the text, the kind is "end".
    """

    def __init__(self, notation: Notation, source: NotationText):
        """Start at the first token."""
        self.notation, self.source = notation, source
        self.used: dict[str, int] = {}  # index of the first use of each name
        self.token = cast("re.Match[str]", re.match("", ""))
        self.move(0)

    def move(self, at: int) -> None:
        """Make the first token from the index `at` on the current one."""
        self.at = self.after_separators(at)
        token = self.notation.tokens.match(self.source.text, self.at)
        if token is None and self.at < len(self.source.text):
            mark = self.source.text[self.at]
            self.fail(self.notation.unfinished.get(mark, f"{mark!r} has no meaning here"))
        self.kind = (token and token.lastgroup) or "end"
        self.token = token or self.token
        self.mark = token["mark"] if token else None

    def after_separators(self, at: int) -> int:
        """Return the index after white space and comments that may begin at `at`."""
        between = self.notation.separators.match(self.source.text, at)
        return between.end() if between else at

    def next(self) -> None:
        self.move(self.token.end())

    def fail(self, reason: str) -> NoReturn:
        raise self.source.error(reason, self.at)

    def check_head(self, name: str, defined: Collection[str]) -> None:
        """Check the head of a rule: its name is not `known`, and nothing is before it in its
        line."""
        if name in defined:
            self.fail(f"{name} is there twice")
        start = self.source.text.rfind("\n", 0, self.at) + 1
        if self.source.text[start : self.at].strip():
            self.fail("a rule begins on a line of its own")

    def check_names(self, defined: Collection[str], root: str) -> None:
        """Check that all used names are `known`, and that `root` is."""
        for name, at in self.used.items():
            if name not in defined:
                raise self.source.error(f"there is no {self.kind_of(name)} {name}", at)
        if root not in defined:
            raise self.source.error(f"there is no rule {root}, where a text begins", 0)

    def kind_of(self, name: str) -> str:
        return "rule"

    @abstractmethod
    def part(self, depth: int) -> Node:
        """Parse a part of a sequence, `depth` levels of brackets deep."""

    def expression(self, depth: int = 0) -> Node:
        """Parse the alternatives from here on; an empty one is the empty text."""
        options = [self.option(depth)]
        while self.mark == "|":
            self.next()
            options.append(self.option(depth))
        return alternation(*options)

    def option(self, depth: int) -> Node:
        return self.sequence(depth)

    def sequence(self, depth: int) -> Node:
        parts, ends = list[Node](), self.notation.ends
        while self.kind not in ends and self.mark not in ends:
            parts.append(self._repeated(self.part(depth)))
        return concatenation(*parts)

    def group(self, depth: int, closing: str = ")") -> Node:
        opened, deeper = self.at, self.deeper(depth)
        self.next()
        node = self.expression(deeper)
        if self.mark != closing:
            raise self.source.error("this bracket is never closed", opened)
        self.next()
        return node

    def deeper(self, depth: int) -> int:
        if depth == MOST_NESTED:
            self.fail(f"brackets are nested more than {MOST_NESTED} deep")
        return depth + 1

    def _repeated(self, node: Node) -> Node:
        if self.mark in _SIGNS:
            low, high = _SIGNS[self.mark]
        elif self.kind in self.notation.repetitions:
            least, opened, most = (self.token[g] for g in self.notation.repetitions[self.kind])
            if not least and not most:
                self.fail(self.notation.unfinished["{"])
            most = None if most == "-1" else most or (None if opened else least)
            low, high = int(least or 0), None if most is None else int(most)
        else:
            return node
        if max(low, high or 0) > MOST_REPEATED:
            self.fail(f"it repeats more than {MOST_REPEATED} times")
        if high is not None and high < low:
            self.fail(f"{low} to {high} times is no range")
        self.next()
        if self.mark in _SIGNS or self.kind in self.notation.repetitions:
            self.fail("a repetition of a repetition needs brackets around the inner one")
        return Repetition(node, low, high)


_SIGNS: dict[str | None, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


_SPACE = r"(?:[ \t\r\n]++|\#[^\r\n]*+)*+"  # possessive: never backtracks
_TOKEN = re.compile(
    rf"""(?P<head>(?P<new>[A-Za-z0-9_.-]+)(?P<options>\[[^\]\r\n]*\])?(?={_SPACE}::=))
    |(?P<name>(?!\.(?![A-Za-z0-9_.-]))[A-Za-z0-9_.-]+)
    |(?P<literal>"[^"\\\r\n]*(?:\\.[^"\\\r\n]*)*")
    |(?P<class>\[\^?[^\]\\\r\n]*(?:\\.[^\]\\\r\n]*)*\])
    |(?P<repeat>\{{\s*(?P<low>[0-9]{{1,18}})\s*(?P<open>,\s*(?P<high>[0-9]{{1,18}}|-1)?\s*)?\}})
    |(?P<mark>::=|\(=|[().|*+?])""",
    re.VERBOSE,
)
_EBNF = Notation(
    tokens=_TOKEN,
    separators=re.compile(_SPACE),
    unfinished={
        '"': 'a literal needs its closing " on the same line',
        "[": "a class of characters needs its closing ] on the same line",
        "{": "a repetition is {m}, {m,} or {m,n}",
        "<": "rules are named without brackets, as in root ::= item; and tokens cannot be named: "
        "a grammar is of text",
        "=": "a rule begins with its name and ::= , not =",
        ":": "a rule begins with its name and ::= , not with :",
        ";": "a rule ends with its line: leave ; out",
        ",": "parts follow each other without a comma",
        "'": "' has no meaning here: a literal is in double quotes",
        "/": "/ has no meaning here: a comment begins with #",
    },
    ends=frozenset(("head", "end", "|", ")", "(=")),
    repetitions={"repeat": ("low", "open", "high")},
)
_OTHER_SIGN = re.compile(rf"[A-Za-z0-9_.-]++{_SPACE}(:?=|:|->|→)")  # instead of ::=
_BY_TOKEN = ("Token", "ExcludeToken", "TokenTagDispatch")
_MACROS = {
    "TagDispatch": "structural tags have free text with triggers",
    "Regex": "Lark has regexes",
    "Substring": "Lark has %regex",
}
_IN_CLASS = "^$.*+()[]{}|-"  # may be escaped in a class


def read_ebnf(text: str) -> Rules:
    """Return the rules of a grammar. Raises `InvalidGrammarError` with line and column."""
    return _EbnfReader(NotationText(text)).rules()


class _EbnfReader(NotationParser):
    def __init__(self, source: NotationText):
        super().__init__(_EBNF, source)
        self._rules = Rules()

    def rules(self) -> Rules:
        while self.kind != "end":
            if self.kind != "head":
                sign = _OTHER_SIGN.match(self.source.text, self.at)
                instead = f" , not {sign[1]}" if sign else ""
                self.fail(f"a rule begins with its name and ::={instead}")
            self._rule(self.token["new"], self.token["options"])
        self.check_names(self._rules.nodes, self._rules.root)
        return self._rules

    def _rule(self, name: str, options: str | None) -> None:
        if options:
            self.fail(f"the rule options {options:.40} are not supported: leave them out")
        self.check_head(name, self._rules.nodes)
        self.next()
        self.next()  # ::=
        if self.kind in ("head", "end"):
            self.fail(f'rule {name} has no content: write "" for the empty text')
        self._rules.nodes[name] = self.expression()
        if self.mark == "(=":
            self.group(0)
        if self.kind not in ("head", "end"):
            self.fail("expected a part of a rule, or the next rule")

    def part(self, depth: int) -> Node:
        if self.mark == "(":
            return self.group(depth)
        start, end = self.at, self.token.end()
        match self.kind:
            case "literal":
                node: Node = Literal(self.source.literal(start + 1, end - 1))
            case "class":
                node = self._class(start + 1, end - 1)
            case "name":
                node = self._name(self.token["name"])
            case _ if self.mark == ".":
                node = Characters(EVERY)
            case _:
                self.fail("expected a literal, a class, a rule or a bracket")
        self.next()
        return node

    def _name(self, name: str) -> Node:
        if self.source.text.startswith("(", self.token.end()):
            if name in _BY_TOKEN:
                self.fail(f"{name}(...) names tokens: a grammar is of text")
            if name in _MACROS:
                self.fail(f"{name}(...) is not supported: {_MACROS[name]}")
        self.used.setdefault(name, self.at)
        return Reference(name)

    def _class(self, start: int, end: int) -> Node:
        negated = self.source.text[start] == "^"
        points = self.source.unescaped(start + negated, end, _IN_CLASS)
        ranges, i = [], 0
        while i < len(points):
            low = high = points[i][0]
            if points[i + 1 : i + 2] == [(ord("-"), False)] and i + 2 < len(points):
                i, high = i + 2, points[i + 2][0]
            if high < low:
                self.fail(f"{chr(low)!r} to {chr(high)!r} is no range")
            ranges.append((low, high))
            i += 1
        node = characters(ranges, negated)
        if not node.ranges:
            self.fail("no character is in this class")
        return node
