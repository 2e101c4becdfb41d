"""What stands in for a token that the grammar refuses."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from masked import rows_of, tokens_in
from scores import scores_of

from dlm.grammar import (
    Choice,
    Compiler,
    Fixed,
    Frontier,
    Grammar,
    JsonSchema,
    Reasoning,
    Regex,
    Vocabulary,
)
from dlm.grammar.canvas.repair import best_repair
from dlm.grammar.parse.matcher import Matcher

LETTERS = "abcdefgqxyz"
SIZE = 2 + len(LETTERS)


@pytest.fixture(scope="module")
def letters():
    """A compiler with a token for each of some letters, and none for more; 1 is the stop."""
    pieces = [b"", b"", *(letter.encode() for letter in LETTERS)]
    return Compiler(
        Vocabulary(
            pieces, control=[0, 1], stops=[1], pad=0, thought=None, encode=lambda t: tokens(t)
        )
    )


def tokens(text):
    return [2 + LETTERS.index(letter) for letter in text]


def believing(*rows):
    """Scores of a model that gives each position's letters their shares; `.` is the stop."""
    odds = torch.full((len(rows), SIZE), 1e-6)
    for position, shares in enumerate(rows):
        for letter, share in shares.items():
            odds[position, 1 if letter == "." else tokens(letter)[0]] = share
    logits = (odds / odds.sum(-1, keepdim=True)).log()
    return scores_of(logits)


def repair(compiled, scores, position=0, text=""):
    """The letter that is chosen at `position`, behind `text`."""
    matcher, masks = Matcher(compiled), compiled.masks
    assert matcher.accept_all(tokens(text)) == len(text)
    before = masks.words(matcher.mask()).copy(), matcher.shortest_completion()
    first = scores.candidates(position, before[0], 3)
    chosen = best_repair(matcher, masks, scores, position, first)
    assert (masks.words(matcher.mask()) == before[0]).all()  # it is where it was
    assert matcher.shortest_completion() == before[1]
    assert chosen in tokens_in(before[0], SIZE)
    return LETTERS[chosen - 2]


WANTS_BCD = [{"b": 0.9, "y": 0.01}, {"c": 0.9, "z": 0.01}, {"d": 0.9, "q": 0.01}, {".": 1.0}]


@pytest.mark.parametrize(
    ("options", "first", "chosen"),
    [
        (["abcd", "xyzq"], {"q": 0.5, "x": 0.2, "a": 0.19, "e": 0.1}, "a"),
        (["abcd", "xyzq"], {"q": 0.5, "a": 0.2, "x": 0.19, "e": 0.1}, "a"),
        (["abcd", "xbcq"], {"q": 0.5, "x": 0.2, "a": 0.19, "e": 0.1}, "a"),
        (["ayzq", "xyzq"], {"q": 0.5, "x": 0.2, "a": 0.19, "e": 0.1}, "x"),  # neither fits
        (["abcd", "xbcd"], {"q": 0.5, "x": 0.2, "a": 0.19, "e": 0.1}, "x"),  # both do
    ],
)
def test_what_fits_the_model_s_later_choices_is_better_than_what_is_likely_alone(
    letters, options, first, chosen
):
    assert repair(letters.compile(Choice(options)), believing(first, *WANTS_BCD)) == chosen


def test_a_text_that_may_end_there_ends_the_search(letters):
    """`x` and the stop that the model wants next are likelier than `a` and what must follow."""
    compiled = letters.compile(Choice(["abcd", "x"]))
    first = {"q": 0.5, "a": 0.2, "x": 0.19, "e": 0.1}
    assert repair(compiled, believing(first, {".": 0.9, "b": 0.05}, *WANTS_BCD[1:])) == "x"
    assert repair(compiled, believing(first, {"b": 0.9, ".": 0.05}, *WANTS_BCD[1:])) == "a"


def test_the_search_begins_at_the_position_that_was_refused_and_ends_with_the_canvas(letters):
    compiled = letters.compile(Choice(["ccabcd", "ccxyzq"]))
    first = {"q": 0.5, "x": 0.2, "a": 0.19}
    agreed = [{"c": 1.0}, {"c": 1.0}]
    assert repair(compiled, believing(*agreed, first, *WANTS_BCD[:2]), 2, "cc") == "a"
    assert repair(compiled, believing(*agreed, first), 2, "cc") == "x"


@settings(max_examples=60)
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
def test_a_repair_is_always_a_token_that_the_grammar_takes(letters, spec, seed, length, scale):
    rng = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(length, SIZE, generator=rng)
    logits[:, 1] -= 1000.0  # no text is empty
    repair(letters.compile(spec), scores_of(logits))


def guide(compiled, scores, **fixed):
    frontier = Frontier(compiled, 100)
    return frontier.guide(scores, Fixed(**fixed))


def test_the_guide_searches_where_no_candidate_is_clear(letters):
    compiled = letters.compile(Choice(["abcd", "xyzq", "eyyy"]))
    unclear, clear = {"q": 0.5, "x": 0.2, "a": 0.19, "e": 0.05}, {"q": 0.5, "x": 0.3, "a": 0.1}
    unclear, clear = (believing(first, *WANTS_BCD) for first in (unclear, clear))
    assert guide(compiled, unclear, last=True).guess == [*tokens("abcd"), 1]
    assert guide(compiled, clear, last=True).guess == [*tokens("xyzq"), 1]


@pytest.mark.parametrize("last", [False, True])
def test_a_banned_token_is_not_chosen_at_its_position_while_another_is_left(letters, last):
    compiled = letters.compile(Choice(["aab", "abb", "xab", "cab"]))
    scores = believing({"a": 0.9, "x": 0.05, "c": 0.01}, {"a": 0.9, "b": 0.1}, {"b": 1.0}, {".": 1})
    a, x, c = tokens("axc")
    assert guide(compiled, scores, last=last).guess == [*tokens("aab"), 1]
    banned = guide(compiled, scores, last=last, banned={0: [a]})
    assert banned.guess == [*tokens("xab"), 1]
    assert banned.repaired
    assert guide(compiled, scores, last=last, banned={0: [a, x]}).guess[0] == c
    assert guide(compiled, scores, last=last, banned={1: [a]}).guess == [*tokens("abb"), 1]
    assert guide(compiled, scores, last=last, banned={0: [a, x, c]}).guess[0] in (a, x, c)


def test_banned_tokens_are_not_in_the_mask_of_their_position_alone(letters):
    compiled = letters.compile(Regex("[ab]{6}"))
    scores = believing(*[{"a": 0.9, "b": 0.1}] * 4)
    guidance = guide(compiled, scores, banned={2: tokens("a")})
    assert guidance.guess[:2] == tokens("aa")
    assert guidance.guess[2:3] == tokens("b")
    allowed = [tokens_in(row, SIZE) for row in rows_of(guidance)]
    assert [tokens("a")[0] in position for position in allowed[:3]] == [True, True, False]


def test_the_mass_is_the_model_s_share_in_what_is_allowed_where_it_is_first_refused(letters):
    compiled = letters.compile(Regex("[ab]{2}[xyz]{2}"))
    free = {"a": 0.6, "b": 0.4}
    refused = {"q": 0.7, "x": 0.15, "y": 0.05, "a": 0.1}
    guidance = guide(compiled, believing(free, free, refused, {"q": 1.0}))
    assert guidance.repaired
    assert guidance.mass == pytest.approx(0.2, abs=1e-4)
    assert guide(compiled, believing(free, free, {"x": 0.5}, {"y": 0.5})).mass == 1.0


def test_the_choice_is_the_last_one_that_was_the_model_s_in_front_of_the_refusal(letters):
    compiled = letters.compile(Choice(["abcdef", "axcdef", "qqqqqq"]))
    wanted = [{letter: 0.9} for letter in "ab"]
    scores = believing(*wanted, {"z": 0.9}, {"d": 0.9}, {"e": 0.9}, {"f": 0.9})
    refused = guide(compiled, scores)
    assert (refused.repaired, refused.choice) == (True, 1)
    assert guide(compiled, scores, pinned=tokens("ab")).choice == -1
    assert guide(compiled, scores, pinned=tokens("a")).choice == 1
    agreed = guide(compiled, believing(*({letter: 0.9} for letter in "abcdef")))
    assert (agreed.repaired, agreed.choice) == (False, -1)
    assert guide(compiled, believing({"z": 0.9}, *wanted)).choice == -1


def test_what_the_grammar_dictates_is_no_choice(compiler, vocabulary):
    """`"invoice_id"` must follow the brace: what can be taken back is in front of it."""
    properties = {"invoice_id": {"type": "integer"}}
    spec = JsonSchema({"type": "object", "properties": properties, "required": ["invoice_id"]})
    begun, key = vocabulary.encode('{"'), vocabulary.encode("invoice_id")
    wanted = [*begun, *key, vocabulary.encode("x")[0]]
    logits = 50.0 * torch.nn.functional.one_hot(torch.tensor(wanted), len(vocabulary)).float()
    guidance = guide(compiler.compile(spec), scores_of(logits, wanted))
    assert guidance.repaired
    assert guidance.choice == len(begun) - 1
    assert guidance.mass < 1e-6


def test_a_repair_behind_reasoning_looks_ahead_in_the_answer(compiler, vocabulary):
    """Its first letter is refused; what is chosen fits the second."""
    opened, closed = vocabulary.thought.open[0], vocabulary.thought.close[0]
    q, a, b, x, c = (vocabulary.encode(letter)[0] for letter in "qabxc")
    rows = [{opened: 1.0}, {closed: 1.0}, {q: 0.5, x: 0.2, a: 0.19, c: 0.1}, {b: 1.0}, {106: 1.0}]
    odds = torch.full((len(rows), len(vocabulary)), 1e-9)
    for position, shares in enumerate(rows):
        for token, share in shares.items():
            odds[position, token] = share
    scores = scores_of(odds.log(), odds.argmax(-1).tolist())
    compiled = compiler.compile(Choice(["ab", "xy", "cd"]))
    guidance = Frontier(compiled, 50, Reasoning.of(vocabulary)).guide(scores)
    assert guidance.guess == [opened, closed, a, b, 106]
