"""Dialects of values: JSON text, or the form of Gemma's own tool calls.

A dialect has the white space allowed between JSON tokens, which never contains an empty line.
"""

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from json.encoder import encode_basestring
from typing import Literal as OneOf
from typing import get_args

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.limits import RESULTS
from dlm.grammar.regex.automaton import Automaton
from dlm.grammar.regex.build import determinized
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
    mapped,
    optional,
)

Whitespace = OneOf["any", "compact", "pretty"]
STYLES: tuple[str, ...] = get_args(Whitespace)
_BLANK = Characters(((0x09, 0x09), (0x20, 0x20)))
_LINE_BREAK = Concatenation((optional(Literal("\r")), Literal("\n")))
_LEVEL = 4  # blanks per level of indentation
_DEEPEST = 32  # levels of indentation in the style "pretty"


@RESULTS.remembered
def spaced(text: str, style: Whitespace, most: int) -> Node:
    """Return `text`, one of `{ } [ ] , : {} []`, spaced in a `style`; `most` as in `_run`."""
    if style == "compact" or most == 0:
        return Literal(text)
    if style == "pretty":
        return _pretty(text)
    space = _run(most)
    if len(text) == 2:
        parts = [Literal(text[0]), space, Literal(text[1])]
    else:
        parts = [space] * (text not in "{[") + [Literal(text)] + [space] * (text not in "}]")
    return Terminal(determinized(Concatenation(tuple(parts))))


@RESULTS.remembered
def run(style: Whitespace, most: int) -> Node:
    """Return the white space allowed around a whole value; it may be empty."""
    if style == "compact" or most == 0:
        return EMPTY
    return Terminal(determinized(_run(most)))


def _run(most: int) -> Node:
    """Return up to `most` blanks, then optionally one line break with its indentation.

    The indentation is up to `2 * most` blanks, or up to `most` levels of `_LEVEL` blanks.
    """
    blanks, levels = Repetition(_BLANK, 0, 2 * most), Repetition(Literal(" " * _LEVEL), 0, most)
    line = concatenation(_LINE_BREAK, alternation(blanks, levels))
    return concatenation(Repetition(_BLANK, 0, most), optional(line))


def _pretty(text: str) -> Node:
    """Return `text` spaced as by `json.dumps(value, indent=2)`, with any depth of indentation."""
    if text == ":":
        return Literal(": ")
    if len(text) == 2:
        return Literal(text)
    inner = text not in "}]"  # the next line is inside a value: at least one level
    level = Repetition(Literal("  "), int(inner), _DEEPEST)
    line = Concatenation((Literal("\n"), level))
    parts = (Literal(text), line) if inner else (line, Literal(text))
    return Terminal(determinized(Concatenation(parts)))


_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
# The beginning of a value other than a string, after a key's colon in Gemma's form. 64 characters
# of a number are enough to recognize it before its end.
BARE_VALUE = re.compile(rf"[{{\[]|(?:{_NUMBER}|true|false|null)[,}}]|-?[0-9][0-9.eE+\-]{{62}}")


@dataclass(frozen=True)
class Dialect:
    """The syntax of JSON text, or, if `quote` is given, of Gemma's tool calls.

    JSON text has white space between its tokens, as `whitespace` and `max_whitespace` allow.
    Gemma's form has the token with the id `quote` around strings, bare keys and no white space.
    """

    max_whitespace: int = 8  # blanks in a line, and levels of indentation of the next line
    quote: int | None = None
    whitespace: Whitespace = "any"

    def mark(self, text: str) -> Node:
        """Return `text`, one of `{ } [ ] , : {} []`, with the white space allowed around it."""
        if text not in self._marks:
            spaces = 0 if self.quote is not None else self.max_whitespace
            self._marks[text] = spaced(text, self.whitespace, spaces)
        return self._marks[text]

    @cached_property
    def _marks(self) -> dict[str, Node]:
        """The marks that have been returned."""
        return {}

    @cached_property
    def space(self) -> Node:
        """White space allowed around a whole value; it may be empty."""
        return run(self.whitespace, self.max_whitespace)

    def key(self, name: str) -> Node:
        """Return the key `name`. Raises `InvalidGrammarError` if it is ambiguous without quotes."""
        if self.quote is None:
            return Literal(encode_basestring(name))
        if not is_bare(name):
            raise InvalidGrammarError(
                "schema",
                f"the name {name!r:.80} is ambiguous where names have no quotes, as in Gemma's "
                "calls: it looks like the end of an object, or like a name and its value",
            )
        return Literal(name)

    def free_keys(self, keys: Automaton) -> Automaton:
        """Return the `keys` that a model may choose; in Gemma's form, those of `_bare_keys`."""
        return keys if self.quote is None else keys.intersection(_bare_keys())

    def free_key(self, keys: Automaton) -> Node:
        """Return a key that is any of `free_keys`."""
        spelling = Spelling.QUOTED if self.quote is None else Spelling.RAW
        return Terminal(self.free_keys(keys), spelling=spelling)

    def string(self, texts: Automaton, low: int = 0, high: int | None = None) -> Node:
        """Return a string that is one of `texts` and has `low` to `high` characters."""
        if self.quote is None:
            return Terminal(texts, low, high, Spelling.QUOTED)
        return self._quoted(Terminal(texts, low, high))

    def string_of(self, content: Node) -> Node:
        """Return a string whose characters `content` matches: nodes of a pattern, as `folded`."""
        if self.quote is None:
            return concatenation('"', self.characters(content), '"')
        return self._quoted(content)

    def characters(self, content: Node) -> Node:
        """Return a part of a string, without quotes."""
        return _escaped(content) if self.quote is None else content

    def words(self, texts: tuple[str, ...]) -> Node:
        """Return one of the strings `texts`, each in its shortest spelling only."""
        if self.quote is None:
            return choice(tuple(encode_basestring(text) for text in texts))
        return self._quoted(choice(texts))

    def _quoted(self, content: Node) -> Node:
        mark = SpecialToken(frozenset(() if self.quote is None else (self.quote,)))
        return Concatenation((mark, content, mark))


@lru_cache(64)
def json_dialect(most: int, style: Whitespace) -> Dialect:
    """Return the dialect of JSON text in a `style` of white space; `most` as in `_run`."""
    return Dialect(most, whitespace=style)


def _escaped(node: Node) -> Node:
    """Return `node` with its characters as within a JSON string."""
    match node:
        case Literal(""):
            return node
        case Literal(text):
            return Terminal(Automaton.words([text]), spelling=Spelling.ESCAPED)
        case Characters():
            return Terminal(determinized(node), spelling=Spelling.ESCAPED)
        case Terminal(automaton, low, high):
            return Terminal(automaton, low, high, Spelling.ESCAPED)
    return mapped(node, _escaped)


def is_bare(name: str) -> bool:
    """Whether a key written without quotes is read back unchanged.

    A key ends at the first colon that a value follows, so it may contain other colons. A key
    cannot begin with `}`, which would end the object right after its `{`.
    """
    if name.startswith("}"):
        return False
    colons = (at for at, character in enumerate(name) if character == ":")
    return not any(BARE_VALUE.match(name, at + 1) for at in colons)


@RESULTS.remembered
def choice(texts: tuple[str, ...]) -> Node:
    """Return a node that matches one of `texts`, character for character."""
    return Literal(texts[0]) if len(texts) == 1 else Terminal(Automaton.words(texts))


@lru_cache(1)
def _bare_keys() -> Automaton:
    """Return the keys without quotes that a model may choose freely.

    They consist of letters, digits, `$ - . / @ _` and non-ASCII characters. `is_bare` accepts more;
    with these fewer, a model that chooses a key cannot begin a string by mistake.
    """
    ascii = (36, 36), (45, 57), (64, 90), (95, 95), (97, 122)
    others = (0xA1, 0xD7FF), (0xE000, 0xFFFD), (0x10000, 0x10FFFF)
    return determinized(Repetition(Characters((*ascii, *others)), 1))
