"""Arguments of tool calls in vLLM: the values that the grammar wrote, in every API."""

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import jsonschema
import pytest
from conftest import TINY
from native_calls import answer_tokens
from typed_tools import ARGUMENTS, NAMES, SCHEMAS, exactly

from dlm.grammar import ToolCall, Tools, Vocabulary
from dlm.grammar.calls import GemmaReader

PROMPT = "Call the tool."
LOOSE = {
    "type": "object",
    "$defs": {
        "guest": {
            "type": "object",
            "properties": {
                "name": {"type": ["string", "null"], "maxLength": 6},
                "age": {"type": "integer"},
                "vip": {"type": "boolean"},
            },
            "required": ["name", "age", "vip"],
            "additionalProperties": False,
        }
    },
    "properties": {
        "guest": {"anyOf": [{"$ref": "#/$defs/guest"}, {"type": "null"}]},
        "pair": {
            "type": "array",
            "prefixItems": [{"type": "number"}, {"type": "string", "maxLength": 4}],
            "items": False,
            "minItems": 2,
        },
        "either": {"type": ["integer", "string", "boolean"], "maxLength": 4},
    },
    "required": ["guest", "pair", "either"],
    "additionalProperties": False,
}


def vocabulary_of(tokenizer):
    return Vocabulary.from_tokenizer(tokenizer, 1536, (1, 106, 50), 0)


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(TINY)


def parser_of(tokenizer, tools):
    from vllm.parser import ParserManager

    made = ParserManager.get_parser("gemma4", "gemma4", True, tokenizer=tokenizer)
    return made(tokenizer, tools)


@pytest.fixture(scope="module")
def plugin():
    from vllm.plugins import load_general_plugins

    load_general_plugins()


def chat_request(name, **fields):
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    function = {"name": "f", "parameters": SCHEMAS[name]}
    return ChatCompletionRequest(
        messages=[{"role": "user", "content": PROMPT}],
        tools=[{"type": "function", "function": function}],
        tool_choice="auto",
        **fields,
    )


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("name", NAMES)
def test_vllm_s_parser_reads_constrained_calls_cut_at_any_token(tokenizer, name):
    from dlm.integrations.vllm.own import GEMMA
    from dlm.integrations.vllm.payload import TOOLS, Reading, ToolsText

    vocabulary = vocabulary_of(tokenizer)
    request, tools = chat_request(name), ToolsText("{}")
    spec = Tools([tool.model_dump(exclude_none=True) for tool in request.tools])
    tools.reading = Reading(vocabulary, spec, None, GEMMA.markup)
    request.vllm_xargs = {TOOLS: tools}
    tokens = [*answer_tokens(vocabulary, "So: ", ToolCall("f", ARGUMENTS[name])), 106]
    text = tokenizer.decode(tokens)
    _, content, (call,) = parser_of(tokenizer, request.tools).parse(text, request, True, tokens)
    assert (content, call.name) == ("So:", "f")
    assert exactly(json.loads(call.arguments)) == exactly(ARGUMENTS[name])
    for size in (1, 3, len(tokens)):
        parser, content, arguments = parser_of(tokenizer, request.tools), "", ""
        for at in range(0, len(tokens), size):
            part, last = tokens[at : at + size], at + size >= len(tokens)
            delta = parser.parse_delta("?", part, request, [2], finished=last)
            content += (delta and delta.content) or ""
            for entry in delta.tool_calls if delta else ():
                arguments += entry.function.arguments or ""
        assert (content, arguments) == ("So: ", call.arguments)


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("name", NAMES)
def test_calls_of_other_requests_are_read_as_without_the_plugin(tokenizer, name):
    from vllm.parser.abstract_parser import DelegatingParser

    vocabulary, request = vocabulary_of(tokenizer), chat_request(name)
    tokens = answer_tokens(vocabulary, "So: ", ToolCall("f", ARGUMENTS[name]))
    text = tokenizer.decode(tokens)

    def read(parse):
        reasoning, content, calls = parse(
            parser_of(tokenizer, request.tools), text, request, True, tokens
        )
        return reasoning, content, [(call.name, call.arguments) for call in calls or ()]

    assert read(DelegatingParser.parse) == read(DelegatingParser.parse.__wrapped__)


def post(server, path, **body):
    """Return the answer's body, or the data of all events of a stream."""
    body = {"model": "tiny"} | body
    url = f"{server.url}{path}"
    if not body.get("stream"):
        answer = httpx.post(url, json=body, timeout=600)
        assert answer.status_code == 200, answer.text
        return answer.json()
    answer = httpx.post(url, json=body, timeout=600)
    assert answer.status_code == 200, answer.text
    lines = answer.text.split("\n")  # a text may hold other characters that end lines
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [json.loads(text) for text in data if text != "[DONE]"]


def function_of(schema):
    return {"type": "function", "function": {"name": "f", "parameters": schema}}


def by_chat(server, schema, stream, **more):
    """Return a call's name and arguments, and why the answer ended."""
    body = {"messages": [{"role": "user", "content": PROMPT}], "tools": [function_of(schema)]}
    more = {"tool_choice": "required", "max_tokens": 400, "stream": stream} | more
    answer = post(server, "/v1/chat/completions", **body, **more)
    if not stream:
        choice = answer["choices"][0]
        (call,) = choice["message"]["tool_calls"]
        return call["function"]["name"], call["function"]["arguments"], choice["finish_reason"]
    name = arguments = reason = ""
    for event in answer:
        for choice in event["choices"]:
            for call in choice["delta"].get("tool_calls") or ():
                name += call["function"].get("name") or ""
                arguments += call["function"].get("arguments") or ""
            reason = choice["finish_reason"] or reason
    return name, arguments, reason


def by_responses(server, schema, stream):
    tool = {"type": "function", "name": "f", "parameters": schema}
    body = {"input": PROMPT, "tools": [tool], "tool_choice": "required", "max_output_tokens": 400}
    answer = post(server, "/v1/responses", **body, stream=stream)
    if stream:
        written = "".join(
            event["delta"]
            for event in answer
            if event["type"] == "response.function_call_arguments.delta"
        )
        answer = answer[-1]["response"]
    (call,) = [item for item in answer["output"] if item["type"] == "function_call"]
    if stream:
        assert written == call["arguments"]
    return call["name"], call["arguments"], answer["status"]


def by_messages(server, schema, stream):
    body = {
        "messages": [{"role": "user", "content": PROMPT}],
        "tools": [{"name": "f", "input_schema": schema}],
        "tool_choice": {"type": "any"},
        "max_tokens": 400,
    }
    answer = post(server, "/v1/messages", **body, stream=stream)
    if not stream:
        (block,) = [block for block in answer["content"] if block["type"] == "tool_use"]
        return block["name"], json.dumps(block["input"]), answer["stop_reason"]
    name = arguments = reason = ""
    for event in answer:
        if event["type"] == "content_block_start":
            name += event["content_block"].get("name", "")
        elif event["type"] == "content_block_delta":
            arguments += event["delta"].get("partial_json", "")
        elif event["type"] == "message_delta":
            reason = event["delta"]["stop_reason"]
    return name, arguments, reason


APIS = {
    "chat": (by_chat, "tool_calls"),
    "responses": (by_responses, "completed"),
    "messages": (by_messages, "tool_use"),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api", APIS)
def test_arguments_are_exactly_what_the_schema_forces(server, api, stream):
    ask, reason = APIS[api]

    def answer(name):
        return ask(server, SCHEMAS[name], stream)

    with ThreadPoolExecutor(8) as threads:
        answers = dict(zip(NAMES, threads.map(answer, NAMES), strict=True))
    for name, (called, arguments, ended) in answers.items():
        assert (called, ended) == ("f", reason), name
        assert exactly(json.loads(arguments)) == exactly(ARGUMENTS[name]), name


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_arguments_are_what_the_tokens_spell(server, tokenizer, stream):
    """The tokens of an answer are read by the reader of our own server."""
    vocabulary = vocabulary_of(tokenizer)
    body = {
        "messages": [{"role": "user", "content": "Book for Ann, 31, and 1.5 of x."}],
        "tools": [function_of(LOOSE)],
        "tool_choice": "required",
        "max_tokens": 200,
        "stream": stream,
        "return_token_ids": True,
    }
    for _ in range(4):
        answer = post(server, "/v1/chat/completions", **body)
        tokens, arguments = [], ""
        for event in answer if stream else [answer]:
            for choice in event["choices"]:
                tokens += choice.get("token_ids") or []
                message = choice["delta"] if stream else choice["message"]
                for call in message.get("tool_calls") or ():
                    arguments += call["function"].get("arguments") or ""
        reader = GemmaReader(vocabulary)
        assert arguments == "".join(delta.arguments for delta in reader.feed(tokens))
        jsonschema.validate(json.loads(arguments), LOOSE)
