"""A text of the fewest tokens, where the one of the fewest bytes takes more than there are.

Places tell how many bytes are missing, and these bound the tokens. But a longer text may be spelled
in fewer: "ought" in one token, "zqj" in three. This looks, level by level, at what each next token
leads to; it gives up where that is too much to look at, as inside a free string.
"""

from bisect import bisect_right
from collections.abc import Iterator

from dlm.grammar.parse.state import Place, Places
from dlm.grammar.vocabulary import Vocabulary

_LOOKS = 50_000  # bytes that are read: some 50 ms


class _Reading:
    """Reads all tokens at once, from one place or another, until it has looked enough."""

    def __init__(self, places: Places, vocabulary: Vocabulary):
        self._places, self._sorted = places, vocabulary.sorted_pieces
        self.looks = 0

    def onward(self, place: Place) -> Iterator[tuple[Place, int]]:
        """Where tokens lead; no place twice."""
        pieces, tokens = self._sorted
        found = {self._places.after(place, t, b""): t for t in self._places.named(place)}
        todo = [(place, 0, 0, len(pieces))]  # behind so many bytes, all pieces from and to
        while todo and self.looks < _LOOKS:
            at, size, first, last = todo.pop()
            while first < last and len(pieces[first]) == size:
                found.setdefault(at, tokens[first])
                first += 1
            while first < last:
                self.looks += 1
                byte = pieces[first][size]
                end = bisect_right(pieces, byte, first, last, key=lambda piece: piece[size])
                behind = self._places.behind(at, byte)
                if behind is not None:
                    todo.append((behind, size + 1, first, end))
                first = end
        yield from ((at, token) for at, token in found.items() if at is not None)


def fewest(places: Places, vocabulary: Vocabulary, most: int) -> list[tuple[Place, int]]:
    """At most `most` tokens from the beginning to an end, each with the place that it is read at.

    Empty if there is no such text, or none that is found soon.
    """
    reading, longest = _Reading(places, vocabulary), vocabulary.longest
    level: dict[Place, list[tuple[Place, int]]] = {places.start: []}
    seen = {places.start}
    for left in range(most - 1, -1, -1):
        behind: dict[Place, list[tuple[Place, int]]] = {}
        for place, said in level.items():
            for at, token in reading.onward(place):
                if at.cost == 0:
                    return [*said, (place, token)]
                if at not in seen and at.cost is not None and at.cost <= left * longest:
                    seen.add(at)
                    behind[at] = [*said, (place, token)]
        level = behind
    return []
