"""Token sets of terminals without bounds of length: made in steps, from those of similar states."""

import json
from contextlib import suppress
from threading import Event, Thread

import numpy as np
import pytest

from dlm.grammar import Compiled, Compiler, Grammar, JsonSchema, Matcher, Regex, Unfinished
from dlm.grammar.limits import Meter
from dlm.grammar.masks import Trie, WalkTable, tokens_in
from dlm.grammar.masks.walks import Reach
from dlm.grammar.parse import Network, Terminals
from dlm.grammar.parse.branches import NOT_EMPTY, UNBOUNDED
from dlm.grammar.parse.unbounded_sets import UnboundedSets
from dlm.grammar.regex import Spelling, Terminal, automaton_of

LINE = Grammar('start: "say " TEXT ";"\nTEXT: /[^\\n]+/', "lark")
NAMES = {"type": "object", "properties": {"name": True, "né": True}, "additionalProperties": True}
CASES = {
    "a line": (LINE, "say Grüße, 42"),
    "up to a mark": (Regex("[^<]*(?:<[^/][^<]*)*</end>"), "a <b> c </end>"),
    "keys that are not named": (
        JsonSchema(NAMES),
        json.dumps({"nay é": "na\n"}, ensure_ascii=False),
    ),
}


def masks_along(compiled, text, work=None):
    """Return the masks along a text, and how many queries were cut short."""
    matcher, found, cut = Matcher(compiled), [], 0
    for token in compiled.vocabulary.encode(text):
        while True:
            with suppress(Unfinished), compiled.meter.limited(work or 1 << 40):
                found.append(matcher.allowed().copy())
                break
            cut += 1
            assert cut < 100_000
        assert matcher.accept(token)
    return np.array(found), cut


@pytest.mark.parametrize(("spec", "text"), CASES.values(), ids=CASES)
def test_a_set_that_is_made_in_many_steps_is_that_of_one_step(vocabulary, spec, text, monkeypatch):
    """Neither the size of a step nor what other states are known changes a mask."""
    whole, _ = masks_along(Compiler(vocabulary).compile(spec), text)
    monkeypatch.setattr("dlm.grammar.parse.unbounded_sets._AT_ONCE", 16)
    monkeypatch.setattr("dlm.grammar.parse.unbounded_sets._COMPARED", 0)
    alone = Terminals(vocabulary.trie, len(vocabulary))
    stepwise = Compiled(Network(spec.rules(None)), vocabulary, alone)
    again, cut = masks_along(stepwise, text, work=8)
    assert np.array_equal(again, whole)
    assert cut > 1


def test_threads_that_read_one_state_at_the_same_time_both_get_all_its_tokens(monkeypatch):
    monkeypatch.setattr("dlm.grammar.parse.unbounded_sets._AT_ONCE", 1)
    sets, moves, made = UnboundedSets(Trie([b"a", b"b", b"c"]), 3), [(97, 99, 0)], []

    table = WalkTable([moves].__getitem__, [True], [False])
    read_table = table.read

    def token_set():
        return sets.token_set(0, moves, table, lambda: None, Meter()).tokens.tolist()

    def interrupted(*arguments):
        monkeypatch.setattr(table, "read", read_table)
        made.append(token_set())
        read_table(*arguments)

    monkeypatch.setattr(table, "read", interrupted)
    assert [token_set(), *made] == [[0, 1, 2]] * 2


@pytest.mark.parametrize("way", ["read", "read_by_level", "walk"])
def test_one_walk_at_a_time_uses_a_table(way):
    trie, first, waited = Trie([b"a", b"b", b"ab"]), Event(), []
    nodes = np.array([node for _, node in trie.each_child(0)], np.int32)

    def moves(state):
        """The moves of a state. The first call waits for the other thread as long as it may go."""
        if not first.is_set():
            first.set()
            waited.append(other.is_alive())
            other.join(0.2)
            waited.append(other.is_alive())
        return [(97, 98, 1)]

    table = WalkTable(moves, [False, True], [False, False])

    def use():
        if way == "walk":
            table.walk(trie, [(1, 0)], False)
        else:
            getattr(table, way)(trie, nodes, 0, Reach(np.zeros(1, np.uint32)))

    other = Thread(target=lambda: first.wait() and use())
    other.start()
    use()
    other.join()
    assert waited == [True, True]


def test_nodes_that_are_read_are_counted_and_read_once(vocabulary, monkeypatch):
    monkeypatch.setattr("dlm.grammar.parse.unbounded_sets.NODES_READ", 1)
    compiled, nodes = Compiler(vocabulary).compile(LINE), len(vocabulary.trie)
    matcher = Matcher(compiled)
    assert matcher.accept_all(vocabulary.encode("say ")) > 0
    before = compiled.meter.spent
    matcher.mask()
    spent = compiled.meter.spent - before
    assert nodes // 2 < spent < 2 * nodes + 1000  # a line takes almost all tokens
    compiled.masks.clear()
    before = compiled.meter.spent
    matcher.mask()
    assert compiled.meter.spent - before < 200


def test_a_state_that_differs_by_one_byte_reads_what_begins_with_it(vocabulary, monkeypatch):
    compiled = Compiler(vocabulary).compile(Regex("([^x]|xy)+z"))
    matcher = Matcher(compiled)
    matcher.mask()
    read, reading = [], WalkTable.read

    def counted(table, trie, nodes, state, reach):
        before = reach.nodes
        reading(table, trie, nodes, state, reach)
        read.append(reach.nodes - before)

    monkeypatch.setattr(WalkTable, "read", counted)
    assert matcher.accept(vocabulary.encode("a")[0])
    matcher.mask()
    assert sum(read) < len(vocabulary.trie) // 10


def test_full_caches_drop_the_terminals_that_were_not_used_for_longest(vocabulary, monkeypatch):
    terminals = Terminals(vocabulary.trie, len(vocabulary))
    networks = [Network(Regex(f"[^{letter}\\n]+").rules(None)) for letter in "abcd"]
    grammars = [Compiled(network, vocabulary, terminals) for network in networks]
    for grammar in grammars:
        Matcher(grammar).mask()
    read, reading = [], WalkTable.read
    monkeypatch.setattr(WalkTable, "read", lambda *args: read.append(args) or reading(*args))

    def walks(grammar):
        read.clear()
        grammar.masks.clear()
        Matcher(grammar).mask()
        return len(read)

    assert walks(grammars[0]) == 0  # and now it is the newest
    size = terminals.cached_bytes
    monkeypatch.setattr("dlm.grammar.parse.terminal_tokens._MOST_BYTES", size - 1)
    assert walks(grammars[3]) == 0  # the limit is crossed: the oldest go
    assert terminals.cached_bytes <= size
    assert walks(grammars[0]) == 0
    assert walks(grammars[1]) > 0


def test_bounds_beyond_every_token_are_none_and_take_no_walk(vocabulary, monkeypatch):
    terminals = Terminals(vocabulary.trie, len(vocabulary))
    bounded = Terminal(automaton_of("(?:aa|[b-e]{3})*", True), 0, None, Spelling.QUOTED)
    scanner = terminals.scanner(bounded)
    terminal, meter = terminals.tokens(scanner), Meter()
    (_, _, inside), *_ = scanner.moves(scanner.start)
    monkeypatch.setattr(WalkTable, "walk", None)
    assert terminal.clamped(inside, (-2, 300), meter) == UNBOUNDED
    assert terminal.clamped(inside, (1, 300), meter) == NOT_EMPTY
    assert len(terminal.sets(inside, NOT_EMPTY, meter).tokens)
    monkeypatch.undo()

    def reached(bounds):
        costs = terminal.place_costs(inside, bounds, meter)
        costs.add(0, bounds, 0, meter)
        return {*costs.by_node()[0].tolist()}

    every = reached(UNBOUNDED)
    clamped = {high: terminal.clamped(inside, (0, high), meter) for high in range(200)}
    assert UNBOUNDED in clamped.values()
    assert clamped[1] == (0, 1)
    for high, bounds in clamped.items():
        if bounds == UNBOUNDED:
            assert reached((0, high)) == every


def test_a_first_set_waits_for_no_table_of_the_whole_trie():
    trie = Trie([b"a", b"ab", b'"', b"1", b'1"', b"2"])
    terminals = Terminals(trie, 6)
    terminals.share_any_text()
    before = {*vars(trie)}
    scanner = terminals.scanner(Terminal(automaton_of("[12]+a?", True), 0, None, Spelling.QUOTED))
    terminal, state = terminals.tokens(scanner), scanner.start
    for byte in b'"1a':
        terminal.sets(state, UNBOUNDED, Meter())
        state = next(to for low, high, to in scanner.moves(state) if low <= byte <= high)
    terminal.below(np.ones(1, np.int32), Meter())
    assert {*vars(trie)} == before


@pytest.mark.parametrize("spelling", Spelling)
@pytest.mark.parametrize(
    "pattern", ["[\\s\\S]*", '(?:a|"|é|\\\\)*', "a?b?", "(?:a|bc)*d?|", "[0-9]+"]
)
def test_sets_of_texts_that_are_not_empty_are_those_of_a_walk(vocabulary, pattern, spelling):
    terminals = Terminals(vocabulary.trie, len(vocabulary))
    terminals.share_any_text()
    scanner = terminals.scanner(Terminal(automaton_of(pattern, True), 0, None, spelling))
    terminal, meter, states = terminals.tokens(scanner), Meter(), [scanner.start]
    for state in states:  # `states` grows in the loop
        states += {to for _, _, to in scanner.moves(state)} - {*states}
        if scanner.cost(state, 1) is None:
            continue
        shortcut, walked = (terminal.sets(state, bounds, meter) for bounds in (NOT_EMPTY, (1, 999)))
        assert np.array_equal(np.sort(shortcut.ends), np.sort(walked.ends))
        assert {*members(shortcut)} == {*members(walked)}


def members(token_set):
    packed = token_set.tokens.dtype == np.uint32
    return (tokens_in(token_set.tokens) if packed else token_set.tokens).tolist()
