"""Texts that a schema's rules once let through, or once refused, in the interplay of keywords."""

import json
from typing import Any

import pytest
from recogniser import Recogniser

from dlm.grammar import (
    Grammar,
    InvalidGrammarError,
    InvalidValueError,
    JsonSchema,
    Regex,
    StructuralTag,
)
from dlm.grammar.rules import Rules
from dlm.grammar.schema import Dialect, write

DRAFT_4 = "http://json-schema.org/draft-04/schema#"

CASES: list[tuple[str, Any, list[str], list[str]]] = [
    (
        "a key that is a word to some readers of patterns fits what is said of both",
        {
            "type": "object",
            "properties": {"é": {}},
            "patternProperties": {r"^\w+$": {"type": "integer"}},
            "additionalProperties": {"type": "string"},
        },
        ['{"a": 1}', '{"-": "x"}', '{"é": 1}'],
        ['{"a": "x"}', '{"-": 1}', '{"é": "x"}', '{"ö": 1}', '{"ö": "x"}', '{"a\\n": "x"}'],
    ),
    (
        "what must not match does not in front of a last line feed either, as Python reads it",
        {"type": "string", "not": {"pattern": "^a$"}},
        ['"b"', '"a\\n\\n"', '"ab"'],
        ['"a"', '"a\\n"'],
    ),
    (
        "one property may be what two conditions ask for",
        {
            "type": "object",
            "maxProperties": 1,
            "allOf": [
                {"not": {"patternProperties": {"^a": {"type": "string"}}}},
                {"not": {"patternProperties": {"b$": {"type": "integer"}}}},
            ],
        },
        ['{"ab": null}'],
        ["{}", '{"ab": 1}', '{"ab": "x"}', '{"a": 1}', '{"b": "x"}'],
    ),
    (
        "a property whose numbers no double holds is left out",
        {
            "type": "object",
            "properties": {
                "a": {
                    "type": "number",
                    "multipleOf": 1e-20,
                    "exclusiveMinimum": 0,
                    "maximum": 1e-19,
                }
            },
        },
        ["{}"],
        ['{"a": 1e-20}', '{"a": 0.00000000000000000001}'],
    ),
    (
        "a unique array may have too few values for its least length",
        {
            "type": "object",
            "properties": {
                "a": {
                    "type": "array",
                    "items": {"enum": [1, 2]},
                    "uniqueItems": True,
                    "minItems": 3,
                }
            },
        },
        ["{}"],
        ['{"a": [1, 2]}', '{"a": []}'],
    ),
    (
        "a lookbehind that begins at the start of the text ends where it cannot go on",
        {"type": "string", "pattern": "(?<=^ab*)c"},
        ['"abc"', '"ac"', '"abbcx"'],
        ['"xbc"', '"c"', '"bc"'],
    ),
    (
        "a bound between two doubles",
        {"type": "number", "minimum": 9007199254740993},
        ["9007199254740994", "9007199254740994.0", "9007199254740996"],
        ["9007199254740993.0", "9007199254740992"],
    ),
    (
        "an integer of draft 4 has no point",
        {"$schema": DRAFT_4, "type": "integer", "enum": [1.0, 2]},
        ["1", "2"],
        ["1.0"],
    ),
    (
        "a key that is empty is no keyword",
        {"type": "object", "properties": {"a": {"type": "string", "": 5}}, "": None},
        ['{"a": "x"}'],
        ['{"a": 1}'],
    ),
    (
        "only a line feed ends a line for every reader",
        {"type": "string", "pattern": "(?m:^)a"},
        ['"x\\na"', '"a"'],
        ['"x\\ra"', '"xa"'],
    ),
]


@pytest.mark.parametrize(("why", "schema", "good", "bad"), CASES, ids=[case[0] for case in CASES])
def test_what_is_let_through_is_valid(why: str, schema: Any, good: list[str], bad: list[str]):
    rules = Rules()
    rules.nodes[rules.root] = write(schema, dialect=Dialect(), rules=rules).node
    recogniser = Recogniser(rules)
    assert [text for text in good if not recogniser.accepts(text)] == []
    assert [text for text in bad if recogniser.accepts(text)] == []


def test_the_check_knows_the_dependencies_of_older_drafts_too():
    schema = {"dependencies": {"a": ["b"], "c": {"required": ["d"]}}}
    for value, fits in (({"a": 1}, False), ({"a": 1, "b": 2}, True), ({"c": 1}, False), ({}, True)):
        assert (problem_of(schema, value) is None) == fits
        assert (problem_of({"not": schema}, value) is None) != fits


def problem_of(schema: Any, value: Any) -> str | None:
    try:
        JsonSchema(schema, implied_types=False).value(json.dumps(value))
    except InvalidValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    "make",
    [
        lambda: Regex("^" * 5000),
        lambda: Regex("a{,}"),
        lambda: Regex("[^]a]"),
        lambda: Regex("[]a]"),
        lambda: Grammar('start: %json {"const": "\\ud800"}', "lark").rules(None),
        lambda: StructuralTag(OLD_TAG).rules(None),
    ],
    ids=["anchors", "no count", "class", "class of none", "half a pair", "half a pair in a tag"],
)
def test_what_readers_disagree_on_or_nobody_reads_is_refused(make):
    with pytest.raises(InvalidGrammarError):
        make()


OLD_TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<a>", "schema": '{"const": "\\ud800"}', "end": "</a>"}],
    "triggers": ["<a"],
}
