"""How JSON values are written: as JSON text, or in the form of Gemma's own tool calls.

Knows neither schemas nor what the values are to be.
"""

import json
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.regex.automaton import Automaton
from dlm.grammar.rules.nodes import (
    Characters,
    Concatenation,
    Literal,
    Node,
    Repetition,
    SpecialToken,
    Spelling,
    Terminal,
)
from dlm.grammar.schema.whitespace import Whitespace, run, spaced

_BARE = re.compile(r"[\w.$\-]+")


@dataclass(frozen=True)
class Dialect:
    """JSON text with white space between its tokens, as `whitespace` and `max_whitespace` have it;
    or, with the id of the token `quote`, Gemma's: that token around strings, bare keys, no white
    space."""

    max_whitespace: int = 8  # blanks in a line, and levels that the next one is indented by
    quote: int | None = None
    whitespace: Whitespace = "any"

    def mark(self, text: str) -> Node:
        """One of `{ } [ ] , :`, or an empty `{}` or `[]`, with the whitespace that it may have."""
        if self.quote is not None:
            return Literal(text)
        return spaced(text, self.whitespace, self.max_whitespace)

    @cached_property
    def space(self) -> Node:
        """A run of whitespace, or none."""
        return run(self.whitespace, self.max_whitespace)

    def key(self, name: str) -> Node:
        """Raises `InvalidGrammarError` where it cannot be written."""
        if self.quote is None:
            return Literal(json.dumps(name, ensure_ascii=False))
        if not _BARE.fullmatch(name):
            raise InvalidGrammarError("schema", f"{name!r:.80} cannot be written without quotes")
        return Literal(name)

    def free_key(self, keys: Automaton) -> Node:
        """Any of `keys`."""
        if self.quote is None:
            return Terminal(keys, spelling=Spelling.QUOTED)
        return Terminal(keys.intersection(_bare_keys()))

    def string(self, texts: Automaton, low: int = 0, high: int | None = None) -> Node:
        """Those of `texts` that have `low` to `high` characters."""
        if self.quote is None:
            return Terminal(texts, low, high, Spelling.QUOTED)
        return self._quoted(Terminal(texts, low, high))

    def words(self, texts: tuple[str, ...]) -> Node:
        """Strings, each in its one shortest spelling."""
        if self.quote is None:
            return choice(tuple(json.dumps(text, ensure_ascii=False) for text in texts))
        return self._quoted(choice(texts))

    def _quoted(self, content: Node) -> Node:
        return Concatenation((self._mark, content, self._mark))

    @cached_property
    def _mark(self) -> Node:
        return SpecialToken(frozenset(() if self.quote is None else (self.quote,)))


def choice(texts: tuple[str, ...]) -> Node:
    """One of some texts, character for character."""
    return Literal(texts[0]) if len(texts) == 1 else Terminal(Automaton.words(texts))


@lru_cache(1)
def _bare_keys() -> Automaton:
    """Keys that no schema names, written without quotes."""
    first = Characters(((65, 90), (95, 95), (97, 122)))
    more = Characters(((48, 57), (65, 90), (95, 95), (97, 122)))
    return Automaton.of(Concatenation((first, Repetition(more))))
