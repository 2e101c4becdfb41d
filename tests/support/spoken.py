"""What rules accept, with calls in Gemma 4's own form spelled as text: a character for a marker."""

import json
from typing import Any

from recogniser import Recogniser

from dlm.grammar import Spec, ToolCall
from dlm.grammar.markers import CallMarkers

MARKERS = CallMarkers(open=1, close=2, quote=3)
TOKENS = {1: "\ue001", 2: "\ue002", 3: "\ue003"}


def recogniser(spec: Spec) -> Recogniser:
    return Recogniser(spec.rules(MARKERS), TOKENS)


def accepts(spec: Spec, text: str) -> bool:
    return recogniser(spec).accepts(text)


def spoken(*parts: str | ToolCall) -> str:
    """An answer of texts and calls."""
    return "".join(p if isinstance(p, str) else call_text(p.name, p.arguments) for p in parts)


def call_text(name: str, arguments: dict[str, Any]) -> str:
    return f"{TOKENS[1]}call:{name}{_value(arguments)}{TOKENS[2]}"


def _value(value: Any) -> str:
    if isinstance(value, str):
        return TOKENS[3] + value + TOKENS[3]
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_value, value)) + "]"
    return json.dumps(value)
