"""Requests of every kind to SGLang's server with the plugin, for a model of random weights."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import httpx
import jsonschema
import pytest
from conftest import SCHEMAS, diffusion, json_schema, object_of, served

WORD = "word "
BOOK = object_of({"n": {"type": "integer"}, "name": {"type": "string", "maxLength": 6}})
TOOLS = [
    {"type": "function", "function": {"name": name, "strict": True, "parameters": BOOK}}
    for name in ("book", "cancel")
]
BACK = {"type": "string", "pattern": r"^(a|b)\1$"}  # a back-reference, which no grammar enforces
NAMED = {"type": "function", "function": {"name": "cancel"}}


def test_json_objects_regular_expressions_and_grammars_are_enforced(server):
    choice = server.choice("x", response_format={"type": "json_object"}, max_tokens=24)
    assert isinstance(json.loads(choice["message"]["content"]), dict)
    choice = server.choice("x", regex="(yes|no){2}-[0-9]{3}")
    assert re.fullmatch("(yes|no){2}-[0-9]{3}", choice["message"]["content"])
    choice = server.choice("x", ebnf='root ::= "a" root | "b" [0-9]+', max_tokens=12)
    assert re.fullmatch("a*b[0-9]+", choice["message"]["content"])


def test_structural_tags_are_enforced_in_both_forms(server):
    sequence = {
        "type": "sequence",
        "elements": [
            {"type": "const_string", "value": "ID: "},
            {"type": "regex", "pattern": "[A-Z]{2}-[0-9]{4}"},
        ],
    }
    tag = {"type": "structural_tag", "format": sequence}
    content = server.choice("x", response_format=tag)["message"]["content"]
    assert re.fullmatch("ID: [A-Z]{2}-[0-9]{4}", content)
    older = {
        "type": "structural_tag",
        "structures": [{"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}],
        "triggers": ["<f>"],
    }
    content = server.choice("x", response_format=older)["message"]["content"]
    assert all(re.match(r"\s*-?\d+\s*</f>", part) for part in content.split("<f>")[1:])


@pytest.mark.parametrize("tool_choice", ["required", NAMED], ids=["required", "named"])
def test_tools_that_must_be_called_are_called(server, tool_choice):
    choice = server.choice("x", tools=TOOLS, tool_choice=tool_choice, max_tokens=120)
    calls = choice["message"]["tool_calls"]
    assert calls
    for call in calls:
        names = ["cancel"] if tool_choice == NAMED else ["book", "cancel"]
        assert call["function"]["name"] in names
        jsonschema.validate(json.loads(call["function"]["arguments"]), BOOK)


def test_strict_tools_that_may_be_called_are_valid_where_they_are(server):
    for words in range(1, 5):
        choice = server.choice(WORD * words, tools=TOOLS, tool_choice="auto", max_tokens=60)
        for call in choice["message"].get("tool_calls") or ():
            jsonschema.validate(json.loads(call["function"]["arguments"]), BOOK)


def test_a_stream_is_the_whole_answer_and_each_of_several_choices_is_valid(server):
    body = {
        "response_format": json_schema(SCHEMAS[0]),
        "messages": [{"role": "user", "content": "x"}],
    }
    whole = server.choice("x", response_format=json_schema(SCHEMAS[0]))["message"]["content"]
    text, events = "", 0
    with httpx.stream(
        "POST",
        f"{server.url}/v1/chat/completions",
        json={"model": "random", "stream": True, "max_tokens": 96, **body},
        timeout=600,
    ) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                events += 1
                for choice in json.loads(line[6:])["choices"]:
                    text += choice["delta"].get("content") or ""
    assert text == whole
    assert events > 2
    answer = server.chat("x", n=3, response_format=json_schema(SCHEMAS[0])).json()
    assert len(answer["choices"]) == 3
    for choice in answer["choices"]:
        jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMAS[0])


def test_the_native_api_takes_the_same_constraints(server):
    params = {"regex": "[a-c]{5}", "max_new_tokens": 20}
    answer = httpx.post(
        f"{server.url}/generate", json={"text": "x", "sampling_params": params}, timeout=600
    )
    assert re.fullmatch("[a-c]{5}", answer.json()["text"])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"max_tokens": 2}, "the shortest answer takes"),
        ({"stop": ["x"]}, "stop_strs beside a constraint"),
        ({"ignore_eos": True}, "ignore_eos beside a constraint"),
        ({"stop_token_ids": [7]}, "stop_token_ids beside a constraint"),
        ({"response_format": json_schema({"$ref": "#/nowhere"})}, "#/nowhere"),
        ({"response_format": json_schema(BACK)}, "enforce"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_reason(server, body, reason):
    answer = server.chat("x", **({"response_format": json_schema(SCHEMAS[0])} | body))
    assert answer.status_code == 400
    assert re.search(reason, answer.json()["message"])


def test_the_context_ends_an_answer_in_time(server):
    """The prompt leaves room for a few blocks; the answer is complete all the same."""
    used = [
        server.chat(WORD * words, max_tokens=1).json()["usage"]["prompt_tokens"]
        for words in (10, 60)
    ]
    each = (used[1] - used[0]) / 50
    statuses = []
    for left in (20, 70, 110, 170):
        words = int((1024 - left - used[0]) / each) + 10
        body = {"response_format": json_schema(SCHEMAS[0]), "max_tokens": left - 12}
        answer = server.chat(WORD * words, **body)
        statuses.append(answer.status_code)
        if answer.status_code == 200:
            (choice,) = answer.json()["choices"]
            jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMAS[0])
    assert statuses == [400, 200, 200, 200]


def test_aborted_requests_leave_the_others_alone(server):
    body = {"model": "random", "max_tokens": 200, "response_format": json_schema(SCHEMAS[1])}

    def ask(number):
        messages = [{"role": "user", "content": WORD * (number + 1)}]
        json_body = {"messages": messages, "stream": True, **body}
        url, text = f"{server.url}/v1/chat/completions", ""
        with httpx.stream("POST", url, json=json_body, timeout=600) as answer:
            for events, line in enumerate(answer.iter_lines()):
                if number % 2 and events >= number:
                    return None
                if line.startswith("data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        text += choice["delta"].get("content") or ""
        jsonschema.validate(json.loads(text), SCHEMAS[1])
        return True

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(ask, range(8)))
    assert answers.count(True) == 4
    assert server.is_well()


@pytest.fixture(scope="module")
def plain(model, tmp_path_factory):
    """A server of the same model, without the plugin."""
    folder = tmp_path_factory.mktemp("plain")
    yield from served(model, folder, flags=diffusion(folder, "LowConfidence", 32), plugin=False)


def test_free_requests_are_those_of_a_server_without_the_plugin(server, plain):
    def texts(at):
        return [
            at.choice(WORD * (3 * i + 1), max_tokens=64)["message"]["content"] for i in range(8)
        ]

    assert texts(server) == texts(plain)
    assert "dlm:" not in plain.log.read_text()


def test_free_and_constrained_requests_share_batches(server, plain):
    def ask(i):
        bound = {"response_format": json_schema(SCHEMAS[i % len(SCHEMAS)])} if i % 2 else {}
        return server.choice(WORD * (i + 1), max_tokens=128, **bound)["message"]["content"]

    with ThreadPoolExecutor(4) as threads:
        texts = list(threads.map(ask, range(12)))
    for i, text in enumerate(texts):
        if i % 2:
            jsonschema.validate(json.loads(text), SCHEMAS[i % len(SCHEMAS)])
