"""A step of a query does work that its units bound, whatever a client's grammar holds.

What a step did is kept, so that the next one goes on. Work is counted here, never time.
"""

from contextlib import suppress
from itertools import cycle

import numpy as np
import pytest
from answers import resumed
from toys import toy_vocabulary

from dlm.grammar import Compiler, JsonSchema, Matcher, Regex, Unfinished
from dlm.grammar.masks import Trie
from dlm.grammar.masks.table import GrammarMasks
from dlm.grammar.parse.fewest_tokens import FewestTokens
from dlm.grammar.parse.following import FollowingSearch

UNITS, BUDGET = 300, 12  # work of a step, and tokens
ALTERNATIVES = "|".join(f"[a-z]{{{k},{k + 5}}}" for k in range(10, 200))
OPTIONAL = "[a-z]?" * 3000
UNLIKE = "".join(f"[{chr(97 + k % 23)}-z]{{0,{1 + k % 7}}}" for k in range(60))


@pytest.fixture
def nodes(monkeypatch):
    """A list of the numbers of trie nodes whose tokens were looked up, by look-up."""
    sizes, tokens_at = [], Trie.tokens_at
    monkeypatch.setattr(
        Trie, "tokens_at", lambda self, of: sizes.append(len(of)) or tokens_at(self, of)
    )
    return sizes


def in_steps(compiled, units, query, *counts):
    """Return the result of a query in limited steps, and for each of `counts`, which it empties,
    the sum of each step."""
    sums = []

    def step():
        for numbers in counts:
            numbers.clear()
        try:
            with compiled.meter.limited(units):
                return query()
        finally:
            sums.append([sum(numbers) for numbers in counts])

    return resumed(step)[0], [*zip(*sums, strict=True)]


@pytest.mark.parametrize("pattern", [ALTERNATIVES, UNLIKE])
def test_tokens_that_fit_a_budget_are_found_in_bounded_steps(vocabulary, nodes, pattern):
    compiled, other = (Compiler(vocabulary).compile(Regex(pattern)) for _ in range(2))
    matcher, whole = Matcher(compiled), Matcher(other)
    matcher.mask()
    tokens, (looked_up,) = in_steps(compiled, UNITS, lambda: matcher.allowed(BUDGET), nodes)
    assert max(looked_up) < 300 * UNITS
    assert np.array_equal(tokens, whole.allowed(BUDGET))


@pytest.mark.parametrize("pattern", [ALTERNATIVES, OPTIONAL, UNLIKE])
def test_a_mask_after_many_terminals_is_read_in_bounded_steps(monkeypatch, pattern):
    """Terminals may end within all tokens, each of which continues the ones before it."""
    pieces = [*(bytes([letter]) for letter in range(97, 123)), *(b"a" * n for n in range(2, 99))]
    vocabulary = toy_vocabulary(pieces)
    compiled, other = (Compiler(vocabulary).compile(Regex(pattern)) for _ in range(2))
    reached: list[int] = []
    for name in ("row_of", "words_of"):
        made = getattr(GrammarMasks, name)

        def counted(self, *args, made=made, **kwargs):
            row, count = made(self, *args, **kwargs)
            reached.append(count)
            return row, count

        monkeypatch.setattr(GrammarMasks, name, counted)
    matcher, whole = Matcher(compiled), Matcher(other)
    mask, (counts,) = in_steps(compiled, UNITS, matcher.allowed, reached)
    assert max(counts) < 300 * UNITS
    assert np.array_equal(mask, whole.allowed())


def test_a_state_that_the_table_forgot_is_read_in_the_smallest_steps(vocabulary):
    compiled = Compiler(vocabulary).compile(Regex(ALTERNATIVES))
    parser, start = compiled.parser, compiled.parser.start
    parser.states.clear()

    def step():
        with compiled.meter.limited(1):
            return parser.after(start, 0, b"abcdef")

    state, calls = resumed(step)
    assert calls > 1
    assert state is parser.after(start, 0, b"abcdef")
    assert len(state.threads) > 100


def test_fewest_tokens_are_searched_for_in_the_smallest_steps():
    compiled = Compiler(toy_vocabulary([b"a", b"b", b"ab", b"ba"])).compile(Regex("(ab){3}b{2}"))

    def step():
        with compiled.meter.limited(1):
            return compiled.closing.least(compiled.parser.start)

    assert resumed(step)[0] == 5


def test_new_items_are_searched_for_in_small_steps(vocabulary):
    items = {"type": "string", "maxLength": 1}
    schema = {"type": "array", "uniqueItems": True, "minItems": 90, "items": items}
    compiled, other = (Compiler(vocabulary).compile(JsonSchema(schema)) for _ in range(2))
    before = compiled.meter.spent, other.meter.spent
    text, _ = in_steps(compiled, 10, Matcher(compiled).shortest_completion)
    assert text == Matcher(other).shortest_completion()
    work = [each.meter.spent - spent for each, spent in zip((compiled, other), before, strict=True)]
    assert work[0] < 1.2 * work[1]


def test_states_after_many_tokens_are_measured_in_bounded_steps():
    names = [f"k{number}" for number in range(300)]
    members = [f'"{name}":null'.encode() for name in names]
    vocabulary = toy_vocabulary([b"{", b",", b"}", *members])
    schema = {"properties": {name: {"type": "null"} for name in names}, "required": names}
    spec = JsonSchema(schema, property_order="any", whitespace="compact")
    compiled = Compiler(vocabulary).compile(spec)
    meter = compiled.meter
    search, spent = FewestTokens(compiled.parser, vocabulary, meter, 700), [meter.spent]

    def step():
        try:
            with meter.limited(50):
                return search.path()
        finally:
            spent.append(meter.spent)

    for _ in range(200):
        with suppress(Unfinished):
            step()
    assert np.diff(spent).max() < 200


def test_a_mask_is_finished_in_the_smallest_steps_in_numpy(monkeypatch):
    letters = [bytes([letter]) for letter in range(97, 123)]
    vocabulary = toy_vocabulary([*letters, *(a + b for a in letters for b in letters)])
    whole = Matcher(Compiler(vocabulary).compile(Regex(UNLIKE))).allowed()
    for module in ("masks.rows", "parse.state_masks", "parse.state_table"):
        monkeypatch.setattr(f"dlm.grammar.{module}.NATIVE", None)
    compiled = Compiler(vocabulary).compile(Regex(UNLIKE))
    mask, _ = in_steps(compiled, 1, Matcher(compiled).allowed)
    assert np.array_equal(mask, whole)


def test_queries_that_take_turns_are_all_finished(vocabulary, monkeypatch):
    """Also if only one of them can be kept at a time."""
    monkeypatch.setattr("dlm.grammar.parse.state_masks._BEGUN", 1)
    searches, search = [], FollowingSearch.__init__
    monkeypatch.setattr(
        FollowingSearch,
        "__init__",
        lambda self, *args: searches.append(self) or search(self, *args),
    )
    compiled = Compiler(vocabulary).compile(Regex(ALTERNATIVES))
    matchers = {}
    for text in ("", "a", "ab", "abc"):
        matchers[text] = matcher = Matcher(compiled)
        matcher.accept_all([vocabulary.fewest([letter.encode()])[0] for letter in text])
        matcher.mask()
    finished = {}
    for text, _ in zip(cycle(matchers), range(4000), strict=False):
        try:
            with compiled.meter.limited(5):
                finished.setdefault(text, matchers[text].allowed(60))
        except Unfinished:
            continue
    assert finished.keys() == matchers.keys()
    assert len(searches) > len(matchers)
