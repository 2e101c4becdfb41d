"""Streams of responses and messages, cut at every token and assembled by the official clients.

The clients run against a transport that answers with the events of an answer's own object.
"""

import json
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from dlm.anthropic.answers import MessageAnswers
from dlm.anthropic.messages import message_of
from dlm.events import Committed
from dlm.grammar import Vocabulary
from dlm.openai.answers import ChatAnswers
from dlm.openai.requests import chat_of
from dlm.openai.response_answers import ResponseAnswers
from dlm.openai.response_items import ResponseStore
from dlm.openai.responses import response_of
from dlm.policy import Policy
from dlm.request import Result, Stats

FIND = {"name": "find", "parameters": {"type": "object", "properties": {"city": {}, "n": {}}}}
SQL = {"syntax": "regex", "definition": '[A-Z "\\\\é\n]*'}
FLAT = [
    {"type": "function", **FIND},
    {"type": "namespace", "name": "maps", "tools": [{"type": "function", **FIND}]},
    {"type": "custom", "name": "sql", "format": {"type": "grammar", **SQL}},
]
CLIENT_TOOLS = [
    {"name": name, "input_schema": FIND["parameters"]} for name in ("find", "maps__find", "sql")
]
QUOTE = '<|"|>'
ANSWERS = {  # reasoning, then the answer with the names of its control tokens
    "text": ("", "Hello there, what is it?"),
    "reasoning and text": ("I think so.", "Yes, it is “Zürich”."),
    "nothing": ("", ""),
    "a call": ("", f'<|tool_call>call:find{{city:{QUOTE}Zü"rich\n{QUOTE},n:3}}<tool_call|>'),
    "calls after text": (
        "Hm.",
        "I look.<|tool_call>call:maps__find{n:[1,{a:true}]}<tool_call|>"
        "<|tool_call>call:find{}<tool_call|>",
    ),
    "an input": (
        "",
        f'<|tool_call>call:sql{{input:{QUOTE}SELECT "é" \\ \n{QUOTE}}}<tool_call|>'
        f"<|tool_call>call:sql{{input:{QUOTE}{QUOTE}}}<tool_call|>",
    ),
}


@pytest.fixture(scope="module")
def vocabulary(chat):
    return Vocabulary.from_tokenizer(chat.tokenizer, len(chat.tokenizer), (1, 106, 50), 0)


@pytest.fixture(params=ANSWERS, ids=str)
def played(request, vocabulary, tokens_of):
    """Return a function whose call `played(make, reason)` returns a whole body and its events."""
    reasoning, answer = ANSWERS[request.param]
    thoughts, tokens = tokens_of(reasoning), tokens_of(answer)

    def play(make, reason="stop"):
        constraint = make().constraint
        calls = constraint.read(tokens, vocabulary).tool_calls if "call:" in answer else ()
        result = Result(
            text=answer.partition("<|tool_call>")[0],
            reasoning=reasoning or None,
            parsed=None,
            tool_calls=calls,
            finish_reason=reason,
            token_ids=[*thoughts, *tokens],
            prompt_tokens=9,
            reasoning_tokens=len(thoughts),
            complete=reason == "stop",
            squeezed=False,
            stats=Stats(tokens=len(tokens) + 1, cached=4),
        )
        return make.answers().whole([result]), list(streamed(make.answers(), result))

    def streamed(answers, result):
        yield from answers.first()
        for thought in reasoning:
            yield from answers.progress(0, committed([], reasoning=thought))
        before, text = "", result.text
        for i, token in enumerate(tokens):
            now = vocabulary.text(tokens[: i + 1])
            now = now if text.startswith(now) and "\ufffd" not in now else before
            now = text if token == vocabulary.call.open else now
            yield from answers.progress(0, committed([token], text=now.removeprefix(before)))
            before = now
        yield from answers.end(0, result)
        yield from answers.last()

    return play


def committed(tokens, text="", reasoning=""):
    return Committed(request=0, tokens=tokens, answer=tokens, text=text, reasoning=reasoning)


class Maker:
    """Maker of answers to one body, each with a reader of its own."""

    def __init__(self, form, generation, vocabulary):
        self._form, self._generation, self._vocabulary = form, generation, vocabulary

    def __call__(self):
        return self._generation.requests[0]

    def answers(self):
        return self._form(self._generation, "tiny", self._vocabulary)


def transport(events):
    text = "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events)
    headers = {"content-type": "text/event-stream"}
    return httpx2.Client(
        transport=httpx2.MockTransport(lambda _: httpx2.Response(200, headers=headers, text=text))
    )


def bare(value, *dropped):
    """Return JSON data without nulls and without the fields `dropped`."""
    if isinstance(value, dict):
        return {
            name: bare(one, *dropped)
            for name, one in value.items()
            if name not in dropped and one is not None
        }
    return [bare(one, *dropped) for one in value] if isinstance(value, list) else value


OWN = ("id", "call_id", "created_at", "completed_at", "parsed", "parsed_arguments")


@pytest.mark.parametrize("reason", ["stop", "length"])
@pytest.mark.parametrize("summary", [None, "auto"])
def test_a_stream_of_a_response_adds_up_to_the_response(played, vocabulary, summary, reason):
    body = {"input": "Hi.", "tools": FLAT, "reasoning": {"summary": summary}, "stream": True}
    generation = response_of(body, Policy(), ResponseStore(0).of(""))
    whole, events = played(Maker(ResponseAnswers, generation, vocabulary), reason)
    assert [one["sequence_number"] for one in events] == list(range(len(events)))
    client = openai.OpenAI(api_key="none", base_url="http://x", http_client=transport(events))
    with client.responses.stream(model="tiny", input="Hi.") as stream:
        seen = list(stream)
    last: Any = seen[-1]
    final = last.response
    assert [one.type for one in seen] == [one["type"] for one in events]
    assert bare(final.to_dict(), *OWN) == bare(whole, *OWN)
    status = "completed" if reason == "stop" else "incomplete"
    assert (final.status, events[-1]["type"]) == (status, f"response.{status}")
    for item in final.output:
        assert item.model_extra == {}  # each item is of a type that the client knows
    statuses = [getattr(item, "status", None) for item in final.output]  # custom calls have none
    assert set(statuses[:-1]) <= {"completed", None}
    assert set(statuses[-1:]) <= {status, None}  # only the last item may be incomplete
    text = "".join(one.delta for one in seen if one.type == "response.output_text.delta")
    assert text == final.output_text


def test_items_of_a_response_name_namespaces_and_inputs(played, vocabulary, request):
    generation = response_of({"input": "Hi.", "tools": FLAT}, Policy(), ResponseStore(0).of(""))
    whole, _ = played(Maker(ResponseAnswers, generation, vocabulary))
    calls = [item for item in whole["output"] if "call" in item["type"]]
    found = [(one["type"], one.get("namespace"), one["name"]) for one in calls]
    inputs = [one["input"] for one in calls if one["type"] == "custom_tool_call"]
    if "calls after text" in request.node.name:
        assert found == [("function_call", "maps", "find"), ("function_call", None, "find")]
    if "an input" in request.node.name:
        assert inputs == ['SELECT "é" \\ \n', ""]


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_a_stream_of_a_message_adds_up_to_the_message(played, vocabulary, reason):
    turns: list[Any] = [{"role": "user", "content": "Hi."}]
    body = {"max_tokens": 9, "messages": turns, "tools": CLIENT_TOOLS, "stream": True}
    generation = message_of(body, Policy())
    whole, events = played(Maker(MessageAnswers, generation, vocabulary), reason)
    client = anthropic.Anthropic(api_key="none", base_url="http://x", http_client=transport(events))
    with client.messages.stream(model="tiny", max_tokens=9, messages=turns) as stream:
        final = stream.get_final_message()
    assert bare(final.to_dict(), "id") == bare(whole, "id")
    called = any(block.type == "tool_use" for block in final.content)
    ended = "tool_use" if called else "end_turn"
    assert final.stop_reason == (ended if reason == "stop" else "max_tokens")


def test_a_stream_of_a_chat_adds_up_to_its_message(played, vocabulary):
    tools = [
        {"type": "function", "function": FIND},
        {"type": "function", "function": {**FIND, "name": "maps__find"}},
        {"type": "custom", "custom": {"name": "sql", "format": FLAT[2]["format"]}},
    ]
    generation = chat_of(
        {"messages": [{"role": "user", "content": "Hi."}], "tools": tools}, Policy()
    )
    whole, events = played(Maker(ChatAnswers, generation, vocabulary))
    message = whole["choices"][0]["message"]
    content, reasoning, calls = "", "", []
    for delta in (choice["delta"] for one in events for choice in one["choices"]):
        content += delta.get("content") or ""
        reasoning += delta.get("reasoning") or ""
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                assert call["index"] == len(calls)
                calls.append(call)
            else:
                kind = calls[call["index"]]["type"]
                for name, text in call[kind].items():
                    calls[call["index"]][kind][name] += text
    assert (content, reasoning) == (message["content"] or "", message["reasoning"] or "")
    wanted = message.get("tool_calls", [])
    assert len(calls) == len(wanted)
    for found, whole_call in zip(calls, wanted, strict=True):
        kind = whole_call["type"]
        assert (found["type"], found[kind]["name"]) == (kind, whole_call[kind]["name"])
        if kind == "custom":
            assert found[kind]["input"] == whole_call[kind]["input"]
        else:
            texts = found[kind]["arguments"], whole_call[kind]["arguments"]
            assert json.loads(texts[0]) == json.loads(texts[1])
