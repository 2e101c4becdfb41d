"""Spellings of a text: the fewest tokens, and the tokens that the tokenizer would write."""

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Protocol

from dlm.grammar.masks.trie import Trie

_NEVER = 1 << 40  # tokens: no tokens spell the text


def fewest_tokens(raw: bytes, trie: Trie) -> list[int] | None:
    """Return the fewest tokens that spell `raw`; None if none do."""
    first, counts = trie.token_first.data, trie.token_count.data
    best: list[tuple[int, int, int]] = [(0, 0, 0)]  # by end: tokens, start and node of the last
    best += [(_NEVER, 0, 0)] * len(raw)
    for start in range(len(raw)):
        count = best[start][0] + 1
        if count > _NEVER:
            continue
        for end, node in enumerate(trie.along(raw, start), start + 1):
            if count < best[end][0] and counts[node]:
                best[end] = count, start, node
    if best[-1][0] == _NEVER:
        return None
    tokens, end = [], len(raw)
    while end:
        _, end, node = best[end]
        tokens.append(int(trie.tokens[first[node]]))
    return tokens[::-1]


class Tokenizer(Protocol):
    """A vocabulary with the tokenizer's own spelling of a text."""

    pieces: list[bytes]
    control: frozenset[int]
    encode: Callable[[str], list[int]]


def canonical_tokens(tokenizer: Tokenizer, before: tuple[int, ...], text: str) -> tuple[int, ...]:
    """Return the tokens of `text` after `before`, as `Vocabulary.canonical` describes."""
    pieces = tokenizer.pieces
    while before and not pieces[before[0]]:
        before = before[1:]
    for start in range(len(before) or 1):
        context = before[start:]
        prefix = b"".join(pieces[token] for token in context).decode("utf-8", "replace")
        tokens = tuple(tokenizer.encode(prefix + text))
        if tokens[: len(context)] == context:
            spelled = takewhile(lambda t: t not in tokenizer.control, tokens[len(context) :])
            return tuple(spelled)[:-1]
    return ()


def common_prefix(tokens: Sequence[int], other: Sequence[int]) -> int:
    """Return the number of equal leading tokens."""
    if type(tokens) is not type(other):  # then no slices would be equal
        tokens, other = list(tokens), list(other)
    begin, end = 0, min(len(tokens), len(other))  # of the part in which they may begin to differ
    if tokens[:end] == other[:end]:
        return end
    while end - begin > 1:
        middle = (begin + end) // 2
        if tokens[begin:middle] == other[begin:middle]:
            begin = middle
        else:
            end = middle
    return begin
