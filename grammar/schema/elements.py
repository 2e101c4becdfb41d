"""Objects as elements between tags, as Qwen's coding models and GLM write the arguments of calls.

Strings are bare, and other values are JSON text. A string never holds the tag that ends it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.regex.automaton import Automaton, TooLargeError
from dlm.grammar.regex.nodes import (
    EMPTY,
    NOTHING,
    Literal,
    Node,
    Terminal,
    alternation,
    concatenation,
)
from dlm.grammar.regex.patterns import automaton_of, free_of
from dlm.grammar.schema.conditions import KINDS, Objects
from dlm.grammar.schema.dialects import Dialect
from dlm.grammar.schema.formulas import Formula
from dlm.grammar.schema.writer import Writer

_KEY = re.compile(r"""[^<>"'\s]+""")
_FREE_KEY = "[A-Za-z_][A-Za-z0-9_.-]*"
_JSON_KINDS = tuple(kind for kind in KINDS if kind != "string")


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementSyntax:
    """Tags around a key and its value."""

    key: str  # before the key
    after_key: str
    value: str  # before the value, after white space; empty: it begins after `after_key`
    end: str  # after the value
    lines: bool  # whether a value may be on lines of its own: it has no line feeds around it


QWEN = ElementSyntax(key="<parameter=", after_key=">", value="", end="</parameter>", lines=True)
GLM = ElementSyntax(
    key="<arg_key>", after_key="</arg_key>", value="<arg_value>", end="</arg_value>", lines=False
)


@dataclass(frozen=True)
class Elements(Dialect):
    """Dialect of an object as elements."""

    syntax: ElementSyntax = QWEN

    def mark(self, text: str) -> Node:
        if text == "{}":  # two line breaks in a call without arguments
            return concatenation(self.space, self.space)
        if text == ":":
            value = self.syntax.value
            return concatenation(self.space, value) if value else EMPTY
        return self.space

    def key(self, name: str) -> Node:
        if not _KEY.fullmatch(name):
            raise InvalidGrammarError("schema", f"{name!r:.80} cannot be a name in this markup")
        return Literal(f"{self.syntax.key}{name}{self.syntax.after_key}")

    def free_keys(self, keys: Automaton) -> Automaton:
        return keys.intersection(automaton_of(_FREE_KEY, True))

    def free_key(self, keys: Automaton) -> Node:
        syntax = self.syntax
        return concatenation(syntax.key, Terminal(self.free_keys(keys)), syntax.after_key)

    def form(self, writer: Writer, formula: Formula) -> Node:
        """Return the arguments that fit `formula`.

        Raises `InvalidGrammarError` if whole objects are listed by `enum` or `const`.
        """
        options = []
        for shape in writer.shapes(formula, ("object",)):
            if shape.values is not None or not isinstance(shape.facets, Objects):
                reason = "enum and const of whole arguments cannot be written in this markup"
                raise InvalidGrammarError("schema", reason)
            options.append(writer.members(shape.facets, partial(self._value, writer), self))
        return alternation(*options) if options else NOTHING

    def _value(self, writer: Writer, formula: Formula) -> Node:
        end = self.syntax.end
        options = [concatenation(bare, end) for bare in self._bare(writer, formula)]
        # A bare text may begin as JSON that goes on after its end tag.
        writer.ambiguous |= bool(options and writer.shapes(formula, ("array", "object")))
        if (json := writer.value(formula, _JSON_KINDS)) != NOTHING:
            options.append(concatenation(self.space, json, self.space, end))
        return alternation(*options) if options else NOTHING

    def _bare(self, writer: Writer, formula: Formula) -> Iterator[Node]:
        for shape in writer.shapes(formula, ("string",)):
            try:
                if (texts := writer.texts(shape)) is None:
                    continue
                automaton, low, high = texts
                automaton = automaton.intersection(free_of([self.syntax.end]))
                forms = self._on_lines(automaton) if self.syntax.lines else [("", automaton, "")]
            except TooLargeError as error:
                raise InvalidGrammarError("schema", f"a string is too large: {error}") from error
            for before, inner, after in forms:
                if not inner.is_empty:
                    yield concatenation(before, Terminal(inner, low, high), after)

    def _on_lines(self, automaton: Automaton) -> list[tuple[str, Automaton, str]]:
        """Return texts with a line feed at both ends, at one, or at none. It is not part of the
        value, which may have others there."""
        any_text = r"[\s\S]*"
        begins, ends = (automaton_of(p, True) for p in (rf"\n{any_text}", rf"{any_text}\n"))
        unopened, unclosed = automaton.difference(begins), automaton.difference(ends)
        return [
            ("\n", automaton, "\n"),
            ("\n", unclosed, ""),
            ("", unopened, "\n"),
            ("", unopened.intersection(unclosed), ""),
        ]


# By their names in xgrammar's structural tags.
FORMS = {"qwen_xml": Elements(), "glm_xml": Elements(syntax=GLM)}
