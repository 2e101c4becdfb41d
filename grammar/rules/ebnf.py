"""EBNF as its users write it: xgrammar's dialect, and llama.cpp's GBNF.

    root ::= "a" item{2,5} (" " | [^0-9\\n])*   # a comment
    item ::= . | "\\x41" | root?

Where the two differ, both are taken if they cannot be mixed up, and refused if they can (`\\x41B`).
Left out: macros over token ids, since a grammar's alphabet is text; rule options. `(= ...)` is what
xgrammar takes it for: a hint that changes no text. Nothing is unrolled; time is linear in the text.
"""

import re
from typing import NoReturn, cast

from dlm.grammar.rules.nodes import EMPTY, Literal, Node, Reference, Repetition
from dlm.grammar.rules.nodes import alternation as either
from dlm.grammar.rules.nodes import concatenation as row
from dlm.grammar.rules.rules import Rules
from dlm.grammar.rules.source import (
    ANY_CHARACTER,
    MOST_NESTED,
    MOST_REPEATED,
    Source,
    characters,
)

_SPACE = r"(?:[ \t\r\n]+|\#[^\r\n]*)*"
_TOKEN = re.compile(
    rf"""(?P<head>(?P<new>[A-Za-z0-9_.-]+)(?P<options>\[[^\]\r\n]*\])?(?={_SPACE}::=))
    |(?P<name>(?!\.(?![A-Za-z0-9_.-]))[A-Za-z0-9_.-]+)
    |(?P<literal>"[^"\\\r\n]*(?:\\.[^"\\\r\n]*)*")
    |(?P<class>\[\^?[^\]\\\r\n]*(?:\\.[^\]\\\r\n]*)*\])
    |(?P<repeat>\{{\s*(?P<low>[0-9]{{1,18}})\s*(?P<open>,\s*(?P<high>[0-9]{{1,18}}|-1)?\s*)?\}})
    |(?P<mark>::=|\(=|[().|*+?])""",
    re.VERBOSE,
)
_SKIPPED = re.compile(_SPACE.replace(r"\#", "#"))
_ASKED = {
    '"': 'a literal needs its closing " on the same line',
    "[": "a class of characters needs its closing ] on the same line",
    "{": "a repetition is {m}, {m,} or {m,n}",
    "<": "tokens cannot be named: a grammar is of text",
    "": "the grammar ends too soon",
}
_BY_TOKEN = ("Token", "ExcludeToken", "TokenTagDispatch")
_MACROS = ("TagDispatch", "Regex", "Substring")
_IN_CLASS = "^$.*+()[]{}|-"  # may be escaped there, too


def read_ebnf(text: str, root: str = "root", kind: str = "grammar") -> Rules:
    """The rules that `text` says. Raises `InvalidGrammarError` with line and column."""
    return _Reader(Source(text, kind), root).rules()


class _Reader:
    """Descends into brackets, and reads all else in loops."""

    def __init__(self, source: Source, root: str):
        self._source, self._root = source, root
        self._rules = Rules(root)
        self._used: dict[str, int] = {}  # where each rule is named first
        self._token = cast("re.Match[str]", re.match("", ""))
        self._move(0)

    def rules(self) -> Rules:
        while self._kind != "end":
            if self._kind != "head":
                self._fail("a rule begins with its name and ::=")
            self._rule(self._token["new"], self._token["options"], self._at)
        defined = self._rules.nodes
        for name, at in self._used.items():
            if name not in defined:
                raise self._source.error(f"there is no rule {name}", at)
        if self._root not in defined:
            raise self._source.error(f"there is no rule {self._root}, where a text begins", 0)
        return self._rules

    def _rule(self, name: str, options: str | None, at: int) -> None:
        if options:
            self._fail(f"the rule options {options:.40} are not supported: leave them out")
        if name in self._rules.nodes:
            self._fail(f"rule {name} is there twice")
        if self._source.text[self._source.text.rfind("\n", 0, at) + 1 : at].strip():
            self._fail("a rule begins on a line of its own")
        self._next()
        self._next()  # ::=
        if self._kind in ("head", "end"):
            self._fail(f'rule {name} says nothing: write "" for the empty text')
        self._rules.nodes[name] = self._options(0)
        if self._mark == "(=":
            self._group(0)
        if self._kind not in ("head", "end"):
            self._fail("a part of a rule, or the next rule, has to stand")

    def _options(self, depth: int) -> Node:
        """Alternatives, up to what belongs to none of them; an empty one is the empty text."""
        options: list[Node] = []
        parts: list[Node] = []
        while self._kind not in ("head", "end") and self._mark not in (")", "(="):
            if self._mark == "|":
                options.append(row(*parts))
                parts = []
                self._next()
            else:
                parts.append(self._repeated(self._element(depth)))
        return either(*options, row(*parts))

    def _group(self, depth: int) -> Node:
        opened = self._at
        if depth == MOST_NESTED:
            self._fail(f"brackets are nested more than {MOST_NESTED} deep")
        self._next()
        node = self._options(depth + 1)
        if self._mark != ")":
            raise self._source.error("this bracket is never closed", opened)
        self._next()
        return node

    def _element(self, depth: int) -> Node:
        if self._mark == "(":
            return self._group(depth)
        start, end = self._at, self._token.end()
        match self._kind:
            case "literal":
                node: Node = Literal(self._source.literal(start + 1, end - 1))
            case "class":
                node = self._class(start + 1, end - 1)
            case "name":
                node = self._name(self._token["name"])
            case _ if self._mark == ".":
                node = ANY_CHARACTER
            case _:
                self._fail("a literal, a class, a rule or a bracket has to stand")
        self._next()
        return node

    def _name(self, name: str) -> Node:
        if name in _BY_TOKEN + _MACROS and self._source.text.startswith("(", self._token.end()):
            if name in _BY_TOKEN:
                self._fail(f"{name}(...) names tokens: a grammar is of text")
            self._fail(f"{name}(...) is not supported")
        self._used.setdefault(name, self._at)
        return Reference(name)

    def _class(self, start: int, end: int) -> Node:
        negated = self._source.text[start] == "^"
        points = self._source.unescaped(start + negated, end, _IN_CLASS)
        ranges, i = [], 0
        while i < len(points):
            low = high = points[i][0]
            if points[i + 1 : i + 2] == [(ord("-"), False)] and i + 2 < len(points):
                i, high = i + 2, points[i + 2][0]
            if high < low:
                self._fail(f"{chr(low)!r} to {chr(high)!r} is no range")
            ranges.append((low, high))
            i += 1
        node = characters(ranges, negated)
        if not node.ranges:
            self._fail("no character is in this class")
        return node

    def _repeated(self, node: Node) -> Node:
        if self._mark in ("*", "+", "?"):
            node = Repetition(node, int(self._mark == "+"), 1 if self._mark == "?" else None)
        elif self._kind == "repeat":
            low, high = int(self._token["low"]), self._token["high"]
            if high in (None, "-1"):
                high = None if self._token["open"] else low
            if max(low, int(high or 0)) > MOST_REPEATED:
                self._fail(f"it repeats more than {MOST_REPEATED} times")
            if high is not None and int(high) < low:
                self._fail(f"{low} to {high} times is no range")
            node = Repetition(node, low, None if high is None else int(high))
        else:
            return node
        self._next()
        if self._mark in ("*", "+", "?") or self._kind == "repeat":
            self._fail("a repetition of a repetition takes brackets around the inner one")
        return node

    def _next(self) -> None:
        self._move(self._token.end())

    def _move(self, at: int) -> None:
        """To the token behind `at`: its match, its kind, and its text where it is a mark."""
        text = self._source.text
        skipped = _SKIPPED.match(text, at)
        self._at = skipped.end() if skipped else at
        found = _TOKEN.match(text, self._at)
        if found is None and self._at < len(text):
            mark = text[self._at]
            self._fail(_ASKED.get(mark, f"{mark!r} has no meaning here"))
        self._kind = found.lastgroup if found else "end"
        self._token = found or self._token
        self._mark = found["mark"] if found else None

    def _fail(self, reason: str) -> NoReturn:
        raise self._source.error(reason, self._at)
