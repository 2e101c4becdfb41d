"""Arguments of a tool's calls as rules, exact or wider than the tool's schema."""

from functools import partial
from typing import Any, NamedTuple

from dlm.grammar.calls.markups import Markup
from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.regex.automaton import TooLargeError
from dlm.grammar.regex.nodes import Node
from dlm.grammar.rules.rules import Rules
from dlm.grammar.schema.dialects import Dialect
from dlm.grammar.schema.documents import MOST_WORK, TooMuchWorkError
from dlm.grammar.schema.objects import PropertyOrder
from dlm.grammar.schema.structures import TooManyError
from dlm.grammar.schema.writer import write
from dlm.grammar.specs.finished_calls import judges_arguments_alone
from dlm.grammar.specs.tool_forms import KIND, is_pattern, unenforced
from dlm.grammar.vocabulary.pieces import CallMarkers, GemmaMarkers

_ANY: dict[str, Any] = {"type": "object", "additionalProperties": True}
_TOO_HARD = RecursionError, TooLargeError, TooManyError


class CallPart(NamedTuple):
    """Part of a call as rules, or all of it."""

    node: Node
    exact: bool = True  # it allows nothing that the tool's schema refuses
    faithful: bool = True  # what is read of it fits the schema if what was written does


class Arguments(NamedTuple):
    """Arguments of one tool."""

    name: str  # of the tool
    schema: dict[str, Any]
    where: str  # JSON pointer of the schema
    strict: bool

    def written(
        self,
        markup: Markup,
        markers: CallMarkers | None,
        rules: Rules,
        order: PropertyOrder,
        most_work: int,
    ) -> CallPart:
        """Add the rules of the arguments in a form to `rules`, and return their node.

        Keywords that the rules cannot enforce are left to a check of the finished arguments, unless
        the tool is strict. Raises `InvalidGrammarError` with the tool's name, and
        `TooMuchWorkError` if the schema takes more than `most_work` and that is less than the limit
        for a schema.
        """
        before = len(rules.nodes)
        write_as = partial(
            write,
            dialect=Dialect(quote=markers.quote if isinstance(markers, GemmaMarkers) else None),
            rules=rules,
            unenforced="check",
            where=self.where,
            form=markup.arguments,
            property_order=order,
            most_work=most_work,
        )
        try:
            written = write_as(self.schema)
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
            for rule in list(rules.nodes)[before:]:
                del rules.nodes[rule]
            written = write_as(_ANY)
        if inexact and self.strict:
            raise unenforced(self.name, self.where, inexact)
        faithful = markup.exact or (not written.ambiguous and judges_arguments_alone(self.schema))
        return CallPart(written.node, not inexact, faithful)
