"""Keywords: the types that a schema may allow, and conditions that several subschemas share."""

from typing import Any

import pytest
from written_schemas import written

from dlm.grammar import JsonSchema
from dlm.grammar.schema.conditions import KINDS
from dlm.grammar.schema.documents import DocumentReader, Work
from dlm.grammar.schema.formulas import complement
from dlm.grammar.schema.keywords import Keywords
from dlm.grammar.schema.languages import Languages

TEXT, COUNT = {"type": "string"}, {"type": "integer", "minimum": 1}


def keywords_of(schema: Any) -> Keywords:
    work = Work()
    return Keywords(DocumentReader(schema, None, "", work), Languages(True, work))


@pytest.mark.parametrize(
    ("schema", "kinds"),
    [
        (TEXT, ["string"]),
        (COUNT, ["number"]),
        ({"type": ["null", "integer"]}, ["number", "null"]),
        ({"type": []}, []),
        ({"maxLength": 3}, [*KINDS]),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": TEXT}}, ["string"]),
        ({"allOf": [{"type": ["string", "null"]}, {"type": ["null", "array"]}]}, ["null"]),
        ({"anyOf": [TEXT, COUNT, TEXT]}, ["string", "number"]),
        ({"oneOf": [TEXT, {"not": TEXT}]}, [*KINDS]),
        ({"type": "object", "anyOf": [TEXT, {}]}, ["object"]),
        ({"type": "object", "anyOf": [TEXT, COUNT]}, []),
        ({"not": TEXT}, [*KINDS]),
        ({"if": TEXT, "then": {"minLength": 1}, "else": COUNT}, [*KINDS]),
        ({"anyOf": [TEXT, {"$ref": "#"}]}, [*KINDS]),
    ],
)
def test_types_are_those_that_the_schema_and_its_parts_allow(schema: Any, kinds: list[str]):
    keywords = keywords_of(schema)
    root = keywords.formula(schema, keywords.reader.root)
    assert [*keywords.kinds(root)] == kinds
    assert [*keywords.kinds(complement(root))] == [*KINDS]


def test_a_wrong_reference_beside_a_type_that_is_ruled_out_is_no_error():
    parts = [{"type": "object", "$ref": "#/$defs/missing"}, {"minLength": 1}]
    recogniser, _ = written({"type": "string", "anyOf": parts})
    assert [recogniser.accepts(text) for text in ('"a"', '""', "{}")] == [True, False, False]


def test_references_through_dynamic_scopes_are_followed_a_limited_number_of_times():
    # Each order in which the resources are entered is another scope.
    names = [f"http://example.com/{i}" for i in range(12)]
    schema = {"$ref": names[0], "$defs": {}}
    for name in names:
        parts = [TEXT, *({"$ref": other} for other in names if other != name)]
        anchor = "a" + name[-2:].strip("/")
        schema["$defs"][name] = {"$id": name, "$dynamicAnchor": anchor, "anyOf": parts}
    keywords = keywords_of(schema)
    assert [*keywords.kinds(keywords.formula(schema, keywords.reader.root))] == [*KINDS]


def test_types_that_references_rule_out_take_no_steps():
    properties = {f"k{i}": {"$ref": "#/$defs/a"} for i in range(100)}
    schema = {"$defs": {"a": TEXT}, "type": "object", "properties": properties}
    written(schema, most_work=4 * len(properties))  # raises an error if it takes more


@pytest.mark.parametrize(
    ("depending", "same"), [({}, True), ({"dependentRequired": {"a": ["b"]}}, False)]
)
def test_references_are_followed_once_for_all_types_unless_properties_depend_on_others(
    depending: dict[str, Any], same: bool
):
    schema = {
        "$ref": "#/$defs/a",
        "anyOf": [TEXT, {"type": "object"}],
        "$defs": {"a": {"minLength": 1}},
    }
    keywords = keywords_of(schema | depending)
    root = keywords.reader.root
    assert (keywords.combined(root, "object") is keywords.combined(root, "string")) == same


def test_subschemas_that_assert_nothing_but_the_same_type_share_their_rules():
    def rules(*parts: dict[str, Any]) -> int:
        properties = {f"k{i}": {"type": "array", "items": part} for i, part in enumerate(parts)}
        return len(JsonSchema({"type": "object", "properties": properties}).rules().nodes)

    first, second = TEXT | {"description": "a"}, TEXT | {"title": "b"}
    assert rules(first, second) == rules(first, first)
    assert rules(first, COUNT) > rules(first, first)
