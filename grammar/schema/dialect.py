"""How JSON values are written: as JSON text, or in the form of Gemma's own tool calls.

Knows neither schemas nor what the values are to be.

White space between the tokens of JSON text: where it may stand, and how much of it.

A run never has an empty line in it, whatever the style.
"""

import json
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal as OneOf
from typing import get_args

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.regex.automaton import Automaton
from dlm.grammar.regex.nodes import (
    EMPTY,
    Characters,
    Concatenation,
    Literal,
    Node,
    Repetition,
    SpecialToken,
    Spelling,
    Terminal,
    alternation,
    concatenation,
    optional,
)
from dlm.grammar.shared_cache import RESULTS

Whitespace = OneOf["any", "compact", "pretty"]
STYLES: tuple[str, ...] = get_args(Whitespace)

_BLANK = Characters(((0x09, 0x09), (0x20, 0x20)))
_LINE_BREAK = Concatenation((optional(Literal("\r")), Literal("\n")))
_LEVEL = 4  # blanks: deep lines are indented by whole levels
_DEEPEST = 32  # levels of indentation in the style "pretty"


@RESULTS.remembered
def spaced(text: str, style: Whitespace, most: int) -> Node:
    """Return one of `{ } [ ] , :`, or an empty `{}` or `[]`, with the white space around it."""
    if style == "compact" or most == 0:
        return Literal(text)
    if style == "pretty":
        return _pretty(text)
    space = _run(most)
    if len(text) == 2:
        parts = [Literal(text[0]), space, Literal(text[1])]
    else:
        parts = [space] * (text not in "{[") + [Literal(text)] + [space] * (text not in "}]")
    return Terminal(Automaton.of(Concatenation(tuple(parts))))


@RESULTS.remembered
def run(style: Whitespace, most: int) -> Node:
    """Return a run of white space, or none, as it may stand around a whole value."""
    if style == "compact" or most == 0:
        return EMPTY
    return Terminal(Automaton.of(_run(most)))


def _run(most: int) -> Node:
    """At most `most` blanks in a line, and then at most one line break with its indentation: twice
    as many blanks, or `most` whole levels."""
    blanks, deep = Repetition(_BLANK, 0, 2 * most), Repetition(Literal(" " * _LEVEL), 0, most)
    line = concatenation(_LINE_BREAK, alternation(blanks, deep))
    return concatenation(Repetition(_BLANK, 0, most), optional(line))


def _pretty(text: str) -> Node:
    """As `json.dumps(value, indent=2)` writes it; how deep a line is indented is the model's."""
    if text == ":":
        return Literal(": ")
    if len(text) == 2:
        return Literal(text)
    inner = text not in "}]"  # such a line is within something, and indented once at least
    level = Repetition(Literal("  "), int(inner), _DEEPEST)
    line = Concatenation((Literal("\n"), level))
    parts = (Literal(text), line) if inner else (line, Literal(text))
    return Terminal(Automaton.of(Concatenation(parts)))


_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
# After a key's colon, in Gemma's form: what begins a value, a string apart. A reader need not wait
# for the end of a long number.
BARE_VALUE = re.compile(rf"[{{\[]|(?:{_NUMBER}|true|false|null)[,}}]|-?[0-9][0-9.eE+\-]{{62}}")


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
        if not is_bare(name):
            raise InvalidGrammarError(
                "schema",
                f"the name {name!r:.80} is ambiguous where names have no quotes, as in Gemma's "
                "calls: it reads like the end of an object, or like a name and its value",
            )
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


def is_bare(name: str) -> bool:
    """Whether a key without quotes is read back as it is.

    A key ends at the first colon that a value follows, so that a key may hold other colons, and
    anything else. `}` right after an object's `{` ends the object.
    """
    if name.startswith("}"):
        return False
    colons = (at for at, character in enumerate(name) if character == ":")
    return not any(BARE_VALUE.match(name, at + 1) for at in colons)


def choice(texts: tuple[str, ...]) -> Node:
    """One of some texts, character for character."""
    return Literal(texts[0]) if len(texts) == 1 else Terminal(Automaton.words(texts))


@lru_cache(1)
def _bare_keys() -> Automaton:
    """Keys that no schema names, written without quotes: letters, digits and `$ - . / @ _`, and
    whatever is not ASCII. They are fewer than `is_bare` lets through: a model that may choose a key
    should not begin a string instead."""
    ascii = (36, 36), (45, 57), (64, 90), (95, 95), (97, 122)
    others = (0xA1, 0xD7FF), (0xE000, 0xFFFD), (0x10000, 0x10FFFF)
    return Automaton.of(Repetition(Characters((*ascii, *others)), 1))
