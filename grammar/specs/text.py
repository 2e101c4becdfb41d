"""Constraints to a context-free grammar, to a choice of texts, and to a regex."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dlm.grammar.errors import InvalidGrammarError, InvalidValueError
from dlm.grammar.regex.automaton import Automaton, parse
from dlm.grammar.regex.nodes import Node, Terminal
from dlm.grammar.rules.analysis import check
from dlm.grammar.rules.ebnf import read_ebnf
from dlm.grammar.rules.lark import read_lark
from dlm.grammar.rules.rules import Rules
from dlm.grammar.rules.terminals import matching, with_terminals
from dlm.grammar.schema.dialect import Dialect
from dlm.grammar.schema.writer import write
from dlm.grammar.specs.spec import Spec
from dlm.grammar.tokens import CallMarkers


@dataclass(frozen=True)
class Grammar(Spec):
    """A text of a grammar, whose rules are `text`: EBNF, from `root`, or Lark, from `start`.

    `dlm.grammar.rules.ebnf` and `dlm.grammar.rules.lark` describe the dialects.
    """

    text: str
    syntax: Literal["ebnf", "lark"] = "ebnf"

    kind = "grammar"

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not self.text.strip():
            raise InvalidGrammarError(self.kind, f"rules are text, not {self.text!r:.40}")
        if self.syntax not in ("ebnf", "lark"):
            raise InvalidGrammarError(self.kind, f"syntax is {self.syntax!r}, not ebnf or lark")

    @property
    def source(self) -> str:
        return self.text

    @property
    def key(self) -> Hashable:
        return self.kind, self.syntax, self.text

    def rules(self, markers: CallMarkers | None) -> Rules:
        rules = read_ebnf(self.text) if self.syntax == "ebnf" else read_lark(self.text, _schema)
        check(rules)
        return with_terminals(rules)

    def value(self, text: str) -> str:
        return text


def _schema(schema: Any, rules: Rules) -> Node:
    return write(schema, dialect=Dialect(), rules=rules).node


_MOST_CHARACTERS = 4_194_304  # in all options together


@dataclass(frozen=True)
class Choice(Spec):
    """One of `options`, word for word."""

    options: Sequence[str]

    kind = "choice"

    def __post_init__(self) -> None:
        listed = isinstance(self.options, Sequence) and not isinstance(self.options, str)
        if not listed or not self.options:
            raise InvalidGrammarError(self.kind, f"a list of options, not {self.options!r:.40}")
        seen: set[str] = set()
        size = 0
        for i, option in enumerate(self.options):
            if not isinstance(option, str) or not option or not _is_text(option):
                raise InvalidGrammarError(self.kind, f"{option!r:.40} is no text", f"option {i}")
            if option in seen:
                raise InvalidGrammarError(
                    self.kind, f"{option!r:.40} is there twice", f"option {i}"
                )
            seen.add(option)
            size += len(option)
        if size > _MOST_CHARACTERS:
            reason = f"{size} characters are too many: it takes up to {_MOST_CHARACTERS}"
            raise InvalidGrammarError(self.kind, reason)

    @property
    def source(self) -> list[str]:
        return list(self.options)

    @property
    def key(self) -> Hashable:
        return self.kind, tuple(self.options)

    def rules(self, markers: CallMarkers | None) -> Rules:
        rules = Rules()
        rules.nodes[rules.root] = Terminal(Automaton.words(self.options))
        return rules

    def value(self, text: str) -> str:
        if text not in self.options:
            raise InvalidValueError(f"{text!r:.80} is none of the options")
        return text


def _is_text(option: str) -> bool:
    try:
        option.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True)
class Regex(Spec):
    """A text that `pattern` matches from beginning to end, in ECMAScript's syntax.

    Raises `InvalidGrammarError` for an invalid pattern, and for one that is not regular, such as
    one with a back-reference.
    """

    pattern: str

    kind = "regex"

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, str) or not self.pattern:
            raise InvalidGrammarError(self.kind, f"a pattern is text, not {self.pattern!r:.40}")
        try:
            parse(self.pattern, whole=True)
        except InvalidGrammarError as error:
            raise InvalidGrammarError(self.kind, error.reason, error.where) from error

    @property
    def source(self) -> str:
        return self.pattern

    @property
    def key(self) -> Hashable:
        return self.kind, self.pattern

    def rules(self, markers: CallMarkers | None) -> Rules:
        rules = Rules()
        try:
            rules.nodes[rules.root] = matching(self.pattern)
        except InvalidGrammarError as error:
            raise InvalidGrammarError(self.kind, error.reason, error.where) from error
        return with_terminals(rules)

    def value(self, text: str) -> str:
        return text
