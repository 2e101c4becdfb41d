"""What a user may ask a text to be: a sentence of a context-free grammar."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.kinds.spec import Spec
from dlm.grammar.rules.analysis import check
from dlm.grammar.rules.ebnf import read_ebnf
from dlm.grammar.rules.lark import read_lark
from dlm.grammar.rules.nodes import Node
from dlm.grammar.rules.rules import Rules
from dlm.grammar.rules.terminals import with_terminals
from dlm.grammar.schema.dialect import Dialect
from dlm.grammar.schema.writer import write

if TYPE_CHECKING:
    from dlm.grammar.markers import CallMarkers


@dataclass(frozen=True)
class Grammar(Spec):
    """A sentence of the grammar that `text` says: EBNF, from `root`, or Lark, from `start`.

    `dlm.grammar.rules.ebnf` and `dlm.grammar.rules.lark` tell of the dialects.
    """

    text: str
    syntax: Literal["ebnf", "lark"] = "ebnf"

    kind = "grammar"

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not self.text.strip():
            raise InvalidGrammarError(self.kind, f"rules are text, not {self.text!r:.40}")
        if self.syntax not in ("ebnf", "lark"):
            raise InvalidGrammarError(self.kind, f"syntax is {self.syntax!r}, not ebnf or lark")

    @property
    def source(self) -> str:
        return self.text

    @property
    def key(self) -> Hashable:
        return self.kind, self.syntax, self.text

    def rules(self, markers: "CallMarkers | None") -> Rules:
        rules = read_ebnf(self.text) if self.syntax == "ebnf" else read_lark(self.text, _schema)
        check(rules)
        return with_terminals(rules)

    def value(self, text: str) -> str:
        return text


def _schema(schema: Any, rules: Rules) -> Node:
    return write(schema, dialect=Dialect(), rules=rules).node
