"""Chats and completions through the official client, with the built-in model."""

import json
from typing import Literal

import jsonschema
import openai
import pytest
from asks import ASK, PERSON, WEATHER, turn
from doubles import Dreamer
from pydantic import BaseModel
from values import V

from dlm import Engine, Policy

FREE = turn(ASK)
CHOICE = turn("Answer with one word of mage, healer. Ben Kim, fights as a mage.")
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": WEATHER,
    },
}
TAG = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<a>",
        "content": {"type": "json_schema", "json_schema": PERSON},
        "end": "</a>",
    },
}
EXTRA = {
    "regex": ({"regex": "[0-9]{4}-[0-9]{2}"}, lambda text: len(text) == 7 and text[4] == "-"),
    "choice": ({"choice": ["mage", "healer"]}, lambda text: text in ("mage", "healer")),
    "grammar": ({"grammar": 'root ::= "a" | "(" root ")"'}, lambda text: "a" in text),
    "json": ({"json": PERSON}, lambda text: set(json.loads(text)) == {"name", "age"}),
    "json_object": ({"json_object": True}, lambda text: isinstance(json.loads(text), dict)),
}


def schema_format(schema, **more):
    named = {"name": "answer", "schema": schema} | more
    return {"type": "json_schema", "json_schema": named}


def ask(served, messages=FREE, **more):
    return served.client.chat.completions.create(
        **{"model": "tiny", "messages": messages, "seed": 1, "max_tokens": 96} | more
    )


def joined(stream):
    """Return the text, reasoning, calls and reasons of a stream's deltas, and all chunks."""
    chunks = list(stream)
    text, reasoning, calls, reasons = "", "", {}, []
    for chunk in chunks:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning", None) or ""
            for call in choice.delta.tool_calls or ():
                if call.id is not None:
                    assert call.index not in calls
                    assert call.type == "function"
                    assert call.function.arguments == ""
                    calls[call.index] = [call.function.name, ""]
                calls[call.index][1] += call.function.arguments
            reasons += [choice.finish_reason] if choice.finish_reason else []
    return text, reasoning, [calls[i] for i in sorted(calls)], reasons, chunks


def test_a_free_answer_whole_and_streamed_is_the_same(tiny):
    whole = ask(tiny)
    text, reasoning, calls, reasons, chunks = joined(ask(tiny, stream=True))
    (choice,) = whole.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == text != ""
    assert (choice.finish_reason, reasons) == ("stop", ["stop"])
    assert (reasoning, calls, choice.message.tool_calls) == ("", [], None)
    assert whole.id.startswith("chatcmpl-")
    assert whole.object == "chat.completion"
    first = chunks[0]
    assert first.object == "chat.completion.chunk"
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[-1].choices[0].delta.content is None


def test_usage_counts_tokens_of_prompt_and_answer(tiny):
    whole = ask(tiny)
    usage = whole.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 < usage.completion_tokens <= 96
    assert 0 <= usage.prompt_tokens_details.cached_tokens <= usage.prompt_tokens
    assert usage.completion_tokens_details.reasoning_tokens == 0
    stream = ask(tiny, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == usage.completion_tokens
    assert all(chunk.usage is None for chunk in ask(tiny, stream=True))


@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_obeys_a_schema(tiny, streamed):
    for format in (
        schema_format(PERSON),
        schema_format(PERSON, strict=True),
        {"type": "json_object"},
    ):
        answer = ask(tiny, response_format=format, stream=streamed)
        text = joined(answer)[0] if streamed else answer.choices[0].message.content
        value = json.loads(text)
        if format["type"] == "json_schema":
            jsonschema.validate(value, PERSON)
    assert value["name"] == "Olga Lopez"


def test_a_pydantic_model_is_streamed_as_one(tiny):
    class Job(BaseModel):
        role: Literal["mage", "healer"]

    with tiny.client.chat.completions.stream(
        model="tiny", messages=CHOICE, response_format=Job, seed=1
    ) as stream:
        events = [event.type for event in stream]
        answer = stream.get_final_completion()
    assert answer.choices[0].message.parsed.role in ("mage", "healer")
    assert "content.done" in events


@pytest.mark.parametrize("kind", EXTRA)
def test_an_answer_obeys_vllm_s_structured_outputs(tiny, kind):
    outputs, right = EXTRA[kind]
    answer = ask(tiny, extra_body={"structured_outputs": outputs}, max_tokens=40)
    assert right(answer.choices[0].message.content)


def test_an_answer_obeys_a_structural_tag(tiny):
    text = ask(tiny, response_format=TAG).choices[0].message.content
    jsonschema.validate(json.loads(text.removeprefix("<a>").removesuffix("</a>")), PERSON)


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ("required", "tool_calls"),
        ({"type": "function", "function": {"name": "get_weather"}}, "stop"),
    ],
)
def test_a_call_whole_and_streamed_is_the_same(tiny, choice, reason):
    fields = {"tools": [TOOL], "tool_choice": choice, "max_tokens": 64}
    fields |= {"messages": turn("What is the weather in Oslo?")}
    whole = ask(tiny, **fields)
    calls, reasons = joined(ask(tiny, **fields, stream=True))[2:4]
    made = whole.choices[0].message.tool_calls
    assert whole.choices[0].message.content is None
    assert [[call.function.name, call.function.arguments] for call in made] == calls
    assert (whole.choices[0].finish_reason, reasons) == (reason, [reason])
    assert len({call.id for call in made}) == len(made)
    for call in made:
        jsonschema.validate(json.loads(call.function.arguments), TOOL["function"]["parameters"])


@pytest.mark.parametrize("streamed", [False, True])
def test_reasoning_is_separate_and_counted(tiny, streamed):
    fields = {
        "reasoning_effort": "low",
        "response_format": schema_format(PERSON),
        "max_tokens": 200,
    }
    whole = ask(tiny, **fields)
    reasoned = whole.choices[0].message.reasoning
    assert reasoned.startswith("The text is about")
    assert 0 < whole.usage.completion_tokens_details.reasoning_tokens <= 256
    jsonschema.validate(json.loads(whole.choices[0].message.content), PERSON)
    if streamed:
        text, reasoning, *_ = joined(ask(tiny, **fields, stream=True))
        assert (text, reasoning) == (whole.choices[0].message.content, reasoned)
    quiet = {"include_reasoning": False}
    hidden = ask(tiny, **fields, extra_body=quiet, stream=streamed)
    if streamed:
        assert joined(hidden)[1] == ""
    else:
        assert not hasattr(hidden.choices[0].message, "reasoning")


def test_several_answers_have_seeds_of_their_own(engine_of, serve):
    with serve(engine_of(Dreamer(V, seed=1))) as served:
        whole = ask(served, n=3, temperature=2)
        chunks = list(ask(served, n=3, temperature=2, stream=True))
        alone = ask(served, temperature=2)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    texts = [
        "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices if c.index == i)
        for i in range(3)
    ]
    assert texts == [choice.message.content for choice in whole.choices]
    assert len(set(texts)) == 3
    assert whole.usage.prompt_tokens == alone.usage.prompt_tokens
    assert whole.usage.completion_tokens > alone.usage.completion_tokens


def test_left_to_right_several_answers_and_cuts_are_drawn_without_a_temperature(serve):
    engine = Engine.load(device="cpu", slots=4, policy=Policy())
    assert engine.decoding.name == "drafted"
    with serve(engine) as served:

        def texts(**more):
            digits = {"structured_outputs": {"regex": "[0-9]{8}"}}
            answer = ask(served, max_tokens=12, extra_body=digits, **more)
            return [choice.message.content for choice in answer.choices]

        likeliest = texts()[0]
        assert texts(seed=2) == texts(top_p=1) == [likeliest], "nothing asks for draws"
        assert texts(n=3, temperature=0) == [likeliest] * 3
        assert len(set(texts(n=3))) == 3
        drawn = texts(top_p=0.99)
        assert drawn == texts(top_p=0.99, temperature=1) != texts(top_p=0.99, seed=2)


def test_a_truncated_answer_has_the_reason_length(tiny):
    answer = ask(tiny, max_completion_tokens=5, max_tokens=openai.omit)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 5
    assert joined(ask(tiny, max_tokens=5, stream=True))[3] == ["length"]


def test_an_answer_ends_before_a_stop_text(tiny):
    text = ask(tiny).choices[0].message.content
    stop = text[9:12]
    answer = ask(tiny, stop=[stop])
    assert answer.choices[0].message.content == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    assert joined(ask(tiny, stop=stop, stream=True))[0] == text[: text.index(stop)]


def test_drafts_come_on_request_and_leave_the_answer_as_it_is(tiny):
    options = {"drafts": True, "include_usage": True}
    text, *_, chunks = joined(ask(tiny, stream=True, stream_options=options))
    drafts = [chunk.draft for chunk in chunks if hasattr(chunk, "draft")]
    assert drafts
    assert all(len(d["tokens"]) == len(d["accepted"]) == 32 for d in drafts)
    assert all(not any(d["accepted"][d["suspect"] :]) for d in drafts)
    assert all(d["masked"] == [False] * 32 for d in drafts)  # its canvases begin as noise
    assert drafts[-1]["suspect"] == 32  # without a constraint none is
    assert [d["passes"] for d in drafts] == sorted({d["passes"] for d in drafts})
    assert text == ask(tiny).choices[0].message.content
    assert text in "".join(drafts[-1]["tokens"])


def test_drafts_count_repairs_by_the_grammar(tiny):
    digits = {"structured_outputs": {"regex": "[0-9]{3} [0-9]{4}"}}
    chunks = ask(tiny, stream=True, stream_options={"drafts": True}, extra_body=digits)
    drafts = [chunk.draft for chunk in chunks if hasattr(chunk, "draft")]
    assert drafts[0]["suspect"] < 32
    assert 0 < drafts[-1]["repairs"] <= drafts[-1]["passes"]
    assert len(drafts) <= drafts[-1]["passes"]  # one that is not read in time makes way
    assert [d["repairs"] for d in drafts] == sorted(d["repairs"] for d in drafts)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_completion_continues_its_prompt_as_it_is(tiny, streamed):
    prompt = f"<|turn>user\n{ASK}<turn|>\n<|turn>model\n<|channel>thought\n<channel|>"
    fields = {"model": "tiny", "prompt": prompt, "seed": 1, "max_tokens": 96}
    answer = tiny.client.completions.create(**fields, stream=streamed)
    if streamed:
        chunks = list(answer)
        text = "".join(chunk.choices[0].text for chunk in chunks)
        assert chunks[-1].choices[0].finish_reason == "stop"
    else:
        text = answer.choices[0].text
        assert answer.id.startswith("cmpl-")
        assert answer.object == "text_completion"
    assert text == ask(tiny).choices[0].message.content


def test_a_completion_takes_several_prompts_and_16_tokens_by_default(serve_random):
    with serve_random() as served:
        create = served.client.completions.create
        answer = create(model="tiny", prompt=[ASK, [2, 657]], n=2, seed=1)
        one = create(model="tiny", prompt=ASK, seed=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage.completion_tokens <= 4 * 16
    assert answer.usage.prompt_tokens == one.usage.prompt_tokens + 2


def test_models_are_listed_by_their_names(tiny):
    (model,) = tiny.client.models.list().data
    assert (model.id, model.object) == ("tiny", "model")
    assert tiny.client.models.retrieve("tiny").max_model_len == 2048
    with pytest.raises(openai.NotFoundError):
        tiny.client.models.retrieve("other/one")
