"""Templates of prompts, filled with the fields of a row."""

import pytest

from dlm.batch.rows import Template
from dlm.errors import RequestError


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        ("Read {text}!", "Read a {b}!"),
        ("{{{n}}} {Order ID}", "{3} 7"),
        ("{of.x} {text}", "dotted a {b}"),
        ("{list}", '["ä", null]'),
    ],
)
def test_names_in_braces_are_replaced_but_not_within_values(template, prompt):
    fields = {"text": "a {b}", "n": 3, "Order ID": "7", "of.x": "dotted", "list": ["ä", None]}
    assert Template.parse(template).fill(fields) == prompt


@pytest.mark.parametrize("template", ["{", "}", "{}", "{a!r}", "{a:>9}", "{a{b}}"])
def test_other_braces_are_refused(template):
    with pytest.raises(RequestError, match="the template cannot be read"):
        Template.parse(template)


def test_a_template_without_fields_is_refused():
    with pytest.raises(RequestError, match="names no field"):
        Template.parse("all {{alike}}")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [({"a": 1}, "has no field 'text': it has a"), ({"text": None}, "field 'text' is null")],
)
def test_a_missing_field_is_an_error(fields, problem):
    with pytest.raises(RequestError, match=problem):
        Template.column("text").fill(fields)
