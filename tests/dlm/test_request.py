"""What a request is made of: tools given once, integers of any kind, pydantic's models."""

from datetime import date
from typing import Literal

import numpy as np
import pytest
import torch
from doubles import Obsessed, Scripted
from pydantic import BaseModel, Field, field_validator
from values import PROMPT, V

from dlm import (
    Answer,
    Choice,
    DlmError,
    JsonSchema,
    Policy,
    Request,
    RequestError,
    Tools,
    request_of,
)


def tool(name, **properties):
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


FIND, BOOK = tool("find", a={"type": "integer"}), tool("book", days={"enum": [1, 2]})


@pytest.mark.parametrize(
    "given",
    [
        {"tools": [FIND, BOOK]},
        {"constraint": Tools([FIND, BOOK])},
        {"tools": [FIND, BOOK], "constraint": Tools([FIND, BOOK])},
        {"tools": (FIND, BOOK)},
    ],
)
def test_tools_that_are_given_once_are_shown_and_hold(chat, given):
    request = Request(prompt="Book it.", **given)
    said = chat.tokenizer.decode(chat.prompt(request))
    assert "declaration:find{a:INTEGER}" in said
    assert "declaration:book{" in said
    assert request.constraint.key == Tools([FIND, BOOK]).key
    assert [one["function"]["name"] for one in request.tools] == ["find", "book"]


def test_tools_alone_are_called_in_their_form(engine_of):
    engine = engine_of(Obsessed(V, [48, 49]))
    result = engine.generate(Request(prompt="Book it.", tools=[BOOK], max_tokens=60))
    assert isinstance(result.parsed, Answer)
    assert all(call.arguments["days"] in (1, 2) for call in result.tool_calls)


def test_a_constraint_may_hold_some_of_the_tools_that_are_declared():
    request = Request(prompt="a", tools=[FIND, BOOK], constraint=Tools([BOOK], "required"))
    assert request.tools == [FIND, BOOK]
    again = tool("find", a={"type": "integer"})
    again["function"]["description"] = "of no concern"
    assert Request(prompt="a", tools=[again], constraint=Tools([FIND]))


@pytest.mark.parametrize(
    ("tools", "problem"),
    [
        ([BOOK], "tools and constraint differ: the constraint has a tool 'find', which is not amo"),
        ([tool("find", a={"type": "string"})], "'find' has other parameters in tools than in the"),
    ],
)
def test_tools_that_differ_from_the_constraint_are_refused(tools, problem):
    with pytest.raises(RequestError, match=problem):
        Request(prompt="a", tools=tools, constraint=Tools([FIND]))


def test_tools_that_are_none_say_where_and_why():
    with pytest.raises(
        RequestError, match="tools: tools at /tools/0/function/name: a name is 1 to"
    ):
        Request(prompt="a", tools=[tool("a b")])


def test_tools_may_be_declared_without_a_constraint(chat):
    request = Request(prompt="a", tools=[FIND], constrained=False)
    assert request.constraint is None
    assert "declaration:find" in chat.tokenizer.decode(chat.prompt(request))
    with pytest.raises(RequestError, match="constrained is False beside a constraint"):
        Request(prompt="a", constraint=Tools([FIND]), constrained=False)


def test_other_constraints_stand_beside_declared_tools():
    request = Request(prompt="a", tools=[FIND], constraint=Choice(["a"]))
    assert isinstance(request.constraint, Choice)


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8, int])
def test_integers_may_be_numpy_s(engine_of, kind):
    request = Request(
        token_ids=[kind(token) for token in PROMPT],
        seed=kind(7),
        max_tokens=kind(4),
        stop_token_ids=[kind(9)],
        thinking_budget=kind(3),
    )
    plain = Request(token_ids=PROMPT, seed=7, max_tokens=4, stop_token_ids=[9], thinking_budget=3)
    assert request == plain
    assert {type(one) for one in (*request.token_ids, request.seed, request.max_tokens)} == {int}
    engine = engine_of(Obsessed(V, [383]))
    assert engine.generate(request).token_ids == engine.generate(plain).token_ids


@pytest.mark.parametrize("array", [np.array(PROMPT), torch.tensor(PROMPT), np.array(PROMPT, "u2")])
def test_token_ids_may_be_an_array(array):
    assert Request(token_ids=array) == Request(token_ids=PROMPT)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"token_ids": PROMPT, "seed": np.float64(1)}, "seed is .*1.0"),
        ({"token_ids": PROMPT, "max_tokens": True}, "max_tokens is a bool|max_tokens is True"),
        ({"token_ids": 3}, "token_ids is 3: it takes a list"),
    ],
)
def test_what_is_no_integer_is_refused(fields, problem):
    with pytest.raises(RequestError, match=problem):
        Request(**fields)


class Guest(BaseModel):
    name: Literal["Kim", "Ada"]
    born: date
    tags: set[Literal["a", "b"]] = Field(max_length=1)


GUEST = '{"name": "Kim", "born": "1999-02-03", "tags": ["b"]}'


@pytest.mark.parametrize(("canvas_length", "unenforced"), [(16, "refuse"), (64, "check")])
def test_a_value_is_an_instance_of_the_model_that_was_the_schema(
    engine_of, tokens_of, canvas_length, unenforced
):
    script = [*tokens_of(GUEST), 106]
    engine = engine_of(Scripted(V, len(PROMPT), script, canvas_length=canvas_length))
    spec = JsonSchema(Guest, unenforced=unenforced)
    result = engine.generate(Request(token_ids=PROMPT, constraint=spec, max_tokens=120))
    assert result.parsed == Guest(name="Kim", born=date(1999, 2, 3), tags={"b"})
    data = JsonSchema(Guest.model_json_schema(), unenforced=unenforced)
    result = engine.generate(Request(token_ids=PROMPT, constraint=data, max_tokens=120))
    assert result.parsed == {"name": "Kim", "born": "1999-02-03", "tags": ["b"]}


class Never(BaseModel):
    name: Literal["Kim"]

    @field_validator("name")
    @classmethod
    def refuse(cls, name: str) -> str:
        raise ValueError(f"{name} is on no list")


def test_what_a_model_refuses_although_its_schema_does_not_is_an_error(engine_of, tokens_of):
    engine = engine_of(Scripted(V, len(PROMPT), [*tokens_of('{"name": "Kim"}'), 106]))
    request = Request(token_ids=PROMPT, constraint=JsonSchema(Never))
    with pytest.raises(
        DlmError, match=r"(?s)it fits the schema, and Never refuses it: .*on no list"
    ):
        engine.generate(request)


def test_several_answers_to_one_prompt_tokenize_it_once(engine_of, monkeypatch):
    engine = engine_of(Obsessed(V, [383]))
    seen = []
    prompt = engine.chat.prompt
    monkeypatch.setattr(engine.chat, "prompt", lambda request: seen.append(1) or prompt(request))
    messages = [{"role": "user", "content": "Hi."}]
    requests = [Request(messages=messages, seed=i, max_tokens=2) for i in range(16)]
    results = engine.generate(requests)
    assert len(seen) == 1
    assert len({result.prompt_tokens for result in results}) == 1
    others = [
        Request(messages=messages, thinking=True),
        Request(messages=messages, constraint=Choice(["a"])),
        Request(messages=messages, tools=[FIND]),
        Request(messages=[{"role": "user", "content": "Ho."}]),
        request_of({"messages": messages}, Policy()),
    ]
    for request in others:
        seen.clear()
        engine.generate([requests[0], request])
        assert len(seen) == 2
