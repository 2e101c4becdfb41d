"""Refusals of requests that cannot be served: before any work, and without a trace."""

from types import SimpleNamespace

import pytest
from doubles import Obsessed
from values import PROMPT, V

from dlm import (
    Decision,
    DlmError,
    Engine,
    Grammar,
    Regex,
    Request,
    RequestError,
)
from dlm.cli.options import loading_of

FINE = Request(token_ids=PROMPT, max_tokens=4)
IMAGE = {"type": "image_url", "image_url": {"url": "http://x"}}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, "give one of prompt, messages, text, token_ids; got none"),
        ({"prompt": "a", "token_ids": [1]}, "got prompt and token_ids"),
        ({"prompt": " \n"}, "prompt must not be empty"),
        ({"messages": []}, "messages must not be empty"),
        (
            {"messages": [{"role": "user"}]},
            r"messages\[0\] must be an object with a role and a content",
        ),
        ({"token_ids": []}, "token_ids must not be empty"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"prompt": "a", "max_tokens": True}, "max_tokens must be at least 1, got True"),
        ({"prompt": "a", "max_tokens": -(10**5000)}, "max_tokens must be at least 1, got a int"),
        ({"prompt": "a", "thinking": "yes"}, "thinking must be True or False, got 'yes'"),
        (
            {"prompt": "a", "stop_token_ids": [True]},
            r"stop_token_ids\[0\] must be a token id, got True",
        ),
        ({"prompt": 5}, "prompt must be a text, got 5"),
        ({"prompt": ["x"]}, "prompt must be a text, got a list"),
        ({"token_ids": "12"}, "token_ids must be a list, got '12'"),
        ({"token_ids": 3}, "token_ids must be a list, got 3"),
        (
            {"messages": [{"role": 5, "content": "a"}]},
            r"messages\[0\].role must be one of system, developer.*, got 5",
        ),
        (
            {"messages": [{"role": "user", "content": {}}]},
            r"messages\[0\].content must be a text or a list of parts, got a dict",
        ),
        (
            {"messages": [{"role": "user", "content": [IMAGE]}]},
            r"content\[0\] must be a part of text or an image",
        ),
    ],
)
def test_an_error_says_what_an_impossible_request_should_have_been(fields, problem):
    with pytest.raises(RequestError, match=problem):
        Request(**fields)


@pytest.mark.parametrize(
    ("requests", "problem"),
    [
        (Request(token_ids=[5, 9999]), "prompt: a token must be 0 to 1535, got 9999"),
        (Request(token_ids=[5, -1]), "prompt: a token must be 0 to 1535, got -1"),
        (Request(token_ids=[5] * 10, max_tokens=200_000), "leave 99984 for the answer, fewer"),
        (
            Request(prompt="a", constraint=Grammar("root ::= nowhere")),
            "grammar at line 1 column 10: there is no rule nowhere",
        ),
        ([FINE, Request(token_ids=[9999])], "request 1: prompt: a token .*, got 9999"),
        ("hi", "must be given a Request or a list of them, got a str"),
        ({"prompt": "hi"}, "a Request or a list of them, got a dict"),
        (None, "a Request or a list of them, got a NoneType"),
        ([FINE, "hi"], "request 1: a request must be a Request or a Decision, got a str"),
        (
            [Decision(request=FINE, questions=[{"type": "predicate"}])],
            "a Decision: `decide` answers",
        ),
    ],
)
def test_a_refused_request_of_a_list_leaves_nothing_running(engine_of, requests, problem):
    engine = engine_of(Obsessed(V, [1]))
    with pytest.raises(RequestError, match=problem):
        engine.generate(requests)
    assert not engine.busy
    engine.generate(FINE)


def test_a_long_field_that_the_template_leaves_out_is_no_reason_to_refuse(built_in):
    message = {"role": "user", "content": "hi", "name": "n" * 50_000}
    prepared = built_in.prepare(Request(messages=[message], max_tokens=16))
    assert prepared.prompt_tokens < 50
    prepared.discard()


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"prompt": "a" * 5000}, "tokens: prompt has 5000 characters: at most "),
        ({"text": "a" * 5000}, "tokens: text has 5000 characters: at most "),
        ({"messages": [{"role": "user", "content": "a" * 5000}]}, "tokens: messages hold 50"),
        ({"messages": [{"role": "user", "content": "a"}] * 11}, "in 44 values: .* in 40 ever fit$"),
        (
            {
                "messages": [
                    {"role": "user", "content": "a"},
                    {
                        "role": "assistant",
                        "content": "",
                        "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1] * 30}}}],
                    },
                ]
            },
            "in 40 ever fit$",
        ),
    ],
)
def test_a_prompt_that_can_never_fit_is_refused_before_it_is_rendered(
    engine_of, monkeypatch, fields, problem
):
    model = Obsessed(V, [1])
    model.max_positions = 10
    engine = engine_of(model)
    monkeypatch.setattr(engine.chat, "prompt", lambda _: pytest.fail("it is rendered"))
    with pytest.raises(RequestError, match=problem):
        engine.generate(Request(**fields))


def test_generate_leaves_nothing_running_if_it_is_interrupted(engine_of, monkeypatch):
    engine = engine_of(Obsessed(V, [1]))

    def interrupted(number):
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "await_constraint", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.generate([Request(token_ids=PROMPT, constraint=Regex("a+"))] * 2)
    assert not engine.busy
    monkeypatch.undo()
    engine.generate(FINE)


def test_a_closed_engine_admits_nothing(engine_of):
    engine = engine_of(Obsessed(V, [1]))
    engine.close()
    engine.close()
    with pytest.raises(DlmError, match="the engine is closed"):
        engine.add(Request(token_ids=PROMPT))
    assert not engine.busy


@pytest.mark.parametrize("device", ["abacus", "cuda:99", "meta", "cpu:cpu"])
def test_an_error_names_a_device_that_does_not_exist(device):
    with pytest.raises(DlmError, match=f"device '{device}' is not available here"):
        Engine.load(device=device)
    args = SimpleNamespace(model=None, device=device)
    with pytest.raises(DlmError, match="the built-in model runs on the CPU"):
        loading_of(args)


def test_generate_is_refused_while_other_requests_run(engine_of):
    engine = engine_of(Obsessed(V, [1]))
    engine.add(Request(token_ids=PROMPT))
    with pytest.raises(DlmError, match="swallow"):
        engine.generate(Request(token_ids=PROMPT))
