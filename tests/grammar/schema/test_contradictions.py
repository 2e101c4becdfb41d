"""Errors for schemas that no value fits: they name the keywords that contradict each other."""

from typing import Any

import pytest

from dlm.grammar import InvalidGrammarError, JsonSchema, Tools

TEXT = {"type": "string"}


def whole(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    """An object whose properties are all required."""
    required = list(properties)
    return {"type": "object", "properties": properties, "required": required, **more}


CLOSED = {"type": "object", "properties": {"a": TEXT}, "additionalProperties": False}
NODE = whole({"next": {"$ref": "#/$defs/node"}})


@pytest.mark.parametrize(
    ("schema", "where", "reason"),
    [
        (CLOSED | {"required": ["b"]}, "/", "'b' is required, and additionalProperties forbids it"),
        (CLOSED | {"minProperties": 2}, "/", "minProperties is 2, and at most 1 properties"),
        (
            whole({"o": whole({"l": {"items": CLOSED | {"required": ["a", "q"]}, "minItems": 1}})}),
            "/properties/o/properties/l/items",
            "'q' is required, and additionalProperties forbids it",
        ),
        (
            {
                "type": "object",
                "allOf": [{"properties": {"a": TEXT}}, {"required": ["b"]}],
                "unevaluatedProperties": False,
            },
            "/",
            "'b' is required, and unevaluatedProperties forbids it",
        ),
        (
            {"required": ["a b"], "propertyNames": {"pattern": "^[a-z]+$"}},
            "/",
            "'a b' is required, and propertyNames forbids it",
        ),
        (
            {"required": ["x1"], "patternProperties": {"^x": False}},
            "/",
            "'x1' is required, and patternProperties forbids it",
        ),
        (whole({"a": TEXT}, **{"not": {"required": ["a"]}}), "/", "another keyword forbids it"),
        (whole({"a": TEXT, "b": TEXT}, maxProperties=1), "/", "2 properties are required, and max"),
        (
            whole({"n": {"type": "integer", "minimum": 5, "maximum": 1}}),
            "/properties/n",
            "minimum 5 is above maximum 1$",
        ),
        (
            {"type": "number", "exclusiveMinimum": 5, "maximum": 5},
            "/",
            "exclusiveMinimum 5 is no lower than maximum 5$",
        ),
        (
            {"type": "integer", "minimum": 1.25, "maximum": 1.75},
            "/",
            "no integer is within minimum 1.25 and maximum 1.75$",
        ),
        (
            {"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 6},
            "/",
            "no multiple of 7 is within minimum 1 and maximum 6$",
        ),
        ({"type": "string", "minLength": 5, "maxLength": 2}, "/", "minLength 5 is above maxLength"),
        (
            {"type": "string", "pattern": "^abc$", "maxLength": 2},
            "/",
            r"no string fits all of pattern '\^abc\$' and 0 to 2 characters$",
        ),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "/", "minItems 3 is above maxItems 2$"),
        (
            {"type": "array", "minItems": 2, "prefixItems": [{}], "items": False},
            "/",
            "minItems is 2, and no value may be item 1$",
        ),
        (
            {"type": "array", "items": TEXT, "contains": {"type": "integer"}},
            "/",
            "contains needs an item that fits it, and no item may$",
        ),
        (
            {"type": "array", "items": TEXT, "minContains": 2, "maxContains": 1, "contains": {}},
            "/",
            "minContains 2 is above maxContains 1$",
        ),
        (
            {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True, "minItems": 3},
            "/",
            "minItems is 3, and uniqueItems leaves at most 2 items$",
        ),
        ({"type": "string", "enum": [1, 2]}, "/", "enum lists no value of the type string$"),
        (
            {
                "type": "object",
                "properties": {"ab": {"enum": [1.5, ["x"]]}},
                "patternProperties": {"^a": {"type": "integer"}},
                "required": ["ab"],
            },
            "/properties/ab",
            "no value of enum or const fits type$",
        ),
        (
            {"type": "integer", "enum": [1, 2], "minimum": 5},
            "/",
            "no value of enum or const fits minimum and type$",
        ),
        (TEXT | {"const": 5}, "/", "const 5 is not of the type string$"),
        (whole({"a": {"type": "integer", "const": 1.5}}), "/properties/a", "const 1.5 is not of"),
        ({"type": ["null", "string"], "const": {}}, "/", "const {} is not of the type null or str"),
        ({"enum": []}, "/", "enum is empty: it has to list a value$"),
        ({"const": "c", "enum": ["a"]}, "/", 'const "c" is not in enum: it has to be one of its'),
        ({"allOf": [TEXT, TEXT | {"const": 5}]}, "/allOf/1", "const 5 is not of the type string$"),
        (
            {"allOf": [TEXT, {"type": "integer"}]},
            "/",
            "allOf/0 allows only string, and allOf/1 only integer: they need a type in common$",
        ),
        (
            {"$defs": {"n": {"type": "integer"}}, "type": ["string", "null"], "$ref": "#/$defs/n"},
            "/",
            "type allows only string and null, and .ref only integer",
        ),
        (
            TEXT | {"anyOf": [{"type": "integer"}, {"const": None}]},
            "/",
            "anyOf only number and nul",
        ),
        ({"allOf": [{"const": 1}, {"const": 2}]}, "/", "no value fits both allOf/0 and allOf/1$"),
        ({"not": {}}, "/", "not refuses every value"),
        ({"allOf": [{}, False]}, "/", "allOf/1 is false"),
        ({"$defs": {"no": False}, "$ref": "#/$defs/no"}, "/", ".ref is false"),
        ({"oneOf": [False, False]}, "/", "no value fits exactly one schema of oneOf$"),
        (
            whole({"v": {"oneOf": [whole({"a": TEXT}), whole({"a": TEXT})]}}),
            "/properties/v",
            "oneOf/0 and oneOf/1 are equal: oneOf takes values that fit exactly one .* anyOf",
        ),
        (
            {"type": "integer", "oneOf": [TEXT, {"type": "number"}, {"type": "integer"}]},
            "/",
            "oneOf/1 and oneOf/2 have values in common, and no other value fits",
        ),
        (
            CLOSED | {"required": ["a"], "dependentRequired": {"a": ["b"]}},
            "/",
            "'b' is required by dependentRequired beside 'a', and additionalProperties forbids it: "
            "properties has to name it$",
        ),
        (
            {"anyOf": [{"type": "integer", "minimum": 2, "maximum": 1}, TEXT | {"enum": [1]}]},
            "/",
            "minimum 2 is above maximum 1$",
        ),
        (
            {"allOf": [whole({"a": {"minimum": 5}}), whole({"a": {"maximum": 1}})]},
            "/allOf/0/properties/a",
            "minimum 5 is above maximum 1$",
        ),
        (
            {"$defs": {"node": NODE}, "properties": {"a": NODE}, "required": ["a"]},
            "/",
            "each value of the schema at /.defs/node/properties/next has to contain another",
        ),
        ({"properties": {"a": False}, "required": ["a"]}, "/", "'a' is required, and another key"),
        (False, "/", "no finite value fits"),
    ],
)
def test_an_error_names_what_cannot_be_met(schema: Any, where: str, reason: str):
    with pytest.raises(InvalidGrammarError, match=reason) as caught:
        JsonSchema(schema).rules(None)
    assert caught.value.where == where


def test_the_error_of_a_tool_names_it_too():
    parameters = CLOSED | {"required": ["b"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    with pytest.raises(InvalidGrammarError, match="'b' is required, and additional") as caught:
        Tools([tool])
    assert caught.value.where == "/tools/0/function/parameters"


def test_many_alternatives_that_are_not_compared_are_not_blamed():
    parts = [{"anyOf": [{"minimum": i, "maximum": i} for i in range(n, n + 20)]} for n in (0, 50)]
    with pytest.raises(InvalidGrammarError, match="no finite value fits") as caught:
        JsonSchema({"type": "integer", "allOf": parts}).rules(None)
    assert "both" not in str(caught.value)
