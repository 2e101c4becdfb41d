"""Lines of files for batches, in OpenAI's form."""

import json
from typing import Any

CHAT = "/v1/chat/completions"


def line(id: str, url: str = CHAT, **fields: Any) -> dict[str, Any]:
    """Return a line that asks for a short chat, whose body also has `fields`."""
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4} | fields
    return {"custom_id": id, "method": "POST", "url": url, "body": body}


def lines(*values: object) -> bytes:
    """Return the content of a file; bytes stand in it as they are."""
    return b"".join(
        (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n"
        for value in values
    )
