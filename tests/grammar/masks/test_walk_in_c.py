"""Walks of a trie in C and in numpy, and what happens without C."""

import re
import shutil
import subprocess
import sys
import sysconfig
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st
from in_c import keeps_no_reference, needs_c
from made_scanners import MadeScanner, NumberedMachine
from processes import printed

from dlm.grammar.masks import (
    Below,
    Reach,
    Trie,
    WalkTable,
    made_of,
    new_rows,
    spell,
    tokens_in,
)
from dlm.grammar.masks.bits import NATIVE

ROOT = Path(__file__).parents[3]
COMPILER = shutil.which("cc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler")
_BYTES = b"abcd\x00\xff"


@st.composite
def tables(draw):
    """Return the moves of each state of a random machine, and which states are final."""
    states = draw(st.integers(1, 40))
    machine = []
    for _ in range(states):
        cuts = [0, *sorted(draw(st.sets(st.sampled_from([*_BYTES[:4], 101, 255]), max_size=4)))]
        ends = [*(cut - 1 for cut in cuts[1:]), 255]
        to = [draw(st.integers(-1, states - 1)) for _ in cuts]
        machine.append([move for move in zip(cuts, ends, to, strict=True) if move[2] >= 0])
    return machine, [draw(st.booleans()) for _ in range(states)]


PIECES = st.lists(
    st.binary(max_size=6).map(lambda raw: bytes(_BYTES[b % 6] for b in raw)), max_size=60
)


def compiled(source, target, *flags):
    subprocess.run([COMPILER, "-O1", *flags, str(source), "-o", str(target)], check=True)


def reached(trie, size, read, nodes, state):
    reach = Reach(np.zeros(-(-size // 32), np.uint32))
    read(trie, nodes, state, reach)
    ends = reach.token_set().ends
    return tokens_in(reach.words).tolist(), ends.tolist(), reach.nodes


def node_by_node(trie, machine, final, nodes, state):
    """Return what a walk reaches, by the definition."""
    tokens, ends, read = set(), [], 0
    waiting = [(node, state) for node in nodes]
    while waiting:
        node, before = waiting.pop()
        read += 1
        byte = int(trie.byte[node])
        after = next((to for low, high, to in machine[before] if low <= byte <= high), None)
        if after is None:
            continue
        tokens.update(trie.tokens_at(np.array([node], np.int32))[0].tolist())
        children = [child for _, child in trie.each_child(node)]
        ends += [node] * (final[after] and bool(children))
        waiting += [(child, after) for child in children]
    return sorted(tokens), sorted(ends), read


@examples(200)
@given(PIECES, tables(), st.data())
def test_both_walks_reach_what_a_walk_node_by_node_reaches(pieces, made, data):
    machine, final = made
    trie = Trie(pieces)
    below = st.sampled_from(range(len(trie)))
    parents = np.array(sorted(data.draw(st.sets(below, max_size=5))), np.int32)
    nodes = trie.children_of(parents)[0]
    if not data.draw(st.booleans()):  # also nodes below each other
        nodes = np.unique(nodes)
    state = data.draw(st.integers(0, len(machine) - 1))
    expected = node_by_node(trie, machine, final, nodes.tolist(), state)
    table, other = (WalkTable(machine.__getitem__, final, final) for _ in range(2))
    for _ in range(2):  # with rows to be written, and with those that were
        assert reached(trie, len(pieces), table.read, nodes, state) == expected
        assert reached(trie, len(pieces), other.read_by_level, nodes, state) == expected
    children = trie.children_of(parents)[0].tolist()
    expected = node_by_node(trie, machine, final, children, state)
    for native in (NATIVE, None):
        with patch("dlm.grammar.masks.walks.NATIVE", native):
            below = partial(table.read, below=True)
            assert reached(trie, len(pieces), below, parents, state) == expected


@needs_c
def test_ends_beyond_those_that_one_call_lists_are_listed_too(monkeypatch):
    monkeypatch.setattr("dlm.grammar.masks.walks._ENDS", 3)
    pieces = [bytes([a, b]) for a in b"abcdefghij" for b in b"ab"]
    trie = Trie(pieces)
    nodes = trie.children_of(np.zeros(1, np.int32))[0]
    table = WalkTable([[(0, 255, 0)]].__getitem__, [True], [False])
    tokens, ends, read = reached(trie, len(pieces), table.read, nodes, 0)
    assert (len(tokens), len(ends), read) == (20, 10, 30)


@needs_c
def test_arrays_that_do_not_fit_together_are_refused():
    trie = Trie([b"a", b"ab"])
    *preorder, _ = trie.preorder
    right = [
        *preorder,
        np.zeros(256, np.uint8),
        np.zeros(4, np.int32),
        np.zeros(4, np.uint8),
        0,
        np.ones(1, np.int32),
        np.full(1, 3, np.int32),
        np.zeros(4, np.int64),
        np.zeros(4, np.int32),
        np.zeros(1, np.uint32),
        np.zeros(4, np.int32),
    ]
    assert NATIVE.walk_ranges(*right) == -1
    wrong = {
        1: preorder[1][:-1],
        5: np.ones(256, np.uint8),  # a column beyond the table
        6: np.zeros(0, np.int32),
        7: np.zeros(3, np.uint8),
        9: np.zeros(1, np.int32),  # the root, which has no byte
        10: np.full(1, 4, np.int32),  # a range beyond the trie
        11: np.zeros(3, np.int64),
        14: np.zeros(0, np.int32),
    }
    for place, array in wrong.items():
        with pytest.raises(ValueError, match="must fit together"):
            NATIVE.walk_ranges(*right[:place], array, *right[place + 1 :])
    for state in (4, -1):  # states without a row
        cursor = np.zeros(4, np.int64)
        with pytest.raises(ValueError, match="must have a row"):
            NATIVE.walk_ranges(*right[:8], state, *right[9:11], cursor, *right[12:])
    beyond = np.full(4, 4, np.int32)
    with pytest.raises(ValueError, match="must have a row"):
        NATIVE.walk_ranges(*right[:6], beyond, *right[7:11], np.zeros(4, np.int64), *right[12:])
    short = np.zeros(1, np.int32)
    with pytest.raises(ValueError, match="must have a row"):  # a stack that is too short
        NATIVE.walk_ranges(*right[:11], np.zeros(4, np.int64), short, *right[13:])


@needs_c
@examples(100)
@given(PIECES, tables(), st.data())
def test_walks_by_states_reach_the_same_tokens_in_c_and_in_numpy(pieces, made, data):
    trie, (moves, _) = Trie(pieces), made
    moves = [(*some,) for some in moves]
    numbers = st.integers(0, len(moves) - 1)
    nodes = st.lists(st.integers(0, len(trie) - 1), max_size=5)
    begin = data.draw(st.lists(st.tuples(nodes, numbers), max_size=3))
    machine, found = NumberedMachine(moves), []
    at = [(np.array(some, np.int32), machine.at(number)) for some, number in begin]
    for native in (NATIVE, None, NATIVE):  # the last one knows the next states
        with patch("dlm.grammar.masks.rows.NATIVE", native):
            found.append(read_below(trie, machine, at, -(-len(pieces) // 32)))
    machine = NumberedMachine(moves)
    for_walk = [(np.array(some, np.int32), machine.for_walk(number)) for some, number in begin]
    found.append(read_below(trie, machine, for_walk, -(-len(pieces) // 32)))
    assert found[0] == found[1] == found[2] == found[3]


def read_below(trie, machine, begin, width=1):
    """Return the number of nodes reached by a walk, and the tokens there."""
    rows = new_rows(max(1, width), 1)
    _, reached = rows.row_of([], None, made_of(Below(trie, machine, begin)))
    return reached, tokens_in(np.frombuffer(rows.memory, np.uint32)).tolist()


MOVES, START = [((0, 255, 0),)], np.zeros(1, np.int32)


def fail(*_):
    raise KeyError


@needs_c
def test_a_walk_by_states_ends_with_the_error_of_its_machine():
    trie, machine = Trie([b"ab", b"abc", b"b"]), NumberedMachine(MOVES)
    with patch.object(MadeScanner, "look_up", fail):
        machine = NumberedMachine(MOVES)
        with pytest.raises(KeyError):
            read_below(trie, machine, [(START, machine.at(0))])
    machine = NumberedMachine(MOVES)
    for nodes in (np.full(1, len(trie), np.int32), np.full(1, -1, np.int32), b"123"):
        with pytest.raises(ValueError, match="must be within the trie"):
            read_below(trie, machine, [(nodes, machine.at(0))])
    with pytest.raises(ValueError, match="must have a place for each token"):
        read_below(Trie([b"a"] * 33), machine, [(START, machine.at(0))])
    for begin in ([START], [(START,)], [(None, machine.at(0))], [(START, 1)]):
        with pytest.raises((TypeError, AttributeError)):
            read_below(trie, machine, begin)
    assert read_below(trie, machine, [(START, machine.at(0))]) == (4, [0, 1, 2])


@needs_c
def test_nodes_that_change_during_a_walk_by_states_are_looked_at_again():
    nodes = np.zeros(2, np.int32)

    def moves(scanner, state):
        nodes[1] = 1 << 30
        return MOVES[0]

    with patch.object(MadeScanner, "look_up", moves):
        trie, machine = Trie([b"ab", b"b"]), NumberedMachine(MOVES)
        with pytest.raises(ValueError, match="must be within the trie"):
            read_below(trie, machine, [(nodes, machine.at(0))])


@needs_c
@pytest.mark.parametrize("fault", [False, True])
def test_a_walk_by_states_keeps_no_reference(fault):
    trie, rows = Trie([b"ab", b"abc", b"b"]), new_rows(1, 9)
    machine = NumberedMachine(MOVES)
    state = machine.at(0)

    def walk_both():
        read_below(trie, machine, [(START, state)])
        with patch.object(MadeScanner, "look_up", fail if fault else MadeScanner.look_up):
            unread = NumberedMachine(MOVES)
            walk = trie.native, [(START, unread.at(0))], unread.states
            with pytest.raises(KeyError) if fault else nullcontext():
                rows.row_of([START], START, walk)

    assert keeps_no_reference(
        walk_both, lambda: (trie.native, START, MOVES[0], state, machine, rows)
    )


@needs_c
def test_a_trie_in_c_holds_its_arrays_until_it_ends():
    trie = Trie([b"ab", b"abc", b"b"])
    arrays = trie.byte, trie.first, trie.children, trie.token_first, trie.token_count, trie.tokens
    before = [*map(sys.getrefcount, arrays)]
    native = NATIVE.Trie(*arrays, len(trie.levels))
    assert [*map(sys.getrefcount, arrays)] == [count + 1 for count in before]
    del native
    with pytest.raises(ValueError, match="must fit together"):
        NATIVE.Trie(*arrays, 0)
    with pytest.raises(TypeError):
        NATIVE.Trie(*arrays, None)
    assert [*map(sys.getrefcount, arrays)] == before


@needs_c
def test_arrays_that_are_no_trie_are_refused():
    trie = Trie([b"ab", b"abc", b"b"])
    right = [
        *(trie.byte, trie.first, trie.children, trie.token_first, trie.token_count, trie.tokens),
        len(trie.levels),
    ]

    def with_number(place, index, number):
        array = right[place].copy()
        array[index] = number
        return place, array

    wrong = [
        (0, trie.byte[:-1]),
        (1, trie.first[1:]),
        (5, trie.tokens[:-1]),
        (5, trie.tokens.view(np.uint8)[:-1]),
        (6, 0),
        with_number(1, 1, 1),  # a node that is its own child
        with_number(1, 1, len(trie)),
        with_number(1, 4, len(trie) + 1),  # a node without children
        with_number(2, 0, -1),
        with_number(2, 0, len(trie)),
        with_number(3, 0, -1),  # a node without tokens
        with_number(3, 2, -9),
        with_number(4, 2, 9),
        with_number(4, 2, -1),
        with_number(5, 0, -1),
    ]
    NATIVE.Trie(*right)
    for place, argument in wrong:
        with pytest.raises(ValueError, match="must fit together"):
            NATIVE.Trie(*right[:place], argument, *right[place + 1 :])
    with pytest.raises(TypeError):
        NATIVE.Trie(*right, levels=1)
    machine, shallow = NumberedMachine(MOVES), NATIVE.Trie(*right[:-1], 1)
    with pytest.raises(ValueError, match="must fit together"):
        new_rows(1, 1).row_of([], None, (shallow, [(START, machine.at(0))], machine.states))


@examples(100)
@given(PIECES, st.binary(max_size=6), st.data())
def test_a_text_is_searched_below_nodes_alike_in_c_and_in_numpy(pieces, text, data):
    trie, text = Trie(pieces), bytes(_BYTES[byte % 6] for byte in text)
    nodes = st.sets(st.integers(0, len(trie) - 1), max_size=4)
    begin = np.array(sorted(data.draw(nodes)), np.int32)
    spelled = {0: b""}
    for node in range(len(trie)):
        spelled |= {child: spelled[node] + bytes([byte]) for byte, child in trie.each_child(node)}
    expected = sorted(
        token
        for token, piece in enumerate(pieces)
        for node in begin.tolist()
        if piece.startswith(spelled[node])
        and 0 < len(piece) - len(spelled[node]) <= len(text)
        and text.startswith(piece[len(spelled[node]) :])
    )
    ends = [spelled[node] + text for node in begin.tolist()]
    for native in {NATIVE, None}:
        with patch("dlm.grammar.masks.walks.NATIVE", native):
            reached = spell(trie, begin, text)
            assert sorted(reached.tokens.tolist()) == expected
            assert {spelled[end] for end in reached.ends.tolist()} == {
                end
                for end in ends
                if any(piece.startswith(end) and piece != end for piece in pieces)
            }
            assert reached.tokens.dtype == reached.ends.dtype == np.int32


@needs_c
def test_nodes_of_a_search_beyond_the_trie_are_refused_in_c():
    trie = Trie([b"ab", b"abc", b"b"])
    with pytest.raises(ValueError, match="must be within the trie"):
        trie.native.spell(np.full(1, len(trie), np.int32), b"a")


def loaded(folder, **environment):
    """Return what `load` says in a process that finds the extension in `folder` alone. The finder
    of an editable installation does not look at `__path__`."""
    code = "import dlm.grammar.native as native, sys; from importlib.machinery import PathFinder; "
    code += "sys.meta_path[:] = [PathFinder]; "
    code += f"import dlm.grammar; dlm.grammar.__path__[:] = [{str(folder)!r}]; "
    return printed(code + "print(native.load()[1])", **environment).strip()


@needs_c
def test_the_extension_is_found_where_it_is_built_unless_the_environment_leaves_it_out():
    assert loaded(ROOT / "grammar", DLM_NATIVE="1") == "C"
    assert loaded(ROOT / "grammar", DLM_NATIVE="0") == "numpy: DLM_NATIVE is 0"


@pytest.mark.parametrize("content", [b"", b"not a library"])
def test_a_file_that_is_no_extension_is_left_out(tmp_path, content):
    (tmp_path / "_walk.abi3.so").write_bytes(content)
    assert "cannot be loaded" in loaded(tmp_path, DLM_NATIVE="1")


@needs_compiler
def test_a_library_that_is_no_module_is_left_out(tmp_path):
    (tmp_path / "other.c").write_text("int other(void) { return 1; }")
    compiled(tmp_path / "other.c", tmp_path / "_walk.abi3.so", "-shared", "-fPIC")
    assert "cannot be loaded" in loaded(tmp_path, DLM_NATIVE="1")


def test_without_the_extension_numpy_walks(tmp_path):
    assert loaded(tmp_path, DLM_NATIVE="1") == "numpy: the C extension is not built"


@needs_compiler
def test_an_extension_of_another_version_is_left_out(tmp_path):
    source = (ROOT / "grammar" / "_walk.c").read_text()
    source, places = re.subn(r"(?m)^#define VERSION \d+$", "#define VERSION 99", source)
    assert places == 1
    (tmp_path / "_walk.c").write_text(source)
    include = f"-I{sysconfig.get_paths()['include']}"
    flags = "-shared", "-fPIC", include, f"-I{ROOT / 'grammar'}"
    others = (str(path) for path in (ROOT / "grammar").glob("_*.c") if path.name != "_walk.c")
    compiled(tmp_path / "_walk.c", tmp_path / "_walk.abi3.so", *flags, *others)
    assert loaded(tmp_path, DLM_NATIVE="1").startswith("numpy: the C extension has version 99")
