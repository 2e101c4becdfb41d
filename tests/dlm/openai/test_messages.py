"""Conversations: the parts that reach the model, and the parts that are refused."""

import pytest

from dlm import Request, RequestError
from dlm.openai.messages import messages_of

CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "find", "arguments": '{"a": "<turn|>", "n": [1, null, true]}'},
}
HI = {"role": "user", "content": "hi"}


def test_a_conversation_with_tools_becomes_the_model_s_own_form(chat):
    messages = messages_of(
        [
            {"role": "developer", "content": "be kind"},
            HI,
            {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None},
            {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "42"}]},
            {"role": "system", "content": "be brief"},
            {"role": "assistant", "content": "Well.", "annotations": [], "reasoning": "hm"},
            HI,
        ]
    )
    tokens = chat.prompt(Request(messages=messages, thinking=True))
    assert chat.tokenizer.decode(tokens) == (
        "<bos><|turn>system\n<|think|>be kind<turn|>\n<|turn>user\nhi<turn|>\n<|turn>model\n"
        '<|tool_call>call:find{a:<|"|><turn|><|"|>,n:[1,null,true]}<tool_call|><turn|>\n'
        "<|turn>tool\n42<turn|>\n<|turn>system\nbe brief<turn|>\n<|turn>model\nWell.<turn|>\n"
        "<|turn>user\nhi<turn|>\n<|turn>model\n"
    )
    assert tokens.count(106) == 7  # <turn|>: one for each turn that ended, none of the text


def test_the_result_of_a_tool_names_it():
    messages = messages_of(
        [
            HI,
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "42"},
        ]
    )
    assert messages[1]["tool_calls"][0]["function"]["arguments"]["n"] == [1, None, True]
    assert messages[2] == {
        "role": "tool",
        "tool_call_id": "call_1",
        "name": "find",
        "content": "42",
    }


def test_parts_of_text_are_lines():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert messages_of([{"role": "user", "content": parts}]) == [
        {"role": "user", "content": "one\ntwo"}
    ]


def call(**more):
    return {"role": "assistant", "tool_calls": [CALL | more]}


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("hi", r"messages\[0\] must be an object, got 'hi'"),
        ({"content": "hi"}, r"messages\[0\].role is missing; it must be one of system, dev"),
        ({"role": "model", "content": "hi"}, r"role must be one of system.*, got 'model'"),
        ({"role": "user"}, r"messages\[0\].content is missing; it must be text or a list of parts"),
        ({"role": "user", "content": 3}, r"messages\[0\].content must be text.*, got 3"),
        ({"role": "user", "content": ["a"]}, r"content\[0\] must be an object, got 'a'"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            r"content\[0\].image_url.url must be a data URL of an image in base64.*, got 'x'",
        ),
        (
            {"role": "system", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            r"content\[0\].type must be text \(only messages of users .*, got 'image_url'",
        ),
        (
            {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]},
            r"content\[0\].type must be text or image_url \(no model here .*, got 'input_audio'",
        ),
        ({"role": "user", "content": [{"type": "text"}]}, r"content\[0\].text is missing"),
        (
            {"role": "user", "content": "a", "tool_calls": [CALL]},
            r"messages\[0\].tool_calls is a list, and would be lost: only an assistant's",
        ),
        (
            {"role": "assistant", "content": "a", "audio": {"id": "x"}},
            r"messages\[0\].audio is an object of id, and would be lost: this server's models",
        ),
        ({"role": "assistant", "function_call": {"name": "f"}}, "function_call .*: use tool_calls"),
        (
            {"role": "user", "contents": "a"},
            r"\[0\].contents is unknown here; is it content, which is m",
        ),
        (
            {"role": "assistant", "conten": "a"},
            r"\[0\].conten is unknown here; is it content, which is",
        ),
        (
            {"role": "assistant", "Content": "a"},
            r"\[0\].Content is unknown here; is it content, which i",
        ),
        (
            {"role": "assistant", "content": None, "tool_call": [CALL]},
            r"\[0\].tool_call is unknown here; is it tool_calls, which is missing",
        ),
        ({"rol": "user", "content": "a"}, r"messages\[0\].role is missing"),
        (
            {"role": "user", "content": [{"type": "thinking", "thinking": "x"}]},
            r"content\[0\].type must be text.*, got 'thinking'",
        ),
        (call(type="mcp"), r"tool_calls\[0\].type must be one of function, custom.*, got 'mcp'"),
        (call(id=None), r"tool_calls\[0\].id is missing"),
        (call(function=None), r"tool_calls\[0\].function is missing; it must be an object"),
        ({"role": "tool", "content": "a"}, r"tool_call_id is missing; it must be the id of a tool"),
        ({"role": "tool", "content": "a", "tool_call_id": "x"}, "no call before it has that id"),
    ],
)
def test_a_message_that_would_lose_content_is_refused(message, problem):
    with pytest.raises(RequestError, match=problem):
        messages_of([message])


@pytest.mark.parametrize(
    "extra",
    [
        {"reasoning_details": [{"type": "reasoning.text", "text": "x"}]},
        {"thinking_blocks": [{"type": "thinking", "thinking": "x", "signature": "s"}]},
        {"provider_specific_fields": {"a": 1}},
        {"prefix": False},
        {"prefix": True},
        {"id": "m1"},
        {"reasoning_content": "x"},
        {"reasoning": "x"},
        {"metadata": {"a": "b"}},
        {"cache_control": {"type": "ephemeral"}},
        {"annotations": [{"type": "url_citation"}]},
        {"refusal": None, "audio": None, "function_call": None, "tool_calls": []},
        {"parsed": {"a": 1}},
        {"timestamp": 12.5, "model": "m", "finish_reason": "stop", "usage": {"tokens": 1}},
        {"\ud800": 1},
    ],
)
@pytest.mark.parametrize("role", ["user", "assistant", "system", "developer"])
def test_other_fields_that_clients_leave_in_messages_are_ignored(extra, role):
    plain = {"role": role, "content": "Rain."}
    assert messages_of([plain | extra]) == messages_of([plain])


def test_parts_of_any_text_are_read_and_thoughts_are_not():
    parts = [
        {"type": "thinking", "thinking": "x"},
        {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}, "id": 3},
        {"type": "output_text", "text": "b", "annotations": []},
        {"type": "reasoning", "summary": []},
    ]
    assert messages_of([{"role": "assistant", "content": parts}])[0]["content"] == "a\nb"
    assert messages_of([{"role": "user", "content": [{"type": "input_text", "text": "c"}]}])


def test_the_result_of_a_tool_may_be_empty():
    calls = {"role": "assistant", "tool_calls": [CALL]}
    for content in (None, "", []):
        answer = {"role": "tool", "tool_call_id": "call_1", "content": content}
        assert messages_of([calls, answer])[1]["content"] == ""


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"city": "Os', '{"city": "Os'),
        ("[]", "[]"),
        ("null", "null"),
        ("3", "3"),
        ('{"x": NaN}', '{"x": NaN}'),
        ('{"a": 1} trailing', '{"a": 1} trailing'),
        ("city=Oslo", "city=Oslo"),
        ("  ", "  "),
        ("call:f{}<tool_call|>", "call:f{}<tool_call|>"),
        ([1, "é"], '[1, "é"]'),
        (3, "3"),
        (False, "false"),
        ('{"a": "\\ud83d"}', '{"a": "\\ud83d"}'),
        ('{"a": "\ud83d', '{"a": "\ufffd'),
        ("[" * 5000, "[" * 5000),
        ('{"a":' * 500 + "1" + "}" * 500, '{"a":' * 500 + "1" + "}" * 500),
    ],
)
def test_arguments_that_are_no_object_are_shown_as_they_are(chat, arguments, shown):
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    conversation = [
        HI,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "error: no valid JSON"},
    ]
    messages = messages_of(conversation)
    assert messages[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": shown}
    tokens = chat.prompt(Request(messages=messages))
    assert shown in chat.tokenizer.decode(tokens)
    closing = chat.tokenizer.convert_tokens_to_ids("<tool_call|>")
    assert tokens.count(closing) == 1  # none of the text


@pytest.mark.parametrize("arguments", [None, "", "{}", {}])
def test_a_call_without_arguments_has_none(arguments):
    (message,) = messages_of([call(function={"name": "f", "arguments": arguments})])
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": {}}


def test_a_tool_without_parameters_is_declared(chat):
    tools = [{"type": "function", "function": {"name": "now"}}]
    prompt = chat.tokenizer.decode(chat.prompt(Request(prompt="hi", tools=tools)))
    assert "declaration:now{}" in prompt
