"""The memory of a grammar is counted as it is, so that the compiler's limit bounds it."""

import gc
import random
import tracemalloc
import weakref
from contextlib import suppress

import pytest

from dlm.grammar import Compiler, JsonSchema, Matcher, Regex, Unfinished
from dlm.grammar.limits import RESULTS
from dlm.grammar.parse import uniqueness
from dlm.grammar.parse.following import FollowingSearch

MEGABYTE = 1 << 20


def regex_of(words: int, seed: int) -> Regex:
    """Return a regex of words; 420 need more states than one automaton may have."""
    rng = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    return Regex(f"({'|'.join(''.join(rng.choices(letters, k=12)) for _ in range(words))})")


pytestmark = pytest.mark.usefixtures("frozen")


@pytest.fixture
def traced():
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()


@pytest.mark.parametrize(
    "spec",
    [
        regex_of(420, 0),
        JsonSchema({"type": "object", "properties": {f"key {i}": {} for i in range(60)}}),
    ],
)
def test_the_memory_of_a_grammar_is_counted(vocabulary, spec, traced):
    compiler = Compiler(vocabulary)
    Matcher(compiler.compile(JsonSchema({}))).mask()
    RESULTS.clear()  # it has a limit of its own
    gc.collect()
    before = traced()
    grammar = compiler.compile(spec)
    Matcher(grammar).mask()
    RESULTS.clear()
    gc.collect()
    added = traced() - before
    # Automata that other grammars of this process hold too are counted, but not added.
    assert added / 2 <= grammar.nbytes <= 4 * added


def test_a_word_of_an_alternation_takes_a_few_kilobytes(vocabulary):
    grammar = Compiler(vocabulary).compile(regex_of(420, 0))
    Matcher(grammar).mask()
    assert grammar.nbytes < 420 * 16_384


def test_grammars_beyond_the_limit_are_dropped_and_their_memory_is_given_back(vocabulary, traced):
    compiler = Compiler(vocabulary, max_bytes=3 * MEGABYTE)
    first = compiler.compile(regex_of(210, 1))
    Matcher(first).mask()
    size, dropped = first.nbytes, weakref.ref(first)
    assert size > 1.5 * MEGABYTE
    before = traced()
    del first
    for seed in (2, 3, 4):
        Matcher(compiler.compile(regex_of(210, seed))).mask()
    compiler.compile(Regex("a"))
    gc.collect()
    assert dropped() is None
    RESULTS.clear()  # it has a limit of its own
    gc.collect()
    assert traced() - before < size


def test_a_token_that_is_read_leaves_no_container_to_the_collector(compiler, vocabulary):
    """The collector would visit it as long as its request runs."""
    matcher = Matcher(compiler.compile(JsonSchema({"type": "string"})))
    text = vocabulary.encode('"' + "a b " * 300)
    assert matcher.accept_all(text) == len(text) > 300
    matcher.rollback(len(text))
    matcher.accept(vocabulary.encode('"x')[0])  # another token, so that those taken back are gone
    gc.collect()
    before = len(gc.get_objects())

    assert matcher.accept_all(text[1:]) == len(text) - 1

    assert len(gc.get_objects()) - before < 50


def test_work_that_was_begun_is_counted_and_little(vocabulary):
    """Whatever number of callers begin queries, and never go on."""
    alternatives = "|".join(f"[a-z]{{{k},{k + 5}}}" for k in range(10, 200))
    compiled = Compiler(vocabulary).compile(Regex(alternatives))
    states, (token,) = [compiled.parser.start], vocabulary.fewest([b"a"])
    for _ in range(40):
        after = compiled.steps.after(states[-1], token)
        assert after is not None
        states.append(after)
    query = compiled.state_masks.following
    before, others = compiled.state_masks.nbytes, len(searches())
    for state in states:
        with suppress(Unfinished), compiled.meter.limited(5):
            query(state)
    begun = searches()[others:]
    assert 1 < len(begun) <= 4
    added = compiled.state_masks.nbytes - before
    assert added >= sum(search.nbytes for search in begun) >= len(begun) * 16 * len(vocabulary)
    del begun
    compiled.masks.clear()
    with suppress(Unfinished), compiled.meter.limited(5):
        query(states[-1])
    assert len(searches()) - others == 1


def test_searches_for_new_items_leave_nothing_to_the_collector(compiler):
    """A serving process seldom runs a full collection."""
    items = {"type": "string", "maxLength": 2}
    schema = {"type": "array", "uniqueItems": True, "minItems": 4000, "items": items}
    compiled = compiler.compile(JsonSchema(schema))
    gc.collect()
    gc.disable()
    try:
        for _ in range(100):
            with suppress(Unfinished):
                Matcher(compiled).check_budget(4096, 200)
        kept = [
            thing for thing in gc.get_objects() if type(thing).__module__ == uniqueness.__name__
        ]
    finally:
        gc.enable()
    assert len(kept) < 5000


def searches():
    """Return the searches that were begun and are kept."""
    gc.collect()
    return [thing for thing in gc.get_objects() if isinstance(thing, FollowingSearch)]
