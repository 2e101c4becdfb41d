"""What many JSON strings have in common, over one vocabulary: where any text may follow.

The keys that a schema does not name are all texts but a few, and so is much else. Once such a
terminal has departed from what it does not take, it reads on as one that takes any text, or any
line. What tokens lead to from there is found once, and cut out for others by the order of the trie.
"""

import numpy as np
from jaxtyping import Int32

from dlm.grammar.masks.walk import Nodes, Owners, Reached, Table
from dlm.grammar.parse.scanner import Scanner
from dlm.grammar.trie import Trie, ranges


class AnyText:
    """What is reached by reading tokens as any text of some characters, before its opening quote
    and after it."""

    def __init__(self, scanner: Scanner, trie: Trie):
        """`scanner` takes any number of some characters, in quotes."""
        self.scanner, self._trie = scanner, trie
        table = Table(lambda s: [(*move, scanner.counts(s, move[2])) for move in scanner.moves(s)])
        (_, _, within), *_ = scanner.moves(scanner.start)
        self.characters = scanner.repeated(within)
        self._found = {True: _sorted(table, scanner, scanner.start, trie)}
        self._found[False] = _sorted(table, scanner, within, trie)

    def completed(
        self, scanner: Scanner, reached: Reached, owner: Owners, start: bool
    ) -> tuple[Reached, Owners]:
        """`reached` and its `owner`, with what follows where `scanner` takes such text.

        `start`: it was reached from before the opening quote.
        """
        nodes, states, counts, owners = [reached.nodes], [reached.states], [reached.counts], [owner]
        for state in np.flatnonzero(np.bincount(reached.states)).tolist():
            if scanner.repeated(state) == self.characters:
                at = np.flatnonzero(reached.states == state)
                so_far = reached.counts[at] if len(reached.counts) else reached.counts
                below, like, more, which = self._below(reached.nodes[at], so_far, start)
                nodes.append(below)
                states.append(np.array(scanner.like(self.scanner, state), np.int32)[like])
                counts.append(more)
                owners.append(owner[at[which]])
        nodes, states, counts, owner = map(np.concatenate, (nodes, states, counts, owners))
        return Reached(nodes, states, counts), owner

    def _below(self, nodes: Nodes, counts: Nodes, start: bool) -> tuple[Nodes, Nodes, Nodes, Nodes]:
        """What is reached below `nodes`: nodes, states, characters if `counts` has them, and which
        of `nodes` it is below."""
        places, known = self._found[start]
        first = self._trie.places[nodes]
        at, end = np.searchsorted(places, (first, first + self._trie.sizes[nodes]))
        found, owner = ranges((at + 1).astype(np.int32), (end - at - 1).astype(np.int32))
        if len(counts):
            counts = known.counts[found] + (counts - known.counts[at])[owner]
        return known.nodes[found], known.states[found], counts, owner


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
