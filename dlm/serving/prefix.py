"""Digest of the beginning of a body's prompt: requests with the same one share encoded tokens.

This module knows bodies as JSON, no tokens.
"""

import json
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

from dlm.errors import RequestError
from dlm.openai.body import parse_json

_PREFIX_LENGTH = 1024  # characters: some 200 tokens, a dozen pages of the cache


def prefix_of(raw: bytes) -> str:
    """Return a digest of the beginning of a body's prompt: tools, instructions and first message of
    a user, up to 1,024 characters. Later turns of a conversation do not change it. Every body that
    is no JSON object has the same digest."""
    try:
        body = parse_json("the body", raw)
        opening = json.dumps(_opening_of(body) if isinstance(body, dict) else "")
    except (RequestError, RecursionError):
        opening = ""
    return blake2b(opening[:_PREFIX_LENGTH].encode(), digest_size=8).hexdigest()


def _opening_of(body: Mapping[str, Any]) -> list[Any]:
    before = [body.get(name) for name in ("tools", "system", "instructions")]
    for name in ("messages", "input"):
        if isinstance(turns := body.get(name), list):
            return [*before, *_opening(turns)]
    return [*before, body.get("prompt", body.get("input"))]


def _opening(messages: list[Any]) -> Iterator[Any]:
    for message in messages:
        yield message
        if isinstance(message, dict) and message.get("role") == "user":
            return
