"""Gemma 4's own form of calls, written the long way: token by token, for any vocabulary."""

import json
from collections.abc import Sequence
from typing import Any

from dlm.grammar import ToolCall, Vocabulary


def spell(vocabulary: Vocabulary, text: str) -> list[int]:
    """Ordinary tokens that say `text`, the longest first, whatever it reads like."""
    known = {piece: token for token, piece in enumerate(vocabulary.pieces) if piece}
    longest = max(map(len, known))
    data, tokens, at = text.encode(), [], 0
    while at < len(data):
        size = next(n for n in range(longest, 0, -1) if data[at : at + n] in known)
        tokens.append(known[data[at : at + size]])
        at += size
    return tokens


def value_tokens(vocabulary: Vocabulary, value: Any) -> list[int]:
    if isinstance(value, str):
        quote = vocabulary.call.quote
        return [quote, *spell(vocabulary, value), quote]
    if isinstance(value, dict):
        members = [
            spell(vocabulary, f"{key}:") + value_tokens(vocabulary, item)
            for key, item in value.items()
        ]
        return _listed(vocabulary, "{", members, "}")
    if isinstance(value, list):
        return _listed(vocabulary, "[", [value_tokens(vocabulary, v) for v in value], "]")
    return spell(vocabulary, json.dumps(value))


def _listed(
    vocabulary: Vocabulary, opened: str, members: Sequence[list[int]], closed: str
) -> list[int]:
    tokens = spell(vocabulary, opened)
    for i, member in enumerate(members):
        tokens += (spell(vocabulary, ",") if i else []) + member
    return tokens + spell(vocabulary, closed)


def answer_tokens(vocabulary: Vocabulary, *parts: str | ToolCall) -> list[int]:
    """Return the tokens of texts and calls, in their order."""
    return [
        token
        for part in parts
        for token in (
            spell(vocabulary, part)
            if isinstance(part, str)
            else call_tokens(vocabulary, part.name, part.arguments)
        )
    ]


def call_tokens(vocabulary: Vocabulary, name: str, arguments: dict[str, Any]) -> list[int]:
    body = value_tokens(vocabulary, arguments)
    return [
        vocabulary.call.open,
        *spell(vocabulary, f"call:{name}"),
        *body,
        vocabulary.call.close,
    ]
