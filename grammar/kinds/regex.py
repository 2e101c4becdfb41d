"""What a user may ask a text to be: a match of a regex."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.kinds.spec import Spec
from dlm.grammar.regex.pattern import parse
from dlm.grammar.rules.rules import Rules
from dlm.grammar.rules.terminals import matching, with_terminals

if TYPE_CHECKING:
    from dlm.grammar.markers import CallMarkers


@dataclass(frozen=True)
class Regex(Spec):
    """A text that `pattern` matches from its beginning to its end, as ECMAScript has it.

    Regular: no back-reference. Raises `InvalidGrammarError` for what is no such pattern.
    """

    pattern: str

    kind = "regex"

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, str) or not self.pattern:
            raise InvalidGrammarError(self.kind, f"a pattern is text, not {self.pattern!r:.40}")
        try:
            parse(self.pattern, whole=True)
        except InvalidGrammarError as error:
            raise InvalidGrammarError(self.kind, error.reason, error.where) from error

    @property
    def source(self) -> str:
        return self.pattern

    @property
    def key(self) -> Hashable:
        return self.kind, self.pattern

    def rules(self, markers: "CallMarkers | None") -> Rules:
        rules = Rules()
        try:
            rules.nodes[rules.root] = matching(self.pattern)
        except InvalidGrammarError as error:
            raise InvalidGrammarError(self.kind, error.reason, error.where) from error
        return with_terminals(rules)

    def value(self, text: str) -> str:
        return text
