"""Parser of EBNF: xgrammar's dialect and llama.cpp's GBNF.

    root ::= "a" item{2,5} (" " | [^0-9\\n])*   # a comment
    item ::= . | "\\x41" | root?

Differences between the two are accepted, unless a notation is ambiguous (`\\x41B`). Macros, token
ids and rule options are not supported; an error names them. `(= ...)` is a hint of xgrammar's that
changes no text and is skipped. Repetitions are not unrolled, and time is linear in the text.
"""

import re

from dlm.grammar.regex.nodes import EVERY, Characters, Literal, Node, Reference
from dlm.grammar.rules.notation import Notation, NotationParser, NotationText, characters
from dlm.grammar.rules.rules import Rules

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
        "<": "tokens cannot be named: a grammar is of text",
    },
    ends=frozenset(("head", "end", "|", ")", "(=")),
    repetitions={"repeat": ("low", "open", "high")},
)
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


class _EbnfReader(NotationParser):
    def __init__(self, source: NotationText, root: str):
        super().__init__(_EBNF, source)
        self._root, self._rules = root, Rules(root)

    def rules(self) -> Rules:
        while self.kind != "end":
            if self.kind != "head":
                self.fail("a rule begins with its name and ::=")
            self._rule(self.token["new"], self.token["options"])
        self.check_names(self._rules.nodes, self._root)
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
