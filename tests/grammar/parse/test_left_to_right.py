"""Left-to-right constraints: the tokens allowed next, and after each token of a draft."""

import json

import jsonschema
import numpy as np
import pytest
from answers import resumed
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st

from dlm.grammar import (
    Choice,
    Compiler,
    FreeTokens,
    GrammarError,
    JsonSchema,
    LeftToRight,
    Matcher,
    Reasoning,
    Regex,
    Tools,
    Unfinished,
    masks,
)

PERSON = JsonSchema(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    max_whitespace=1,
)
TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "minLength": 20}},
            "required": ["city"],
        },
    },
}


def tokens_in(row, size):
    found = masks.tokens_in(row)
    return found[found < size].tolist()


def answer(one, choose, size):
    """Return the tokens of a decoder that takes any allowed token that fits the budget."""
    tokens, exact = [], False
    while not one.ended:
        look = one.look(exact=exact)
        one.commit(look.forced)
        (row,) = look.rows
        token = choose(tokens_in(row, size))
        tokens += look.forced
        fits = one.fits([token])
        assert fits or not exact
        exact = not fits
        if fits:
            one.commit([token])
            tokens.append(token)
    return tokens


@examples(25)
@given(budget=st.integers(14, 60), seed=st.integers(0, 999), thinking=st.booleans())
def test_any_allowed_tokens_make_a_complete_answer_within_the_budget(
    compiler, vocabulary, budget, seed, thinking
):
    reasoning = Reasoning.of(vocabulary, 9) if thinking else None
    one = LeftToRight(compiler.compile(PERSON), budget, reasoning)
    dice = np.random.default_rng(seed)
    tokens = answer(one, lambda found: int(dice.choice(found)), len(vocabulary))
    assert len(tokens) <= budget
    thought, value = reasoning.split(tokens) if reasoning else (b"", tokens)
    assert len(tokens) - len(value) <= 9
    assert bool(thought) <= thinking
    jsonschema.validate(json.loads(vocabulary.text(value)), PERSON.schema)


def test_reasoning_may_begin_only_if_the_budgets_have_room_for_it(compiler, vocabulary):
    opens, closes = vocabulary.thought.open[0], vocabulary.thought.close[0]
    compiled = compiler.compile(PERSON)
    ample, free = Matcher(compiled, Reasoning.of(vocabulary)), Matcher(compiled)
    assert opens in masks.tokens_in(ample.allowed(100))
    assert set(masks.tokens_in(free.allowed(100))) < set(masks.tokens_in(ample.allowed(100)))
    least = len(free.shortest_completion()) + 1
    assert opens in masks.tokens_in(ample.allowed(least + 2))
    assert opens not in masks.tokens_in(ample.allowed(least + 1))
    tight = Matcher(compiled, Reasoning.of(vocabulary, 1))
    assert opens not in masks.tokens_in(tight.allowed(100))
    assert ample.accept(opens)
    assert closes in masks.tokens_in(ample.allowed(least + 1))


@pytest.mark.parametrize("limit", [2, 3, 5, 9])
def test_reasoning_takes_no_token_more_than_its_budget(compiler, vocabulary, limit):
    matcher = Matcher(compiler.compile(PERSON), Reasoning.of(vocabulary, limit))
    closes, count = vocabulary.thought.close[0], 1
    assert matcher.accept(vocabulary.thought.open[0])
    while matcher.state is None:
        found = tokens_in(matcher.allowed(100), len(vocabulary))
        assert matcher.accept(next((t for t in found if t != closes), closes))
        count += 1
    assert count == limit


def test_a_control_token_is_not_allowed_if_its_shortest_completion_exceeds_the_budget(
    compiler, vocabulary
):
    matcher = Matcher(compiler.compile(Tools([TOOL], choice="auto")))
    opens = vocabulary.call.open
    assert opens in masks.tokens_in(matcher.allowed(90))
    assert opens not in masks.tokens_in(matcher.allowed(9))
    assert vocabulary.encode("no")[0] in masks.tokens_in(matcher.allowed(9))


def test_only_an_exact_look_omits_tokens_that_exceed_an_ample_budget(compiler, vocabulary):
    one = LeftToRight(compiler.compile(Regex("a|b[c-d]{200}")), 60)
    (a,), (b,) = vocabulary.encode("a"), vocabulary.encode("b")
    assert {a, b} <= set(tokens_in(one.look().rows[0], len(vocabulary)))
    exact = tokens_in(one.look(exact=True).rows[0], len(vocabulary))
    assert a in exact
    assert b not in exact
    assert (one.fits([a]), one.fits([b]), one.fits([a, vocabulary.stops[0]])) == (1, 0, 2)
    assert one.look([b]).draft == []


def test_tokens_without_an_alternative_are_forced_until_they_are_committed(compiler, vocabulary):
    one = LeftToRight(compiler.compile(PERSON), 60)
    one.commit(vocabulary.fewest([b'{"']))
    forced = one.look().forced
    assert "name".startswith(vocabulary.text(forced)[:4])
    assert forced
    assert one.look().forced == forced  # a look leaves no trace
    one.commit(forced)
    assert one.look().forced == []


def test_a_draft_is_kept_as_far_as_the_grammar_accepts_it(compiler, vocabulary):
    good = vocabulary.encode('{"name": "Olga", "age": 61}')
    one = LeftToRight(compiler.compile(PERSON), 60)
    look = one.look([*good, vocabulary.stops[0], vocabulary.pad])
    assert look.forced + look.draft == good
    assert len(look.rows) == len(look.draft) + 1
    assert vocabulary.stops[0] in masks.tokens_in(look.rows[-1])
    for row, token in zip(look.rows, look.draft, strict=False):
        assert row == ~token if isinstance(row, int) else token in masks.tokens_in(row)

    bad = vocabulary.encode('{"name": "Olga", "ago": 61}')
    look = one.look(bad)
    assert '"ag' not in vocabulary.text(look.forced + look.draft[:-1])
    last = look.rows[-1]
    refused = bad[len(look.forced) + len(look.draft)]
    assert last != ~refused if isinstance(last, int) else refused not in masks.tokens_in(last)


def test_a_draft_that_contradicts_what_is_forced_is_dropped(compiler, vocabulary):
    one = LeftToRight(compiler.compile(PERSON), 60)
    one.commit(vocabulary.fewest([b'{"']))
    look = one.look(vocabulary.encode('title": 1}'))
    assert look.forced
    assert look.draft == []
    assert len(look.rows) == 1


def test_a_refused_token_is_allowed_only_if_no_other_is_left(compiler, vocabulary):
    one = LeftToRight(compiler.compile(Choice(["yes", "no"])), 9)
    (row,) = one.look().rows
    found = tokens_in(row, len(vocabulary))
    (left,) = one.look(refused=found[:-1]).rows
    assert tokens_in(left, len(vocabulary)) == found[-1:]
    (again,) = one.look(refused=found).rows
    assert tokens_in(again, len(vocabulary)) == found


def test_commit_accepts_all_tokens_or_none_and_rollback_undoes_it(compiler, vocabulary):
    one = LeftToRight(compiler.compile(Regex("[a-c]{2,9}")), 12)
    before = one.look().rows[0].tobytes()
    good, bad = vocabulary.encode("ab"), vocabulary.encode("a!")
    with pytest.raises(GrammarError, match="is not allowed"):
        one.commit(bad)
    assert one.look().rows[0].tobytes() == before
    one.commit(good)
    one.commit([vocabulary.stops[0]])
    assert one.ended
    one.rollback(1)
    assert not one.ended
    one.rollback(len(good))
    assert one.look().rows[0].tobytes() == before


def test_a_look_that_exceeds_its_work_is_unfinished_and_can_be_resumed(compiler, vocabulary):
    new = Compiler(vocabulary)  # its terminals have no masks yet
    one = LeftToRight(new.compile(JsonSchema({"type": "object"})), 40)
    one.work = 0
    with pytest.raises(Unfinished):
        one.look()
    one.work = 1
    found, calls = resumed(one.look)
    fresh = LeftToRight(compiler.compile(JsonSchema({"type": "object"})), 40)
    assert (found.rows[0] == fresh.look().rows[0]).all()
    assert calls > 1


def test_free_text_ends_at_a_stop_and_its_drafts_before_one():
    free = FreeTokens([1, 106], 6)
    look = free.look([5, 6, 106, 7])
    assert (look.forced, look.draft, look.rows) == ([], [5, 6], [None] * 3)
    assert free.look([5] * 9).draft == [5] * 5
    free.commit([5, 6])
    assert free.look([5] * 9).draft == [5] * 3
    assert not free.ended
    free.commit([106])
    assert free.ended
    free.rollback(1)
    assert not free.ended
