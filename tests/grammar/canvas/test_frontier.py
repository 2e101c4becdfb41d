"""What the frontier engine makes of a canvas's scores."""

import json

import pytest
import torch
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st
from masked import rows_of, tokens_in
from oracle import judge
from scores import logits_of, scores_of

from dlm.grammar import (
    Compiler,
    DeadEndError,
    Fixed,
    Frontier,
    Grammar,
    GrammarError,
    JsonSchema,
    Regex,
    Unfinished,
    Vocabulary,
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


def encode(vocabulary, text):
    return vocabulary.encode(text)


def allowed(guidance, position, size):
    return tokens_in(rows_of(guidance)[position], size)


def test_agreement_follows_the_model_and_masks_every_position(frontier, vocabulary):
    tokens = encode(vocabulary, '{"invoice_id": "A1",')
    guidance = frontier.guide(scores_of(logits_of(vocabulary, tokens, L)))
    agreed = len(tokens)
    assert guidance.guess[:agreed] == tokens
    for position, token in enumerate(tokens):
        assert token in allowed(guidance, position, len(vocabulary))
        assert len(allowed(guidance, position, len(vocabulary))) < len(vocabulary) - 100


def test_each_mask_is_the_state_s_own(frontier, compiler, vocabulary):
    """Where nothing is dictated, a row holds exactly what a fresh matcher allows there."""
    tokens = encode(vocabulary, '{"invoice_id": "A1b2c3')
    guidance = frontier.guide(scores_of(logits_of(vocabulary, tokens, L)))
    matcher = judge(JsonSchema(SCHEMA), vocabulary)
    for position, token in enumerate(tokens):
        mask = rows_of(guidance)[position]
        alone = allowed(guidance, position, len(vocabulary)) == {token}
        assert alone or torch.equal(mask, matcher.allowed())
        assert matcher.accept_token(token)


def test_what_the_grammar_dictates_is_all_that_is_allowed(frontier, vocabulary):
    tokens = encode(vocabulary, '{"invoice_id": ')
    guidance = frontier.guide(scores_of(logits_of(vocabulary, tokens, L)))
    key = encode(vocabulary, "invoice_id")
    start = tokens.index(key[0])
    for offset, token in enumerate(key):
        assert allowed(guidance, start + offset, len(vocabulary)) == {token}


def test_a_repair_takes_the_best_allowed_token_and_suspects_what_follows(frontier, vocabulary):
    fence = encode(vocabulary, "```json")
    logits = logits_of(vocabulary, [*fence, *encode(vocabulary, '{"invoice')], L)
    brace = encode(vocabulary, '{"')[0]
    logits[0, brace] = 40.0
    guidance = frontier.guide(scores_of(logits))
    assert guidance.guess[0] == brace
    assert brace in allowed(guidance, 0, len(vocabulary))
    key = encode(vocabulary, "invoice_id")
    assert guidance.guess[1 : 1 + len(key)] == key  # dictated behind the repair, and sure
    assert guidance.suspect == 1 + len(key)
    assert len(guidance.rows) == guidance.suspect  # and no mask further right


def test_nothing_is_read_from_the_second_refusal_on_before_a_last_pass(frontier, vocabulary):
    """The rest is left as the model has it; in a last pass a valid text goes on."""
    wanted = [*encode(vocabulary, "no{"), *encode(vocabulary, "} and more")]
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


def test_behind_the_stop_there_is_padding_and_nothing_is_scored(compiler, vocabulary):
    frontier = Frontier(compiler.compile(JsonSchema({"type": "integer"})), BUDGET)
    tokens = [*encode(vocabulary, "42"), 106, *encode(vocabulary, "junk")]
    guidance = frontier.guide(scores_of(logits_of(vocabulary, tokens, L)))
    assert guidance.guess == [*tokens[:3], *[vocabulary.pad] * (L - 3)]
    assert (guidance.stop, guidance.scored, guidance.suspect) == (2, 3, L)
    for position in range(3, L):
        assert allowed(guidance, position, len(vocabulary)) == {vocabulary.pad}


def test_padding_and_stops_are_not_allowed_before_the_end(frontier, vocabulary):
    for unwanted in (vocabulary.pad, *vocabulary.stops):
        guidance = frontier.guide(scores_of(logits_of(vocabulary, [unwanted] * L, L)))
        assert not {vocabulary.pad, *vocabulary.stops} & allowed(guidance, 0, len(vocabulary))
        assert guidance.guess[0] not in vocabulary.control


@examples(100)
@given(seed=st.integers(0, 2**32), seen=st.integers(0, 2**32))
def test_looking_leaves_no_trace(compiler, vocabulary, seed, seen):
    """Whatever was looked at, the next look is as if nothing had been."""
    fresh, used = (Frontier(compiler.compile(JsonSchema(SCHEMA)), BUDGET) for _ in range(2))
    for other in (seen, seen + 1):
        used.guide(random_scores(vocabulary, other))
    one, two = (f.guide(random_scores(vocabulary, seed)) for f in (fresh, used))
    assert one.guess == two.guess
    assert (one.suspect, one.stop, one.scored) == (two.suspect, two.stop, two.scored)
    assert torch.equal(rows_of(one), rows_of(two))


@examples(40)
@given(
    seeds=st.lists(st.integers(0, 2**32), min_size=1, max_size=4),
    text=st.sampled_from(['{"invoice_id": "A1", "total": 12', '{ "invoice_id":"", "t', "7", "{"]),
    budget=st.sampled_from([25, BUDGET]),
)
def test_what_others_have_read_changes_nothing(compiler, vocabulary, seeds, text, budget):
    """A grammar remembers where its requests have been; one that is alone reads the same."""
    known = compiler.compile(JsonSchema(SCHEMA))
    alone = Frontier(Compiler(vocabulary).compile(JsonSchema(SCHEMA)), budget)
    for seed in seeds:
        Frontier(known, BUDGET).guide(random_scores(vocabulary, seed))
    among = Frontier(known, budget)
    wanted = encode(vocabulary, text)
    for scores in [
        scores_of(logits_of(vocabulary, wanted, L)),
        *(random_scores(vocabulary, s) for s in seeds),
    ]:
        one, two = alone.guide(scores, LAST), among.guide(scores, LAST)
        assert (one.guess, one.suspect, one.stop) == (two.guess, two.suspect, two.stop)
        assert (one.choice, one.repaired) == (two.choice, two.repaired)
        assert torch.equal(rows_of(one), rows_of(two))
        for frontier in (alone, among):
            frontier.commit(one.guess[: one.stop + 1])
        if one.stop < L:
            return


@examples(150)
@given(data=st.data())
def test_a_look_that_resumes_the_last_one_sees_what_a_first_look_sees(compiler, vocabulary, data):
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
    pinned = []
    for _ in range(data.draw(st.integers(2, 6))):
        tokens = encode(vocabulary, data.draw(st.sampled_from(texts)))
        tokens = tokens[: data.draw(st.integers(0, len(tokens)))]
        filler = data.draw(st.sampled_from([0, 106, 523, encode(vocabulary, "A")[0]]))
        scores = scores_of(logits_of(vocabulary, (tokens + [filler] * L)[:L], L))
        fresh = Frontier(compiled, BUDGET)
        one, two = (
            fresh.guide(scores, Fixed(pinned=pinned)),
            used.guide(scores, Fixed(pinned=pinned)),
        )
        assert one.guess == two.guess
        assert (one.suspect, one.stop, one.repaired) == (two.suspect, two.stop, two.repaired)
        assert torch.equal(rows_of(one), rows_of(two))
        if data.draw(st.booleans()):
            pinned = one.guess[: data.draw(st.integers(len(pinned), one.suspect))]


@examples(100)
@given(seed=st.integers(0, 2**32), canvases=st.integers(1, 4))
def test_guesses_chain_into_a_valid_prefix(compiler, vocabulary, seed, canvases):
    """The guess of a last pass could be committed; a fresh matcher takes all that were."""
    spec = JsonSchema(SCHEMA)
    frontier = Frontier(compiler.compile(spec), BUDGET)
    oracle = judge(spec, vocabulary)
    raw = b""
    for canvas in range(canvases):
        guidance = frontier.guide(random_scores(vocabulary, seed + canvas), LAST)
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
def test_pinned_tokens_stay_and_are_all_that_is_allowed(compiler, vocabulary, seed, count):
    frontier = Frontier(compiler.compile(JsonSchema(SCHEMA)), BUDGET)
    pinned = frontier.guide(random_scores(vocabulary, seed), LAST).guess[:count]
    guidance = frontier.guide(random_scores(vocabulary, seed + 1), Fixed(pinned=pinned))
    assert guidance.guess[:count] == pinned
    assert guidance.suspect >= count
    for position, token in enumerate(pinned):
        assert allowed(guidance, position, len(vocabulary)) == {token}


def test_what_is_dictated_may_end_within_a_character(compiler, vocabulary):
    """Both words begin with the byte D0: half of a letter is certain, and no text."""
    frontier = Frontier(compiler.compile(JsonSchema({"enum": ["\u0434\u0430", "\u043d"]})), BUDGET)
    tokens = encode(vocabulary, '"\u0434\u0430"')
    guidance = frontier.guide(scores_of(logits_of(vocabulary, [*tokens, 106], L)))
    assert vocabulary.text(guidance.guess) == '"\u0434\u0430"'


@pytest.mark.parametrize("text", ["ab <turn|> cd", "<eos>", '<|"|>x<|channel>'])
def test_a_literal_that_reads_like_a_control_token_is_spelled_out(compiler, vocabulary, text):
    """The tokenizer would write the control token, which is no text and ends the answer."""
    compiled = compiler.compile(JsonSchema({"const": text}))
    frontier = Frontier(compiled, BUDGET)
    scores = scores_of(torch.zeros(60, len(vocabulary)), [vocabulary.pad] * 60)
    guidance = frontier.guide(scores, LAST)
    said = guidance.guess[: guidance.stop]
    assert json.loads(vocabulary.text(said)) == text
    assert not set(said) & vocabulary.control


def test_a_refused_commit_moves_nothing(frontier, vocabulary):
    tokens = encode(vocabulary, '{"invoice_id": "A')
    frontier.commit(tokens[:3])
    with pytest.raises(GrammarError, match="at position 2 is not allowed there"):
        frontier.commit([*tokens[3:5], 106])
    frontier.commit(tokens[3:])


@examples(6)
@given(seed=st.integers(0, 2**32), work=st.integers(1, 60))
def test_a_look_that_is_resumed_sees_what_one_look_would(vocabulary, seed, work):
    """However often its share of work is over, and whatever has been learnt by then."""
    spec = JsonSchema(SCHEMA)
    whole, part = (Frontier(Compiler(vocabulary).compile(spec), BUDGET) for _ in range(2))
    scores, looks = random_scores(vocabulary, seed), 0
    part.work = work
    while True:
        looks += 1
        try:
            resumed = part.guide(scores, LAST)
            break
        except Unfinished:
            assert looks < 1000
    at_once = whole.guide(scores, LAST)
    assert (resumed.guess, resumed.suspect) == (at_once.guess, at_once.suspect)
    assert torch.equal(rows_of(resumed), rows_of(at_once))
    part.commit(resumed.guess[: resumed.stop + 1])


def test_a_grammar_of_very_many_readings_moves_nothing(compiler, vocabulary):
    spec = Grammar('root ::= "a" | root root | root root root')
    frontier = Frontier(compiler.compile(spec), BUDGET)
    tokens = [token for _ in range(800) for token in encode(vocabulary, "a")]
    with pytest.raises(GrammarError, match="too ambiguous"):
        frontier.commit(tokens)
    frontier.commit(tokens[:3])


def test_nothing_follows_the_stop(compiler, vocabulary):
    frontier = Frontier(compiler.compile(JsonSchema({"type": "boolean"})), BUDGET)
    with pytest.raises(GrammarError, match="position 2"):
        frontier.commit([*encode(vocabulary, "true"), 106, vocabulary.pad])


def test_a_vocabulary_that_cannot_end_the_text_is_told_of_at_once():
    pieces = [b"", b"", b"a", b"b"]
    toy = Vocabulary(
        pieces, control=[0, 1], stops=[1], pad=0, thought=None, encode=lambda t: [2] * len(t)
    )
    with pytest.raises(DeadEndError, match=r"no text .* can be written in this vocabulary"):
        Frontier(Compiler(toy).compile(Regex("ac")), BUDGET)


def random_scores(vocabulary, seed):
    rng = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(L, len(vocabulary), generator=rng)
    return scores_of(logits)
