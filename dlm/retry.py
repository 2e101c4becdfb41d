"""Where to go back to when a finished value is refused after all: in front of what is wrong."""

import json
from collections.abc import Collection, Mapping, Sequence

_SKIP = " \t\r\n"
_BLANK = _SKIP.encode()


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


def outside_strings(pieces: Sequence[bytes]) -> list[bool]:
    """Whether each token begins outside of the strings of the JSON text that they spell: there,
    white space changes nothing. False for all tokens of a text that is no JSON."""
    text = b"".join(pieces)
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return [False] * len(pieces)
    outside, within, escaped = list[bool](), False, False
    for piece in pieces:
        outside.append(not within)
        within, escaped = _string_after(piece, within, escaped)
    return outside


def _string_after(piece: bytes, within: bool, escaped: bool) -> tuple[bool, bool]:
    """Whether a string of JSON is open behind `piece`, and its next character escaped, by what held
    in front of it."""
    for byte in piece:
        if byte == ord('"') and not escaped:
            within = not within
        escaped = byte == ord("\\") and not escaped
    return within, escaped


def is_blank(piece: bytes) -> bool:
    """Whether a token spells white space of JSON and nothing else."""
    return bool(piece) and not piece.strip(_BLANK)


def alike_in(pieces: list[bytes], piece: bytes, outside: bool = False) -> set[int]:
    """All tokens that spell `piece`: a byte has one, and so may its character.

    `outside`: it begins outside of the strings of JSON, where white space changes nothing. Then
    all that spell white space are alike too, and so are those that differ from it in white space
    alone."""
    if not outside:
        return {token for token, other in enumerate(pieces) if other == piece}
    ends_within = _string_after(piece, within=False, escaped=False)[0]
    bare = bytes.lstrip if ends_within else bytes.strip
    core = bare(piece, _BLANK)
    found = {token for token, other in enumerate(pieces) if other.isspace() and is_blank(other)}
    if core:
        holding = (token for token, other in enumerate(pieces) if core in other)
        found.update(token for token in holding if bare(pieces[token], _BLANK) == core)
    return found


def untried(
    tokens: Sequence[int],
    at: int,
    begin: int,
    refused: Mapping[tuple[int, ...], Collection[int]],
    idle: Collection[int] = (),
) -> int:
    """`at`, or the next token in front of it, or else the last one behind, that was not replaced.

    A token that was may come again where the grammar leaves no other: `refused` has those that
    were, by all that led up to them. An answer is the `tokens` from `begin` on, and a stop. `idle`
    are the places of tokens that change nothing, which are not worth a try.
    """

    def is_open(i: int) -> bool:
        return i not in idle and tokens[i] not in refused.get(tuple(tokens[:i]), ())

    order = [*range(at, begin - 1, -1), *range(len(tokens) - 2, at, -1)]
    return next(filter(is_open, order), at)


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
