"""Random schemas, compared with the `jsonschema` library.

The rules accept exactly the valid values, except for the order of keys and keys that the schema
does not name. The check of finished values agrees with the library on all values.
"""

from typing import Any

import pytest
from exhaustive import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from recogniser import Recogniser
from spelled import orders, text

from dlm.grammar import InvalidGrammarError, InvalidValueError
from dlm.grammar.regex import NOTHING
from dlm.grammar.rules import Rules
from dlm.grammar.schema import Dialect, check, write

_NAMES = st.sampled_from(["a", "b", "ab"])
_SCALARS = st.sampled_from([None, True, False, 0, 1, 2, 3, -1, 1.5, "", "a", "b", "ab", "abc"])
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3),
    max_leaves=5,
)
_COUNTS = st.integers(0, 3)
_TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
_BOUNDS = st.sampled_from([-1, 0, 1, 2, 1.5])
_PATTERNS = st.sampled_from(["a", "^a", "b$", "^(a|b)$", "^.$"])


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(inner, min_size=1, max_size=3)
    every_keyword = {
        "type": _TYPES | st.lists(_TYPES, min_size=1, max_size=3, unique=True),
        "enum": st.lists(_VALUES, min_size=1, max_size=3),
        "const": _VALUES,
        "minimum": _BOUNDS,
        "exclusiveMaximum": _BOUNDS,
        "multipleOf": st.sampled_from([1, 2, 0.5]),
        "minLength": _COUNTS,
        "maxLength": _COUNTS,
        "pattern": _PATTERNS,
        "items": inner,
        "prefixItems": lists,
        "minItems": _COUNTS,
        "maxItems": _COUNTS,
        "contains": inner,
        "minContains": st.integers(0, 2),
        "maxContains": _COUNTS,
        "uniqueItems": st.booleans(),
        "unevaluatedItems": inner,
        "properties": st.dictionaries(_NAMES, inner, max_size=3),
        "patternProperties": st.dictionaries(_PATTERNS, inner, max_size=2),
        "additionalProperties": inner,
        "unevaluatedProperties": inner,
        "propertyNames": inner,
        "required": st.lists(_NAMES, max_size=2, unique=True),
        "minProperties": _COUNTS,
        "maxProperties": _COUNTS,
        "dependentRequired": st.dictionaries(_NAMES, st.lists(_NAMES, max_size=1), max_size=1),
        "dependentSchemas": st.dictionaries(_NAMES, inner, max_size=1),
        "allOf": lists,
        "anyOf": lists,
        "oneOf": lists,
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
    }
    chosen = st.lists(st.sampled_from(sorted(every_keyword)), max_size=4, unique=True)
    return chosen.flatmap(
        lambda words: st.fixed_dictionaries({word: every_keyword[word] for word in words})
    )


_SCHEMAS = st.recursive(st.booleans(), _containers, max_leaves=6)


def _recogniser(schema: Any, closed: bool) -> Recogniser | None:
    """Return a reader of the rules; None if no value fits the schema."""
    rules = Rules()
    try:
        written = write(
            schema,
            dialect=Dialect(),
            rules=rules,
            implied_types=False,
            closed=closed,
            whole=True,  # otherwise rules count free keys that begin alike once
        )
    except InvalidGrammarError as error:
        if not error.reason.startswith("no finite value fits"):
            raise
        return None
    assert written.node != NOTHING
    rules.nodes[rules.root] = written.node
    return Recogniser(rules)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(_SCHEMAS, st.lists(_VALUES, min_size=1, max_size=8))
def test_the_rules_accept_exactly_the_valid_values(schema: Any, values: list[Any]):
    judge = Draft202012Validator(schema)
    try:
        closed, opened = (_recogniser(schema, closed) for closed in (True, False))
    except InvalidGrammarError:
        return  # refused, with a reason
    for value in values:
        if judge.is_valid(value):
            assert opened is not None
            assert any(opened.accepts(text(variant)) for variant in orders(value))
        else:
            assert closed is None or not closed.accepts(text(value))
            assert opened is None or not opened.accepts(text(value))


@examples(1000, suppress_health_check=list(HealthCheck))
@given(_SCHEMAS, st.lists(_VALUES, min_size=1, max_size=8))
def test_the_check_of_a_finished_value_agrees_with_the_library(schema: Any, values: list[Any]):
    judge = Draft202012Validator(schema)
    for value in values:
        if judge.is_valid(value):
            check(value, schema)
        else:
            with pytest.raises(InvalidValueError):
                check(value, schema)
