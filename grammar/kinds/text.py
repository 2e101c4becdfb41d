"""What a user may ask a text to be: a match of a regex, one of some words, a sentence."""

import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import xgrammar as xgr

from dlm.grammar.errors import InvalidGrammarError, InvalidValueError
from dlm.grammar.kinds.spec import Spec
from dlm.grammar.kinds.structural_tag import token_macro
from dlm.grammar.regex.automaton import MOST_STATES, Automaton, TooLargeError
from dlm.grammar.regex.pattern import parse
from dlm.grammar.rules.ast import Node
from dlm.grammar.rules.repetition import endless_rule
from dlm.grammar.vocabulary import Vocabulary


@dataclass(frozen=True)
class Regex(Spec):
    """A text that `pattern` matches from its beginning to its end.

    What ECMAScript and Python both match: where they differ, as about the letters of `\\w`, it is
    what they share. Regular: no back-reference, no look-behind, no anchor in the middle; what looks
    ahead is not repeated.
    """

    pattern: str

    kind = "regex"

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, str) or not self.pattern:
            raise InvalidGrammarError(self.kind, f"a pattern is text, not {self.pattern!r:.40}")
        try:
            self._parsed  # noqa: B018  # it checks the pattern
        except InvalidGrammarError as error:
            raise InvalidGrammarError(self.kind, error.reason, error.where) from error

    @cached_property
    def _parsed(self) -> Node:
        return parse(self.pattern)

    @property
    def source(self) -> str:
        return self.pattern

    @property
    def key(self) -> Hashable:
        return self.kind, self.pattern

    def grammar(self, vocabulary: Vocabulary) -> xgr.Grammar:
        try:
            automaton = Automaton.of(self._parsed)
        except TooLargeError as error:
            reason = f"it takes more than {MOST_STATES} states: repeat less often"
            raise InvalidGrammarError(self.kind, reason) from error
        if not automaton.final:
            raise InvalidGrammarError(self.kind, "nothing matches it")
        return xgr.Grammar.from_ebnf(automaton.ebnf("root"))

    def value(self, text: str) -> str:
        return text


@dataclass(frozen=True)
class Choice(Spec):
    """One of `options`, word for word."""

    options: Sequence[str]

    kind = "choice"

    def __post_init__(self) -> None:
        if isinstance(self.options, str) or not self.options:
            raise InvalidGrammarError(self.kind, f"a list of options, not {self.options!r:.40}")
        for i, option in enumerate(self.options):
            if not isinstance(option, str) or not option:
                raise InvalidGrammarError(self.kind, f"{option!r:.40} is no text", f"option {i}")
            if option in self.options[:i]:
                raise InvalidGrammarError(
                    self.kind, f"{option!r:.40} is there twice", f"option {i}"
                )

    @property
    def source(self) -> list[str]:
        return list(self.options)

    @property
    def key(self) -> Hashable:
        return self.kind, tuple(self.options)

    def grammar(self, vocabulary: Vocabulary) -> xgr.Grammar:
        literals = (json.dumps(option, ensure_ascii=False) for option in self.options)
        return xgr.Grammar.from_ebnf(f"root ::= {' | '.join(literals)}")

    def value(self, text: str) -> str:
        if text not in self.options:
            raise InvalidValueError(f"{text!r:.80} is none of the options")
        return text


@dataclass(frozen=True)
class Grammar(Spec):
    """A sentence of a context-free grammar: xgrammar's EBNF, from `root`, or Lark, from `start`."""

    rules: str
    syntax: Literal["ebnf", "lark"] = "ebnf"

    kind = "grammar"

    def __post_init__(self) -> None:
        if not isinstance(self.rules, str) or not self.rules.strip():
            raise InvalidGrammarError(self.kind, f"rules are text, not {self.rules!r:.40}")
        if self.syntax not in ("ebnf", "lark"):
            raise InvalidGrammarError(self.kind, f"syntax is {self.syntax!r}, not ebnf or lark")

    @property
    def source(self) -> str:
        return self.rules

    @property
    def key(self) -> Hashable:
        return self.kind, self.syntax, self.rules

    def grammar(self, vocabulary: Vocabulary) -> xgr.Grammar:
        read = xgr.Grammar.from_ebnf if self.syntax == "ebnf" else xgr.Grammar.from_lark
        grammar = read(self.rules)
        if rule := endless_rule(grammar):
            raise InvalidGrammarError(self.kind, "it only repeats itself", f"rule {rule}")
        if macro := token_macro(grammar):
            raise InvalidGrammarError(self.kind, f"{macro}(...) names tokens: a grammar is of text")
        return grammar

    def value(self, text: str) -> str:
        return text
