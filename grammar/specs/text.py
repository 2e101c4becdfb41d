"""Constraints to a text of a context-free grammar, of a list of options, or of a regex."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dlm.grammar.errors import InvalidGrammarError, InvalidValueError
from dlm.grammar.regex.automaton import Automaton
from dlm.grammar.regex.characters import SURROGATES
from dlm.grammar.regex.nodes import Node, Terminal
from dlm.grammar.regex.patterns import parse
from dlm.grammar.rules.folding import matching, with_terminals
from dlm.grammar.rules.lark import read_lark
from dlm.grammar.rules.notation import read_ebnf
from dlm.grammar.rules.properties import check_rules
from dlm.grammar.rules.rules import Rules
from dlm.grammar.schema.dialects import Dialect
from dlm.grammar.schema.writer import write
from dlm.grammar.specs.python_types import (
    is_type,
    options_of,
)
from dlm.grammar.specs.spec import Spec
from dlm.grammar.vocabulary.pieces import CallMarkers


@dataclass(frozen=True)
class Grammar(Spec):
    """A text of a grammar, whose rules are `text`: EBNF, from `root`, or Lark, from `start`.

    `dlm.grammar.rules.notation` and `dlm.grammar.rules.lark` describe the dialects.
    """

    text: str
    syntax: Literal["ebnf", "lark"] = "ebnf"

    kind = "grammar"

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not self.text.strip():
            raise InvalidGrammarError(
                self.kind, f"text must be rules as text, got {self.text!r:.40}"
            )
        if self.syntax not in ("ebnf", "lark"):
            raise InvalidGrammarError(
                self.kind, f"syntax must be 'ebnf' or 'lark', got {self.syntax!r}"
            )

    @property
    def source(self) -> str:
        return self.text

    @property
    def key(self) -> Hashable:
        return self.kind, self.syntax, self.text

    def rules(self, markers: CallMarkers | None) -> Rules:
        rules = read_ebnf(self.text) if self.syntax == "ebnf" else read_lark(self.text, _schema)
        check_rules(rules)
        return with_terminals(rules)


def _schema(schema: Any, rules: Rules) -> Node:
    return write(schema, dialect=Dialect(), rules=rules).node


_MOST_CHARACTERS = 4_194_304  # in all options together


@dataclass(frozen=True)
class Choice(Spec):
    """One of `options`, word for word: texts, an enumeration of texts, or a `Literal` of them.

    Of an enumeration, the user gets the member.
    """

    options: Sequence[str] | Any

    kind = "choice"

    def __post_init__(self) -> None:
        if is_type(self.options):
            vars(self)["_members"] = members = options_of(self.kind, self.options)
            vars(self)["options"] = (*members,)
        if isinstance(self.options, str) or not isinstance(self.options, Sequence):
            reason = (
                f"options must be a list of texts, an Enum or a Literal, got {self.options!r:.40}"
            )
            raise InvalidGrammarError(self.kind, reason)
        if not self.options:
            raise InvalidGrammarError(self.kind, "options must not be empty")
        seen: set[str] = set()
        size = 0
        for i, option in enumerate(self.options):
            if not isinstance(option, str) or not option or SURROGATES.search(option):
                raise InvalidGrammarError(
                    self.kind,
                    f"an option must be text that is not empty, got {option!r:.40}",
                    f"option {i}",
                )
            if option in seen:
                raise InvalidGrammarError(
                    self.kind, f"{option!r:.40} is there twice", f"option {i}"
                )
            seen.add(option)
            size += len(option)
        if size > _MOST_CHARACTERS:
            reason = f"options must have at most {_MOST_CHARACTERS} characters together, got {size}"
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

    @property
    def portable(self) -> Spec:
        return Choice(self.options)

    def value(self, text: str) -> str:
        if text not in self.options:
            raise InvalidValueError(f"{text!r:.80} is none of the options")
        return text

    def instance(self, value: Any, text: str) -> Any:
        """Return the member of the enumeration if one was given, else `value`."""
        return vars(self).get("_members", {}).get(text, value)


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
            raise InvalidGrammarError(
                self.kind, f"pattern must be text that is not empty, got {self.pattern!r:.40}"
            )
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
