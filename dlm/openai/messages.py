"""Conversations as clients send them, as chat templates take them.

Content is text, arguments are data, the result of a tool names its tool. What a model of text
cannot read is refused, and so is what would be lost; but whether a message's `name` is shown is
the template's to say, and Gemma's shows none.
"""

from collections.abc import Mapping
from typing import Any

from dlm.errors import RequestError
from dlm.openai.body import list_at, object_at, only, text_at, wrong
from dlm.openai.json_text import parsed

ROLES = ("system", "developer", "user", "assistant", "tool")
_FIELDS = {  # of a message, by its role
    "system": ("role", "content", "name"),
    "user": ("role", "content", "name"),
    "tool": ("role", "content", "name", "tool_call_id"),
    "assistant": (
        *("role", "content", "name", "tool_calls", "refusal", "annotations"),
        *("reasoning", "reasoning_content"),  # as it is called now, and as it was
        "parsed",  # of the content, by OpenAI's client
    ),
}


def messages_of(value: Any, field: str = "messages") -> list[dict[str, Any]]:
    """Of what a body's `field` holds. Raises `RequestError`.

    What an assistant said of its reasoning is not shown to the model again, as its own template
    wants it.
    """
    called: dict[str, str] = {}  # tools, by the ids of their calls
    messages = []
    for i, message in enumerate(list_at(field, value)):
        where = f"{field}[{i}]"
        messages.append(_message(where, object_at(where, message), called))
    return messages


def _message(field: str, message: dict[str, Any], called: dict[str, str]) -> dict[str, Any]:
    role = message.get("role")
    if role not in ROLES:
        raise wrong(f"{field}.role", role, ", ".join(ROLES))
    role = "system" if role == "developer" else role
    only(field, message, _FIELDS[role])
    read: dict[str, Any] = {"role": role}
    if message.get("name") is not None:
        read["name"] = text_at(f"{field}.name", message["name"], "text")
    if role == "assistant" and message.get("tool_calls"):
        read["tool_calls"] = _calls(f"{field}.tool_calls", message["tool_calls"], called)
    if role == "tool":
        read |= _answered(field, message, called)
    content = message.get("content")
    if content is None and role == "assistant":
        content = message.get("refusal") or ""
    return read | {"content": _content(f"{field}.content", content)}


def _content(field: str, content: Any) -> str:
    """Of parts, their texts: one line each at least."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong(field, content, "text or a list of parts")
    texts = []
    for i, part in enumerate(content):
        kind = object_at(f"{field}[{i}]", part).get("type")
        if kind not in ("text", "refusal"):
            raise wrong(f"{field}[{i}].type", kind, "text: this server's models read nothing else")
        text = part.get(kind)
        if not isinstance(text, str):
            raise wrong(f"{field}[{i}].{kind}", text, "text")
        texts.append(text)
    return "\n".join(texts)


def _calls(field: str, value: Any, called: dict[str, str]) -> list[dict[str, Any]]:
    calls = []
    for i, call in enumerate(list_at(field, value)):
        where = f"{field}[{i}]"
        call = object_at(where, call)
        if call.get("type", "function") != "function":
            raise wrong(f"{where}.type", call["type"], "function")
        function = object_at(f"{where}.function", call.get("function"))
        name = text_at(f"{where}.function.name", function.get("name"), "a tool's name")
        id = text_at(f"{where}.id", call.get("id"), "text")
        called[id] = name
        arguments = _arguments(f"{where}.function.arguments", function.get("arguments"))
        said = {"name": name, "arguments": arguments}
        calls.append({"id": id, "type": "function", "function": said})
    return calls


def _arguments(field: str, value: Any) -> dict[str, Any]:
    read = parsed(field, value) if isinstance(value, str) and value else value
    return object_at(field, {} if read in (None, "") else read)


def _answered(field: str, message: Mapping[str, Any], called: Mapping[str, str]) -> dict[str, Any]:
    """Which call the result of a tool belongs to."""
    id = text_at(f"{field}.tool_call_id", message.get("tool_call_id"), "the id of a tool call")
    if id not in called:
        raise RequestError(f"{field}.tool_call_id is {id!r:.60}: no call before it has that id")
    return {"tool_call_id": id, "name": called[id]}
