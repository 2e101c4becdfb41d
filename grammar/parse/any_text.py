"""What many JSON strings have in common, over one vocabulary: where any text may follow.

The keys that a schema does not name are all texts but a few, and so is much else. Once such a
terminal has departed from what it does not take, it reads on as one that takes any text, or any
line. What tokens lead to from there is found once, and cut out for others by the order of the trie.
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Int32

from dlm.grammar.masks.walk import Owners, Reached, Table
from dlm.grammar.parse.scanner import Characters, Scanner
from dlm.grammar.trie import Trie, ranges


class AnyText:
    """The nodes reached by reading tokens as any text of some characters, from before its opening
    quote and from after it."""

    def __init__(self, scanner: Scanner, trie: Trie):
        """`scanner` takes any number of some characters, in quotes."""
        self.scanner, self._trie = scanner, trie
        table = Table(lambda s: [(*move, scanner.counts(s, move[2])) for move in scanner.moves(s)])
        (_, _, within), *_ = scanner.moves(scanner.start)
        self.characters = scanner.repeated(within)
        self._found = {True: _sorted(table, scanner, scanner.start, trie)}
        self._found[False] = _sorted(table, scanner, within, trie)

    def below(
        self, scanner: Scanner, state: int, reached: Reached, owner: Owners, start: bool
    ) -> tuple[Reached, Owners]:
        """Return what follows the nodes reached in `state`, from which `scanner` takes such text.

        `start`: they were reached from before the opening quote.
        """
        at = np.flatnonzero(reached.states == state)
        nodes, (places, known) = reached.nodes[at], self._found[start]
        first = self._trie.places[nodes]
        begin, end = np.searchsorted(places, (first, first + self._trie.sizes[nodes]))
        found, which = ranges((begin + 1).astype(np.int32), (end - begin - 1).astype(np.int32))
        like, counts = np.array(scanner.like(self.scanner, state), np.int32), reached.counts
        if len(counts):
            counts = known.counts[found] + (counts[at] - known.counts[begin])[which]
        return Reached(known.nodes[found], like[known.states[found]], counts), owner[at[which]]


def completed(
    any_text: Mapping[Characters | None, AnyText],
    scanner: Scanner,
    reached: Reached,
    owner: Owners,
    start: bool,
) -> tuple[Reached, Owners]:
    """Return `reached` and its `owner` with what follows where `scanner` takes text of `any_text`,
    which is by its characters. `start` is that of `AnyText.below`."""
    parts = [(reached, owner)]
    for state in np.flatnonzero(np.bincount(reached.states)).tolist():
        if (shared := any_text.get(scanner.repeated(state))) is not None:
            parts.append(shared.below(scanner, state, reached, owner, start))
    found, owners = zip(*parts, strict=True)
    nodes, states, counts = (
        np.concatenate([getattr(each, name) for each in found])
        for name in ("nodes", "states", "counts")
    )
    return Reached(nodes, states, counts), np.concatenate(owners)


def _sorted(
    table: Table, scanner: Scanner, state: int, trie: Trie
) -> tuple[Int32[np.ndarray, " n"], Reached]:
    """All that is reached from a state, with its places in the trie, by these."""
    roots = [
        (node, to)
        for low, high, to in scanner.moves(state)
        for byte, node in trie.first_bytes.items()
        if low <= byte <= high
    ]
    if not roots:
        none = np.zeros(0, np.int32)
        return none, Reached(none, none, none)
    firsts = np.array([scanner.counts(state, to) for _, to in roots], np.int32)
    reached, owner = table.walk(trie, roots, True)
    places = trie.places[reached.nodes]
    order = np.argsort(places)
    counts = (reached.counts + firsts[owner])[order]
    return places[order], Reached(reached.nodes[order], reached.states[order], counts)
