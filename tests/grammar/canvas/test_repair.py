"""Repairs: the tokens that replace those that the grammar refuses."""

import pytest
import torch
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st
from masked import rows_of, tokens_in
from scores import scores_of
from toys import STOP, toy_vocabulary

from dlm.grammar import (
    Choice,
    Compiler,
    Fixed,
    Frontier,
    Grammar,
    JsonSchema,
    Regex,
)

LETTERS = "abcdefgqxyz"
SIZE = 2 + len(LETTERS)


@pytest.fixture(scope="module")
def letters():
    """A compiler whose vocabulary has one token for each of `LETTERS`."""
    return Compiler(toy_vocabulary(letter.encode() for letter in LETTERS))


def tokens(text):
    return [2 + LETTERS.index(letter) for letter in text]


def weighted(*rows):
    """Scores of a model that gives the letters of each position these shares; `.` is the stop."""
    odds = torch.full((len(rows), SIZE), 1e-6)
    for position, shares in enumerate(rows):
        for letter, share in shares.items():
            odds[position, STOP if letter == "." else tokens(letter)[0]] = share
    logits = (odds / odds.sum(-1, keepdim=True)).log()
    return scores_of(logits)


def guide(compiled, scores, **fixed):
    frontier = Frontier(compiled, 100)
    return frontier.guide(scores, Fixed(**fixed))


def test_a_refused_token_is_replaced_by_the_likeliest_one_that_is_allowed(letters):
    compiled = letters.compile(Choice(["abcd", "xyzq", "eyyy"]))
    wanted = [{"b": 0.9, "y": 0.01}, {"c": 0.9, "z": 0.01}, {"d": 0.9, "q": 0.01}, {".": 1.0}]
    scores = weighted({"q": 0.5, "x": 0.2, "a": 0.19, "e": 0.05}, *wanted)
    assert guide(compiled, scores, last=True).guess == [*tokens("xyzq"), STOP]
    scores = weighted({"q": 0.5, "x": 0.2, "a": 0.21, "e": 0.05}, *wanted)
    assert guide(compiled, scores, last=True).guess == [*tokens("abcd"), STOP]


@examples(60)
@given(
    spec=st.sampled_from(
        [
            Choice(["abcd", "abxq", "xyz", "q", "eeee"]),
            Regex("(ab|a)*c?[d-f]{2,4}"),
            Grammar('root ::= "a" root "b" | "x" | root "y"'),
        ]
    ),
    seed=st.integers(0, 2**32),
    length=st.integers(1, 6),
    scale=st.sampled_from([0.0, 1.0, 8.0, 200.0]),
)
def test_each_guessed_token_is_the_likeliest_one_of_its_mask(letters, spec, seed, length, scale):
    rng = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(length, SIZE, generator=rng)
    guidance = guide(letters.compile(spec), scores_of(logits))
    trusted = range(min(len(guidance.rows), guidance.stop + 1))
    assert trusted
    for position in trusted:
        allowed = list(tokens_in(rows_of(guidance)[position], SIZE))
        guessed = logits[position, guidance.guess[position]]
        assert guessed == logits[position, allowed].max()


@pytest.mark.parametrize("last", [False, True])
def test_a_banned_token_is_not_chosen_at_its_position_while_another_is_left(letters, last):
    compiled = letters.compile(Choice(["aab", "abb", "xab", "cab"]))
    scores = weighted({"a": 0.9, "x": 0.05, "c": 0.01}, {"a": 0.9, "b": 0.1}, {"b": 1.0}, {".": 1})
    a, x, c = tokens("axc")
    assert guide(compiled, scores, last=last).guess == [*tokens("aab"), STOP]
    banned = guide(compiled, scores, last=last, banned={0: [a]})
    assert banned.guess == [*tokens("xab"), STOP]
    assert banned.repaired
    assert guide(compiled, scores, last=last, banned={0: [a, x]}).guess[0] == c
    assert guide(compiled, scores, last=last, banned={1: [a]}).guess == [*tokens("abb"), STOP]
    assert guide(compiled, scores, last=last, banned={0: [a, x, c]}).guess[0] in (a, x, c)


def test_banned_tokens_are_not_in_the_mask_of_their_position_alone(letters):
    compiled = letters.compile(Regex("[ab]{6}"))
    scores = weighted(*[{"a": 0.9, "b": 0.1}] * 4)
    guidance = guide(compiled, scores, banned={2: tokens("a")})
    assert guidance.guess[:2] == tokens("aa")
    assert guidance.guess[2:3] == tokens("b")
    allowed = [tokens_in(row, SIZE) for row in rows_of(guidance)]
    assert [tokens("a")[0] in position for position in allowed[:3]] == [True, True, False]


def test_the_mass_is_the_model_s_probability_of_allowed_tokens_at_the_first_refusal(letters):
    compiled = letters.compile(Regex("[ab]{2}[xyz]{2}"))
    free = {"a": 0.6, "b": 0.4}
    refused = {"q": 0.7, "x": 0.15, "y": 0.05, "a": 0.1}
    guidance = guide(compiled, weighted(free, free, refused, {"q": 1.0}))
    assert guidance.repaired
    assert guidance.mass == pytest.approx(0.2, abs=1e-4)
    assert guide(compiled, weighted(free, free, {"x": 0.5}, {"y": 0.5})).mass == 1.0


def test_the_choice_is_the_last_position_that_was_free_before_the_refusal(letters):
    compiled = letters.compile(Choice(["abcdef", "axcdef", "qqqqqq"]))
    wanted = [{letter: 0.9} for letter in "ab"]
    scores = weighted(*wanted, {"z": 0.9}, {"d": 0.9}, {"e": 0.9}, {"f": 0.9})
    refused = guide(compiled, scores)
    assert (refused.repaired, refused.choice) == (True, 1)
    assert guide(compiled, scores, pinned=tokens("ab")).choice == -1
    assert guide(compiled, scores, pinned=tokens("a")).choice == 1
    agreed = guide(compiled, weighted(*({letter: 0.9} for letter in "abcdef")))
    assert (agreed.repaired, agreed.choice) == (False, -1)
    assert guide(compiled, weighted({"z": 0.9}, *wanted)).choice == -1


def test_a_forced_token_is_no_choice(compiler, vocabulary):
    """`"invoice_id"` must follow the brace, so the last free choice is the brace."""
    properties = {"invoice_id": {"type": "integer"}}
    spec = JsonSchema({"type": "object", "properties": properties, "required": ["invoice_id"]})
    begun, key = vocabulary.encode('{"'), vocabulary.encode("invoice_id")
    wanted = [*begun, *key, vocabulary.encode("x")[0]]
    logits = 50.0 * torch.nn.functional.one_hot(torch.tensor(wanted), len(vocabulary)).float()
    guidance = guide(compiler.compile(spec), scores_of(logits, wanted))
    assert guidance.repaired
    assert guidance.choice == len(begun) - 1
    assert guidance.mass < 1e-6
