"""Constraints and tools made of Python's types and functions."""

import json
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Annotated, Literal

import pytest
from processes import printed
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from dlm import Choice, InvalidGrammarError, JsonSchema, Request, RequestError, Tools
from dlm.grammar.specs.python_types import tool_of


class Model(BaseModel):
    name: str
    age: int


@dataclass
class Point:
    x: int
    y: int = 0


class Movie(TypedDict):
    title: str


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (Model, '{"name":"Bo","age":3}', Model(name="Bo", age=3)),
        (list[Model], '[{"name":"Bo","age":3}]', [Model(name="Bo", age=3)]),
        (Point, '{"x":1,"y":2}', Point(1, 2)),
        (list[Point], '[{"x":1,"y":2}]', [Point(1, 2)]),
        (Movie, '{"title":"A"}', {"title": "A"}),
        (dict[str, int], '{"a":1}', {"a": 1}),
        (Color, '"red"', Color.RED),
        (Size, "1", Size.SMALL),
        (Model | Point, '{"x":1,"y":2}', Point(1, 2)),
        (int | None, "null", None),
        (Literal["a", 3], "3", 3),
        (Annotated[int, Field(ge=5)], "7", 7),
        (tuple[int, str], '[1,"a"]', (1, "a")),
        (set[int], "[1,2]", {1, 2}),
    ],
)
def test_a_type_is_a_schema_and_the_user_gets_its_instance(type_, text, value):
    spec = JsonSchema(type_)
    assert spec.instance(spec.value(text), text) == value
    assert type(spec.instance(spec.value(text), text)) is type(value)
    assert spec.portable.key == spec.key
    assert isinstance(spec.portable.schema, dict)
    json.dumps(spec.parsed)


@pytest.mark.parametrize("type_", [type(open), list[type(open)], dict[str, type(open)]])
def test_a_type_without_a_schema_is_refused_by_its_name(type_):
    with pytest.raises(InvalidGrammarError, match="has no schema"):
        JsonSchema(type_)


def test_a_choice_of_an_enumeration_gives_its_member():
    spec = Choice(Color)
    assert [*spec.options] == ["red", "blue"] == spec.source
    assert spec.instance(spec.value("red"), "red") is Color.RED
    assert spec.key == Choice(["red", "blue"]).key == spec.portable.key


def test_a_choice_of_a_literal_gives_its_text():
    spec = Choice(Literal["yes", "no"])
    assert [*spec.options] == ["yes", "no"]
    assert spec.instance(spec.value("no"), "no") == "no"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ([], "options must not be empty"),
        ((), "options must not be empty"),
        (Enum("Empty", {}), "options must not be empty"),
        ("yes", "options must be a list of texts, an Enum or a Literal, got 'yes'"),
        (None, "options must be a list of texts"),
        (Size, "(Size.SMALL|1) must be text, got 1"),
        (Literal["a", 1], "1 must be text, got 1; for other values use JsonSchema"),
        (int, "options must be texts, an Enum or a Literal, got int"),
        (list[str], "options must be texts, an Enum or a Literal"),
    ],
)
def test_other_options_are_refused(options, problem):
    with pytest.raises(InvalidGrammarError, match=problem):
        Choice(options)


def get_weather(city: str, days: int = 3, unit: Literal["C", "F"] = "C") -> str:
    """Return the weather of a city."""
    return city


def test_a_function_is_a_tool():
    function = tool_of(get_weather)["function"]
    assert function["name"] == "get_weather"
    assert function["description"] == "Return the weather of a city."
    parameters = function["parameters"]
    assert parameters["required"] == ["city"]
    assert parameters["properties"]["unit"]["enum"] == ["C", "F"]
    listed = [tool_of(get_weather)]
    assert Tools([get_weather]) == Tools(listed)
    assert Tools([get_weather]).key == Tools(listed).key
    assert Request(prompt="hi", tools=[get_weather]).tools == listed
    assert Request(prompt="hi", constraint=Tools([get_weather])).tools == listed
    assert (
        Request(prompt="hi", tools=[get_weather], constraint=Tools([get_weather])).tools == listed
    )


@pytest.mark.parametrize(
    "function", [lambda *texts: 0, lambda **texts: 0, lambda a, /: 0, lambda a: 0]
)
def test_a_function_that_is_no_tool_is_refused(function):
    for make in (Tools, lambda tools: Request(prompt="hi", tools=tools)):
        with pytest.raises((InvalidGrammarError, RequestError), match=r"tools"):
            make([function])


def test_a_model_of_a_script_is_compiled_without_a_warning():
    code = """if True:
        import logging
        import sys
        from enum import Enum
        from pydantic import BaseModel
        import dlm

        logging.basicConfig(level=logging.WARNING, format="WARNED %(message)s", stream=sys.stdout)

        class Person(BaseModel):
            name: str

        class Color(Enum):
            RED = "red"

        engine = dlm.Engine.load(device="cpu")
        for spec in (dlm.JsonSchema(Person), dlm.JsonSchema(list[Person]), dlm.Choice(Color)):
            engine.compile(spec).result()
        lax = dlm.JsonSchema(Person, unenforced="check")
        result = engine.generate(dlm.Request(prompt="hi", constraint=lax, max_tokens=24))
        print(type(result.parsed).__name__)
    """
    assert printed(code).split() == ["Person"]
