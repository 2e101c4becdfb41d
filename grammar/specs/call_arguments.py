"""Arguments of a tool's calls as rules, exact or wider than the tool's schema.

Agents send the same tools with each request, so rules that were written once are kept.
"""

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from dlm.grammar.calls.markups import MARKUPS
from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.limits import SharedCache
from dlm.grammar.regex.automaton import Automaton, TooLargeError
from dlm.grammar.regex.nodes import Node
from dlm.grammar.rules.rules import Rules, weighed
from dlm.grammar.schema.dialects import Dialect
from dlm.grammar.schema.documents import MOST_WORK, TooMuchWorkError
from dlm.grammar.schema.objects import PropertyOrder
from dlm.grammar.schema.structures import TooManyError
from dlm.grammar.schema.writer import Written, write
from dlm.grammar.specs.finished_calls import judges_arguments_alone
from dlm.grammar.specs.tool_forms import KIND, is_pattern, unenforced
from dlm.grammar.vocabulary.pieces import GemmaMarkers

_ANY: dict[str, Any] = {"type": "object", "additionalProperties": True}
_TOO_HARD = RecursionError, TooLargeError, TooManyError
_KEPT = SharedCache(128 << 20)
QUOTE = 0  # stands for the token of Gemma's quotes, which differs between vocabularies


class CallPart(NamedTuple):
    """A call of one tool as rules."""

    node: Node
    exact: bool = True  # it allows nothing that the tool's schema refuses
    faithful: bool = True  # what is read of it fits the schema if what was written does


class WrittenArguments(NamedTuple):
    """Rules of one tool's arguments, in which `QUOTE` stands for Gemma's quotes."""

    rules: Rules
    exact: bool  # as in `CallPart`
    faithful: bool
    lasting: bool  # whether they are the same however deep the caller's stack is
    nbytes: int  # without `automata`
    automata: Sequence[Automaton]  # which rules of other tools may have, too

    @property
    def total(self) -> int:
        """Bytes of the rules with their automata."""
        return self.nbytes + sum(automaton.nbytes for automaton in self.automata)


class Arguments(NamedTuple):
    """Arguments of one tool, to be written in the form of calls `form`."""

    name: str  # of the tool
    schema: dict[str, Any]
    where: str  # JSON pointer of the schema
    strict: bool
    form: str
    order: PropertyOrder

    def written(self, most_work: int) -> WrittenArguments:
        """Return the arguments as rules, which must not be changed.

        Keywords that the rules cannot enforce are left to a check of the finished arguments, unless
        the tool is strict. Raises `InvalidGrammarError` with the tool's name, and
        `TooMuchWorkError` if the schema takes more than `most_work` and that is less than the limit
        for a schema.
        """
        text = sha256(json.dumps(self.schema).encode()).digest()
        key = text, self.strict, self.form, self.order
        written, too_much = _KEPT.get(key), (*key, most_work)
        if written is not None:
            return written
        if _KEPT.get(too_much):
            raise TooMuchWorkError(KIND, f"it takes more than {most_work} steps", self.where)
        try:
            written = self._write(most_work)
        except TooMuchWorkError:
            _KEPT.keep(too_much, True, 0)
            raise
        if written.lasting:
            _KEPT.keep(key, written, written.nbytes, written.automata)
        return written

    def _write(self, most_work: int) -> WrittenArguments:
        markup, lasting = MARKUPS[self.form], True
        try:
            rules, written = self._rules(self.schema, most_work)
            inexact = written.inexact
        except InvalidGrammarError as error:
            much = isinstance(error, TooMuchWorkError)
            if much and most_work < MOST_WORK:
                raise
            inexact = ((error.where, error.reason),)
            hard = isinstance(error.__cause__, _TOO_HARD) or is_pattern(error.where)
            if not much and not hard:
                whole = ": arguments must be an object" * (error.where == self.where)
                reason = f"tool {self.name!r}: {error.reason}{whole}"
                raise InvalidGrammarError(KIND, reason, error.where or self.where) from error
            if self.strict:
                raise unenforced(self.name, self.where, inexact) from error
            lasting = not isinstance(error.__cause__, RecursionError)
            rules, written = self._rules(_ANY, most_work)
        if inexact and self.strict:
            raise unenforced(self.name, self.where, inexact)
        faithful = markup.exact or (not written.ambiguous and judges_arguments_alone(self.schema))
        return WrittenArguments(rules, not inexact, faithful, lasting, *weighed(rules))

    def _rules(self, schema: dict[str, Any], most_work: int) -> tuple[Rules, Written]:
        rules, markup = Rules(), MARKUPS[self.form]
        written = write(
            schema,
            dialect=Dialect(quote=QUOTE if markup.markers is GemmaMarkers else None),
            rules=rules,
            unenforced="check",
            where=self.where,
            form=markup.arguments,
            property_order=self.order,
            most_work=most_work,
        )
        rules.nodes[rules.root] = written.node
        return rules, written
