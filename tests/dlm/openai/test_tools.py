"""Tools of bodies whose schemas are read with the body, or by the process that compiles them."""

import pickle
from functools import partial

import pytest
from spoken import MARKERS

from dlm import InvalidGrammarError, Policy, RequestError
from dlm.anthropic.messages import message_of
from dlm.grammar.canvas.workers import build
from dlm.grammar.limits import SharedCache
from dlm.grammar.specs import call_arguments
from dlm.openai.requests import chat_of
from dlm.openai.response_items import ResponseStore
from dlm.openai.responses import response_of

LOST = {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}
REPEATS = {"type": "object", "properties": {"a": {"type": "string", "pattern": r"(b*)c\1"}}}
LATER = Policy(tools_at_once=False)
MESSAGES = [{"role": "user", "content": "hi"}]


def chat(schema, strict):
    function = {"name": "f", "parameters": schema, "strict": strict}
    choice = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]}
    return {
        "messages": MESSAGES,
        "tools": [{"type": "function", "function": form} for form in ({"name": "other"}, function)],
        "tool_choice": {"type": "allowed_tools", "allowed_tools": choice},
    }


def response(schema, strict):
    function = {"type": "function", "name": "f", "parameters": schema, "strict": strict}
    tools = [{"type": "web_search"}, {"type": "namespace", "name": "n", "tools": [function]}]
    return {"input": "hi", "tools": tools}


def message(schema, strict):
    tool = {"name": "f", "input_schema": schema, "strict": strict}
    return {"messages": MESSAGES, "max_tokens": 9, "tools": [tool]}


FORMS = [
    (chat, chat_of, "/tools/1/function/parameters"),
    (response, partial(response_of, responses=ResponseStore(0).of("")), "/tools/1/tools/0/par"),
    (message, message_of, "/tools/0/input_schema"),
]


@pytest.mark.parametrize(("body_of", "generation_of", "place"), FORMS)
@pytest.mark.parametrize(("schema", "strict"), [(LOST, False), (REPEATS, True)])
@pytest.mark.parametrize("form", ["gemma4", "hermes"])
def test_what_the_compiler_refuses_is_refused_as_if_it_had_been_read_with_the_body(
    form, body_of, generation_of, place, schema, strict
):
    body = body_of(schema, strict)
    with pytest.raises(RequestError, match=f"^tools: tools at {place}") as at_once:
        generation_of(body, Policy())
    generation = generation_of(body, LATER)
    spec = generation.requests[0].constraint.in_form(form)
    with pytest.raises(InvalidGrammarError) as raised:
        build(pickle.loads(pickle.dumps(spec)), MARKERS)
    late = RequestError(str(raised.value))
    late.__cause__ = raised.value
    error = generation.error(late)
    assert (str(error), error.field) == (str(at_once.value), at_once.value.field)


@pytest.mark.parametrize(("body_of", "generation_of", "place"), FORMS)
def test_the_process_that_serves_writes_no_rules_of_tools_it_leaves_to_the_compiler(
    monkeypatch, body_of, generation_of, place
):
    monkeypatch.setattr(call_arguments, "_KEPT", SharedCache(1 << 20))
    monkeypatch.delattr(call_arguments, "write")
    body = body_of({"type": "object", "properties": {"new": {"type": "integer"}}}, False)
    spec = generation_of(body, LATER).requests[0].constraint
    for form in ("gemma4", "hermes", "qwen3_coder"):
        written = spec.in_form(form)
        assert written.take_written() is None
    with pytest.raises(NameError):
        generation_of(body, Policy())
