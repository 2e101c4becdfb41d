"""Walks over a trie, against one node at a time."""

import numpy as np
import pytest

from dlm.grammar.masks import Trie, walk

WORDS = [bytes([a, b, c]) for a in b"abcd" for b in b"abcd" for c in b"abcd."] + [b"a.", b"."]


class Letters:
    """Its state says how many bytes were read; what it takes are `likely` ones, and no dot."""

    def __init__(self, likely: bytes):
        self._likely = likely

    def likely(self, state):
        return np.isin(np.arange(256), [*self._likely])

    def after(self, state, byte):
        return None if byte == ord(".") or byte not in self._likely else state + 1


@pytest.mark.parametrize("likely", [b".", b"a.", b"abcd."])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.1, 1.0])
def test_a_walk_reaches_what_one_node_after_the_other_does(likely, share):
    trie, machine = Trie(WORDS * 8), Letters(likely)
    nodes = np.arange(1, len(trie), dtype=np.int32)
    rng = np.random.default_rng(0)
    begin = [(nodes[rng.random(len(nodes)) < share], state) for state in (0, 100)]
    reached, states = walk(trie, machine, begin)
    found = sorted((n, states[s]) for n, s in zip(reached.nodes, reached.states, strict=True))

    expected, pending = [], [(node, state) for some, state in begin for node in some.tolist()]
    while pending:
        node, state = pending.pop()
        for byte, child in trie.each_child(node):
            behind = machine.after(state, byte)
            if behind is not None:
                expected.append((child, behind))
                pending.append((child, behind))
    assert found == sorted(expected)
