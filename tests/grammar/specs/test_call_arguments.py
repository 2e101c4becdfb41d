"""Arguments in a form without quotes: those that are read as they were written, and others."""

import json
import re

import pytest
from spoken import accepts, sample, tools

from dlm.grammar import InvalidValueError, JsonSchema

TEXT, NUMBER, TRUTH, LIST = ({"type": t} for t in ("string", "integer", "boolean", "array"))
NULLABLE = {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "null"}]}


def holding(required=(), **properties):
    return {"type": "object", "properties": properties, "required": [*required]}


def call(**texts):
    values = "".join(f"<parameter={name}>{text}</parameter>" for name, text in texts.items())
    return f"<tool_call>\n<function=f>{values}</function></tool_call>"


FAITHFUL = {
    "texts and other types apart": holding(["a"], a=TEXT, b=NUMBER, c=LIST, d=holding(x=TRUTH)),
    "a text or a scalar": holding(a=NULLABLE, b={"type": ["string", "integer"], "maxLength": 2}),
    "keys of patterns": {"type": "object", "patternProperties": {"^x": TEXT, "^y": NUMBER}},
    "a reference at the root": {
        "$ref": "#/$defs/f",
        "$defs": {"f": holding(a=TEXT, next={"$ref": "#/$defs/f"})},
    },
    "all of several": {"allOf": [holding(["a"], a=TEXT), holding(b=NUMBER)]},
    "unions within an argument": holding(a={"anyOf": [holding(["k"], k=TEXT), LIST, NUMBER]}),
    "required together": holding(a=TEXT, b=NUMBER) | {"dependentRequired": {"a": ["b"]}},
}


@pytest.mark.parametrize("form", ["qwen3_coder", "glm"])
@pytest.mark.parametrize("case", FAITHFUL)
def test_arguments_that_the_rules_allow_are_read_as_ones_that_fit(case, form):
    spec = tools(FAITHFUL[case], strict=True, format=form)
    assert spec.enforced
    assert spec.checked
    for seed in range(8):
        spec.value(sample(spec.rules(None), seed))


OTHERS = {
    "a text that begins as a list": (
        holding(["b"], a={"type": ["string", "array"]}, b=TEXT),
        call(a='["a', b='x"]'),
    ),
    "a number that another branch has for a text": (
        {
            "anyOf": [
                holding(["a", "b"], a=TEXT, b=TEXT),
                holding(a=NUMBER) | {"additionalProperties": False},
            ]
        },
        call(a="5", b="x"),
    ),
    "a number that tells branches apart": (
        {
            "oneOf": [
                holding(["a", "b"], a={"const": 1}, b=TEXT),
                holding(["a", "c"], a={"const": 2}, c=TEXT),
            ]
        },
        call(a="1", b="x"),
    ),
    "a condition about another argument": (
        holding(["a", "b"], a=TEXT, b={"type": ["boolean", "integer"]})
        | {
            "if": {"properties": {"a": {"const": "x"}}},
            "then": {"properties": {"b": NUMBER}},
            "else": {"properties": {"b": TRUTH}},
        },
        call(a="y", b="true"),
    ),
}


def in_glms_tags(text):
    """Return a call in the tags of GLM, from one in those of Qwen."""
    text = re.sub(r"<parameter=(\w+)>", r"<arg_key>\1</arg_key><arg_value>", text)
    text = text.replace("</parameter>", "</arg_value>")
    return text.replace("\n<function=f>", "f").replace("</function>", "")


@pytest.mark.parametrize("form", ["qwen3_coder", "glm"])
@pytest.mark.parametrize("case", OTHERS)
def test_arguments_that_may_be_read_as_ones_that_do_not_fit_are_not_enforced(case, form):
    schema, text = OTHERS[case]
    text = in_glms_tags(text) if form == "glm" else text
    spec = tools(schema, format=form)
    assert accepts(spec, text)
    with pytest.raises(InvalidValueError):
        spec.value(text)
    assert not spec.enforced
    assert tools(schema, format="hermes").enforced


@pytest.mark.parametrize("form", ["hermes", "qwen3_coder"])
def test_what_no_rules_hold_is_not_enforced_in_any_form(form):
    repeated = {"type": "array", "items": TEXT, "uniqueItems": True}
    spec = tools(holding(a=repeated), format=form)
    assert (spec.checked, spec.enforced) == (True, False)
    assert tools(holding(a=json.loads(json.dumps(LIST))), format=form).enforced


def test_only_arguments_that_are_relied_on_have_to_be_enforced():
    """A tool that may be called and is not strict is lax, unless other content has a form."""
    schema, _ = OTHERS["a text that begins as a list"]
    for options, enforced in (
        ({"choice": "auto"}, True),
        ({"choice": "auto", "strict": True}, False),
        ({"choice": "auto", "content": JsonSchema(TRUTH)}, False),
        ({"choice": "required"}, False),
        ({"named": "f"}, False),
    ):
        assert tools(schema, format="qwen3_coder", **options).enforced == enforced, options
