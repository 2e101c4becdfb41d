"""Where to go back to when a finished value is refused after all: in front of what is wrong."""

import json
from collections.abc import Collection, Mapping, Sequence

_SKIP = " \t\r\n"


def turning_point(pieces: Sequence[bytes], path: Sequence[str | int], turned: int | None) -> int:
    """The token to replace, of those whose bytes are `pieces`; `path` leads to the wrong part of
    the JSON that they spell, and `turned` is the token that was replaced the last time. A text that
    is no JSON is one part."""
    ends, total = [], 0
    for piece in pieces:
        total += len(piece)
        ends.append(total)
    text = b"".join(pieces).decode("utf-8", "replace")
    try:
        begin, end = _span(text, path)
        whole = text[begin] not in "[{"
    except (ValueError, IndexError, RecursionError):  # calls within a text, say
        begin, end, whole = 0, len(text), False
    start, stop = len(text[:begin].encode()), len(text[:end].encode())
    first = next((i for i, at in enumerate(ends) if at > start), 0)
    last = next((i for i, at in enumerate(ends) if at >= stop), len(ends) - 1)
    return turn_within(first, last, None if whole else turned)


def turn_within(first: int, last: int, turned: int | None) -> int:
    """The token to replace in a wrong part, from token `first` to `last`.

    That is the last one, and later the one before the token that was replaced before (`turned`),
    since what is wrong may be anywhere in the part.
    """
    return last if turned is None else max(first, min(last, turned - 1))


def alike_in(pieces: list[bytes], piece: bytes) -> set[int]:
    """All tokens that spell `piece`: a byte has one, and so may its character."""
    return {token for token, other in enumerate(pieces) if other == piece}


def untried(
    tokens: Sequence[int], at: int, begin: int, refused: Mapping[tuple[int, ...], Collection[int]]
) -> int:
    """`at`, or the next token in front of it, or else the last one behind, that was not replaced.

    A token that was may come again where the grammar leaves no other: `refused` has those that
    were, by all that led up to them. An answer is the `tokens` from `begin` on, and a stop.
    """
    order = [*range(at, begin - 1, -1), *range(len(tokens) - 2, at, -1)]
    return next((i for i in order if tokens[i] not in refused.get(tuple(tokens[:i]), ())), at)


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
