"""Guesses, masks and refusals of the frontier, for the scores of a canvas."""

import json

import pytest
import torch
from answers import resumed
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st
from masked import outcome, rows_of, tokens_in
from oracle import judge
from scores import logits_of, random_scores, scores_of
from toys import toy_vocabulary

from dlm.grammar import (
    Compiler,
    DeadEndError,
    Fixed,
    Frontier,
    Grammar,
    GrammarError,
    JsonSchema,
    Regex,
)

L, BUDGET = 12, 1000
LAST = Fixed(last=True)  # the whole guess may be committed
SCHEMA = {
    "type": "object",
    "properties": {"invoice_id": {"type": "string"}, "total": {"type": "integer"}},
    "required": ["invoice_id", "total"],
    "additionalProperties": False,
}


@pytest.fixture
def frontier(compiler, vocabulary):
    return Frontier(compiler.compile(JsonSchema(SCHEMA)), BUDGET)


@pytest.fixture(scope="module")
def allowed(vocabulary):
    """Return the tokens that a guidance allows at a position."""
    return lambda guidance, position: tokens_in(rows_of(guidance)[position], len(vocabulary))


@pytest.fixture
def guide(frontier, vocabulary):
    """Guide the canvas of a model that is sure of `tokens`."""
    return lambda tokens: frontier.guide(scores_of(logits_of(vocabulary, tokens, L)))


def test_allowed_tokens_stay_and_masks_without_forced_tokens_are_those_of_a_fresh_matcher(
    guide, allowed, vocabulary
):
    tokens = vocabulary.encode('{"invoice_id": "A1b2c3')
    guidance = guide(tokens)
    assert guidance.guess[: len(tokens)] == tokens
    matcher = judge(JsonSchema(SCHEMA), vocabulary)
    for position, token in enumerate(tokens):
        forced = allowed(guidance, position) == {token}
        assert forced or torch.equal(rows_of(guidance)[position], matcher.allowed())
        assert matcher.accept_token(token)


def test_a_forced_token_is_the_only_one_that_is_allowed(guide, allowed, vocabulary):
    tokens, key = vocabulary.encode('{"invoice_id": '), vocabulary.encode("invoice_id")
    guidance = guide(tokens)
    start = tokens.index(key[0])
    for offset, token in enumerate(key):
        assert allowed(guidance, start + offset) == {token}


def test_a_repair_takes_the_best_allowed_token_and_suspects_what_follows(
    frontier, allowed, vocabulary
):
    fence = vocabulary.encode("```json")
    logits = logits_of(vocabulary, [*fence, *vocabulary.encode('{"invoice')], L)
    brace = vocabulary.encode('{"')[0]
    logits[0, brace] = 40.0
    guidance = frontier.guide(scores_of(logits))
    assert guidance.guess[0] == brace
    assert brace in allowed(guidance, 0)
    key = vocabulary.encode("invoice_id")
    assert guidance.guess[1 : 1 + len(key)] == key  # forced after the repair, so not suspect
    assert guidance.suspect == 1 + len(key)
    assert len(guidance.rows) == guidance.suspect  # and no mask further right


def test_before_the_last_pass_tokens_after_the_second_refusal_stay_as_the_model_has_them(
    frontier, vocabulary
):
    """In the last pass the whole guess is valid."""
    wanted = [*vocabulary.encode("no{"), *vocabulary.encode("} and more")]
    scores = scores_of(logits_of(vocabulary, (wanted * L)[:L], L))
    early, late = frontier.guide(scores), frontier.guide(scores, LAST)
    assert early.repaired
    assert 0 < early.suspect == late.suspect < L
    assert early.suspect <= early.read < L <= late.read
    assert early.guess[: early.read] == late.guess[: early.read]
    assert late.guess[early.read] != scores.argmax[early.read]
    assert early.guess[early.read :] == scores.argmax[early.read :]
    assert (early.scored, early.stop) == (L, L)
    frontier.commit(early.guess[: early.read])
    frontier.rollback(early.read)
    assert torch.equal(rows_of(early), rows_of(late))
    frontier.commit(late.guess[: late.stop + 1])


def test_after_the_stop_there_is_padding_and_nothing_is_scored(compiler, vocabulary, allowed):
    frontier = Frontier(compiler.compile(JsonSchema({"type": "integer"})), BUDGET)
    tokens = [*vocabulary.encode("42"), 106, *vocabulary.encode("junk")]
    guidance = frontier.guide(scores_of(logits_of(vocabulary, tokens, L)))
    assert guidance.guess == [*tokens[:3], *[vocabulary.pad] * (L - 3)]
    assert (guidance.stop, guidance.scored, guidance.suspect) == (2, 3, L)
    for position in range(3, L):
        assert allowed(guidance, position) == {vocabulary.pad}


def test_padding_and_stops_are_not_allowed_before_the_end(guide, allowed, vocabulary):
    for unwanted in (vocabulary.pad, *vocabulary.stops):
        guidance = guide([unwanted] * L)
        assert not {vocabulary.pad, *vocabulary.stops} & allowed(guidance, 0)
        assert guidance.guess[0] not in vocabulary.control


@examples(100)
@given(seed=st.integers(0, 2**32), seen=st.integers(0, 2**32))
def test_guiding_leaves_no_trace(compiler, vocabulary, seed, seen):
    fresh, used = (Frontier(compiler.compile(JsonSchema(SCHEMA)), BUDGET) for _ in range(2))
    for other in (seen, seen + 1):
        used.guide(random_scores(len(vocabulary), L, other))
    scores = random_scores(len(vocabulary), L, seed)
    assert outcome(fresh.guide(scores)) == outcome(used.guide(scores))


@examples(40)
@given(
    seeds=st.lists(st.integers(0, 2**32), min_size=1, max_size=4),
    text=st.sampled_from(['{"invoice_id": "A1", "total": 12', '{ "invoice_id":"", "t', "7", "{"]),
    budget=st.sampled_from([25, BUDGET]),
)
def test_what_other_requests_have_parsed_changes_nothing(compiler, vocabulary, seeds, text, budget):
    """A compiled grammar keeps the states of all its requests."""
    known = compiler.compile(JsonSchema(SCHEMA))
    alone = Frontier(Compiler(vocabulary).compile(JsonSchema(SCHEMA)), budget)
    for seed in seeds:
        Frontier(known, BUDGET).guide(random_scores(len(vocabulary), L, seed))
    among = Frontier(known, budget)
    wanted = vocabulary.encode(text)
    for scores in [
        scores_of(logits_of(vocabulary, wanted, L)),
        *(random_scores(len(vocabulary), L, s) for s in seeds),
    ]:
        guidance = alone.guide(scores, LAST)
        assert outcome(guidance) == outcome(among.guide(scores, LAST))
        for frontier in (alone, among):
            frontier.commit(guidance.guess[: guidance.stop + 1])
        if guidance.stop < L:
            return


@examples(150)
@given(data=st.data())
def test_guidance_that_reuses_rows_of_the_last_step_is_that_of_a_fresh_frontier(
    compiler, vocabulary, data
):
    """Rows are reused as long as the model's choices repeat: here they do, for a random while."""
    compiled = compiler.compile(JsonSchema(SCHEMA))
    used = Frontier(compiled, BUDGET)
    texts = [
        '{"invoice_id": "A1",',
        '{"invoice_id":"A1","',
        '{"in',
        "{ ",
        "```json",
        '{"total',
        "7",
    ]
    pinned, banned = [], {}
    for _ in range(data.draw(st.integers(2, 6))):
        tokens = vocabulary.encode(data.draw(st.sampled_from(texts)))
        tokens = tokens[: data.draw(st.integers(0, len(tokens)))]
        filler = data.draw(st.sampled_from([0, 106, 523, vocabulary.encode("A")[0]]))
        scores = scores_of(logits_of(vocabulary, (tokens + [filler] * L)[:L], L))
        fixed = Fixed(pinned=pinned, banned=banned, last=data.draw(st.booleans()))
        guidance = Frontier(compiled, BUDGET).guide(scores, fixed)
        assert outcome(guidance) == outcome(used.guide(scores, fixed))
        if data.draw(st.booleans()):
            pinned = guidance.guess[: data.draw(st.integers(len(pinned), guidance.suspect))]
        elif guidance.choice >= len(pinned):
            banned = banned | {guidance.choice: {guidance.guess[guidance.choice]}}
        elif data.draw(st.booleans()):
            banned = {}


@examples(100)
@given(seed=st.integers(0, 2**32), canvases=st.integers(1, 4))
def test_committed_guesses_are_a_valid_prefix_of_an_answer(compiler, vocabulary, seed, canvases):
    spec = JsonSchema(SCHEMA)
    frontier = Frontier(compiler.compile(spec), BUDGET)
    oracle = judge(spec, vocabulary)
    raw = b""
    for canvas in range(canvases):
        guidance = frontier.guide(random_scores(len(vocabulary), L, seed + canvas), LAST)
        tokens = guidance.guess[: guidance.stop + 1]
        frontier.commit(tokens)
        piece = b"".join(vocabulary.pieces[token] for token in tokens)
        assert oracle.accept_string(piece)
        raw += piece
        if guidance.stop < L:
            assert json.loads(raw).keys() == {"invoice_id", "total"}
            break


@examples(50)
@given(seed=st.integers(0, 2**32), count=st.integers(0, L))
def test_pinned_tokens_stay_and_no_others_are_allowed_there(
    compiler, vocabulary, allowed, seed, count
):
    frontier = Frontier(compiler.compile(JsonSchema(SCHEMA)), BUDGET)
    pinned = frontier.guide(random_scores(len(vocabulary), L, seed), LAST).guess[:count]
    guidance = frontier.guide(random_scores(len(vocabulary), L, seed + 1), Fixed(pinned=pinned))
    assert guidance.guess[:count] == pinned
    assert guidance.suspect >= count
    for position, token in enumerate(pinned):
        assert allowed(guidance, position) == {token}


def test_a_forced_text_may_end_within_a_character(compiler, vocabulary):
    """Both words begin with the byte D0, half of a letter."""
    frontier = Frontier(compiler.compile(JsonSchema({"enum": ["\u0434\u0430", "\u043d"]})), BUDGET)
    tokens = vocabulary.encode('"\u0434\u0430"')
    guidance = frontier.guide(scores_of(logits_of(vocabulary, [*tokens, 106], L)))
    assert vocabulary.text(guidance.guess) == '"\u0434\u0430"'


@pytest.mark.parametrize("text", ["ab <turn|> cd", "<eos>", '<|"|>x<|channel>'])
def test_a_literal_that_reads_like_a_control_token_is_spelled_out(compiler, vocabulary, text):
    """The tokenizer would write the control token, which is no text and ends the answer."""
    compiled = compiler.compile(JsonSchema({"const": text}))
    frontier = Frontier(compiled, BUDGET)
    scores = scores_of(torch.zeros(60, len(vocabulary)), [vocabulary.pad] * 60)
    guidance = frontier.guide(scores, LAST)
    tokens = guidance.guess[: guidance.stop]
    assert json.loads(vocabulary.text(tokens)) == text
    assert not set(tokens) & vocabulary.control


def test_a_refused_commit_moves_nothing(frontier, vocabulary):
    tokens = vocabulary.encode('{"invoice_id": "A')
    frontier.commit(tokens[:3])
    with pytest.raises(GrammarError, match="at position 2 is not allowed there"):
        frontier.commit([*tokens[3:5], 106])
    frontier.commit(tokens[3:])


def test_masks_that_were_dropped_are_made_anew(frontier, vocabulary):
    """Otherwise the table has rows of other states in the places of theirs."""
    tokens = vocabulary.encode('{"invoice_id": "A1b2c3", "total": 31}')[:L]
    scores = scores_of(logits_of(vocabulary, tokens, L))
    before = outcome(frontier.guide(scores))
    frontier.guide(scores_of(logits_of(vocabulary, tokens[:3], L)))
    masks = frontier._compiled.masks
    masks.clear()
    masks.kept("other", ~masks._words[0])
    assert outcome(frontier.guide(scores)) == before


@examples(6)
@given(seed=st.integers(0, 2**32), work=st.integers(1, 60))
def test_guidance_that_is_computed_in_parts_is_that_of_one_call(vocabulary, seed, work):
    spec = JsonSchema(SCHEMA)
    whole, part = (Frontier(Compiler(vocabulary).compile(spec), BUDGET) for _ in range(2))
    scores, part.work = random_scores(len(vocabulary), L, seed), work
    guidance, _ = resumed(lambda: part.guide(scores, LAST))
    assert outcome(guidance) == outcome(whole.guide(scores, LAST))
    part.commit(guidance.guess[: guidance.stop + 1])


def test_a_text_of_too_many_readings_is_refused_and_moves_nothing(compiler, vocabulary):
    spec = Grammar('root ::= "a" | root root | root root root')
    frontier = Frontier(compiler.compile(spec), BUDGET)
    tokens = [token for _ in range(800) for token in vocabulary.encode("a")]
    with pytest.raises(GrammarError, match="too ambiguous"):
        frontier.commit(tokens)
    frontier.commit(tokens[:3])


def test_nothing_follows_the_stop(compiler, vocabulary):
    frontier = Frontier(compiler.compile(JsonSchema({"type": "boolean"})), BUDGET)
    with pytest.raises(GrammarError, match="position 2"):
        frontier.commit([*vocabulary.encode("true"), 106, vocabulary.pad])


def test_a_vocabulary_that_can_spell_no_text_of_the_grammar_is_refused_at_once():
    toy = toy_vocabulary([b"a", b"b"])
    with pytest.raises(DeadEndError, match=r"no text .* can be written in this vocabulary"):
        Frontier(Compiler(toy).compile(Regex("ac")), BUDGET)
