"""Schemas as rules, read by a naive recogniser."""

from typing import Any

from recogniser import Recogniser

from dlm.grammar.rules import Rules
from dlm.grammar.schema import Dialect, Written, write


def written(schema: Any, **options: Any) -> tuple[Recogniser, Written]:
    """Return a reader of the schema's rules, to which token 7 is the text "|", and the rules.
    `options` are those of `write`."""
    rules = Rules()
    schema_rules = write(schema, dialect=options.pop("dialect", Dialect()), rules=rules, **options)
    rules.nodes[rules.root] = schema_rules.node
    return Recogniser(rules, {7: "|"}), schema_rules
