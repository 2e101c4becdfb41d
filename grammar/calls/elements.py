"""Arguments as elements of markup, one for each: strings are bare, all else is JSON.

It is how an object is written as a whole; what is within its values is JSON text.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.regex.automaton import Automaton, TooLargeError
from dlm.grammar.regex.pattern import automaton_of
from dlm.grammar.rules.dispatch import free_of
from dlm.grammar.rules.nodes import EMPTY, NOTHING, Concatenation, Literal, Node, Terminal
from dlm.grammar.rules.nodes import alternation as either
from dlm.grammar.rules.nodes import concatenation as row
from dlm.grammar.schema.dialect import Dialect
from dlm.grammar.schema.facets import KINDS, Objects
from dlm.grammar.schema.formula import Formula
from dlm.grammar.schema.writer import Writer

_KEY = re.compile(r"""[^<>"'\s]+""")
_FREE_KEY = "[A-Za-z_][A-Za-z0-9_.-]*"
_BARE = ("string",)
_REST = tuple(kind for kind in KINDS if kind != "string")


@dataclass(frozen=True)
class Elements(Dialect):
    """Between `before` and a key, and between a value and `end`, nothing else stands.

    `between` says by type what stands between key and value, a line feed in it for any whitespace.
    With `lines`, a value may be on lines of its own: the line feeds around it are none of it.
    """

    before: str = ""
    between: tuple[tuple[tuple[str, ...], str], ...] = ()
    end: str = ""
    lines: bool = False

    def mark(self, text: str) -> Node:
        if text == "{}":  # both line breaks of a call without arguments
            return row(self.space, self.space)
        return EMPTY if text == ":" else self.space

    def key(self, name: str) -> Node:
        if not _KEY.fullmatch(name):
            raise InvalidGrammarError("schema", f"{name!r:.80} cannot be a name in this markup")
        return Literal(self.before + name)

    def free_key(self, keys: Automaton) -> Node:
        return row(self.before, Terminal(keys.intersection(automaton_of(_FREE_KEY, True))))

    def form(self, writer: Writer, formula: Formula) -> Node:
        """Raises `InvalidGrammarError` for objects that are listed as a whole."""
        options = []
        for shape in writer.shapes(formula, ("object",)):
            if shape.values is not None or not isinstance(shape.facets, Objects):
                reason = "enum and const of whole arguments cannot be written in this markup"
                raise InvalidGrammarError("schema", reason)
            options.append(writer.members(shape.facets, partial(self._value, writer), self))
        return either(*options) if options else NOTHING

    def _value(self, writer: Writer, formula: Formula) -> Node:
        options = []
        for kinds, between in self.between:
            opened = row(*self._spaced(between))
            if kinds == _BARE:
                options += [row(opened, bare, self.end) for bare in self._bare(writer, formula)]
            elif (json := writer.value(formula, kinds)) != NOTHING:
                options.append(row(opened, self.space, json, self.space, self.end))
        return either(*options) if options else NOTHING

    def _spaced(self, text: str) -> Iterator[Node]:
        for i, part in enumerate(text.split("\n")):
            if i:
                yield self.space
            yield Literal(part)

    def _bare(self, writer: Writer, formula: Formula) -> Iterator[Node]:
        for shape in writer.shapes(formula, _BARE):
            try:
                if (texts := writer.texts(shape)) is None:
                    continue
                automaton, low, high = texts
                automaton = automaton.intersection(free_of([self.end]))
                first, last = self._edges(automaton)
                ways = [("", automaton, "")]
                if self.lines:  # a line feed at an end is none of the value
                    ways = [("\n", automaton, "\n"), ("\n", last, ""), ("", first, "\n")]
                    ways.append(("", first.intersection(last), ""))
            except TooLargeError as error:
                raise InvalidGrammarError("schema", f"a string is too large: {error}") from error
            for before, inner, behind in ways:
                if not inner.is_empty:
                    yield Concatenation(
                        (Literal(before), Terminal(inner, low, high), Literal(behind))
                    )

    def _edges(self, automaton: Automaton) -> tuple[Automaton, Automaton]:
        """Those that do not begin, and those that do not end, with a line feed."""
        any_text = r"[\s\S]*"
        begins, ends = (automaton_of(p, True) for p in (rf"\n{any_text}", rf"{any_text}\n"))
        return automaton.difference(begins), automaton.difference(ends)


def _alike(before: str, between: str, end: str, lines: bool = False) -> Elements:
    return Elements(
        before=before, between=((_BARE, between), (_REST, between)), end=end, lines=lines
    )


def _deepseek(name: str) -> Elements:
    name = f"\uff5cDSML\uff5c{name}"
    ways = (_BARE, '" string="true">'), (_REST, '" string="false">')
    return Elements(before=f'<{name} name="', between=ways, end=f"</{name}>")


STYLES = {  # as xgrammar's structural tags name them
    "qwen_xml": _alike("<parameter=", ">", "</parameter>", lines=True),
    "minimax_xml": _alike('<parameter name="', '">', "</parameter>"),
    "deepseek_xml": _deepseek("parameter"),
    "deepseek_v4_1_xml": _deepseek(" parameter"),
    "glm_xml": _alike("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>"),
    "kimi_k3_xml": Elements(
        before='<|open|>argument key="',
        between=tuple(((kind,), f'" type="{kind}"<|sep|>') for kind in KINDS),
        end="<|close|>argument<|sep|>",
    ),
}
