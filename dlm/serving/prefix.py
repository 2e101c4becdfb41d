"""What a prompt begins with, as a name: prompts that begin alike have the same.

So they can be sent where the beginning is encoded already. Knows bodies, and no tokens.
"""

import json
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

from dlm.errors import RequestError
from dlm.openai.json_text import parsed

_MOST = 1024  # characters that count: some 200 tokens, a dozen pages of the cache


def prefix_of(raw: bytes) -> str:
    """A digest of a body's tools, instructions and first message of a user, up to 1,024 characters:
    later turns of a conversation do not change it. Of a body that is none, something."""
    try:
        body = parsed("the body", raw)
    except RequestError:
        body = None
    if not isinstance(body, dict):
        return _digest("")
    messages = body.get("messages")
    if isinstance(messages, list):
        return _digest(json.dumps([body.get("tools"), *_opening(messages)]))
    return _digest(json.dumps(body.get("prompt", body.get("input"))))


def _opening(messages: list[Any]) -> Iterator[Any]:
    for message in messages:
        yield message
        if isinstance(message, dict) and message.get("role") == "user":
            return


def _digest(text: str) -> str:
    return blake2b(text[:_MOST].encode(), digest_size=8).hexdigest()
