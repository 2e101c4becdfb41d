"""Requests of vLLM with lax tools: what cannot be enforced is left free, and is never a refusal."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from values import V
from vllm_params import Outputs, Params

from dlm.errors import RequestError
from dlm.grammar import Compiler, Frontier, GrammarError, Matcher, Vocabulary
from dlm.grammar.limits import SharedCache
from dlm.grammar.specs import call_arguments
from dlm.integrations.vllm.front_end import FrontEnd
from dlm.integrations.vllm.payload import FIELD, TOOLS, ToolsText

STOPS = (1, 106, 50)
GOOD = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def tool(name="book", parameters=None, **more):
    function = {"name": name, "parameters": parameters or GOOD, **more}
    return {"type": "function", "function": function}


def holding(schema):
    return {"type": "object", "properties": {"x": schema}, "required": ["x"]}


LOST = holding({"$ref": "#/$defs/lost"})
BACK = holding({"type": "string", "pattern": r"^(a+)b\1$"})
SET = holding({"type": "array", "items": {"type": "string"}, "uniqueItems": True})
UNKNOWN = holding({"type": "string", "$dynamicRef": "https://example.com/nothing"})


@pytest.fixture(scope="module")
def front_end(chat):
    model = SimpleNamespace(
        try_get_generation_config=lambda: {"eos_token_id": list(STOPS)},
        get_vocab_size=lambda: V,
        max_model_len=1024,
    )
    config = SimpleNamespace(model_config=model, parallel_config=SimpleNamespace())
    return FrontEnd(config, chat.tokenizer)


@pytest.fixture(scope="module")
def vocabulary(chat):
    return Vocabulary.from_tokenizer(chat.tokenizer, V, STOPS, 0)


def params_of(tools, outputs=None, responses=False, options=(), **more):
    text = ToolsText(json.dumps({"tools": tools, "responses": responses, **more}))
    return Params(outputs, extra_args={TOOLS: text}, **dict(options))


def admitted(front_end, *args, **more):
    """Return the admission, which is the same however it is waited for."""
    now = front_end.admit(params_of(*args, **more), [2, 5])
    later = asyncio.run(front_end.admit_later(params_of(*args, **more), [2, 5]))
    assert (now is None) == (later is None)
    return now


def allows(admitted, vocabulary, text):
    """Whether the constraint takes `text`, a call in Gemma's form without its outer tokens."""
    compiled = Compiler(vocabulary).unpack(admitted.payload.rules)
    call = vocabulary.call
    tokens = [call.open]
    for i, part in enumerate(text.split('"')):
        tokens += [call.quote] * (i > 0) + vocabulary.encode(part)
    try:
        Frontier(compiled, 400).commit([*tokens, call.close, STOPS[1]])
    except GrammarError:
        return False
    return True


@pytest.mark.parametrize("parameters", [LOST, UNKNOWN])
@pytest.mark.parametrize("choice", ["auto", None])
def test_the_arguments_of_the_lax_tool_at_fault_are_free_and_others_are_not(
    front_end, vocabulary, parameters, choice
):
    found = admitted(front_end, [tool("good"), tool("bad", parameters)], tool_choice=choice)
    assert allows(found, vocabulary, 'call:bad{y:["any",{z:1}]}')
    assert allows(found, vocabulary, "call:good{n:1}")
    assert not allows(found, vocabulary, 'call:good{n:"1"}')
    assert not allows(found, vocabulary, "call:other{n:1}")


def test_what_a_grammar_can_enforce_of_a_lax_tool_is_enforced(front_end, vocabulary):
    found = admitted(front_end, [tool("tag", SET)])
    assert allows(found, vocabulary, 'call:tag{x:["a","b"]}')
    assert not allows(found, vocabulary, "call:tag{x:[1]}")
    found = admitted(front_end, [tool("tag", BACK)])
    assert allows(found, vocabulary, 'call:tag{x:"aba"}')
    assert not allows(found, vocabulary, "call:tag{x:1}")


def test_of_two_lax_tools_with_one_name_the_name_is_enforced(front_end, vocabulary):
    other = holding({"type": "string"})
    found = admitted(front_end, [tool("book"), tool("book", other), tool("good")])
    assert allows(found, vocabulary, "call:book{n:1}")
    assert allows(found, vocabulary, 'call:book{x:"a"}')
    assert not allows(found, vocabulary, "call:good{n:true}")


@pytest.mark.parametrize(
    ("tools", "more"),
    [
        ([tool("a name with spaces")], {}),
        ([tool("ünïcode")], {}),
        ([tool(f"t{i}") for i in range(129)], {}),
        ([tool()], {"options": {"stop": ["x"]}}),
        ([tool()], {"options": {"ignore_eos": True}}),
        ([tool()], {"options": {"prompt_logprobs": 1}}),
        (
            [tool("deep", json.loads('{"not":' * 80 + "{}" + "}" * 80))] * 2,
            {"options": {"stop": ["x"]}},
        ),
    ],
)
def test_lax_tools_that_cannot_be_enforced_at_all_are_served_without_a_constraint(
    front_end, tools, more, caplog
):
    caplog.set_level("INFO", "vllm.dlm")
    assert admitted(front_end, tools, **more) is None
    assert "tools are left free" in caplog.text


FLAT = {"type": "function", "name": "bad", "parameters": LOST}
LARK = {"type": "grammar", "syntax": "lark", "definition": "start: lost"}
SPACE = {
    "type": "namespace",
    "name": "in",
    "tools": [FLAT, {**FLAT, "name": "good", "parameters": GOOD}],
}


def test_lax_tools_of_responses_are_left_free_likewise(front_end, vocabulary):
    found = admitted(front_end, [FLAT], responses=True)
    assert allows(found, vocabulary, "call:bad{y:1}")
    found = admitted(front_end, [SPACE], responses=True)
    assert allows(found, vocabulary, "call:in__bad{y:1}")
    note = {"type": "custom", "name": "note", "format": LARK}
    found = admitted(front_end, [note], responses=True)
    assert allows(found, vocabulary, 'call:note{input:"x"}')


REQUIRED = {"tool_choice": "required"}
NAMED = {"tool_choice": {"type": "function", "function": {"name": "bad"}}}
STOP = {"options": {"stop": ["x"]}}
FIRST, SECOND = "/tools/0/function", "/tools/1/function"


@pytest.mark.parametrize(
    ("tools", "more", "problem"),
    [
        ([tool("bad", LOST, strict=True)], {}, f"{FIRST}/parameters.*lost"),
        ([tool("good"), tool("bad", SET, strict=True)], {}, f"{SECOND}/parameters/properties/x"),
        ([tool("bad", LOST)], REQUIRED, f"{FIRST}/parameters.*lost"),
        ([tool("good"), tool("bad", SET)], REQUIRED, f"{SECOND}/parameters/properties/x.*finished"),
        ([tool("bad", SET)], NAMED, f"{FIRST}/parameters/properties/x/uniqueItems"),
        (
            [{**FLAT, "parameters": SET}],
            REQUIRED | {"responses": True},
            "/tools/0/parameters/properties/x",
        ),
        ([tool("a name")], REQUIRED, f"{FIRST}/name"),
        ([tool("a name", strict=True)], {}, f"{FIRST}/name"),
        ([tool("a"), tool("a", strict=True), tool("a", strict=True)], {}, "twice"),
        ([tool(strict=True)], STOP, "stop beside"),
        ([tool()], REQUIRED | STOP, "stop beside"),
        ([tool(f"t{i}") for i in range(129)], REQUIRED, "129 tools"),
        ([tool("a name")], {"outputs": Outputs(json={"type": "object"})}, f"{FIRST}/name"),
        ([tool()], {"outputs": Outputs(regex="(")}, "structured_outputs.regex"),
    ],
)
def test_strict_tools_and_required_calls_are_refused_with_the_place(
    front_end, tools, more, problem
):
    with pytest.raises((RequestError, GrammarError), match=problem):
        front_end.admit(params_of(tools, **more), [2, 5])
    with pytest.raises((RequestError, GrammarError), match=problem):
        asyncio.run(front_end.admit_later(params_of(tools, **more), [2, 5]))


def test_a_format_beside_a_lax_tool_that_cannot_be_enforced_is_kept(front_end, vocabulary):
    outputs = Outputs(json=GOOD | {"additionalProperties": False})
    found = admitted(front_end, [tool("bad", LOST)], outputs)
    assert allows(found, vocabulary, "call:bad{y:1}")
    compiled = Compiler(vocabulary).unpack(found.payload.rules)
    with pytest.raises(GrammarError):
        Frontier(compiled, 100).commit(vocabulary.encode("free text"))


TWO = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}


@pytest.mark.parametrize(
    ("order", "texts"),
    [(None, ["{a:1,b:1}"]), ("required", ["{a:1,b:1}"]), ("any", ["{a:1,b:1}", "{b:1,a:1}"])],
)
def test_a_client_chooses_the_order_of_properties_of_tools(front_end, vocabulary, order, texts):
    more = {} if order is None else {"property_order": order}
    params = params_of([tool("f", TWO)])
    params.extra_args |= more
    found = front_end.admit(params, [2, 5])
    both = ["{a:1,b:1}", "{b:1,a:1}"]
    assert [text for text in both if allows(found, vocabulary, f"call:f{text}")] == texts


@pytest.mark.parametrize("field", [None, "response_format", "text.format"])
def test_a_client_chooses_the_order_of_properties_of_an_answer(front_end, vocabulary, field):
    for order, right in (("required", False), ("any", True)):
        outputs = Outputs(json=TWO)
        if field is not None:
            setattr(outputs, FIELD, field)
        found = front_end.admit(Params(outputs, extra_args={"property_order": order}), [2, 5])
        matcher = Matcher(Compiler(vocabulary).unpack(found.payload.rules))
        tokens = vocabulary.encode('{"b": 1, "a": 1}')
        assert (matcher.accept_all(tokens) == len(tokens)) == right


def test_an_unknown_order_of_properties_is_refused_beside_lax_tools_too(front_end):
    params = params_of([tool("f", TWO)])
    params.extra_args["property_order"] = "sorted"
    with pytest.raises(
        RequestError, match=r"vllm_xargs\.property_order must be one of .*, got 'sorted'"
    ):
        front_end.admit(params, [2, 5])


def test_the_process_that_serves_writes_no_rules_of_tools(front_end, monkeypatch):
    monkeypatch.setattr(call_arguments, "_KEPT", SharedCache(1 << 20))
    monkeypatch.delattr(call_arguments, "write")  # the process that compiles has it
    tools = [tool(parameters=holding({"type": "string", "minLength": 3}))]
    assert admitted(front_end, tools, tool_choice="required") is not None
    place = "/tools/0/function/parameters/properties/x/\\$ref"
    with pytest.raises(RequestError, match=f"^tools: tools at {place}: tool 'book': .*lost"):
        admitted(front_end, [tool(parameters=LOST)], tool_choice="required")
