"""Objects as Qwen writes them: XML elements, one for each property."""

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
PARAMETER_END = "</parameter>"


@dataclass(frozen=True)
class Elements(Dialect):
    """Syntax of an object as elements `<parameter=KEY>value</parameter>`, as Qwen writes calls.

    Strings are bare, and other values are JSON text. A value may be on lines of its own; line feeds
    around it are not part of it.
    """

    def mark(self, text: str) -> Node:
        if text == "{}":  # two line breaks in a call without arguments
            return concatenation(self.space, self.space)
        return EMPTY if text == ":" else self.space

    def key(self, name: str) -> Node:
        if not _KEY.fullmatch(name):
            raise InvalidGrammarError("schema", f"{name!r:.80} cannot be a name in this markup")
        return Literal(f"<parameter={name}>")

    def free_keys(self, keys: Automaton) -> Automaton:
        return keys.intersection(automaton_of(_FREE_KEY, True))

    def free_key(self, keys: Automaton) -> Node:
        return concatenation("<parameter=", Terminal(self.free_keys(keys)), ">")

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
        options = [concatenation(bare, PARAMETER_END) for bare in self._bare(writer, formula)]
        # A bare text may begin as JSON that goes on after its end tag.
        writer.ambiguous |= bool(options and writer.shapes(formula, ("array", "object")))
        if (json := writer.value(formula, _JSON_KINDS)) != NOTHING:
            options.append(concatenation(self.space, json, self.space, PARAMETER_END))
        return alternation(*options) if options else NOTHING

    def _bare(self, writer: Writer, formula: Formula) -> Iterator[Node]:
        for shape in writer.shapes(formula, ("string",)):
            try:
                if (texts := writer.texts(shape)) is None:
                    continue
                automaton, low, high = texts
                automaton = automaton.intersection(free_of([PARAMETER_END]))
                unopened, unclosed = self._edges(automaton)
                # A line feed at an end is not part of the value.
                forms = [("\n", automaton, "\n"), ("\n", unclosed, ""), ("", unopened, "\n")]
                forms.append(("", unopened.intersection(unclosed), ""))
            except TooLargeError as error:
                raise InvalidGrammarError("schema", f"a string is too large: {error}") from error
            for before, inner, after in forms:
                if not inner.is_empty:
                    yield concatenation(before, Terminal(inner, low, high), after)

    def _edges(self, automaton: Automaton) -> tuple[Automaton, Automaton]:
        """Return the texts that do not begin, and those that do not end, with a line feed."""
        any_text = r"[\s\S]*"
        begins, ends = (automaton_of(p, True) for p in (rf"\n{any_text}", rf"{any_text}\n"))
        return automaton.difference(begins), automaton.difference(ends)


FORMS = {"qwen_xml": Elements()}  # by their names in xgrammar's structural tags
