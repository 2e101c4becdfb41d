"""Tables in which each set of tokens has one row, in C and in numpy, against a dict of sets."""

import resource
import sys
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st
from in_c import both, needs_c
from made_scanners import MadeScanner, NumberedMachine

from dlm.grammar.masks import Below, GrammarMasks, Trie, made_of, new_rows, token_words, tokens_in
from dlm.grammar.masks.bits import NATIVE

SIZES = [1, 33, 5000, 300_000]  # tokens: less than a part has, and more than one row of keys
ROOT = np.zeros(1, np.int32)


def array(tokens):
    return np.array([*tokens], np.int32)


def tokens_of(rows, size, row):
    width = -(-size // 32)
    return tokens_in(np.frombuffer(rows.memory, np.uint32).reshape(-1, width)[row]).tolist()


# A machine that reads `a` twice: a state is the number of bytes read.
TWICE = [((97, 97, 1),), ((97, 97, 2),), ()]


@examples(100)
@given(st.sampled_from(SIZES), st.data())
def test_equal_sets_have_one_row_and_others_another_in_c_and_in_numpy(size, data):
    tokens = st.lists(st.integers(0, size - 1) | st.integers(0, min(40, size - 1)), max_size=6)
    tables = []
    for native in {NATIVE, None}:
        with patch("dlm.grammar.masks.rows.NATIVE", native):
            tables.append(new_rows(-(-size // 32), 2))
    distinct: list[set[int]] = []
    for _ in range(data.draw(st.integers(1, 12))):
        made, without = data.draw(st.lists(tokens, max_size=3)), data.draw(tokens)
        dense = data.draw(st.lists(st.booleans(), min_size=len(made), max_size=len(made)))
        sets = [
            token_words(some, size) if packed else array(some)
            for some, packed in zip(made, dense, strict=True)
        ]
        expected = set().union(*made) - {*without}
        for number, table in enumerate(tables):
            row = table.row_of(sets, array(without) if without else None, None)
            if row is None:
                assert table.count in (2, 4, 8)
                assert tokens_of(table, size, 0) == sorted(distinct[0])
                tables[number] = table = table.grown()
                row = table.row_of(sets, array(without) if without else None, None)
            if expected not in distinct:
                assert row == (len(distinct), 0)
            assert row == (([*distinct, expected]).index(expected), 0)
        distinct += [expected] * (expected not in distinct)
        for table in tables:
            assert table.count == len(distinct)
            assert [tokens_of(table, size, row) for row in range(len(distinct))] == [
                sorted(some) for some in distinct
            ]
            words = np.frombuffer(table.memory, np.uint32)
            assert not words[len(distinct) * -(-size // 32) :].any()


@both
def test_a_set_has_the_tokens_of_arrays_and_of_a_walk_but_not_those_taken_out(native):
    trie = Trie([b"a", b"aa", b"aaa", b"b", b"aab"])
    with patch("dlm.grammar.masks.rows.NATIVE", native):
        rows: Any = new_rows(1, 9)
        for without, expected in ((None, [0, 1, 3]), (array([1, 4]), [0, 3])):
            machine = NumberedMachine(TWICE)
            below = made_of(Below(trie, machine, [(ROOT, machine.at(0))]))
            row, reached = rows.row_of([array([3])], without, below)
            assert reached == 2
            assert tokens_of(rows, 32, row) == expected
        assert rows.row_of([array([0]), array([1, 3])], None, None) == (0, 0)


@both
def test_a_set_whose_walk_fails_leaves_no_trace(native):
    trie, machine = Trie([b"a", b"aa", b"aaa"]), NumberedMachine(TWICE)
    begin = [(ROOT, machine.at(0))]

    def moves(scanner, state):
        if state == 1:
            raise KeyError(state)
        return scanner.made[state]

    with patch("dlm.grammar.masks.rows.NATIVE", native):
        rows: Any = new_rows(1, 9)
        for sets in ([array([3])], [np.array([6], np.uint32)]):
            with patch.object(MadeScanner, "look_up", moves), pytest.raises(KeyError):
                rows.row_of(sets, None, made_of(Below(trie, machine, begin)))
            assert rows.count == 0
            assert not np.frombuffer(rows.memory, np.uint32).any()
        row, _ = rows.row_of([], None, made_of(Below(trie, machine, begin)))
        assert tokens_of(rows, 32, row) == [0, 1]


@needs_c
def test_no_other_set_is_made_during_a_walk_in_c():
    trie, machine, rows = Trie([b"a"]), NumberedMachine(TWICE), new_rows(1, 9)
    below = Below(trie, machine, [(ROOT, machine.at(0))])

    def nested(scanner, state):
        return rows.row_of([array([2])], None, None)

    with (
        patch.object(MadeScanner, "look_up", nested),
        pytest.raises(RuntimeError, match="another set of the table is being made"),
    ):
        rows.row_of([], None, made_of(below))
    assert rows.row_of([array([2])], None, None) == (0, 0)


@needs_c
def test_what_is_no_set_and_no_walk_is_refused_in_c():
    trie, rows = Trie([b"a"]), NATIVE.Rows(4, 9)
    wrong_sets = [array([128]), array([-1]), np.zeros(3, np.uint32), np.zeros(4)]
    for wrong in wrong_sets:
        with pytest.raises(ValueError, match="must be packed bits, or tokens of the vocabulary"):
            rows.row_of([array([5]), wrong], None, None)
        with pytest.raises(ValueError, match="must be packed bits, or tokens of the vocabulary"):
            rows.row_of([array([5])], wrong, None)
    with pytest.raises(ValueError, match="must be packed bits, or tokens of the vocabulary"):
        rows.row_of([], np.zeros(4, np.uint32), None)  # only numbers are taken out
    right = trie.native, [], NumberedMachine(TWICE).states
    for place, wrong in enumerate((rows, None, rows)):
        with pytest.raises(TypeError):
            rows.row_of([], None, (*right[:place], wrong, *right[place + 1 :]))
    for wrong in (right[:2], (), 3):
        with pytest.raises(TypeError):
            rows.row_of([], None, wrong)
    for arguments in ((), ((), None, None), ([3], None, None), ([None], None, None)):
        with pytest.raises(TypeError):
            rows.row_of(*arguments)
    for sizes in ((0, 1), (1, 0), (-1, 5), (1 << 40, 1), (1, 1 << 40)):
        with pytest.raises(ValueError, match="must have words and rows"):
            NATIVE.Rows(*sizes)
    with pytest.raises(TypeError):
        NATIVE.Rows(1, most=1)
    with pytest.raises(MemoryError):
        NATIVE.Rows((1 << 26) - 1, 1 << 29)
    assert rows.count == 0
    assert not np.frombuffer(rows.memory, np.uint32).any()


@needs_c
def test_a_table_in_c_lives_as_long_as_its_memory_is_read_and_keeps_no_reference():
    some, out = array([1, 7]), array([7])
    counts, view = [*map(sys.getrefcount, (some, out))], None
    for most in range(1, 50):
        rows = new_rows(3, most)
        rows.row_of([some, some], out, None)
        view = np.frombuffer(rows.grown().memory, np.uint32)
        assert tokens_in(view).tolist() == [1]
        del rows
    assert [*map(sys.getrefcount, (some, out))] == counts
    assert view is not None
    assert tokens_in(view).tolist() == [1]


def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@needs_c
@pytest.mark.skipif(sys.platform != "linux", reason="counts pages as Linux does")
def test_a_set_of_few_tokens_touches_few_pages_in_c_even_if_the_table_grows():
    rows = new_rows(1 << 16, 64)  # 64 pages a row
    packed = token_words(range(1 << 20), 1 << 21)
    rows.row_of([packed], None, None)
    before = faults()
    for row in range(63):
        rows.row_of([packed], None, None)  # is there already
        rows.row_of([array([row << 10])], None, None)
    assert faults() - before < 400
    larger = rows.grown()
    assert faults() - before < 800
    assert [tokens_of(larger, 1 << 21, row) for row in (1, 63)] == [[0], [62 << 10]]


def address(rows):
    return np.frombuffer(rows.memory, np.uint32).ctypes.data


@needs_c
def test_the_memory_of_a_table_that_ended_is_used_again_as_zeros_in_c():
    width = 10_007
    packed = [token_words([row, 1, 200_000], 32 * width) for row in range(25)]
    sets = [some for row, few in enumerate(packed) for some in (array([row, 99_999]), few)]

    def filled(*some):
        rows = new_rows(width, 129)
        for tokens in some:
            rows.row_of([tokens], None, None)
        return rows

    rows = filled(*sets)
    before = address(rows)
    del rows
    others = np.ones((4, 129 * width), np.uint32)  # take the memory if it is free
    rows = filled(*sets[2:])
    assert address(rows) == before
    assert tokens_of(rows, 32 * width, 0) == [1, 99_999]
    assert tokens_of(rows, 32 * width, 1) == [1, 200_000]
    assert not np.frombuffer(rows.memory, np.uint32)[48 * width :].any()
    assert others.all()


@needs_c
def test_the_memory_of_the_latest_tables_that_ended_is_kept_in_c():
    widths, others = range(20_000, 20_005), list[np.ndarray]()

    def new(width):
        others.append(np.ones(100 * width, np.uint32))  # takes the memory if it is free
        return new_rows(width, 100)

    before = {width: address(new(width)) for width in widths[:4]}
    rows = new(widths[3])
    assert address(rows) == before[widths[3]]
    new(widths[4])  # there is room for it, as one is in use
    assert {width: address(new(width)) for width in widths[:3]} == {
        width: before[width] for width in widths[:3]
    }


VIEWS = [
    lambda rows: np.frombuffer(rows.memory, np.uint32)[:64],
    lambda rows: torch.frombuffer(rows.memory, dtype=torch.int32)[:64].numpy().view(np.uint32),
    lambda rows: np.frombuffer(memoryview(rows)[:256], np.uint32),
]


@needs_c
def test_the_memory_of_a_table_is_not_used_again_while_anything_reads_it_in_c():
    views = []
    for number in range(40):
        rows = new_rows(64, 9)
        assert not np.frombuffer(rows.memory, np.uint32).any()
        rows.row_of([array([number, 1000])], None, None)
        views.append((number, VIEWS[number % 3](rows)))
        del rows
        if number % 4 == 3:  # some memory is used again
            views.pop(number % 7 % len(views))
    for number, view in views:
        assert tokens_in(view).tolist() == [number, 1000]


@both
def test_a_growing_table_of_masks_gives_each_set_one_row(native, monkeypatch):
    monkeypatch.setattr("dlm.grammar.masks.table._ROWS", 1)
    monkeypatch.setattr("dlm.grammar.masks.rows.NATIVE", native)
    table, known = GrammarMasks(100), {}
    rng = np.random.default_rng(3)
    for _ in range(200):
        some = frozenset(rng.integers(0, 100, 1 + rng.integers(2)).tolist())
        row = table.changed(None, more=some)
        assert known.setdefault(some, row) == row
        assert known[some] == table.kept(("packed", some), token_words(some, 100))
    assert table.count == len({*known.values()}) == len(known)
    for some, row in known.items():
        assert tokens_in(table.words(row)).tolist() == sorted(some)
        assert tokens_in(table.table[row].numpy().view(np.uint32)).tolist() == sorted(some)
