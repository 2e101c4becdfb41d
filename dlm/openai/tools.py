"""Tools of a body, and arguments of earlier calls.

`tools_of` reads the fields `tools`, `tool_choice` and `parallel_tool_calls`. `arguments_of` reads
the arguments of a call in a conversation and never refuses them: another model may have written
them, or a stream may have been cut, and one broken turn must not make all later turns fail.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dlm.errors import RequestError
from dlm.grammar import Spec, Tools
from dlm.openai.body import (
    flag_at,
    list_at,
    make_spec,
    object_at,
    parse_json,
    shown,
    text_at,
    wrong,
)
from dlm.policy import Policy

_MODES = ("none", "auto", "required")
_NAMED = '{"type": "function", "function": {"name": ...}}'
_ALLOWED = '{"type": "allowed_tools", "allowed_tools": {"mode": ..., "tools": [...]}}'


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """Content of `tool_choice`."""

    mode: str  # none, auto or required
    named: str | None = None  # the one tool that must be called
    allowed: tuple[str, ...] | None = None  # tools that may be called; None: all


def tools_of(body: Mapping[str, Any], policy: Policy, content: Spec | None) -> Spec | None:
    """Return the spec of an answer with tools; None if there are no tools, or none may be called.

    `content` is the spec of answers without calls; None: free text. Raises `RequestError`.
    """
    parallel = flag_at("parallel_tool_calls", body.get("parallel_tool_calls"))
    choice = choice_of(body.get("tool_choice"))
    if body.get("tools") in (None, []):
        if choice.mode == "required" or choice.allowed is not None:
            raise RequestError("tool_choice needs tools, and there are no tools")
        return None
    tools = _offered(body["tools"])
    if choice.mode == "none":
        return None
    named = [choice.named] if choice.named is not None else choice.allowed or ()
    for name in named:
        if name not in (names := [_name(tool) for tool in tools]):
            offered = ", ".join(map(shown, names))
            raise RequestError(f"tool_choice names {name!r:.80}: it takes one of {offered:.200}")
    if choice.allowed is not None:
        tools = [tool for tool in tools if _name(tool) in choice.allowed]
    if choice.mode == "required":
        content = None

    def make() -> Spec:
        return Tools(tools, choice.mode, choice.named, parallel is not False, content=content)

    return make_spec("tools", policy, Tools.kind, tools, make)


def _offered(value: Any) -> list[dict[str, Any]]:
    """Check that tools have OpenAI's form. `Tools` checks their names and schemas."""
    tools = list_at("tools", value)
    for i, tool in enumerate(tools):
        if (kind := object_at(f"tools[{i}]", tool).get("type")) != "function":
            raise wrong(f"tools[{i}].type", kind, "function")
        field = f"tools[{i}].function"
        function = object_at(field, tool.get("function"))
        text_at(f"{field}.name", function.get("name"), "the name of a tool")
        if not isinstance(description := function.get("description"), str | None):
            raise wrong(f"{field}.description", description, "text")
        if function.get("parameters") is not None:
            object_at(f"{field}.parameters", function["parameters"])
        flag_at(f"{field}.strict", function.get("strict"))
    return tools


def declared(body: Mapping[str, Any]) -> list[Any]:
    """Return the tools that the model is shown: all, or none if none may be called."""
    if body.get("tools") in (None, []) or choice_of(body.get("tool_choice")).mode == "none":
        return []
    return list(body["tools"])


def choice_of(value: Any) -> ToolChoice:
    """Read the field `tool_choice`. Raises `RequestError`."""
    if value is None:
        return ToolChoice(mode="auto")
    if isinstance(value, str) and value in _MODES:
        return ToolChoice(mode=value)
    if isinstance(value, dict) and value.get("type") == "allowed_tools":
        return _allowed(value.get("allowed_tools"))
    name = _name(value)
    if not isinstance(value, dict) or value.get("type") != "function" or name is None:
        raise wrong("tool_choice", value, f"{', '.join(_MODES)}, {_NAMED} or {_ALLOWED}")
    return ToolChoice(mode="required", named=name)


def _allowed(value: Any) -> ToolChoice:
    field = "tool_choice.allowed_tools"
    allowed = object_at(field, value)
    mode = allowed.get("mode")
    if mode not in _MODES[1:]:
        raise wrong(f"{field}.mode", mode, "auto or required")
    names = []
    for i, tool in enumerate(list_at(f"{field}.tools", allowed.get("tools"))):
        if (name := _name(tool)) is None:
            raise wrong(f"{field}.tools[{i}]", tool, _NAMED)
        names.append(name)
    return ToolChoice(mode=mode, allowed=tuple(names))


def _name(tool: Any) -> str | None:
    """Return the name of a tool in OpenAI's form; None if it has none."""
    function = tool.get("function") if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


_DEEPEST = 64  # levels of nesting; templates write values recursively
_SURROGATES = re.compile("[\ud800-\udfff]")


def arguments_of(value: Any) -> dict[str, Any] | str:
    """Return arguments as an object; as text if they are no object that a template can write."""
    if value in (None, ""):
        return {}
    if isinstance(value, str):
        try:
            read = parse_json("arguments", value)
        except RequestError:
            read = None
        text = value
    else:
        read, text = value, json.dumps(value, ensure_ascii=False)
    if isinstance(read, dict) and _is_plain(read):
        return read
    return _SURROGATES.sub("\ufffd", text)


def _is_plain(value: Any) -> bool:
    """Whether JSON data is at most `_DEEPEST` levels deep and has no lone surrogates."""
    waiting = [(0, value)]
    while waiting:
        depth, value = waiting.pop()
        if depth > _DEEPEST or (isinstance(value, str) and _SURROGATES.search(value)):
            return False
        if isinstance(value, dict):
            waiting += [(depth + 1, inner) for pair in value.items() for inner in pair]
        elif isinstance(value, list):
            waiting += [(depth + 1, inner) for inner in value]
    return True
