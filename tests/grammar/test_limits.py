"""Limits on clients' patterns: cached results within one budget of bytes, steps within a limit."""

import gc
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from types import SimpleNamespace

import pytest

from dlm.grammar import InvalidGrammarError, JsonSchema
from dlm.grammar.limits import (
    RESULTS,
    SharedCache,
    TooMuchEffortError,
    at_most,
    size_of,
    spend,
)
from dlm.grammar.regex import (
    Automaton,
    Characters,
    Literal,
    Repetition,
    automaton_of,
    bounded,
    determinized,
    parse,
)
from dlm.grammar.schema import number_automaton, run


def texts(cache, calls):
    """Return a cached function of two arguments that records its calls."""

    @cache.remembered
    def text(length, letter="x"):
        calls.append((length, letter))
        return letter * length

    return text


def bytes_of(size):
    return SimpleNamespace(nbytes=size)


def test_a_result_is_computed_once_for_positional_and_keyword_arguments():
    calls = []
    text = texts(SharedCache(1 << 20), calls)
    assert text(3) is text(3)
    assert text(3, letter="y") == text(3, letter="y") == "yyy"
    assert calls == [(3, "x"), (3, "y")]


def test_what_several_entries_hold_is_counted_once_as_long_as_one_of_them_holds_it():
    cache = SharedCache(100_000)
    large, small = bytes_of(30_000), bytes_of(5_000)
    empty = cache.nbytes
    cache.keep("a", 1, 100, [large, small])
    alone = cache.nbytes
    cache.keep("b", 2, 100, [large])
    assert cache.nbytes - alone < 1000
    cache.keep("too large", 3, 16_000, [large, small])
    assert cache.get("too large") is None
    cache.keep("c", 4, 45_000)
    cache.keep("d", 5, 20_000)  # "a" goes, and what "b" has of it stays
    assert [cache.get(key) for key in "abcd"] == [None, 2, 4, 5]
    assert 95_000 < cache.nbytes < 97_000
    cache.keep("e", 6, 45_000)
    assert [cache.get(key) for key in "bcde"] == [None, None, 5, 6]
    assert 65_000 < cache.nbytes < 67_000
    cache.clear()
    assert cache.nbytes == empty


def test_functions_share_the_budget_and_not_their_results():
    cache = SharedCache(1 << 20)
    one, other = texts(cache, []), texts(cache, [])
    assert one(3) == other(3)
    before = cache.nbytes
    other(4)
    assert one(4) == "xxxx"
    assert cache.nbytes > before


def test_the_results_that_were_used_last_are_kept_within_the_budget():
    calls = []
    cache = SharedCache(10_000)
    text = texts(cache, calls)
    for length in range(2_000, 2_050):
        text(1_000)
        text(length)
        assert 0 < cache.nbytes <= 10_000
    assert calls.count((1_000, "x")) == 1
    text(2_000)
    assert calls.count((2_000, "x")) == 2


def test_a_result_of_half_the_budget_is_not_kept():
    calls = []
    cache = SharedCache(10_000)
    text = texts(cache, calls)
    text(100)
    assert text(6_000) == text(6_000)
    text(100)
    assert calls.count((6_000, "x")) == 2
    assert calls.count((100, "x")) == 1
    text(1, "y" * 6_000)  # an argument, too
    assert cache.nbytes < 1_000


def test_an_error_is_not_cached():
    calls = []

    @SharedCache(10_000).remembered
    def fail(number):
        calls.append(number)
        raise ValueError(number)

    for _ in range(2):
        with pytest.raises(ValueError, match="3"):
            fail(3)
    assert calls == [3, 3]


def test_several_threads_may_call_at_once():
    cache = SharedCache(20_000)
    text = texts(cache, [])
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: text(n % 97), range(4_000)))
    assert found == ["x" * (n % 97) for n in range(4_000)]
    assert 0 < cache.nbytes <= 20_000


def test_the_size_of_a_node_includes_all_its_parts():
    few, many = (
        Repetition(Characters(tuple((3 * n + 10**4, 3 * n + 10**4 + 1) for n in range(count))))
        for count in (10, 1_000)
    )
    assert size_of(many) > 100_000 > 50 * size_of(Literal("a"))
    assert size_of(many) > 50 * size_of(few)
    assert size_of(many, many) == size_of(many)


@pytest.mark.parametrize(
    "make",
    [
        lambda: determinized(parse(r"\p{L}{1,8}", True)),
        lambda: Automaton.words(f"{n * n:x}-{n}" for n in range(500)),
        lambda: determinized(parse("(a|b)*a(a|b){7}", True)),
        lambda: Automaton.words(f"{n * n:x}" for n in range(150)).complement(),
    ],
)
@pytest.mark.usefixtures("frozen")
def test_the_stated_size_of_an_automaton_is_about_the_memory_it_takes(make):
    make()
    RESULTS.clear()  # a complement is remembered
    gc.collect()
    tracemalloc.start()
    automaton = make()
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert 0.5 * taken < automaton.nbytes < 2 * taken


@pytest.mark.parametrize(
    "make",
    [
        lambda n: automaton_of(f"[a-z]{{{n + 10}}}", True),
        lambda n: bounded(f"x{n}[a-z]{{0,30}}", False),
        lambda n: parse(f"{n}" + "x|y" * 20, False),
        lambda n: automaton_of(f"{n}", True).complement(),
        lambda n: automaton_of(f"{n}", True).union(automaton_of("[b-z]+", True)),
        lambda n: Automaton.lengths(n, n + 10),
        lambda n: number_automaton(low=(Fraction(n), True)),
        lambda n: number_automaton(multiples=(Fraction(n + 2),), integer=True),
        lambda n: run("any", n + 1),
    ],
)
def test_results_of_every_kind_count_in_the_same_budget(make):
    first = make(5)
    assert make(5) == first
    RESULTS.clear()
    for n in range(20):
        before = RESULTS.nbytes
        make(n)
        assert RESULTS.nbytes > before
    assert make(5) == first


def test_a_function_as_an_argument_has_no_size():
    assert size_of(size_of, "x") == size_of("x")


COSTLY = [
    r"^\p{L}{1,200}$",  # few states, of many ranges
    r"^(?=.*[a-z])(?=.*[A-Z])(?=.*\d)(?=.*[^\w])(?=.{8,40}$).*$",
    "^(a|b)*a(a|b){10}$",  # few positions, of many sets
    "^([a-z0-9]{1,30}[-.]){0,60}[a-z]$",
]


@pytest.fixture
def nothing_cached():
    RESULTS.clear()


def test_steps_count_only_within_the_block():
    spend(1e9)
    with at_most(3):
        spend(3)
        with pytest.raises(TooMuchEffortError):
            spend(1)
    spend(1e9)


@pytest.mark.parametrize("pattern", COSTLY)
def test_a_costly_pattern_stops_within_the_limit_and_is_made_without_one(nothing_cached, pattern):
    with at_most(2_000), pytest.raises(TooMuchEffortError):
        automaton_of(pattern, True)
    made = automaton_of(pattern, True)
    with at_most(0):
        assert automaton_of(pattern, True) is made  # it is cached


@pytest.mark.parametrize(
    "make",
    [
        lambda one, other: one.union(other),
        lambda one, other: one.intersection(other),
        lambda one, other: one.complement(),
        lambda one, other: Automaton.words(f"{n * n:x}" for n in range(3_000)),
    ],
)
def test_operations_on_automata_count_their_steps(nothing_cached, make):
    one, other = (automaton_of(f"{a}[a-z]{{0,900}}[0-9]", True) for a in "xy")
    with at_most(100), pytest.raises(TooMuchEffortError):
        make(one, other)


def test_costly_patterns_of_a_schema_are_built_only_with_its_rules(nothing_cached):
    many = {f"p{n}": {"pattern": pattern} for n, pattern in enumerate(COSTLY)}
    spec = JsonSchema({"type": "object", "properties": many})
    assert RESULTS.nbytes < 4 << 20
    assert spec.rules().root in spec.rules().nodes
    assert RESULTS.nbytes > 8 << 20


def test_cheap_patterns_of_a_schema_are_checked_at_once():
    with pytest.raises(InvalidGrammarError, match="pattern"):
        JsonSchema({"type": "string", "pattern": "(a"})
    with pytest.raises(InvalidGrammarError):
        JsonSchema({"allOf": [{"pattern": "^a{3}$"}, {"pattern": "^b{3}$"}], "type": "string"})
