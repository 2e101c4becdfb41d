"""Calls as models write them, by form, and two tools to call."""

import json

from dlm.grammar import ToolCall

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
QUERY = 'a "b" </tool_call> {é}'
ARGUMENTS = {"query": QUERY, "limit": 3, "tags": ["x", "}"], "sort": 3, "site": None}
CALL = ToolCall("search-web", ARGUMENTS)
NOW = ToolCall("now", {})
ODD = ToolCall("search-web", ARGUMENTS | {"query": 'é\u2028😀 "\\" \n </tool_call>{"name": '})
INTEGER, STRING = {"type": "integer"}, {"type": "string"}


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


def glm(call):
    arguments = "".join(
        f"<arg_key>{key}</arg_key>\n"
        f"<arg_value>{value if isinstance(value, str) else json.dumps(value)}</arg_value>\n"
        for key, value in call.arguments.items()
    )
    return f"<tool_call>{call.name}\n{arguments}</tool_call>"


TAGGED = [("qwen3_coder", qwen_coder), ("glm", glm)]  # values without quotes
FORMS = [("hermes", hermes), ("qwen3", hermes), ("llama", llama), *TAGGED]


def pieces_of(spec, vocabulary, tokens):
    """Return the name and the pieces of arguments of each call, and the answer, token by token."""
    reader, calls = spec.reader(vocabulary), []
    for token in tokens:
        for delta in reader.feed([token]):
            if delta.name is not None:
                assert delta.index == len(calls)
                calls.append((delta.name, []))
            elif delta.arguments:
                calls[delta.index][1].append(delta.arguments)
    return calls, reader.answer()
