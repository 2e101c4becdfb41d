"""White space between the tokens of JSON text: where it may stand, and how much of it.

A run never has an empty line in it, whatever the style.
"""

from typing import Literal as OneOf
from typing import get_args

from dlm.grammar.regex.automaton import Automaton
from dlm.grammar.rules.nodes import (
    EMPTY,
    Characters,
    Concatenation,
    Literal,
    Node,
    Repetition,
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
