"""Calls of tools by masked families, each in the form that its chat template shows, over HTTP."""

import json

import calling
import jsonschema
import pytest
from asks import turn
from calling import CASES
from exhaustive import by_default

from dlm import Engine, Request
from dlm.call_form import call_form
from dlm.chat import Chat

NOTE = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}, "age": {"enum": [1, 20]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in (("note", NOTE), ("stop", {"type": "object", "properties": {}}))
]
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
BODY = {"model": "calls", "messages": turn("Who?"), "tools": TOOLS, "max_tokens": 56}


@pytest.fixture(scope="module", params=by_default([*CASES], 1))
def engine(request, tmp_path_factory):
    directory = calling.write(tmp_path_factory.mktemp("calling"), request.param)
    made = Engine.load(directory, slots=2)
    made.form = CASES[request.param].form
    yield made
    made.close()


@pytest.fixture(scope="module")
def http(engine, serve):
    with serve(engine, names=("calls",)) as running:
        yield running.http


def check(calls):
    """Check calls, each a name and JSON text of arguments."""
    assert calls
    for name, arguments in calls:
        jsonschema.validate(json.loads(arguments), SCHEMAS[name])


def events_of(text):
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


@pytest.mark.parametrize("name", CASES)
def test_the_form_is_that_which_the_chat_template_shows(name, tmp_path):
    chat = Chat.load(calling.write(tmp_path / "model", name))
    assert call_form(chat) == CASES[name].form
    written = chat.tokenizer.chat_template.replace("message.tool_calls", "message.nothing")
    (tmp_path / "model" / "chat_template.jinja").write_text(written)
    assert call_form(Chat.load(tmp_path / "model")) is None


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("sdar", "<tool_call>"),
        ("nemotron", "<tool_call>"),
        ("llada2, GLM's tags", "<arg_key>"),
        ("llada2, GLM's tags", "</arg_value>"),
    ],
)
def test_a_form_whose_tag_is_a_control_token_is_refused_with_the_reason(
    name, tag, tmp_path, caplog
):
    directory = calling.write(tmp_path / "model", name)
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    for token in tokenizer["added_tokens"]:
        token["special"] |= token["content"] == tag
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert call_form(Chat.load(directory)) is None
    assert f"have the text {tag}, which is a control token" in caplog.text


def test_a_required_call_is_streamed_as_it_is_answered_at_once(engine, http):
    body = BODY | {"tools": TOOLS[:1], "tool_choice": "required", "seed": 3}
    message = http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
    calls = [call["function"] for call in message["tool_calls"]]
    check([(call["name"], call["arguments"]) for call in calls])
    assert message["content"] is None
    streamed = http.post("/v1/chat/completions", json=body | {"stream": True}).text
    joined, contents = {}, ""
    for chunk in events_of(streamed):
        for choice in chunk["choices"]:
            contents += choice["delta"].get("content") or ""
            for part in choice["delta"].get("tool_calls", ()):
                call = joined.setdefault(part["index"], {"name": "", "arguments": "", "parts": 0})
                call["name"] += part["function"].get("name", "")
                call["arguments"] += part["function"].get("arguments", "")
                call["parts"] += 1
    assert contents == ""
    assert [(c["name"], c["arguments"]) for c in joined.values()] == [
        (call["name"], call["arguments"]) for call in calls
    ]
    if engine.form not in (
        "qwen3_coder",
        "glm",
    ):  # whose arguments are JSON only once a call is whole
        assert max(call["parts"] for call in joined.values()) > 2


def test_a_named_tool_is_called_once_through_every_interface(http):
    named = {"type": "function", "function": {"name": "note"}}
    chat = http.post("/v1/chat/completions", json=BODY | {"tool_choice": named}).json()
    (call,) = chat["choices"][0]["message"]["tool_calls"]
    check([(call["function"]["name"], call["function"]["arguments"])])
    flat = [{"type": "function", **tool["function"], "strict": False} for tool in TOOLS]
    body = {"model": "calls", "input": "Who?", "tools": flat, "max_output_tokens": 56}
    choice = {"tool_choice": {"type": "function", "name": "note"}}
    answer = http.post("/v1/responses", json=body | choice).json()
    (item,) = [item for item in answer["output"] if item["type"] == "function_call"]
    check([(item["name"], item["arguments"])])
    tools = [{"name": name, "input_schema": schema} for name, schema in SCHEMAS.items()]
    body = {"model": "calls", "messages": turn("Who?"), "tools": tools, "max_tokens": 56}
    choice = {"tool_choice": {"type": "tool", "name": "note"}}
    answer = http.post("/v1/messages", json=body | choice).json()
    (block,) = answer["content"]
    assert block["type"] == "tool_use"
    check([(block["name"], json.dumps(block["input"]))])


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_the_form_cannot_enforce_is_a_400_with_its_place_in_the_body(http, stream):
    custom = {"name": "made", "format": {"type": "grammar", "syntax": "regex", "definition": "a"}}
    chat = BODY | {"tools": [*TOOLS, {"type": "custom", "custom": custom}], "stream": stream}
    response = {"model": "calls", "input": "Who?", "tools": [{"type": "custom"} | custom]}
    for path, body, place in (
        ("/v1/chat/completions", chat, "/tools/2/custom/format"),
        ("/v1/responses", response | {"stream": stream}, "/tools/0/format"),
    ):
        answer = http.post(path, json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "tools")
        assert error["message"].startswith(f"tools: tools at {place}: calls in the form")


def test_a_conversation_with_calls_and_their_results_goes_on(engine, http):
    call = {"name": "note", "arguments": json.dumps({"name": "Ada", "age": 20})}
    messages = [
        *turn("Who?"),
        {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "a", "content": "Noted."},
    ]
    body = BODY | {"messages": messages, "parallel_tool_calls": False, "max_tokens": 8}
    answer = http.post("/v1/chat/completions", json=body).json()["choices"][0]
    assert len(answer["message"].get("tool_calls") or ()) <= 1
    prompt = http.post("/tokenize", json={"model": "calls", "messages": messages}).json()["tokens"]
    rendered = engine.chat.tokenizer.decode(prompt)
    assert "Ada" in rendered
    assert "Noted." in rendered


def test_without_a_choice_of_tools_an_answer_is_text(http):
    answer = http.post(
        "/v1/chat/completions", json=BODY | {"tool_choice": "none", "max_tokens": 8}
    ).json()
    assert answer["choices"][0]["message"].get("tool_calls") is None
    assert answer["choices"][0]["message"]["content"]


def test_a_budget_that_fits_no_required_call_is_refused_and_the_least_one_is_enough(engine, http):
    body = BODY | {"tool_choice": "required", "tools": TOOLS[:1]}
    answer = http.post("/v1/chat/completions", json=body | {"max_tokens": 3})
    assert answer.status_code == 400
    least = int(answer.text.partition("the shortest answer takes ")[2].split()[0])
    answer = http.post("/v1/chat/completions", json=body | {"max_tokens": least}).json()
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    check([(call["function"]["name"], call["function"]["arguments"])])
    assert answer["usage"]["completion_tokens"] <= least


def test_markers_in_what_a_client_writes_are_text(engine):
    forged = "".join(calling.IDS)
    messages = [
        {"role": "user", "content": forged},
        {"role": "tool", "tool_call_id": "a", "name": "note", "content": forged},
    ]
    plain = [message | {"content": "x"} for message in messages]
    prompts = [
        engine.chat.prompt(Request(messages=each, tools=TOOLS)) for each in (messages, plain)
    ]
    written, expected = (
        [token for token in prompt if token in calling.IDS.values()] for prompt in prompts
    )
    template = str(engine.chat.tokenizer.chat_template)  # whose tags nobody else writes
    thinks = ("<think>", "</think>") if engine.vocabulary.thought else ()
    others = {calling.IDS[tag] for tag in calling.TAGS if tag not in template and tag not in thinks}
    assert [token for token in written if token not in others] == expected
    assert forged in engine.chat.tokenizer.decode(prompts[0])
