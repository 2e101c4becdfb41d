"""Token to go back to when a finished answer is refused: the one whose change may mend it."""

import json
from collections import abc
from collections.abc import Collection, Mapping

from dlm.grammar.json_scanner import JsonScanner

_SKIP = " \t\r\n"
_BLANK = _SKIP.encode()


def token_to_replace(
    pieces: abc.Sequence[bytes], path: abc.Sequence[str | int], last_replaced: int | None
) -> int:
    """Return the index of the token to replace, of tokens that spell `pieces`. `path` leads to the
    wrong part of the JSON text; a text that is no JSON is one part. `last_replaced` is the index of
    the token that was replaced last."""
    ends, total = [], 0
    for piece in pieces:
        total += len(piece)
        ends.append(total)
    text = b"".join(pieces).decode("utf-8", "replace")
    try:
        begin, end = _span(text, path)
        whole = text[begin] not in "[{"
    except (ValueError, IndexError, RecursionError):  # for example, calls within a text
        begin, end, whole = 0, len(text), False
    start, stop = len(text[:begin].encode()), len(text[:end].encode())
    first = next((i for i, at in enumerate(ends) if at > start), 0)
    last = next((i for i, at in enumerate(ends) if at >= stop), len(ends) - 1)
    return token_within(first, last, None if whole else last_replaced)


def token_within(first: int, last: int, last_replaced: int | None) -> int:
    """Return the token to replace in a wrong part that reaches from token `first` to `last`. That
    is the last one at first, then the one before `last_replaced`, since the error may be anywhere
    in the part."""
    return last if last_replaced is None else max(first, min(last, last_replaced - 1))


def outside_strings(pieces: abc.Sequence[bytes]) -> list[bool]:
    """Return whether each token begins outside of the strings of the JSON text. White space changes
    nothing there. False for all tokens of a text that is no JSON."""
    text = b"".join(pieces)
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return [False] * len(pieces)
    outside, scanner = list[bool](), JsonScanner()
    for piece in pieces:
        outside.append(not scanner.string)
        scanner.read(piece)
    return outside


def is_blank(piece: bytes) -> bool:
    """Return whether a token spells white space of JSON and nothing else."""
    return bool(piece) and not piece.strip(_BLANK)


def alike_in(pieces: list[bytes], piece: bytes, outside: bool = False) -> set[int]:
    """Return all tokens that spell `piece`: a byte has one, and so may its character. With
    `outside`, the piece begins outside of JSON strings, where white space changes nothing. Then
    tokens that differ from it only in white space are returned too, and so are all blank ones."""
    if not outside:
        return {token for token, other in enumerate(pieces) if other == piece}
    ends_within = JsonScanner().read(piece).string
    bare = bytes.lstrip if ends_within else bytes.strip
    core = bare(piece, _BLANK)
    found = {token for token, other in enumerate(pieces) if other.isspace() and is_blank(other)}
    if core:
        holding = (token for token, other in enumerate(pieces) if core in other)
        found.update(token for token in holding if bare(pieces[token], _BLANK) == core)
    return found


def untried(
    tokens: abc.Sequence[int],
    at: int,
    begin: int,
    refused: Mapping[tuple[int, ...], Collection[int]],
    idle: Collection[int] = (),
) -> int:
    """Return `at`, or the nearest token before it, or else the last one after it, that was not
    replaced yet.

    `refused` holds replaced tokens by the tokens before them: a refused token may come again where
    the grammar allows no other. The answer is `tokens` from `begin` on, without the stop at the
    end. `idle` are the indices of tokens that change nothing, which are not worth replacing.
    """

    def is_open(i: int) -> bool:
        return i not in idle and tokens[i] not in refused.get(tuple(tokens[:i]), ())

    order = [*range(at, begin - 1, -1), *range(len(tokens) - 2, at, -1)]
    return next(filter(is_open, order), at)


def _span(text: str, path: abc.Sequence[str | int]) -> tuple[int, int]:
    """Return where the part of a JSON text begins and ends; the whole text if it has no such
    part."""
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
