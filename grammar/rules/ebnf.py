"""Parser of EBNF: xgrammar's dialect and llama.cpp's GBNF.

    root ::= "a" item{2,5} (" " | [^0-9\\n])*   # a comment
    item ::= . | "\\x41" | root?

Differences between the two are accepted, unless a notation is ambiguous (`\\x41B`). Macros, token
ids and rule options are not supported; an error names them. `(= ...)` is a hint of xgrammar's that
changes no text and is skipped. Repetitions are not unrolled, and time is linear in the text.
"""

import re

from dlm.grammar.regex.nodes import (
    Literal,
    Node,
    Reference,
    Repetition,
    alternation,
    concatenation,
)
from dlm.grammar.rules.rules import (
    ANY_CHARACTER,
    MOST_NESTED,
    MOST_REPEATED,
    NamedTokens,
    NotationText,
    Rules,
    characters,
)

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
_BETWEEN = re.compile(_SPACE)
_UNFINISHED = {
    '"': 'a literal needs its closing " on the same line',
    "[": "a class of characters needs its closing ] on the same line",
    "{": "a repetition is {m}, {m,} or {m,n}",
    "<": "tokens cannot be named: a grammar is of text",
}
_BY_TOKEN = ("Token", "ExcludeToken", "TokenTagDispatch")
_MACROS = {
    "TagDispatch": "structural tags have free text with triggers",
    "Regex": "Lark has regexes",
    "Substring": "Lark has %regex",
}
_IN_CLASS = "^$.*+()[]{}|-"  # may be escaped in a class


def read_ebnf(text: str, root: str = "root", kind: str = "grammar") -> Rules:
    """Return the rules of `text`. Raises `InvalidGrammarError` with line and column."""
    return _EbnfReader(NotationText(text, kind), root).rules()


class _EbnfReader(NamedTokens):
    """Recursive descent parser; only brackets recurse."""

    def __init__(self, source: NotationText, root: str):
        super().__init__(source, _TOKEN, _BETWEEN, _UNFINISHED)
        self._root, self._rules = root, Rules(root)
        self._used: dict[str, int] = {}  # index of the first reference to each rule

    def rules(self) -> Rules:
        while self.kind != "end":
            if self.kind != "head":
                self.fail("a rule begins with its name and ::=")
            self._rule(self.token["new"], self.token["options"])
        defined = self._rules.nodes
        for name, at in self._used.items():
            if name not in defined:
                raise self.source.error(f"there is no rule {name}", at)
        if self._root not in defined:
            raise self.source.error(f"there is no rule {self._root}, where a text begins", 0)
        return self._rules

    def _rule(self, name: str, options: str | None) -> None:
        if options:
            self.fail(f"the rule options {options:.40} are not supported: leave them out")
        if name in self._rules.nodes:
            self.fail(f"rule {name} is there twice")
        if not self.first_on_its_line():
            self.fail("a rule begins on a line of its own")
        self.next()
        self.next()  # ::=
        if self.kind in ("head", "end"):
            self.fail(f'rule {name} has no content: write "" for the empty text')
        self._rules.nodes[name] = self._options(0)
        if self.mark == "(=":
            self._group(0)
        if self.kind not in ("head", "end"):
            self.fail("expected a part of a rule, or the next rule")

    def _options(self, depth: int) -> Node:
        """Return the alternatives from here on; an empty one is the empty text."""
        options: list[Node] = []
        parts: list[Node] = []
        while self.kind not in ("head", "end") and self.mark not in (")", "(="):
            if self.mark == "|":
                options.append(concatenation(*parts))
                parts = []
                self.next()
            else:
                parts.append(self._repeated(self._element(depth)))
        return alternation(*options, concatenation(*parts))

    def _group(self, depth: int) -> Node:
        opened = self.at
        if depth == MOST_NESTED:
            self.fail(f"brackets are nested more than {MOST_NESTED} deep")
        self.next()
        node = self._options(depth + 1)
        if self.mark != ")":
            raise self.source.error("this bracket is never closed", opened)
        self.next()
        return node

    def _element(self, depth: int) -> Node:
        if self.mark == "(":
            return self._group(depth)
        start, end = self.at, self.token.end()
        match self.kind:
            case "literal":
                node: Node = Literal(self.source.literal(start + 1, end - 1))
            case "class":
                node = self._class(start + 1, end - 1)
            case "name":
                node = self._name(self.token["name"])
            case _ if self.mark == ".":
                node = ANY_CHARACTER
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
        self._used.setdefault(name, self.at)
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

    def _repeated(self, node: Node) -> Node:
        if self.mark in ("*", "+", "?"):
            node = Repetition(node, int(self.mark == "+"), 1 if self.mark == "?" else None)
        elif self.kind == "repeat":
            low, high = int(self.token["low"]), self.token["high"]
            if high in (None, "-1"):
                high = None if self.token["open"] else low
            if max(low, int(high or 0)) > MOST_REPEATED:
                self.fail(f"it repeats more than {MOST_REPEATED} times")
            if high is not None and int(high) < low:
                self.fail(f"{low} to {high} times is no range")
            node = Repetition(node, low, None if high is None else int(high))
        else:
            return node
        self.next()
        if self.mark in ("*", "+", "?") or self.kind == "repeat":
            self.fail("a repetition of a repetition takes brackets around the inner one")
        return node
