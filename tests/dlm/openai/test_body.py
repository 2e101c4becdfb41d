"""Models of bodies: one short error for the first problem, even of a huge or strange body."""

from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import TypeAdapter

from dlm import Policy, RequestError
from dlm.openai.body import (
    REQUIRED,
    ByField,
    ClosedModel,
    Each,
    JsonModel,
    Object,
    Several,
    Shaped,
    Takes,
    Words,
    validated,
)
from dlm.openai.constraint import constraint_of
from dlm.openai.messages import messages_of
from dlm.openai.requests import chat_of, completion_of


class Circle(JsonModel):
    kind: Literal["circle"] = REQUIRED
    radius: int = REQUIRED


class Line(JsonModel):
    kind: Literal["line", "ray"] = REQUIRED
    ends: Several[int] = REQUIRED


class Style(ClosedModel):
    refused: ClassVar = {"dash": "lines are whole"}

    colour: Literal["red", "blue"] | None = None
    fine: bool | None = None


class Drawing(JsonModel):
    title: Words = REQUIRED
    shapes: Annotated[
        str | Each[Annotated[Circle | Line, ByField("kind")]], Takes("a name or a list of shapes")
    ] = REQUIRED
    style: Style | None = None
    data: Annotated[Object, Shaped(Circle)] | None = None
    size: Annotated[int | float, Takes("a size")] | None = None


GOOD: dict[str, Any] = {"title": "a", "shapes": "none"}
RAY = {"kind": "ray", "ends": [1]}


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"title": None}, "title", "title is missing; it must be text"),
        ({"title": 3}, "title", "title must be text, got 3"),
        ({"title": " "}, "title", "title must be text that is not blank, got ' '"),
        ({"shapes": 3}, "shapes", "shapes must be a name or a list of shapes, got 3"),
        ({"shapes": None}, "shapes", "shapes is missing; it must be a name or a list of shapes"),
        ({"shapes": [3]}, "shapes", "shapes[0] must be an object, got 3"),
        (
            {"shapes": [{}]},
            "shapes",
            "shapes[0].kind is missing; it must be one of circle, line, ray",
        ),
        (
            {"shapes": [RAY, {"kind": ["line"]}]},
            "shapes",
            "shapes[1].kind must be one of circle, line, ray, got a list",
        ),
        (
            {"shapes": [RAY, RAY | {"ends": [1, True]}]},
            "shapes",
            "shapes[1].ends[1] must be a whole number, got true",
        ),
        (
            {"shapes": [{"kind": "line", "ends": []}]},
            "shapes",
            "shapes[0].ends must be a list that is not empty, got an empty list",
        ),
        (
            {"shapes": [{"kind": "circle", "radius": 5.0}]},
            "shapes",
            "shapes[0].radius must be a whole number, got 5.0",
        ),
        (
            {"shapes": [{"kind": "circle", "radius": "5"}]},
            "shapes",
            "shapes[0].radius must be a whole number, got '5'",
        ),
        ({"style": []}, "style", "style must be an object, got an empty list"),
        ({"style": {"colour": "green"}}, "style", "style.colour must be red or blue, got 'green'"),
        (
            {"style": {"colour": "\ud800"}},
            "style",
            "style.colour must be text without a lone surrogate, got '\\ud800'",
        ),
        ({"style": {"fine": 1}}, "style", "style.fine must be true or false, got 1"),
        ({"style": {"x": 1}}, "style", "style.x is unknown here; the fields are colour, fine"),
        ({"style": {"\ud800": 1}}, "style", "style.\\ud800 is unknown"),
        ({"style": {"dash": 1}}, "style", "style.dash is not supported: lines are whole"),
        ({"data": {"kind": "circle"}}, "data", "data.radius is missing; it must be a whole number"),
        ({"size": True}, "size", "size must be a size, got true"),
    ],
)
def test_an_error_says_what_was_found_and_where_and_what_would_have_been_right(
    changes, field, message
):
    with pytest.raises(RequestError) as raised:
        validated(Drawing.model_validate, GOOD | changes)
    assert str(raised.value).startswith(message)
    assert raised.value.field == field


def test_an_error_of_data_within_a_body_has_its_whole_path():
    with pytest.raises(RequestError) as raised:
        validated(TypeAdapter(Each[Circle]).validate_python, [{"kind": "circle"}], "a[2].b")
    assert str(raised.value) == "a[2].b[0].radius is missing; it must be a whole number"
    assert raised.value.field == "a"
    with pytest.raises(RequestError, match=r"^the line must be an object, got 3") as raised:
        validated(Circle.model_validate, 3, what="the line")
    assert raised.value.field is None


def test_null_and_unknown_fields_count_as_left_out():
    data = {"kind": "circle", "radius": 1, "more": {"deep": []}}
    drawing = validated(Drawing.model_validate, GOOD | {"style": {"fine": None, "x": None}, "x": 1})
    assert drawing.style == Style()
    assert validated(Drawing.model_validate, GOOD | {"data": data}).data == data


def test_numbers_stay_what_they_are():
    for size in (3, 3.5, 10**400):
        assert type(validated(Drawing.model_validate, GOOD | {"size": size}).size) is type(size)


HI = {"role": "user", "content": "hi"}
DEEP: list[Any] = [[]]
for _ in range(100_000):
    DEEP[0] = [DEEP[0]]


@pytest.mark.parametrize(
    ("read_body", "body", "start"),
    [
        (
            chat_of,
            {"messages": [HI | {"content": 5}] * 10_000},
            "messages[0].content must be text or a list of parts, got 5",
        ),
        (chat_of, {"messages": [HI, 5] * 10_000}, "messages[1] must be an object, got 5"),
        (chat_of, {"messages": [HI], "tools": [5] * 100_000}, "tools[0] must be an object, got 5"),
        (chat_of, {"messages": [HI], "stop": [5] * 100_000}, "stop[0] must be text, got 5"),
        (
            completion_of,
            {"prompt": [[1]] + ["", 1.5] * 50_000},
            "prompt[1] must be text that is not blank, or token ids",
        ),
        (
            chat_of,
            {"messages": [HI], "stream_options": {f"x{i}": 1 for i in range(100_000)}},
            "stream_options.x0 is unknown",
        ),
        (chat_of, {"messages": [HI]} | {f"x{i}": 1 for i in range(100_000)}, "x0 is unknown here"),
        (
            chat_of,
            {"messages": [HI], "n": 10**5000},
            "n must be 1 to 16, got a number of over 300 digits",
        ),
        (
            chat_of,
            {"messages": [HI], "max_tokens": 10**5000},
            "max_tokens must be at most 131072 here, got a number of over 300 digits",
        ),
        (chat_of, {"messages": [HI], "seed": DEEP}, "seed must be a whole number, got a list"),
        (chat_of, {"messages": DEEP}, "messages[0] must be an object, got a list"),
        (
            chat_of,
            {"messages": [HI | {"content": DEEP}]},
            "messages[0].content[0] must be an object, got a list",
        ),
        (chat_of, {"messages": [HI], "\ud800" * 1000: 1}, "\ud800"),
        (
            constraint_of,
            {"structured_outputs": {"choice": [5] * 9999}},
            "structured_outputs.choice[0",
        ),
    ],
)
def test_a_hostile_body_is_one_short_error(read_body, body, start):
    with pytest.raises(RequestError) as raised:
        read_body(body, Policy())
    message = str(raised.value)
    assert message.startswith(start)
    assert len(message) < 250


def test_a_list_ends_at_its_first_wrong_element():
    class Counting(dict[str, Any]):
        read = 0

        def items(self):
            Counting.read += 1
            return super().items()

    with pytest.raises(
        RequestError, match=r"messages\[2\].content must be text or a list of parts, got 5"
    ):
        messages_of([Counting(HI), Counting(HI), Counting(HI, content=5), *[Counting(HI)] * 9999])
    assert Counting.read == 3


def test_schemas_and_parameters_are_passed_on_and_not_copied():
    parameters = {"type": "object", "properties": {"a": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    (request,) = chat_of({"messages": [HI], "tools": [tool]}, Policy()).requests
    assert request.tools[0]["function"]["parameters"] is parameters
