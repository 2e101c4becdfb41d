"""Bodies of `/v1/messages`: the requests they become, and the messages of a 400."""

import pytest

from dlm import Policy, RequestError, Tools
from dlm.anthropic.messages import message_of, prompt_of
from dlm.openai.messages import EFFORT

POLICY = Policy()
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FIND = {"name": "find", "description": "Finds.", "input_schema": SCHEMA}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}
USE = {"type": "tool_use", "id": "t1", "name": "find", "input": {"city": "Rome"}}


def text_block(text):
    return {"type": "text", "text": text}


def user(content):
    return {"role": "user", "content": content}


def read(**body):
    body = {"max_tokens": 50, "messages": [user("Hi.")]} | body
    (request,) = message_of(body, POLICY).requests
    return request


def test_blocks_are_messages_calls_and_results():
    messages = [
        user([{"type": "text", "text": "Rome?", "cache_control": {"type": "ephemeral"}}]),
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                text_block("I look."),
                USE,
                {**USE, "id": "t2"},
            ],
        },
        user(
            [
                {**RESULT, "content": [text_block("sunny")]},
                {**RESULT, "tool_use_id": "t2", "content": "gone", "is_error": True},
                text_block("And now?"),
            ]
        ),
        {"role": "system", "content": "Be kind."},
        user("Go on."),
    ]
    found = read(messages=messages, system=[text_block("Be brief.")]).messages
    assert [one["role"] for one in found] == (
        ["system", "user", "assistant", "tool", "tool", "user", "system", "user"]
    )
    assert [one["content"] for one in found] == (
        ["Be brief.", "Rome?", "I look.", "sunny", "Error: gone", "And now?", "Be kind.", "Go on."]
    )
    assert [call["function"]["name"] for call in found[2]["tool_calls"]] == ["find", "find"]
    assert found[3]["name"] == "find"


DOCUMENT = {
    "type": "document",
    "source": {"type": "text", "media_type": "text/plain", "data": "Bo was born in 1951."},
    "title": "Bo",
    "context": "A biography.",
    "citations": {"enabled": False},
    "cache_control": {"type": "ephemeral"},
}
FOUND = {
    "type": "search_result",
    "source": "https://example.org/rome",
    "title": "Rome",
    "content": [text_block("It is sunny."), text_block("It is hot.")],
}
SHOWN = "<document>\nTitle: Bo\nContext: A biography.\n\nBo was born in 1951.\n</document>"
SHOWN_FOUND = """<search_result>
Title: Rome
Source: https://example.org/rome

It is sunny.
It is hot.
</search_result>"""


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (DOCUMENT, SHOWN),
        (
            {
                "type": "document",
                "source": {"type": "content", "content": FOUND["content"]},
                "title": None,
            },
            "<document>\nIt is sunny.\nIt is hot.\n</document>",
        ),
        (
            {"type": "document", "source": {"type": "content", "content": "a"}, "title": "b"},
            "<document>\nTitle: b\n\na\n</document>",
        ),
        (FOUND, SHOWN_FOUND),
        ({"type": "compaction", "content": "We spoke of Bo."}, "We spoke of Bo."),
    ],
)
def test_documents_and_results_of_searches_are_shown_as_text(block, text):
    (found,) = read(messages=[user([block, text_block("Why?")])]).messages
    assert found == user(f"{text}\nWhy?")
    _, counted = prompt_of({"messages": [user([block])]}, POLICY)
    assert counted.messages == [user(text)]


def test_results_of_tools_may_be_documents_and_results_of_searches():
    content = [FOUND, text_block("and"), DOCUMENT]
    messages = [user("Rome?"), {"role": "assistant", "content": [USE]}]
    found = read(messages=[*messages, user([{**RESULT, "content": content}])]).messages
    assert (found[2]["role"], found[2]["content"]) == ("tool", f"{SHOWN_FOUND}\nand\n{SHOWN}")


FILES = [
    {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
    {"type": "url", "url": "https://example.org/a.pdf"},
    {"type": "file", "file_id": "file_1"},
]


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        *(
            (
                {**DOCUMENT, "source": source},
                f"source.type must be text or.*, got '{source['type']}'",
            )
            for source in FILES
        ),
        ({"type": "document"}, "source is missing; it must be an object"),
        (
            {**DOCUMENT, "source": {"type": "text", "media_type": "text/plain"}},
            "source.data is missing; it must be text",
        ),
        (
            {**DOCUMENT, "source": {**DOCUMENT["source"], "media_type": "text/html"}},
            "source.media_type must be text/plain, got 'text/html'",
        ),
        (
            {**DOCUMENT, "source": {"type": "content", "content": [{"type": "image"}]}},
            r"source.content\[0\].type must be text, got 'image'",
        ),
        (
            {**DOCUMENT, "citations": {"enabled": True}},
            "citations.enabled must be false.*, got true",
        ),
        ({**DOCUMENT, "title": 5}, "title must be text, got 5"),
        ({**FOUND, "content": "a"}, "content must be a list, got 'a'"),
        ({**FOUND, "content": [{"type": "image"}]}, r"content\[0\].type must be text, got 'image'"),
        ({**FOUND, "source": None}, "source is missing; it must be text"),
        ({**FOUND, "citations": {"enabled": True}}, "citations.enabled must be false.*, got true"),
    ],
)
def test_files_and_citations_are_refused_by_name(block, problem):
    with pytest.raises(RequestError, match=r"^messages\[0\].content\[0\]." + problem):
        read(messages=[user([block])])
    messages = [user("Rome?"), {"role": "assistant", "content": [USE]}]
    place = r"^messages\[2\].content\[0\].content\[0\]."
    with pytest.raises(RequestError, match=place + problem):
        read(messages=[*messages, user([{**RESULT, "content": [block]}])])


@pytest.mark.parametrize(
    ("texts", "shown"),
    [([], ["Error:"]), (["gone"], ["Error: gone"]), (["gone", "again"], ["Error: gone", "again"])],
)
def test_an_image_in_a_result_that_is_an_error_stands_after_its_texts(texts, shown):
    image = {"type": "image", "source": {"type": "base64", "data": "aGk="}}
    blocks = [*(text_block(text) for text in texts), image]
    result = {**RESULT, "content": blocks, "is_error": True}
    called = {"role": "assistant", "content": [USE]}
    found = read(messages=[user("Rome?"), called, user([result])])
    *parts, part = found.messages[2]["content"]
    assert [one["text"] for one in parts] == shown
    assert part["image"].place == f"messages[2].content[0].content[{len(texts)}].source.data"


@pytest.mark.parametrize("block", [DOCUMENT, FOUND])
def test_documents_and_results_of_searches_are_the_user_s(block):
    messages = [user("a"), {"role": "assistant", "content": [block]}, user("b")]
    problem = rf"^messages\[1\].content\[0\].type must not be {block['type']} here"
    with pytest.raises(RequestError, match=problem):
        read(messages=messages)


@pytest.mark.parametrize(
    ("choice", "mode", "named", "parallel"),
    [
        (None, "auto", None, True),
        ({"type": "auto"}, "auto", None, True),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", None, False),
        ({"type": "tool", "name": "find"}, "required", "find", True),
    ],
)
def test_a_choice_of_tools_means_the_same_as_in_a_chat(choice, mode, named, parallel):
    found = read(tools=[FIND, {"type": "web_search_20250305", "name": "web"}], tool_choice=choice)
    assert isinstance(found.constraint, Tools)
    spec = found.constraint
    assert (spec.choice, spec.named, spec.parallel) == (mode, named, parallel)
    assert [tool["function"]["name"] for tool in found.tools] == ["find"]
    assert found.tools[0]["function"]["parameters"] == SCHEMA


def test_no_tool_may_be_called_if_none_is_chosen():
    found = read(tools=[FIND], tool_choice={"type": "none"})
    assert found.constraint is None
    assert not found.tools


def test_formats_thinking_and_sampling_mean_the_same_as_in_a_chat():
    format = {"type": "json_schema", "schema": SCHEMA}
    found = read(
        output_config={"format": format, "effort": "low"},
        thinking={"type": "adaptive"},
        temperature=0.5,
        top_k=5,
        top_p=0.9,
        min_p=0.1,
        seed=7,
        stop_sequences=["x"],
    )
    assert found.constraint.kind == "JSON schema"
    assert (found.thinking, found.thinking_budget) == (True, EFFORT["low"])
    assert (found.temperature, found.top_k, found.stop, found.fit) == (0.5, 5, ["x"], True)
    assert (found.top_p, found.min_p, found.seed) == (0.9, 0.1, 7)
    assert read(output_format=format).constraint.kind == "JSON schema"
    ordered = read(output_config={"format": format, "property_order": "any"})
    assert ordered.constraint.property_order == "any"
    enabled = read(thinking={"type": "enabled", "budget_tokens": 2000})
    assert (enabled.thinking, enabled.thinking_budget) == (True, 2000)
    assert not read(thinking={"type": "disabled"}).thinking


def test_max_tokens_is_cut_to_the_policy_s_limit():
    for most in (10**9, 2**63 - 1):
        assert read(max_tokens=most).max_tokens == POLICY.max_answer_tokens


def test_fields_that_only_label_or_cache_are_ignored():
    read(
        metadata={"user_id": "x"},
        context_management={"edits": []},
        speed="fast",
        service_tier="auto",
        container=None,
        mcp_servers=[],
    )


def test_tokens_are_counted_of_the_prompt_alone():
    model, request = prompt_of({"model": "m", "messages": [user("Hi.")], "tools": [FIND]}, POLICY)
    assert model == "m"
    assert request.messages == [user("Hi.")]
    assert len(request.tools) == 1


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"max_tokens": None}, "^max_tokens is missing; it must be a whole number"),
        ({"max_tokens": 0}, "^max_tokens must be a whole number.*, got 0"),
        (
            {"max_tokens": 10**399},
            "^max_tokens must be a whole number.*, got a number of over 300 digits",
        ),
        (
            {"max_tokens": 2**63},
            "^max_tokens must be .* of 64 bits, 1 or more.*, got 9223372036854775808",
        ),
        ({"messages": []}, "^messages must be a list that is not empty, got an empty list"),
        (
            {"messages": [{"role": "tool", "content": "x"}]},
            r"^messages\[0\].role must be user.*, got 'tool'",
        ),
        ({"messages": [user(5)]}, r"^messages\[0\].content must be text, or a list.*, got 5"),
        (
            {"messages": [user([{"type": "audio"}])]},
            r"^messages\[0\].content\[0\].type must be text.*, got 'audio",
        ),
        (
            {"messages": [user([{"type": "tool_result", "tool_use_id": "t1"}])]},
            r"^messages\[0\].content\[0\].tool_use_id is 't1': no call before it",
        ),
        ({"messages": [user("a"), {"role": "assistant", "content": "b"}]}, "the assistant's"),
        (
            {"messages": [user([USE])]},
            r"^messages\[0\].content\[0\].type must not be tool_use .* the assistant's messages",
        ),
        (
            {"messages": [{"role": "assistant", "content": [USE, RESULT]}]},
            r"^messages\[0\].content\[1\].type must not be tool_result .* the user's messages",
        ),
        ({f"field {i}": i for i in range(101)}, "at most 100 unknown fields, got 101"),
        ({"tools": [{"name": "a"}]}, r"^tools\[0\].input_schema is missing"),
        (
            {"tools": [{"type": "bash_20250124", "name": "bash"}]},
            r"^tools\[0\].type must be custom.*, got 'bash",
        ),
        ({"tools": [FIND, {**FIND, "name": "a b"}]}, "/tools/1/name"),
        (
            {"tools": [{**FIND, "input_schema": {"type": "object", "properties": 5}}]},
            "/tools/0/input_schema",
        ),
        ({"tools": [FIND], "tool_choice": "any"}, "^tool_choice must be an object, got 'any'"),
        (
            {"tools": [FIND], "tool_choice": {"type": "tool", "name": "x"}},
            "must name one of 'find', got 'x'",
        ),
        ({"tool_choice": {"type": "any"}}, "needs tools"),
        ({"stop": ["x"]}, "use stop_sequences"),
        (
            {"output_config": {"schema": SCHEMA}},
            "^output_config.schema is unknown: use output_conf",
        ),
        ({"stop_token_ids": [1]}, "use stop_sequences"),
        ({"structured_outputs": {"regex": "a"}}, "use output_config.format"),
        (
            {"output_config": {"format": {"type": "json_schema"}}},
            "output_config.format.schema is missing; it must be a JSON schema",
        ),
        ({"parallel_tool_calls": False}, "use tool_choice.disable_parallel_tool_use"),
        ({"bad_words": ["a"]}, "^bad_words is a list, which is not supported"),
        ({"response_format": {"type": "json_object"}}, "use output_config.format"),
        ({"think": True}, "^think is not supported: send thinking$"),
        ({"num_predict": 9}, "^num_predict is not supported: send max_tokens$"),
        ({"schema": SCHEMA}, "^schema is not supported: a schema goes to output_config.format"),
        ({"json_object": True}, "any JSON object is output_config.format"),
        ({"regex": "a"}, "^regex .* output_config.format, as the pattern of a schema$"),
        ({"ebnf": "a"}, "^ebnf is not supported: a message has no grammars"),
        ({"structural_tag": {}}, "a message has no structural tags"),
        ({"choices": ["a"]}, "as the enum of a schema$"),
        ({"guided_json": {}}, "^guided_json is not supported: use output_config.format$"),
        ({"extra_body": {}}, "at the top of the body$"),
        ({"mcp_servers": [{"url": "x"}]}, "connects to no other"),
        ({"sistem": "x"}, "send system if that is meant"),
        ({"speed": 5}, "^speed is 5, which is not supported: there is one speed"),
        ({"seed": 1.5}, "^seed must be a whole number, got 1.5"),
        ({"min_p": 2}, "^min_p must be 0 to 1, got 2"),
        ({"thinking": {"type": "enabled"}}, "^thinking.budget_tokens is missing"),
    ],
)
def test_a_wrong_body_is_refused_with_its_place(body, problem):
    with pytest.raises(RequestError, match=problem):
        read(**body)
