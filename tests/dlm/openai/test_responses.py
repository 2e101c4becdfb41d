"""Bodies of `/v1/responses`: the requests they become, and the messages of a 400."""

import json

import pytest

from dlm import Policy, RequestError, Tools
from dlm.openai.messages import EFFORT
from dlm.openai.response_items import ResponseStore, StoredResponse
from dlm.openai.responses import response_of

POLICY = Policy()
NONE = ResponseStore(0).of("")
CALL = {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"city": "Rome"}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}
FIND = {"type": "function", "name": "find", "parameters": {"type": "object", "properties": {}}}


def nested(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


def allowed(*tools):
    return {"type": "allowed_tools", "mode": "auto", "tools": list(tools)}


def stored(id, items, output=(), previous=None):
    """Return a response as it is stored."""
    listed, written = (json.dumps(part).encode() for part in (items, list(output)))
    return StoredResponse(id=id, response=b"{}", output=written, items=listed, previous=previous)


def read(**body):
    return response_of({"input": "Hi."} | body, POLICY, NONE)


def request(**body):
    return read(**body).requests[0]


def test_text_and_instructions_are_messages_of_a_chat():
    found = request(instructions="Be brief.")
    assert found.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi."},
    ]
    assert (found.max_tokens, found.fit) == (POLICY.answer_tokens, True)
    assert found.constraint is None


def test_items_are_messages_calls_and_results():
    items = [
        {"role": "developer", "content": "You help."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Rome?"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        CALL,
        {"type": "custom_tool_call", "call_id": "c2", "name": "note", "input": "Rome"},
        RESULT,
        {
            "type": "custom_tool_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "noted"}],
        },
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
    ]
    system, user, assistant, *results = request(input=items, instructions="Be brief.").messages
    assert system == {"role": "system", "content": "Be brief.\n\nYou help."}
    assert user == {"role": "user", "content": "Rome?"}
    assert assistant["content"] == "I look."
    calls = [call["function"] for call in assistant["tool_calls"]]
    assert calls == [
        {"name": "find", "arguments": {"city": "Rome"}},
        {"name": "note", "arguments": {"input": "Rome"}},
    ]
    assert [(one["role"], one["name"], one["content"]) for one in results] == [
        ("tool", "find", "sunny"),
        ("tool", "note", "noted"),
    ]


def test_tools_of_a_namespace_have_its_name_and_hosted_ones_are_left_out():
    tools = [FIND, {"type": "namespace", "name": "maps", "tools": [FIND]}, {"type": "web_search"}]
    found = read(tools=tools, input=[{"role": "user", "content": "Hi."}])
    assert [tool["function"]["name"] for tool in found.requests[0].tools] == ["find", "maps__find"]
    assert found.namespaces == {"maps__find": ("maps", "find")}
    assert request(tools=[{"type": "web_search"}]).constraint is None
    named = {**CALL, "namespace": "maps"}
    (call,) = request(input=[named]).messages[0]["tool_calls"]
    assert call["function"]["name"] == "maps__find"


def additional(*tools):
    return {"type": "additional_tools", "role": "developer", "id": "at_1", "tools": list(tools)}


def test_additional_tools_are_offered_as_tools_are():
    sql = {
        "type": "custom",
        "name": "sql",
        "format": {"type": "grammar", "syntax": "regex", "definition": "[a-z]+"},
    }
    tools = [FIND, {"type": "namespace", "name": "maps", "tools": [FIND]}, {"type": "web_search"}]
    hello = {"role": "user", "content": "Hi."}
    found = read(input=[additional(*tools), {"role": "developer", "content": "Help."}, hello])
    same = read(tools=tools, input=[{"role": "developer", "content": "Help."}, hello])
    (one,), (other,) = found.requests, same.requests
    assert one.tools == other.tools
    assert one.messages == other.messages == [{"role": "system", "content": "Help."}, hello]
    assert isinstance(one.constraint, Tools)
    assert one.constraint.source == other.constraint.source
    assert found.namespaces == same.namespaces == {"maps__find": ("maps", "find")}
    both = request(tools=[FIND], input=[additional(sql), hello, additional(FIND)])
    assert [tool[tool["type"]]["name"] for tool in both.tools] == ["find", "sql"]
    chosen = request(
        input=[additional(sql, FIND), hello], tool_choice={"type": "custom", "name": "sql"}
    )
    assert chosen.constraint.named == "sql"
    none = request(input=[additional(FIND), hello], tool_choice="none")
    assert (none.tools, none.constraint) == ([], None)


def test_additional_tools_of_a_stored_response_stay_offered():
    responses = ResponseStore().of("me")
    items = [additional(FIND), {"role": "user", "content": "Hi."}]
    responses.put(stored("a", items))
    body = {"previous_response_id": "a", "input": [additional(FIND)], "tools": [FIND]}
    (found,) = response_of(body, POLICY, responses).requests
    assert [tool["function"]["name"] for tool in found.tools] == ["find"]
    again = {**body, "input": "And now?", "tools": []}
    assert len(response_of(again, POLICY, responses).requests[0].tools) == 1
    other = [additional({**FIND, "description": "Finds."})]
    with pytest.raises(RequestError, match="at /input/0/tools/0/name: 'find' is there twice"):
        response_of({**body, "tools": [], "input": other}, POLICY, responses)


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        ({"type": "additional_tools"}, r"^input\[0\].tools is missing; it must be a list"),
        (additional(5), r"^input\[0\].tools\[0\] must be an object, got 5"),
        (additional(FIND, {"type": "function"}), r"^input\[0\].tools\[1\].name is missing"),
        (additional({**FIND, "parameters": {"type": "x"}}), "at /input/0/tools/0/parameters"),
        (
            additional({"type": "namespace", "name": "a", "tools": [FIND, {**FIND, "name": ""}]}),
            r"^input\[0\].tools\[0\].tools\[1\].name must be the name of a tool, got ''",
        ),
        (additional(FIND, FIND), "at /input/0/tools/1/name: 'find' is there twice"),
        ({**additional(FIND), "role": "user"}, r"^input\[0\].role must be developer, got 'user'"),
        (additional(FIND), "^input must be text, .*, got a list without a text or a call"),
    ],
)
def test_additional_tools_that_make_no_sense_are_refused_with_their_place(item, problem):
    hello = [] if "without a text" in problem else [{"role": "user", "content": "Hi."}]
    with pytest.raises(RequestError, match=problem) as found:
        read(input=[item, *hello])
    assert found.value.field in ("input", None)


@pytest.mark.parametrize(
    ("choice", "mode", "named", "offered"),
    [
        ("required", "required", None, {"find", "note"}),
        ({"type": "function", "name": "find"}, "required", "find", {"find", "note"}),
        ({"type": "custom", "name": "note"}, "required", "note", {"find", "note"}),
        (allowed({"type": "custom", "name": "note"}), "auto", None, {"note"}),
    ],
)
def test_a_choice_of_tools_means_the_same_as_in_a_chat(choice, mode, named, offered):
    found = request(tools=[FIND, {"type": "custom", "name": "note"}], tool_choice=choice)
    assert isinstance(found.constraint, Tools)
    assert (found.constraint.choice, found.constraint.named) == (mode, named)
    assert found.constraint.parameters.keys() == offered


def test_formats_reasoning_and_sampling_mean_the_same_as_in_a_chat():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    found = request(
        text={"format": {"type": "json_schema", "name": "x", "schema": schema}, "verbosity": "low"},
        reasoning={"effort": "low", "summary": "auto"},
        max_output_tokens=50,
        temperature=0.5,
        top_p=0.9,
    )
    assert found.constraint.kind == "JSON schema"
    assert (found.thinking, found.thinking_budget) == (True, EFFORT["low"])
    assert (found.max_tokens, found.fit, found.temperature, found.top_p) == (50, False, 0.5, 0.9)
    assert request(text={"format": {"type": "json_object"}}).constraint.kind == "JSON object"
    assert request(text={"format": {"type": "text"}}).constraint is None
    assert not request(reasoning={"effort": "none", "summary": "auto"}).thinking


def test_the_order_of_properties_is_that_of_the_format_and_of_the_tools():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    format = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
    outputs = {"property_order": "any"}
    assert request(text=format, structured_outputs=outputs).constraint.property_order == "any"
    tools = [{"type": "function", "name": "f", "parameters": schema}]
    both = request(text=format, tools=tools, structured_outputs=outputs).constraint
    assert (both.property_order, both.content.property_order) == ("any", "any")
    assert request(tools=tools).constraint.property_order == "required"
    with pytest.raises(RequestError, match=r"exactly one of .*, got none"):
        read(structured_outputs=outputs)


def test_unknown_fields_are_ignored_unless_they_may_be_misspelled():
    request(
        client_metadata={"a": "b"}, prompt_cache_key="x", include=["reasoning.encrypted_content"]
    )
    with pytest.raises(RequestError, match="send instructions if that is meant"):
        request(instuctions="Be brief.")


@pytest.mark.parametrize(
    ("body", "problem", "field"),
    [
        ({"input": None}, "^input is missing; it must be text, or a list of items", "input"),
        ({"input": 5}, "^input must be text, or a list of items, got 5", "input"),
        ({"input": []}, "^input must be text.*, got an empty list", "input"),
        ({"input": [{"role": "user"}]}, r"^input\[0\].content is missing", "input"),
        (
            {"input": [{"role": "tool", "content": "x"}]},
            r"^input\[0\].role must be user.*, got 'tool'",
            "input",
        ),
        ({"input": [RESULT]}, r"^input\[0\].call_id is 'c1': no call before it", "input"),
        (
            {"input": [{"type": "item_reference", "id": "x"}]},
            r"^input\[0\].type must be one of",
            "input",
        ),
        (
            {"input": [{"type": "compaction", "encrypted_content": "x"}]},
            r"^input\[0\].type is compaction, which is not supported: .* send the items",
            "input",
        ),
        ({"input": [{"type": "compaction_trigger"}]}, "is compaction_trigger, which", "input"),
        ({"background": True}, "^background is true, which is not supported", "background"),
        ({"response_format": {"type": "json_object"}}, "use text.format", "response_format"),
        ({"guided_json": {}}, "structured_outputs.json", "guided_json"),
        ({"messages": []}, "use input", "messages"),
        ({"think": True}, "^think is not supported: send reasoning.effort$", "think"),
        ({"num_predict": 9}, "^num_predict .*: send max_output_tokens$", "num_predict"),
        ({"schema": {}}, "^schema is not supported: a schema goes to text.format", "schema"),
        ({"json_mode": True}, "any JSON object is text.format", "json_mode"),
        ({"stop_sequences": ["x"]}, "ends where it is complete$", "stop_sequences"),
        ({"stop_token_ids": [1]}, "^stop_token_ids is a list, which", "stop_token_ids"),
        ({"logit_bias": {"1": -100}}, "^logit_bias is an object of 1, which", "logit_bias"),
        ({"allowed_token_ids": [1]}, "use structured_outputs", "allowed_token_ids"),
        (
            {"text": {"format": {"type": "yaml"}}},
            "^text.format.type must be one of text.*, got 'yaml'",
            "text",
        ),
        ({"tools": [{"type": "function"}]}, r"^tools\[0\].name is missing", "tools"),
        ({"tools": [FIND], "tool_choice": {"type": "mcp"}}, "^tool_choice", "tool_choice"),
        (
            {"tools": [FIND], "tool_choice": {"type": "function", "name": "x"}},
            "must name one of 'find', got 'x'",
            None,
        ),
        (
            {"text": {"schema": {"type": "object"}}},
            "^text.schema is unknown: use text.format",
            "text",
        ),
        (
            {"tools": [{"type": "custom", "name": "a", "format": {"type": "lark"}}]},
            "/tools/0/format: a format must have the type text or grammar",
            None,
        ),
        (
            {"max_output_tokens": 0},
            "^max_output_tokens must be at least 1, got 0",
            "max_output_tokens",
        ),
        ({"previous_response_id": "resp_x"}, "stores none", "previous_response_id"),
        (
            {"reasoning": {"effort": "huge"}},
            "^reasoning.effort must be none.*, got 'huge'",
            "reasoning",
        ),
        (
            {
                "tools": [
                    FIND,
                    {"type": "namespace", "name": "a", "tools": [{**FIND, "name": "b c"}]},
                ]
            },
            "/tools/1/tools/0/name",
            None,
        ),
        (
            {
                "tools": [FIND, {**FIND, "name": "note", "parameters": {"type": "x"}}],
                "tool_choice": allowed({"type": "function", "name": "note"}),
            },
            "/tools/1/parameters",
            None,
        ),
        (
            {
                "tools": [FIND, {"type": "custom", "name": "find"}],
                "tool_choice": allowed({"type": "custom", "name": "find"}),
            },
            "/tools/1/name: 'find' is there twice",
            None,
        ),
        ({f"field {i}": i for i in range(101)}, "at most 100 unknown fields, got 101", None),
        ({"metadata": {"a": "\ud800"}}, "^metadata cannot be repeated", "metadata"),
        ({"tools": [{"type": "mcp", "a": float("inf")}]}, "^tools cannot be repeated", "tools"),
        ({"user": nested(900)}, "^user cannot be repeated", "user"),
    ],
)
def test_a_wrong_body_is_refused_with_its_place(body, problem, field):
    with pytest.raises(RequestError, match=problem) as found:
        read(**body)
    assert found.value.field == field


def test_the_size_of_a_stored_response_counts_its_repeated_fields():
    body = {"input": [{"role": "user", "content": "Hi.", "x": "y" * 2_000}], "user": "z" * 5_000}
    found = response_of(body, POLICY, ResponseStore().of("me"))
    assert 2_000 < len(found.items) < 2_100
    assert 5_000 < len(found.repeated) < 5_100
    with pytest.raises(RequestError, match=r"^input cannot be repeated"):
        response_of({"input": [{**CALL, "x": "\ud800"}]}, POLICY, ResponseStore().of("me"))


def test_a_tool_of_any_type_is_left_out():
    assert request(tools=[{"type": "x"}]).tools == []
    with pytest.raises(RequestError, match=r"^tools\[0\].type must be text, got a list"):
        read(tools=[{"type": nested(980)}])


def test_many_system_messages_become_one():
    texts = [f"{i}" for i in range(1000)]
    items = [{"role": "system", "content": text} for text in texts]
    (system,) = request(input=items).messages
    assert system == {"role": "system", "content": "\n\n".join(texts)}


def test_a_stored_response_is_continued():
    responses = ResponseStore().of("me")
    item = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Bo."}],
    }
    for id, previous, text in (("a", None, "One."), ("b", "a", "Two.")):
        items = [{"type": "message", "role": "user", "content": text}]
        responses.put(stored(id, items, [item], previous))
    body = {"input": "Three.", "previous_response_id": "b", "instructions": "New."}
    found = response_of(body, POLICY, responses)
    texts = [message["content"] for message in found.requests[0].messages]
    assert texts == ["New.", "One.", "Bo.", "Two.", "Bo.", "Three."]
    assert found.responses is responses
    assert response_of({**body, "store": False}, POLICY, responses).responses is None
    responses.delete("a")
    with pytest.raises(RequestError, match="continues one that is not stored"):
        response_of(body, POLICY, responses)
    with pytest.raises(RequestError, match="'b' is not stored here"):
        response_of(body, POLICY, ResponseStore().of("me"))
