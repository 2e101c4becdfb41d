"""Chat completions, responses and messages of one server give equal answers and errors."""

import json
import random
import re
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import anthropic
import openai
import pytest
from asks import ASK, PERSON, WEATHER
from doubles import Dreamer, Obsessed
from exhaustive import share
from gated import Gated
from openai.types.responses import ResponseFailedEvent
from values import V
from waiting import wait_until

from dlm import Policy
from dlm.grammar import Task

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
SCHEMA_FIELDS = {
    CHAT: {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": PERSON}}
    },
    RESPONSES: {"text": {"format": {"type": "json_schema", "name": "x", "schema": PERSON}}},
    MESSAGES: {"output_config": {"format": {"type": "json_schema", "schema": PERSON}}},
}
TOOL_FIELDS = {
    CHAT: {
        "tools": [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
    },
    RESPONSES: {
        "tools": [{"type": "function", "name": "weather", "parameters": WEATHER}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
    },
    MESSAGES: {
        "tools": [{"name": "weather", "input_schema": WEATHER}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    },
}


def body_of(path, prompt, tokens, **more):
    messages = {"messages": [{"role": "user", "content": prompt}]}
    return {
        CHAT: messages | {"max_completion_tokens": tokens},
        RESPONSES: {"input": prompt, "max_output_tokens": tokens},
        MESSAGES: messages | {"max_tokens": tokens},
    }[path] | more


def events_of(text):
    """Return the JSON data of server-sent events."""
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def content_of(path, answer):
    """Return the text of an answer, or the name and the arguments of its call."""
    if path == CHAT:
        message = answer["choices"][0]["message"]
        if not message.get("tool_calls"):
            return message["content"]
        called = message["tool_calls"][0]["function"]
        return called["name"], json.loads(called["arguments"])
    (item,) = answer["output" if path == RESPONSES else "content"]
    match item["type"]:
        case "message":
            return item["content"][0]["text"]
        case "text":
            return item["text"]
        case "function_call":
            return item["name"], json.loads(item["arguments"])
    return item["name"], item["input"]


def streamed(path, text):
    """Return the text of a stream's deltas."""
    events = events_of(text)
    if path == CHAT:
        return "".join(event["choices"][0]["delta"].get("content", "") for event in events)
    kind = {RESPONSES: "response.output_text.delta", MESSAGES: "content_block_delta"}[path]
    deltas = [event["delta"] for event in events if event["type"] == kind]
    return "".join(one if isinstance(one, str) else one["text"] for one in deltas)


@pytest.mark.parametrize(
    ("prompt", "fields", "tokens"),
    [(ASK, SCHEMA_FIELDS, 64), ("What is the weather in Lisbon?", TOOL_FIELDS, 64)],
    ids=["a schema", "a tool"],
)
def test_the_forms_have_the_same_answer_for_a_seed_and_a_constraint(tiny, prompt, fields, tokens):
    draws = {"seed": 5, "temperature": 1, "top_k": 40, "top_p": 0.95, "min_p": 0.01}
    found, counts = [], []
    for path, more in fields.items():
        answer = tiny.http.post(path, json=body_of(path, prompt, tokens, **draws, **more)).json()
        found.append(content_of(path, answer))
        counts.append(
            answer["usage"].get("completion_tokens", answer["usage"].get("output_tokens"))
        )
    assert found[0] == found[1] == found[2]
    assert counts[0] == counts[1] == counts[2] > 0


TOOL_OF = {  # of a schema, and the schema's place
    CHAT: (
        lambda schema: {"type": "function", "function": {"name": "f", "parameters": schema}},
        "/tools/0/function/parameters",
    ),
    RESPONSES: (
        lambda schema: {"type": "function", "name": "f", "parameters": schema},
        "/tools/0/parameters",
    ),
    MESSAGES: (lambda schema: {"name": "f", "input_schema": schema}, "/tools/0/input_schema"),
}


def ends(served):
    """Lines of the metrics about the ends of requests."""
    return re.findall("^dlm:request_success_total.*", served.http.get("/metrics").text, re.M)


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "object", "properties": {"city": {"$ref": "#/nowhere"}}}, "/properties/city"),
        ({"properties": 3}, "/properties: tool 'f': must be an object"),  # no template reads it
        (
            {"type": "object", "properties": {"a:{": {"type": "integer"}}},
            "/properties/a:{: tool 'f': the name 'a:{' is ambiguous",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_broken_schema_of_a_tool_is_a_400_with_its_place_in_the_body(
    tiny, path, schema, place, stream
):
    tool_of, parameters = TOOL_OF[path]
    body = body_of(path, "hi", 40, tools=[tool_of(schema)], stream=stream)
    ended = ends(tiny)
    answer = tiny.http.post(path, json=body)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["message"].startswith(f"tools: tools at {parameters}{place}")
    assert ends(tiny) == ended  # it was refused
    assert path == MESSAGES or error["param"] == "tools"


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_no_stream_begins_for_broken_tools_however_long_the_compiler_is_busy(
    engine_of, serve, monkeypatch, path
):
    engine = engine_of(Dreamer(V, seed=1))
    monkeypatch.setattr(engine._admission, "_compiler", SimpleNamespace(submit=lambda _: Task()))
    tool_of, parameters = TOOL_OF[path]
    broken = {"type": "object", "properties": {"city": {"$ref": "#/nowhere"}}}
    body = body_of(path, "hi", 40, tools=[tool_of(broken)], stream=True)
    with (
        serve(engine, keep_alive=0.01, shutdown_timeout=0) as served,
        served.http.stream("POST", path, json=body) as answer,
    ):
        assert answer.status_code == 400
        message = json.loads(answer.read())["error"]["message"]
    assert message.startswith(f"tools: tools at {parameters}/properties/city/$ref: tool 'f'")


def test_the_forms_have_the_same_text_for_a_seed_and_another_for_another(engine_of, serve):
    def body(path, seed):
        return body_of(path, "Hello!", 8, seed=seed, temperature=2)

    def text_of(path, seed):
        return content_of(path, served.http.post(path, json=body(path, seed)).json())

    found = set()
    with serve(engine_of(Dreamer(V, seed=1))) as served:
        for path in (CHAT, RESPONSES, MESSAGES):
            stream = served.http.post(path, json=body(path, 1) | {"stream": True})
            found |= {text_of(path, 1), streamed(path, stream.text)}
        assert len(found) == 1
        assert {text_of(CHAT, seed) for seed in (2, 3, 4)} != found


class Stepped(Gated):
    """Model that closes its gate after `left` passes."""

    left = -1  # below 0: no bound

    def denoise(self, *args, **more):
        found = super().denoise(*args, **more)
        self.left -= 1
        if self.left == 0:
            self.open.clear()
        return found


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
def test_a_client_that_leaves_a_stream_frees_its_slot_without_affecting_others(
    engine_of, tokens_of, serve, path
):
    model = Stepped(tokens_of("word " * 60), canvas_length=4)
    body = body_of(path, "hi", 200)
    settings = {"slots": 2, "max_queue": 0, "keep_alive": 0.05}
    with serve(engine_of(model, slots=2), **settings) as served, ThreadPoolExecutor(1) as pool:

        def ask():
            return served.http.post(path, json=body).json()

        model.open.set()
        alone = content_of(path, ask())
        assert alone.startswith("word word")
        model.open.clear()
        other = pool.submit(ask)
        wait_until(lambda: served.in_flight() == 1)
        with served.http.stream("POST", path, json=body | {"stream": True}) as answer:
            assert served.in_flight() == 2
            model.left = 14
            model.open.set()
            lines = answer.iter_lines()
            seen = [next(line for line in lines if line.startswith("data: "))]
            seen.append(next(line for line in lines if '"word' in line or 'word"' in line))
            wait_until(lambda: not model.open.is_set())
        wait_until(lambda: served.in_flight() == 1)
        assert not other.done()
        model.open.set()
        assert content_of(path, other.result()) == alone
        wait_until(lambda: not served.engine.busy)
        assert sorted(served.engine._scheduler._free) == [0, 1]
        assert content_of(path, ask()) == alone
        if path == RESPONSES:
            id = json.loads(seen[0][6:])["response"]["id"]
            assert served.http.get(f"/v1/responses/{id}").status_code == 404


class FailingLate(Gated):
    """A device that fails once a text has begun."""

    passes = 0

    def denoise(self, *args, **more):
        self.passes += 1
        if self.passes > 14:
            raise RuntimeError("/a/path of the device")
        return super().denoise(*args, **more)


@pytest.fixture(params=["a request", "the engine"])
def failing(request, engine_of, tokens_of, monkeypatch):
    """An engine that fails in the middle of an answer, and the message and kind of its error."""
    text = tokens_of("word " * 60)
    kind = FailingLate if request.param == "the engine" else Gated
    engine = engine_of(kind(text, canvas_length=4), slots=1)
    engine.model.open.set()
    if request.param == "the engine":
        return engine, "the engine has failed: RuntimeError", "overloaded_error"
    commit = engine._decoder.commit

    def failing(sequence, outcome, events):
        if len(sequence.tokens) > 8:
            raise OSError("/a/path of the machine")
        commit(sequence, outcome, events)

    monkeypatch.setattr(engine._decoder, "commit", failing)
    return engine, "the request failed, by no fault of its own", "api_error"


def test_an_error_in_a_stream_of_a_response_is_response_failed(failing, serve):
    engine, message, _ = failing
    body = body_of(RESPONSES, "hi", 200)
    with serve(engine, slots=1) as served:
        answer = served.http.post(RESPONSES, json=body | {"stream": True})
        assert answer.status_code == 200
        events = events_of(answer.text)
        last = events[-1]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert last["type"] == "response.failed"
        assert [event["type"] for event in events].count("response.failed") == 1
        assert "[DONE]" not in answer.text
        assert "path" not in answer.text
        response = last["response"]
        assert (response["status"], response["usage"]) == ("failed", None)
        assert response["error"] == {"code": "server_error", "message": message}
        (item,) = response["output"]
        assert (item["status"], item["content"][0]["text"][:4]) == ("incomplete", "word")
        assert item["content"][0]["text"] == streamed(RESPONSES, answer.text)
        with pytest.raises(openai.NotFoundError):
            served.client.responses.retrieve(response["id"])
        parsed = ResponseFailedEvent.model_validate(last)
        assert parsed.response.error is not None
        assert parsed.response.error.code == "server_error"


def test_an_error_in_a_stream_of_a_message_is_an_error_event(failing, serve):
    engine, message, kind = failing
    body = body_of(MESSAGES, "hi", 200)
    with serve(engine, slots=1) as served:
        answer = served.http.post(MESSAGES, json=body | {"stream": True})
        assert answer.status_code == 200
        assert answer.text.endswith("\n\n")
        name, data = answer.text.removesuffix("\n\n").split("\n\n")[-1].split("\n")
        assert name == "event: error"
        error = {"type": "error", "error": {"type": kind, "message": message}}
        assert json.loads(data.removeprefix("data: ")) == error
        kinds = [event["type"] for event in events_of(answer.text)]
        assert kinds[:2] == ["message_start", "content_block_start"]
        assert "message_stop" not in kinds
        assert "message_delta" not in kinds
        assert "path" not in answer.text
        assert streamed(MESSAGES, answer.text).startswith("word")


def test_anthropic_s_client_raises_the_error_of_a_stream(engine_of, tokens_of, serve):
    engine = engine_of(FailingLate(tokens_of("word " * 60), canvas_length=4), slots=1)
    engine.model.open.set()
    with (
        serve(engine, slots=1) as served,
        anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0) as client,
        client.messages.stream(**body_of(MESSAGES, "hi", 200), model="tiny") as stream,
        pytest.raises(anthropic.APIStatusError, match="the engine has failed"),
    ):
        stream.get_final_message()


LARK = [
    'start: "SELECT " NAME ("," NAME)* " FROM " NAME ";"\nNAME: /[a-z_]{1,6}/\n',
    "start: pragma | SOURCE\npragma: PRAGMA NEWLINE SOURCE\nPRAGMA: /[ \\t]*\\/\\/ @x:[^\\r\\n]*/\n"
    "NEWLINE: /\\r?\\n/\nSOURCE: /[\\s\\S]+/\n",
    'start: value\nvalue: "(" value* ")" | "\\"" /[^"\\n]{0,6}/ "\\"" | "\U0001d11e"\n',
    'start: sum\n?sum: product ("+"i product)*\nproduct: NUMBER~1..3 | "(" sum ")"\n'
    "NUMBER: /-?[0-9]{1,6}/\nWS: /[ \\t]+/\n%ignore WS\n",
]
REGEXES = [
    "[a-z]{1,8}@[a-z]{1,8}\\.(?:com|org)",
    '[A-Z"\\\\{}]{1,9}\n?',
    "(\\d{4})-(0[1-9]|1[0-2])-\\d\\d(T.*)?",
    "(?:a|bc)*?\\w+[^\\s\\S]?",
]
SIGNS = [
    *"()[]{}|*+?~/\\\"'^$.,:;<>-!&%#@=_\n\t\0é",
    *("\ud800", "\U0001d11e", "{1,999999999}", "{0,}", "{2,1}", "~3", "~9999", "(?=a)", "(?!a)"),
    *("(?<a>x)", "(?P<a>", "(?i:", "\\p{L}", "\\1", "\\b", "\\u{1F600}", "\\x", "[^\\s\\S]", "[]"),
    *("[z-a]", "(a*)*", "(a|a)*", "((((((((", "start", "value", "NAME", "start: start\n", "A: A\n"),
    *(
        "%import common.WS\n",
        "%ignore /a/\n",
        "->",
        "?start",
        "//",
        "::=",
        "<|tool_call>",
        "<turn|>",
    ),
]


def mutated(text, rng):
    """Return a copy with one to three changes, mostly one."""
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        at, to = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        match rng.randrange(6):
            case 0:
                text = text[:at] + rng.choice(SIGNS) + text[at:]
            case 1:
                text = text[:at] + text[min(to, at + 6) :]
            case 2:
                text = text[:to] + text[at:to] + text[to:]
            case 3:
                text = text[:at] + rng.choice(SIGNS) + text[at + 1 :]
            case 4:
                text = text[:at] + text[at : at + 4][::-1] + text[at + 4 :]
            case 5:
                text = text[:at] + rng.choice(SIGNS) * rng.choice([2, 9, 70]) + text[at:]
    return text


@pytest.fixture(scope="module")
def stopping(engine_of, serve):
    """A server whose model ends each answer as soon as it may."""
    policy = Policy(compile_seconds=1.0, answer_tokens=64)
    with serve(engine_of(Obsessed(V, [106]), policy=policy, slots=4)) as served:
        yield served


@pytest.mark.parametrize(("syntax", "texts"), [("lark", LARK), ("regex", REGEXES)])
def test_mutated_grammars_of_custom_tools_are_served_or_refused(stopping, syntax, texts):
    rng, served, refused = random.Random(syntax), 0, 0
    for number in range(share(75) + len(texts)):
        whole = texts[number] if number < len(texts) else None
        definition = whole or mutated(rng.choice(texts), rng)
        format = {"type": "grammar", "syntax": syntax, "definition": definition}
        path = RESPONSES if number % 2 else CHAT
        tool = {"name": "write", "format": format}
        tool = tool if path == RESPONSES else {"custom": tool}
        more = {"tools": [{"type": "custom", **tool}], "tool_choice": "required"}
        body = body_of(path, "hi", 64, **more, stream=number % 3 == 0)
        answer = stopping.http.post(path, content=json.dumps(body).encode())
        assert answer.status_code == 200 or 400 <= answer.status_code < 500, (
            answer.text[:300],
            definition,
        )
        assert whole is None or answer.status_code == 200, answer.text
        served += answer.status_code == 200
        refused += answer.status_code == 400
        assert "by no fault of its own" not in answer.text, definition
    assert served > share(10)
    assert refused > share(10)
    assert stopping.http.get("/health").status_code == 200
    for path in (CHAT, RESPONSES, MESSAGES):
        assert stopping.http.post(path, json=body_of(path, "hi", 8)).status_code == 200
