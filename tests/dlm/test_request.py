"""Fields of a request: tools, integers of any type, and pydantic models as schemas."""

from datetime import date
from typing import Literal

import numpy as np
import pytest
import torch
from doubles import Obsessed
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
def test_tools_that_are_given_once_are_declared_and_enforced(chat, given):
    request = Request(prompt="Book it.", **given)
    text = chat.tokenizer.decode(chat.prompt(request))
    assert "declaration:find{a:INTEGER}" in text
    assert "declaration:book{" in text
    assert request.constraint.key == Tools([FIND, BOOK]).key
    assert [one["function"]["name"] for one in request.tools] == ["find", "book"]


def test_tools_without_a_constraint_are_enforced(engine_of):
    engine = engine_of(Obsessed(V, [48, 49]))
    result = engine.generate(Request(prompt="Book it.", tools=[BOOK], max_tokens=60))
    assert isinstance(result.parsed, Answer)
    assert all(call.arguments["days"] in (1, 2) for call in result.tool_calls)


def test_a_constraint_may_have_some_of_the_declared_tools():
    request = Request(prompt="a", tools=[FIND, BOOK], constraint=Tools([BOOK], "required"))
    assert request.tools == [FIND, BOOK]
    again = tool("find", a={"type": "integer"})
    again["function"]["description"] = "of no concern"
    assert Request(prompt="a", tools=[again], constraint=Tools([FIND]))


CONSTRAINED = {"constraint": Tools([FIND])}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"tools": None}, "^tools must be a list of objects, got None"),
        ({"tools": "x"}, "^tools must be a list of objects, got 'x'"),
        ({"tools": [FIND, 5]}, r"^tools\[1\] must be an object, got 5"),
        ({"tools": [tool("a b")]}, "tools: tools at /tools/0/function/name: a name must have 1 to"),
        (
            CONSTRAINED | {"tools": [BOOK]},
            "tools and constraint differ: the constraint has a tool 'find', which is not amo",
        ),
        (
            CONSTRAINED | {"tools": [tool("find", a={"type": "string"})]},
            "'find' has other parameters in tools than in the",
        ),
        (CONSTRAINED | {"constrained": False}, "constrained is False beside a constraint"),
    ],
)
def test_invalid_tools_are_refused(fields, problem):
    with pytest.raises(RequestError, match=problem):
        Request(prompt="a", **fields)


def test_tools_may_be_declared_without_a_constraint(chat):
    request = Request(prompt="a", tools=[FIND], constrained=False)
    assert request.constraint is None
    assert "declaration:find" in chat.tokenizer.decode(chat.prompt(request))


def test_other_constraints_stand_beside_declared_tools():
    request = Request(prompt="a", tools=[FIND], constraint=Choice(["a"]))
    assert isinstance(request.constraint, Choice)


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8, int])
def test_integers_may_have_numpy_types(engine_of, kind):
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


class Guest(BaseModel):
    name: Literal["Kim", "Ada"]
    born: date
    tags: set[Literal["a", "b"]] = Field(max_length=1)


GUEST = '{"name": "Kim", "born": "1999-02-03", "tags": ["b"]}'


@pytest.mark.parametrize(("canvas_length", "unenforced"), [(16, "refuse"), (64, "check")])
def test_the_value_is_an_instance_of_a_model_that_is_the_schema(
    scripted, canvas_length, unenforced
):
    engine = scripted(f"{GUEST}<turn|>", canvas_length)
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


def test_a_value_that_a_model_refuses_although_it_fits_the_schema_is_an_error(scripted):
    engine = scripted('{"name": "Kim"}<turn|>')
    request = Request(token_ids=PROMPT, constraint=JsonSchema(Never))
    problem = r"(?s)it fits the schema, and Never refuses it: .*on no list"
    with pytest.raises(DlmError, match=problem):
        engine.generate(request)


def test_requests_with_the_same_prompt_tokenize_it_once(engine_of, monkeypatch):
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


@pytest.mark.parametrize("role", ["usr", "User", "", "assistent", "ai", 3, None])
def test_an_unknown_role_is_refused_with_the_known_ones(role):
    messages = [{"role": "user", "content": "Hi."}, {"role": role, "content": "Ho."}]
    right = "must be one of system, developer, user, assistant, tool"
    with pytest.raises(RequestError, match=rf"^messages\[1\]\.role {right}, got "):
        Request(messages=messages)
