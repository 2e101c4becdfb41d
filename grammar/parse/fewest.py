"""A text of the fewest tokens, where the one of the fewest bytes takes more than there are.

States tell how many bytes are missing, and these bound the tokens. But a longer text may be spelled
in fewer: "ought" in one token, "zqj" in three. This looks, level by level, at what each next token
leads to; it gives up where that is too much to look at, as inside a free string.
"""

from bisect import bisect_right
from collections.abc import Iterator

from dlm.grammar.parse.parser import Parser
from dlm.grammar.parse.state import State
from dlm.grammar.vocabulary import Vocabulary

_LOOKS = 50_000  # bytes that are read: some 50 ms


class _Reader:
    """Reads all tokens at once from a state, until it has looked enough."""

    def __init__(self, parser: Parser, vocabulary: Vocabulary):
        self._parser, self._sorted = parser, vocabulary.sorted_pieces
        self.looks = 0

    def onward(self, state: State) -> Iterator[tuple[State, int]]:
        """Where tokens lead; no state twice."""
        pieces, tokens = self._sorted
        found = {self._parser.after(state, t, b""): t for t in sorted(self._parser.named(state))}
        todo = [(state, 0, 0, len(pieces))]  # a state, its depth, pieces from and to
        while todo and self.looks < _LOOKS:
            at, size, first, last = todo.pop()
            while first < last and len(pieces[first]) == size:
                found.setdefault(at, tokens[first])
                first += 1
            while first < last:
                self.looks += 1
                byte = pieces[first][size]
                end = bisect_right(pieces, byte, first, last, key=lambda piece: piece[size])
                behind = self._parser.behind(at, byte)
                if behind is not None:
                    todo.append((behind, size + 1, first, end))
                first = end
        yield from ((at, token) for at, token in found.items() if at is not None)


def fewest(parser: Parser, vocabulary: Vocabulary, most: int) -> list[tuple[State, int]]:
    """At most `most` tokens from the beginning to an end, each with the state that it is read at.

    Empty if there is no such text, or none that is found soon.
    """
    reading, longest = _Reader(parser, vocabulary), vocabulary.longest
    level: dict[State, list[tuple[State, int]]] = {parser.start: []}
    seen = {parser.start}
    for left in range(most - 1, -1, -1):
        behind: dict[State, list[tuple[State, int]]] = {}
        for state, said in level.items():
            for at, token in reading.onward(state):
                if at.cost == 0:
                    return [*said, (state, token)]
                if at not in seen and at.cost is not None and at.cost <= left * longest:
                    seen.add(at)
                    behind[at] = [*said, (state, token)]
        level = behind
    return []
