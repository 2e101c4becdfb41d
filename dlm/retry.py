"""Where to go back to when a finished value is refused after all: in front of what is wrong."""

import json
from collections.abc import Sequence

_SKIP = " \t\r\n"
_SAME = 4  # times that the last token of the wrong part is replaced, before one in front of it is


def turning_point(pieces: Sequence[bytes], path: Sequence[str | int], tried: int) -> int:
    """The token, of those whose bytes are `pieces`, to replace by another.

    `path` leads to the wrong part of the JSON that they spell. It is that part's last token, and
    the more often it was `tried` the further in front.
    """
    ends, total = [], 0
    for piece in pieces:
        total += len(piece)
        ends.append(total)
    text = b"".join(pieces).decode("utf-8", "replace")
    start, end = (len(text[:at].encode()) for at in _span(text, path))
    first = next((i for i, at in enumerate(ends) if at > start), 0)
    last = next((i for i, at in enumerate(ends) if at >= end), len(ends) - 1)
    return max(first, last - max(0, tried - _SAME + 1))


def _span(text: str, path: Sequence[str | int]) -> tuple[int, int]:
    """Where the part of a JSON text begins and ends; the whole text if it has no such part."""
    read = json.JSONDecoder().raw_decode
    begin = _skip(text, 0)
    for step in path:
        at, index = _skip(text, begin + 1), 0
        while at < len(text) and text[at] not in "]}":
            key: str | int = index
            if text[begin] == "{":
                key, at = read(text, at)
                at = _skip(text, _skip(text, at) + 1)
            if key == step:
                break
            at, index = _skip(text, read(text, at)[1]), index + 1
            at = _skip(text, at + 1) if text[at] == "," else at
        begin = at
    return begin, read(text, begin)[1]


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SKIP:
        at += 1
    return at
