"""The table of masks, which grows and is trimmed, and walks over a trie."""

import numpy as np
import pytest
from masked import outcome, tokens_in
from scores import random_scores

from dlm.grammar import Compiler, Fixed, Frontier, JsonSchema
from dlm.grammar.masks import Explored, GrammarMasks, Trie, Walk

SIZE, L = 100, 12


@pytest.fixture
def few(monkeypatch):
    """A table of few rows."""
    monkeypatch.setattr("dlm.grammar.masks.table._ROWS", 1)


def test_equal_sets_share_a_row_and_others_do_not(few):
    table = GrammarMasks(SIZE)
    some = table.changed(None, more=[3, 31, 99])
    assert tokens_in(table.words(some), SIZE) == {3, 31, 99}
    assert table.changed(None, more=[99, 31, 3]) == some
    more, less = table.changed(some, more=[4]), table.changed(some, fewer=[31])
    assert len({some, more, less}) == 3
    assert tokens_in(table.words(more), SIZE) == {3, 4, 31, 99}
    assert tokens_in(table.words(less), SIZE) == {3, 99}
    assert table.changed(some) == some
    assert tokens_in(table.words(~42), SIZE) == {42}
    assert table.kept("a", table.words(more)) == table.kept("a", table.words(less))


def test_equal_sets_that_are_made_in_other_ways_share_a_row():
    table = GrammarMasks(SIZE)
    first = table.changed(None, more=[1, 2])
    assert table.changed(table.changed(None, more=[1, 2, 3]), fewer=[3]) == first
    assert table.kept("other name", table.words(first).copy()) == first
    assert table.count == 2


def test_rows_stay_when_the_table_grows(few):
    table = GrammarMasks(SIZE)
    made = {table.changed(None, more=[token]): token for token in range(40)}
    assert len(made) == 40
    assert all(tokens_in(table.words(row), SIZE) == {token} for row, token in made.items())
    before = table.table
    table.changed(None, more=[1, 2, 3])
    assert np.array_equal(before[: len(made)], table.table[: len(made)])
    rows = 41 * 4 * 4  # bytes
    assert rows + 41 * 100 < table.nbytes < rows + 41 * 300  # with what is known of them


def test_removing_tokens_that_a_set_lacks_keeps_its_row():
    table = GrammarMasks(SIZE)
    some = table.changed(None, more=[1, 2])
    assert table.changed(some, fewer=[3, 99]) == some
    assert tokens_in(table.words(table.changed(some, fewer=[2, 99])), SIZE) == {1}
    assert table.changed(~42, fewer=[1]) == ~42
    assert tokens_in(table.words(table.changed(~42, fewer=[42])), SIZE) == set()


def test_a_full_table_drops_its_rows_only_when_it_is_trimmed(few):
    table = GrammarMasks(SIZE)
    rows = [table.changed(None, more=[token]) for token in range(3)]
    old, age = table.table, table.age
    table.trim()
    assert (table.age, table.known) == (age + 1, {})
    assert table.changed(None, more=[50]) == 0
    assert tokens_in(old[rows[0]], SIZE) == {0}  # the old array keeps its content
    table.trim()
    assert table.age == age + 1


def test_the_number_of_masks_that_are_kept_changes_nothing(compiler, vocabulary, monkeypatch):
    """Two requests alternate, and each drops the rows of the other."""
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "number"}}}
    spec = JsonSchema(schema)
    known = compiler.compile(spec)
    plenty = [Frontier(known, 200) for _ in range(2)]
    monkeypatch.setattr("dlm.grammar.masks.table._ROWS", 1)
    scarce = Compiler(vocabulary).compile(spec)
    short = [Frontier(scarce, 200) for _ in range(2)]
    for step in range(12):
        scores, fixed = random_scores(len(vocabulary), L, step), Fixed(last=step % 4 == 3)
        for one, other in zip(plenty, short, strict=True):
            for _ in range(2):
                guidance = one.guide(scores, fixed)
                assert outcome(guidance) == outcome(other.guide(scores, fixed))
            if fixed.last and guidance.stop == L:
                one.commit(guidance.guess)
                other.commit(guidance.guess)
    assert scarce.masks.age > 0


WORDS = [bytes([a, b, c]) for a in b"abcd" for b in b"abcd" for c in b"abcd."] + [b"a.", b"."]


class Letters:
    """A machine that accepts `likely` bytes except dots; its state is the number of bytes read."""

    def __init__(self, likely: bytes):
        self._likely = likely

    def likely(self, state):
        return np.isin(np.arange(256), [*self._likely])

    def after(self, state, byte):
        return None if byte == ord(".") or byte not in self._likely else state + 1


@pytest.mark.parametrize("likely", [b".", b"a.", b"abcd."])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.1, 1.0])
def test_a_walk_reaches_the_same_nodes_as_a_walk_node_by_node(likely, share):
    trie, machine = Trie(WORDS * 8), Letters(likely)
    nodes = np.arange(1, len(trie), dtype=np.int32)
    rng = np.random.default_rng(0)
    begin = [(nodes[rng.random(len(nodes)) < share], state) for state in (0, 100)]
    explored = Explored(machine)
    reached, states = Walk(trie, explored, begin).reached(), explored.states
    found = sorted((n, states[s]) for n, s in zip(reached.nodes, reached.states, strict=True))

    expected, pending = [], [(node, state) for some, state in begin for node in some.tolist()]
    while pending:
        node, state = pending.pop()
        for byte, child in trie.each_child(node):
            after = machine.after(state, byte)
            if after is not None:
                expected.append((child, after))
                pending.append((child, after))
    assert found == sorted(expected)
