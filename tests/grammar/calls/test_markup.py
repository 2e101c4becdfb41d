"""Calls in other models' forms: xgrammar's grammar for them, and the way back."""

import json

import pytest
import xgrammar as xgr

from dlm.grammar import InvalidGrammarError, InvalidValueError
from dlm.grammar.calls.tool_call import ToolCall
from dlm.grammar.kinds.tools import Tools

SEARCH = {
    "name": "search-web",
    "parameters": {
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "limit": {"type": "integer"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "sort": {"enum": ["by date", 3]},
            "site": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["query"],
    },
}
TOOLS = [{"type": "function", "function": f} for f in (SEARCH, {"name": "now"})]
ARGUMENTS = {
    "query": 'a "b" </tool_call> {é}',
    "limit": 3,
    "tags": ["x", "}"],
    "sort": 3,
    "site": None,
}
CALL = ToolCall("search-web", ARGUMENTS)
NOW = ToolCall("now", {})


def hermes(call):
    body = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def llama(call):
    return json.dumps({"name": call.name, "parameters": call.arguments}, ensure_ascii=False)


def qwen_coder(call):
    arguments = "\n".join(
        f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>"
        for key, value in call.arguments.items()
    )
    return f"<tool_call>\n<function={call.name}>\n{arguments}\n</function>\n</tool_call>"


FORMS = [("hermes", hermes), ("qwen3", hermes), ("llama", llama), ("qwen3_coder", qwen_coder)]


def accepts(compiler, spec, text):
    matcher = xgr.GrammarMatcher(compiler.compile(spec).grammar)
    return matcher.accept_string(text) and matcher.is_completed()


@pytest.mark.parametrize(("format", "write"), FORMS)
def test_calls_are_taken_and_read(compiler, vocabulary, format, write):
    spec = Tools(TOOLS, format=format)
    text = f"Let me see.\n{write(CALL)}\n{write(NOW)}"
    assert accepts(compiler, spec, text)
    answer = spec.value(text)
    assert answer.tool_calls == (CALL, NOW)
    assert answer.content == "Let me see.\n\n"
    assert spec.value("Just text.").content == "Just text."


@pytest.mark.parametrize(("format", "write"), FORMS)
def test_choices_are_kept(compiler, format, write):
    required = Tools(TOOLS, choice="required", format=format)
    assert accepts(compiler, required, write(CALL))
    assert not accepts(compiler, required, "text")
    one = Tools(TOOLS, choice="required", parallel=False, format=format)
    assert accepts(compiler, one, write(NOW))
    assert not accepts(compiler, one, write(NOW) + write(NOW))
    named = Tools(TOOLS, named="now", format=format)
    assert accepts(compiler, named, write(NOW))
    assert not accepts(compiler, named, write(CALL))


@pytest.mark.parametrize(("format", "write"), FORMS)
def test_arguments_that_do_not_fit_are_refused_both_ways(compiler, format, write):
    spec = Tools(TOOLS, choice="required", format=format)
    broken = write(ToolCall("search-web", {"limit": 3}))
    assert not accepts(compiler, spec, broken)
    with pytest.raises(InvalidValueError, match=r"call of search-web: .*'query' is a required"):
        spec.value(broken)
    with pytest.raises(InvalidValueError, match="'other', which is not offered"):
        spec.value(write(ToolCall("other", {})))


@pytest.mark.parametrize(
    ("format", "text", "problem"),
    [
        ("hermes", "<tool_call>\n", "no JSON"),
        ("hermes", '<tool_call>{"name": "now"}</tool_call>', "not an object of a name"),
        ("hermes", '<tool_call>{"name": 3, "arguments": {}}</tool_call>', "not an object of"),
        ("hermes", '<tool_call>{"name": "now", "arguments": {}}', "</tool_call> is missing"),
        ("hermes", '<tool_call>{"name": "now", "arguments": "{}"}</tool_call>', "not an object of"),
        ("llama", '{"name": "now"', "no JSON"),
        ("llama", '{"name": "now", "arguments": {}}', "not an object of a name and parameters"),
        ("qwen3_coder", "<tool_call>\n<function=", "a function's name is missing"),
        ("qwen3_coder", "<tool_call>\n<function=now>\n<parameter=a>\n3", "are missing"),
        ("qwen3_coder", "<tool_call>\n<function=now>\n</function>", "are missing"),
    ],
)
def test_a_malformed_call_says_where(format, text, problem):
    with pytest.raises(InvalidValueError, match=f"malformed at character .*{problem}"):
        Tools(TOOLS, format=format).value(f"Hm. {text}")


def test_bare_strings_stay_as_they_are():
    """In XML they may read like JSON."""
    texts = ["3", "null", '"quoted"', " spaced ", "two\nlines", "", "{}"]
    spec = Tools(TOOLS, format="qwen3_coder")
    for text in texts:
        call = ToolCall("search-web", {"query": text})
        assert spec.value(qwen_coder(call)).tool_calls == (call,)


def test_what_xgrammar_refuses_is_an_error_of_ours(compiler):
    function = {
        "name": "f",
        "parameters": {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}},
    }
    with pytest.raises(InvalidGrammarError, match="tools"):
        compiler.compile(Tools([{"type": "function", "function": function}], format="hermes"))
