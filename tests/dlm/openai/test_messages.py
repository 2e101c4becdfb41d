"""Conversations: what of them reaches the model, and what is refused rather than lost."""

import pytest

from dlm import Request, RequestError
from dlm.openai.messages import messages_of

CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "find", "arguments": '{"a": "<turn|>", "n": [1, null, true]}'},
}
HI = {"role": "user", "content": "hi"}


def test_a_turn_with_tools_reads_as_the_model_writes_it(chat):
    """Calls, results and a later system message are all there, and no text is a control token."""
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
    said = chat.tokenizer.decode(tokens)
    assert said == (
        "<bos><|turn>system\n<|think|>be kind<turn|>\n<|turn>user\nhi<turn|>\n<|turn>model\n"
        '<|tool_call>call:find{a:<|"|><turn|><|"|>,n:[1,null,true]}<tool_call|><turn|>\n'
        "<|turn>tool\n42<turn|>\n<|turn>system\nbe brief<turn|>\n<|turn>model\nWell.<turn|>\n"
        "<|turn>user\nhi<turn|>\n<|turn>model\n"
    )
    assert tokens.count(106) == 7  # <turn|>: one for each turn that ended, none of the text


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_that_a_client_sends_back_is_left_out(name):
    [message] = messages_of([{"role": "assistant", "content": "Well.", name: "hm"}])
    assert message == {"role": "assistant", "content": "Well."}


def test_what_a_client_has_read_of_an_answer_may_come_back_with_it():
    [message] = messages_of([{"role": "assistant", "content": "{}", "parsed": {"a": 1}}])
    assert message == {"role": "assistant", "content": "{}"}


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
        ("hi", r"messages\[0\] is 'hi': it takes an object"),
        ({"content": "hi"}, r"messages\[0\].role is missing: it takes system, dev"),
        ({"role": "model", "content": "hi"}, r"role is 'model': it takes system"),
        ({"role": "user"}, r"messages\[0\].content is missing: it takes text or a list of parts"),
        ({"role": "user", "content": 3}, r"messages\[0\].content is 3: it takes text"),
        ({"role": "user", "content": ["a"]}, r"content\[0\] is 'a': it takes an object"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            r"content\[0\].type is 'image_url': it takes text: this server's models read nothing",
        ),
        ({"role": "user", "content": [{"type": "text"}]}, r"content\[0\].text is missing"),
        (
            {"role": "user", "content": "a", "tool_calls": []},
            r"messages\[0\].tool_calls is unknown",
        ),
        ({"role": "assistant", "content": "a", "audio": {}}, r"messages\[0\].audio is unknown"),
        ({"role": "assistant", "function_call": {}}, r"function_call is unknown: it takes role"),
        (call(type="custom"), r"tool_calls\[0\].type is 'custom': it takes function"),
        (call(id=None), r"tool_calls\[0\].id is missing"),
        (call(function=None), r"tool_calls\[0\].function is missing: it takes an object"),
        (call(function={"name": "f", "arguments": "{"}), r"function.arguments is not JSON"),
        (call(function={"name": "f", "arguments": "3"}), r"arguments is 3: it takes an object"),
        ({"role": "tool", "content": "a"}, r"tool_call_id is missing: it takes the id of a tool"),
        ({"role": "tool", "content": "a", "tool_call_id": "x"}, "no call before it has that id"),
    ],
)
def test_what_would_be_lost_is_refused(message, problem):
    with pytest.raises(RequestError, match=problem):
        messages_of([message])


@pytest.mark.parametrize("arguments", [None, "", "{}", {}])
def test_a_call_without_arguments_has_none(arguments):
    (message,) = messages_of([call(function={"name": "f", "arguments": arguments})])
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": {}}


def test_a_tool_without_parameters_is_told_of(chat):
    tools = [{"type": "function", "function": {"name": "now"}}]
    said = chat.tokenizer.decode(chat.prompt(Request(prompt="hi", tools=tools)))
    assert "declaration:now{}" in said
