"""Alternatives of `oneOf` that have no value in common: found cheaply, and only if it is so."""

import json
import re
from typing import Any

import pytest
from readers import misread
from recogniser import Recogniser

from dlm.grammar import InvalidGrammarError, InvalidValueError, JsonSchema
from dlm.grammar.rules import Rules
from dlm.grammar.schema import Dialect, write

TEXT = {"type": "string"}


def whole(**properties: Any) -> dict[str, Any]:
    """An object whose properties are all required."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def integer(low: int, high: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high}


MANY = {
    "ranges of a property": lambda i: whole(x=integer(10 * i, 10 * i + 9), y=TEXT),
    "ranges with ends that are not allowed": lambda i: whole(
        x={"type": "number", "minimum": i, "exclusiveMaximum": i + 1}
    ),
    "numbers": lambda i: integer(10 * i, 10 * i + 9),
    "lengths": lambda i: TEXT | {"minLength": 2 * i, "maxLength": 2 * i + 1},
    "lists": lambda i: {"type": "array", "minItems": 2 * i, "maxItems": 2 * i + 1},
    "a required key of its own": lambda i: whole(**{f"k{i}": TEXT, "y": TEXT}),
    "constants": lambda i: whole(kind={"const": f"t{i}"}, **{f"a{i}": TEXT}),
    "lists of values": lambda i: whole(c={"enum": [f"c{i}", f"d{i}"]}, v={}),
    "values and ranges": lambda i: whole(
        c=integer(2 * i, 2 * i + 1) if i % 2 else {"const": 2 * i}
    ),
    "constants within a property": lambda i: whole(
        event=whole(id=TEXT, kind={"const": f"t{i}"}), **{f"a{i}": TEXT}
    ),
    "constants two levels below": lambda i: whole(
        x=whole(event=whole(kind={"enum": [f"t{i}", f"u{i}"]}), text=TEXT)
    ),
    "ranges within a property": lambda i: whole(event=whole(at=integer(10 * i, 10 * i + 9))),
    "constants within a property after many others": lambda i: whole(
        **{f"k{n}": TEXT for n in range(12)},
        event=whole(**{f"k{n}": TEXT for n in range(12)}, kind={"const": f"t{i}"}),
    ),
    "a second property": lambda i: whole(x=TEXT, y=integer(10 * i, 10 * i + 9)),
}


@pytest.mark.parametrize("name", MANY)
def test_many_disjoint_alternatives_take_little_work(name: str):
    schema = {"oneOf": [MANY[name](i) for i in range(100)]}
    written = write(schema, dialect=Dialect(), rules=Rules(), most_work=20_000)
    assert not written.inexact


def test_two_hundred_ranges_are_enforced():
    schema = {"oneOf": [MANY["ranges of a property"](i) for i in range(200)]}
    accepts = Recogniser(JsonSchema(schema).rules(None)).accepts
    right = [json.dumps({"x": x, "y": "z"}) for x in (0, 9, 10, 1005, 1999)]
    wrong = [json.dumps({"x": x, "y": "z"}) for x in (-1, 2000)] + ['{"x": 5}']
    assert misread(accepts, right, wrong) == []


@pytest.mark.parametrize(
    ("one", "other", "first", "both"),
    [
        (integer(0, 10), integer(10, 20), 9, 10),
        (integer(0, 10), {"enum": [7, 12]}, 8, 7),
        (TEXT | {"maxLength": 3}, TEXT | {"minLength": 3}, "ab", "abc"),
        ({"enum": ["ab", "abc"]}, TEXT | {"minLength": 3}, "ab", "abc"),
        ({"items": TEXT, "maxItems": 2}, {"items": TEXT, "minItems": 2}, ["a"], ["a", "b"]),
        ({"const": 1}, {"enum": [1.0, 2]}, 2, 1),
        (whole(x=integer(0, 10), y=TEXT), whole(x=integer(10, 20), y=TEXT),
         {"x": 3, "y": ""}, {"x": 10, "y": ""}),
        (whole(x=TEXT), whole(y=TEXT), {"x": "a"}, {"x": "a", "y": "b"}),
        (whole(e=whole(x={"enum": ["a", "b"]})), whole(e=whole(x={"enum": ["b", "c"]})),
         {"e": {"x": "a"}}, {"e": {"x": "b"}}),
        (whole(e=whole(x={"const": "a"})), whole(e=whole(y={"const": "b"})),
         {"e": {"x": "a"}}, {"e": {"x": "a", "y": "b"}}),
        (whole(e={"properties": {"x": {"const": "a"}}, "type": "object"}),
         whole(e={"properties": {"x": {"const": "b"}}, "type": "object"}),
         {"e": {"x": "a"}}, {"e": {}}),
    ],
)  # fmt: skip
def test_a_value_that_fits_two_alternatives_is_refused(one: Any, other: Any, first: Any, both: Any):
    spec = JsonSchema({"oneOf": [one, other]}, additional_properties="schema")
    accepts = Recogniser(spec.rules(None)).accepts
    assert misread(accepts, [json.dumps(first)], [json.dumps(both)]) == []
    with pytest.raises(InvalidValueError, match="fits oneOf/0 and oneOf/1 at once"):
        spec.value(json.dumps(both))


def test_a_key_of_another_alternative_is_excluded_even_where_the_object_names_it():
    keys = {"a": TEXT, "b": TEXT, "c": TEXT}
    options = [{"required": [name]} for name in keys]
    spec = JsonSchema({"type": "object", "properties": keys, "oneOf": options})
    accepts = Recogniser(spec.rules(None)).accepts
    assert misread(accepts, ['{"a": ""}', '{"c": ""}'], ['{"a": "", "c": ""}', "{}"]) == []


def test_alternatives_that_overlap_in_open_objects_are_still_refused_beyond_the_limit():
    schema = {"oneOf": [MANY["a required key of its own"](i) for i in range(60)]}
    with pytest.raises(InvalidGrammarError, match="more than 60000 steps") as caught:
        JsonSchema(schema, additional_properties="schema").rules(None)
    both = r"values may fit both /oneOf/\d+ and /oneOf/\d+, .* a required property with other const"
    assert re.search(both, str(caught.value))


def test_the_error_names_the_innermost_schemas_that_overlap():
    inner = {"oneOf": [MANY["a required key of its own"](i) for i in range(60)]}
    schema = {"oneOf": [whole(x=inner, y=TEXT), whole(x=inner, z=TEXT)]}
    with pytest.raises(InvalidGrammarError, match="more than 60000 steps") as caught:
        JsonSchema(schema, additional_properties="schema").rules(None)
    assert str(caught.value).count("values may fit both") == 1
    assert "/oneOf/0/properties/x/oneOf/0 and" in str(caught.value)


def test_a_tag_within_a_property_chooses_the_other_properties():
    schema = {"oneOf": [MANY["constants within a property"](i) for i in range(60)]}
    accepts = Recogniser(JsonSchema(schema).rules(None)).accepts

    def text(tag: int, key: int) -> str:
        return json.dumps({"event": {"id": "x", "kind": f"t{tag}"}, f"a{key}": "y"})

    right = [text(i, i) for i in (0, 7, 59)]
    assert misread(accepts, right, [text(0, 1), text(60, 60), '{"event": {"id": "x"}}']) == []
