"""Conversations of clients, turned into the form that chat templates take.

Content is text, arguments are data, and a tool's result names its tool. Content that a text model
cannot read is refused. Other fields of messages, such as an earlier answer's reasoning, are not
shown to the model. A message's `name` is passed to the template (Gemma's ignores it).
`thinking_of` reads whether a body lets the model reason first, and for how many tokens.
"""

from collections.abc import Mapping
from typing import Any

from dlm.errors import RequestError
from dlm.openai.body import (
    check_only,
    closest,
    flag_at,
    list_at,
    object_at,
    shown,
    text_at,
    whole_at,
    wrong,
)
from dlm.openai.tools import arguments_of

ROLES = ("system", "developer", "user", "assistant", "tool")
_READ = {  # fields of a message that are read, by its role
    "system": ("role", "content", "name"),
    "user": ("role", "content", "name"),
    "tool": ("role", "content", "name", "tool_call_id"),
    "assistant": ("role", "content", "name", "tool_calls", "refusal"),
}
_LOST = {  # fields with a part of the conversation that the model would not see; why
    "audio": "this server's models read and write text",
    "images": "this server's models read and write text",
    "function_call": "use tool_calls",
    "tool_calls": "only an assistant's message has them",
}
_TEXTS = ("text", "input_text", "output_text", "refusal")  # types of parts
_THOUGHTS = ("thinking", "redacted_thinking", "reasoning")


def messages_of(value: Any, field: str = "messages") -> list[dict[str, Any]]:
    """Return the messages in a body's `field`. Raises `RequestError`.

    Earlier reasoning of the assistant is left out, as the model's template expects.
    """
    called: dict[str, str] = {}  # names of tools by ids of their calls
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
    _check_fields(field, message, _READ[role])
    read: dict[str, Any] = {"role": role}
    if message.get("name") is not None:
        read["name"] = text_at(f"{field}.name", message["name"], "text")
    if role == "assistant" and message.get("tool_calls"):
        read["tool_calls"] = _calls(f"{field}.tool_calls", message["tool_calls"], called)
    if role == "tool":
        read |= _call_of_result(field, message, called)
    content = message.get("content")
    if content is None and role == "assistant":
        content = message.get("refusal") or ""
    if content is None and role == "tool":
        content = ""
    return read | {"content": _content(f"{field}.content", content, role)}


def _check_fields(field: str, message: Mapping[str, Any], read: tuple[str, ...]) -> None:
    """Raise `RequestError` for a field outside `read` if it holds a part of the conversation, or
    may be a misspelled name of a missing field. Others are ignored."""
    missing = [name for name in read if message.get(name) is None]
    for name, value in message.items():
        if name in read or not value:
            continue
        if name in _LOST:
            raise RequestError(
                f"{field}.{name} is {shown(value)}, and would be lost: {_LOST[name]}"
            )
        if meant := closest(f"{name!s:.40}", missing):
            raise RequestError(f"{field}.{name!s:.40} is unknown: is it {meant}, which is missing?")


def _content(field: str, content: Any, role: str) -> str:
    """Return the content as text; parts each begin on a new line, and thoughts are left out."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong(field, content, "text or a list of parts")
    texts = []
    for i, part in enumerate(content):
        kind = object_at(f"{field}[{i}]", part).get("type")
        if kind in _THOUGHTS and role == "assistant":
            continue
        if kind not in _TEXTS:
            raise wrong(f"{field}[{i}].type", kind, "text: this server's models read nothing else")
        name = "refusal" if kind == "refusal" else "text"
        text = part.get(name)
        if not isinstance(text, str):
            raise wrong(f"{field}[{i}].{name}", text, "text")
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
        function = {"name": name, "arguments": arguments_of(function.get("arguments"))}
        calls.append({"id": id, "type": "function", "function": function})
    return calls


def _call_of_result(
    field: str, message: Mapping[str, Any], called: Mapping[str, str]
) -> dict[str, Any]:
    """Return the id and the tool of the call that a tool's result belongs to."""
    id = text_at(f"{field}.tool_call_id", message.get("tool_call_id"), "the id of a tool call")
    if id not in called:
        raise RequestError(f"{field}.tool_call_id is {id!r:.60}: no call before it has that id")
    return {"tool_call_id": id, "name": called[id]}


# Most tokens of reasoning by `reasoning_effort`; from "low" on they fill canvases of 256.
EFFORT = {
    "none": 0,
    "minimal": 64,
    "low": 256,
    "medium": 1024,
    "high": 4096,
    "xhigh": 16_384,
    "max": 65_536,
}


def thinking_of(body: Mapping[str, Any]) -> tuple[bool, int | None]:
    """Whether to think, and the most tokens for it; None: all that fit.

    `thinking_token_budget` overrides the budget of `reasoning_effort`. The template's switch
    `enable_thinking` overrides both, unless the budget is 0. Raises `RequestError`.
    """
    effort, field = body.get("reasoning_effort"), "reasoning_effort"
    if effort is not None and (not isinstance(effort, str) or effort not in EFFORT):
        raise wrong(field, effort, ", ".join(EFFORT))
    budget = whole_at("thinking_token_budget", body.get("thinking_token_budget"))
    if budget is not None and budget < 0:
        raise wrong("thinking_token_budget", budget, "0 or more tokens")
    if budget is None and effort is not None:
        budget = EFFORT[effort]
    thinking = _switch(body.get("chat_template_kwargs"))
    if thinking is None or budget == 0:
        thinking = bool(budget)
    return thinking, budget if thinking else None


def _switch(value: Any) -> bool | None:
    if value is None:
        return None
    field = "chat_template_kwargs"
    check_only(field, object_at(field, value), ("enable_thinking",))
    return flag_at(f"{field}.enable_thinking", value.get("enable_thinking"))
