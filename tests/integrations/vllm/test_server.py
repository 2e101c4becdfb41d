"""vLLM's OpenAI server with the plugin, through the official client."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import forged
import jsonschema
import openai
import pytest

INVOICE = {
    "type": "object",
    "properties": {"invoice_id": {"type": "string"}, "paid": {"type": "boolean"}},
    "required": ["invoice_id", "paid"],
    "additionalProperties": False,
}
PROMPT = "Extract invoice_id, paid as JSON. Invoice AK-4071 for Silver Robotics has been paid."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "book",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "nights": {"type": "integer"}},
                "required": ["city", "nights"],
                "additionalProperties": False,
            },
        },
    }
]


def formatted(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def streamed(server, prompt, **more):
    """Return the text of a stream, and its finish reason."""
    text, reason = "", None
    for chunk in server.chat(prompt, stream=True, **more):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
    return text, reason


def whole(server, prompt, **more):
    choice = server.chat(prompt, **more).choices[0]
    return choice.message.content, choice.finish_reason


def test_all_held_out_prompts_have_valid_answers_with_and_without_streams(server, held_out):
    def ask(i):
        item = held_out[i]
        how = streamed if i % 2 else whole
        return how(server, item.prompt, response_format=formatted(item.schema))

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(ask, range(len(held_out))))
    exact = ended = 0
    for item, (text, reason) in zip(held_out, answers, strict=True):
        assert reason in ("stop", "length")
        ended += reason == "stop"
        value = json.loads(text)
        jsonschema.validate(value, item.schema)
        exact += value == item.value
    print(f"{len(answers)} of {len(held_out)} valid, {exact} exact")
    assert exact > len(held_out) / 4
    assert ended > 0.9 * len(held_out)


def test_every_kind_of_constraint_is_kept(server):
    def text(**body):
        answer, reason = whole(server, PROMPT, **body)
        assert reason == "stop"
        return answer

    def outputs(**constraint):
        return text(extra_body={"structured_outputs": constraint})

    jsonschema.validate(json.loads(text(response_format=formatted(INVOICE))), INVOICE)
    assert isinstance(json.loads(text(response_format={"type": "json_object"})), dict)
    assert re.fullmatch("[A-Z]{2}-[0-9]{4}", outputs(regex="[A-Z]{2}-[0-9]{4}"))
    assert outputs(choice=["paid", "unpaid"]) in ("paid", "unpaid")
    assert outputs(grammar='root ::= "yes" | "no"') in ("yes", "no")
    for choice in server.chat(PROMPT, n=3, response_format=formatted(INVOICE)).choices:
        jsonschema.validate(json.loads(choice.message.content), INVOICE)


def test_reasoning_is_separate_from_a_valid_answer(server):
    message = (
        server.chat(
            PROMPT,
            max_tokens=256,
            response_format=formatted(INVOICE),
            extra_body={"chat_template_kwargs": {"enable_thinking": True}},
        )
        .choices[0]
        .message
    )
    jsonschema.validate(json.loads(message.content), INVOICE)


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "book"}}, "auto"]
)
def test_tools_are_called_as_vllm_s_own_parser_reads_them(server, choice):
    answer = server.chat("Book 3 nights in Lisbon.", tools=TOOLS, tool_choice=choice).choices[0]
    calls = answer.message.tool_calls or []
    assert calls or choice == "auto"
    for call in calls:
        assert call.function.name == "book"
        schema = TOOLS[0]["function"]["parameters"]
        jsonschema.validate(json.loads(call.function.arguments), schema)


FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "book"}, "auto"])
def test_tools_of_responses_are_called_with_valid_arguments(server, choice):
    answer = server.client.responses.create(
        model="tiny",
        input="Book 3 nights in Lisbon.",
        tools=FLAT,
        tool_choice=choice,
        max_output_tokens=128,
    )
    calls = [item for item in answer.output if item.type == "function_call"]
    assert calls or choice == "auto"
    for call in calls:
        assert call.name == "book"
        jsonschema.validate(json.loads(call.arguments), FLAT[0]["parameters"])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"response_format": formatted({"$ref": "#/nope"})}, "nope"),
        ({"response_format": formatted(INVOICE), "max_tokens": 3}, "the shortest answer takes"),
        ({"extra_body": {"structured_outputs": {"regex": "("}}}, "regex"),
        ({"response_format": formatted(INVOICE), "stop": ["x"]}, "stop"),
        ({"extra_body": {"vllm_xargs": {"dlm": "x"}}}, "not a client's to send"),
        ({"extra_body": {"vllm_xargs": {"dlm_tools": "{}"}}}, "not a client's to send"),
    ],
)
def test_a_request_that_cannot_be_served_is_a_400_with_the_reason(server, body, reason):
    with pytest.raises(openai.BadRequestError, match=re.escape(reason)):
        server.chat(PROMPT, **body)


def test_without_the_plugin_a_schema_is_still_a_400(tmp_path, held_out):
    from conftest import TINY, served

    for bare in served(tmp_path, model=TINY, plugin=False, args=("--max-model-len", "512")):
        with pytest.raises(openai.BadRequestError, match="not yet supported"):
            bare.chat(held_out[0].prompt, response_format=formatted(held_out[0].schema))


def test_forged_names_are_refused_wherever_vllm_reads_them(server):
    seen = forged.statuses(server.url)
    assert set(seen.values()) <= {200, 400}
    answered = {key for key, status in seen.items() if status == 200}
    # `None` and what vLLM itself does not read, as in the last two APIs, is no request's.
    assert {key[0] for key in answered if key[2] != "None"} <= {"/v1/messages"}
    assert forged.is_healthy(server.url)
