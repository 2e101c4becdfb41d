"""Arguments of calls in a conversation: data where they are a JSON object, else the text they were.

Another model may have written them, or a stream may have been cut: whatever they are, the model has
to see them, and the turn that went wrong is no reason to refuse all later ones.
"""

import json
import re
from typing import Any

from dlm.errors import RequestError
from dlm.openai.json_text import parsed

_DEEPEST = 64  # levels; templates write values recursively
_SURROGATES = re.compile("[\ud800-\udfff]")


def arguments_of(value: Any) -> dict[str, Any] | str:
    """The arguments as an object; or as a text, if they are none that a template can write."""
    if value in (None, ""):
        return {}
    if isinstance(value, str):
        try:
            read = parsed("arguments", value)
        except RequestError:
            read = None
        text = value
    else:
        read, text = value, json.dumps(value, ensure_ascii=False)
    if isinstance(read, dict) and _is_plain(read):
        return read
    return _SURROGATES.sub("\ufffd", text)


def _is_plain(value: Any) -> bool:
    """Whether JSON data is not too deep, and its texts are texts."""
    waiting = [(0, value)]
    while waiting:
        depth, one = waiting.pop()
        if depth > _DEEPEST or (isinstance(one, str) and _SURROGATES.search(one)):
            return False
        if isinstance(one, dict):
            waiting += [(depth + 1, inner) for pair in one.items() for inner in pair]
        elif isinstance(one, list):
            waiting += [(depth + 1, inner) for inner in one]
    return True
