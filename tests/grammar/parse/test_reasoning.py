"""Reasoning before an answer: its markers, its budget, and its end."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from answers import canvas_answer
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st
from masked import rows_of, tokens_in
from scores import logits_of, scores_of
from toys import toy_vocabulary
from transformers import AutoTokenizer

import dlm.models
from dlm.grammar import (
    Choice,
    Compiler,
    Frontier,
    JsonSchema,
    Matcher,
    Reasoning,
    Regex,
    Vocabulary,
)
from dlm.grammar.vocabulary import Marker

L, STOP = 12, 106
TEXTS = ("<think>", "</think>")  # several tokens each
PERSON = JsonSchema(
    {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
)


def tiny(size=1536, thought=TEXTS):
    tokenizer = AutoTokenizer.from_pretrained(Path(dlm.models.__file__).parent / "tiny")
    return Vocabulary.from_tokenizer(tokenizer, size, [1, STOP, 50], pad=0, thought=thought)


def cut(vocabulary, size):
    """Return the vocabulary with its first `size` tokens alone."""
    return Vocabulary(
        vocabulary.pieces[:size],
        control={token for token in vocabulary.control if token < size},
        stops=vocabulary.stops,
        pad=vocabulary.pad,
        thought=vocabulary.thought,
        encode=vocabulary.encode,
    )


def reasoning_of(vocabulary, budget=None):
    reasoning = Reasoning.of(vocabulary, budget)
    assert reasoning is not None
    return reasoning


@pytest.fixture(scope="module", params=[TEXTS, None], ids=["text", "control tokens"])
def thinking(request):
    """A compiler whose vocabulary has markers of text, or control tokens as markers."""
    return Compiler(tiny(thought=request.param))


WORDS = [b"a", b"b", b"c", b"aa", b"ab", b"ba", b"bb", b"aab", b"bab", b"abc"]
MARKS = st.lists(
    st.sampled_from([2, 3]), min_size=1, max_size=5
)  # texts of a and b, one byte for each token


@examples(60)
@given(mark=MARKS, tokens=st.lists(st.integers(2, 11), max_size=12))
def test_any_tokens_may_spell_a_marker_and_none_may_go_on_after_it(mark, tokens):
    vocabulary = toy_vocabulary(WORDS)
    marker = Marker(mark, vocabulary)
    text, done, spelled = b"".join(vocabulary.pieces[token] for token in mark), 0, b""
    for token in tokens:
        longer = spelled + vocabulary.pieces[token]
        end = longer.find(text) + len(text) if text in longer else None
        then = marker.after(done, token)
        assert (then is None) == (end is not None and end < len(longer))
        if then is None:
            continue
        borders = (i for i in range(len(text), -1, -1) if longer.endswith(text[:i]))
        assert then == next(borders)
        assert marker.complete(then) == (end is not None)
        if marker.complete(then):
            break
        assert b"".join(vocabulary.pieces[t] for t in marker.rest(then)) == text[then:]
        done, spelled = then, longer


@pytest.mark.parametrize("thought", [TEXTS, None], ids=["text", "control tokens"])
def test_a_search_for_a_marker_agrees_with_reading_token_by_token(thought):
    vocabulary = tiny(thought=thought)
    reasoning = reasoning_of(vocabulary)

    @given(st.data())
    def check(data):
        marker = data.draw(st.sampled_from([reasoning.open, reasoning.close]))
        known = [*vocabulary.thought.open, *vocabulary.thought.close, STOP, 300, 348]
        tokens = data.draw(st.lists(st.sampled_from(known), max_size=14))
        done, states = 0, [0]
        for token in tokens:
            done = marker.after(done, token) or 0
            states.append(done)
        complete = [at for at, state in enumerate(states) if marker.complete(state)]
        found = marker.find(tokens)
        assert (found and found[1]) == (complete[0] if complete else None)
        if found is not None:
            begin, end = found
            assert marker.find(tokens[begin:end]) == (0, end - begin)
        else:
            begun = marker.symbols[:done]
            assert marker.begun(tokens) == sum(symbol < 256 for symbol in begun)

    check()


@pytest.mark.parametrize("blanks", ["", "\n", " \n" * 20])
@pytest.mark.parametrize("blank", ["", "\n", " \n"])
def test_a_prompt_opens_reasoning_whatever_blanks_follow_it_or_end_the_marker(blank, blanks):
    vocabulary = tiny(thought=("<think>" + blank, "</think>"))
    reasoning = reasoning_of(vocabulary)
    assert reasoning.after(vocabulary.encode("Who?<think>" + blanks)).opened
    assert reasoning.after([*vocabulary.thought.open, *vocabulary.encode(blanks)]).opened
    for text in ("<think", "<think>" + blanks + ".", "<think >", blanks):
        assert not reasoning.after(vocabulary.encode(text)).opened


def test_a_marker_of_blanks_ends_no_prompt():
    vocabulary = toy_vocabulary([b"a", b"\n"])
    marker = Marker([3], vocabulary)
    assert not any(map(marker.ends, ([], [2], [3], [2, 3], [3, 3])))


def test_a_marker_that_begins_within_its_own_beginning_is_found():
    vocabulary = toy_vocabulary([b"a", b"b", b"aa"])
    marker = Marker([2, 2, 3], vocabulary)
    assert marker.find([2, 2, 2, 3]) == (1, 4)  # aab in aaab
    assert marker.find([4, 4, 3]) == (1, 3)
    assert marker.find([2, 3, 2, 2]) is None


@pytest.mark.parametrize("size", [1500, 1600])
@pytest.mark.parametrize("thought", [TEXTS, ("aab", "in, in"), ("<|channel>", "so<channel|>.")])
def test_a_marker_allows_the_tokens_that_it_accepts(size, thought):
    """Also if the model has more logits than there are tokens: none of them is text. Markers may
    begin with any token, and some do with none of the first 1,500."""
    vocabulary = cut(tiny(max(size, 1536), thought), size)
    reasoning = reasoning_of(vocabulary)
    for marker in (reasoning.open, reasoning.close):
        for done in range(len(marker.symbols)):
            taken = {token for token in range(size) if marker.after(done, token) is not None}
            assert tokens_in(marker.allowed(done), size) == taken
            assert not taken & set(vocabulary.stops)


def test_reasoning_and_answer_are_separated(thinking):
    vocabulary = thinking.vocabulary
    reasoning, (opened, closed) = reasoning_of(vocabulary), markers(vocabulary)
    thought, answer = vocabulary.encode("so it's 7"), vocabulary.encode('{"age": 7}')
    assert reasoning.split([*opened, *thought, *closed, *answer]) == (b"so it's 7", answer)
    assert reasoning.split([*opened, *thought]) == (b"so it's 7", [])
    assert reasoning.split([*opened, *closed, *answer]) == (b"", answer)
    assert reasoning.split(answer) == (b"", answer)


def markers(vocabulary):
    return list(vocabulary.thought.open), list(vocabulary.thought.close)


def masks(compiled, tokens):
    """Yield the masks of a matcher at each of `tokens`."""
    matcher = Matcher(compiled)
    for token in tokens:
        yield torch.from_numpy(matcher.allowed().view(np.int32).copy())
        assert matcher.accept(token)


@pytest.mark.parametrize("spec", [Regex("[0-9]+[a-z]*"), Choice(["7 or so", "70"])])
@pytest.mark.parametrize("thought", ["", "so ", "I say so, and so: "])
def test_after_the_closing_marker_the_grammar_constrains_the_answer(thinking, spec, thought):
    """The marker is in the first canvas, in the second, or in both."""
    vocabulary, compiled = thinking.vocabulary, thinking.compile(spec)
    opened, closed = markers(vocabulary)
    answer = [*vocabulary.encode("70"), STOP]
    wanted = [*opened, *vocabulary.encode(thought), *closed, *answer]
    expected = {len(wanted) - len(answer) + i: m for i, m in enumerate(masks(compiled, answer))}
    frontier = Frontier(compiled, 100, reasoning_of(vocabulary))
    for start in range(0, len(wanted), L):
        guidance = frontier.guide(scores_of(logits_of(vocabulary, wanted[start:], L)))
        assert not guidance.repaired
        tokens = guidance.guess[: guidance.stop + 1]
        assert tokens == wanted[start:][:L]
        for position in range(len(tokens)):
            if start + position in expected:
                assert torch.equal(rows_of(guidance)[position], expected[start + position])
        assert guidance.stop == min(L, len(wanted) - start - 1)
        frontier.commit(tokens)


def test_the_answer_may_begin_without_reasoning(thinking):
    vocabulary = thinking.vocabulary
    answer = [*vocabulary.encode('{"age": 7}'), STOP]
    frontier = Frontier(thinking.compile(PERSON), 100, reasoning_of(vocabulary))
    guidance = frontier.guide(scores_of(logits_of(vocabulary, answer, L)))
    assert guidance.guess[: guidance.stop + 1] == answer
    assert not guidance.repaired
    first = tokens_in(rows_of(guidance)[0], len(vocabulary))
    assert {answer[0], markers(vocabulary)[0][0]} <= first
    assert not first & set(vocabulary.encode("so"))


def test_reasoning_contains_no_stop_and_no_other_control_token(thinking):
    vocabulary = thinking.vocabulary
    opened, closed = markers(vocabulary)
    frontier = Frontier(thinking.compile(PERSON), 100, reasoning_of(vocabulary))
    guidance = frontier.guide(scores_of(logits_of(vocabulary, [*opened, STOP], L)))
    assert guidance.guess[: len(opened)] == opened
    assert guidance.guess[len(opened)] != STOP
    row = tokens_in(rows_of(guidance)[len(opened)], len(vocabulary))
    assert row & vocabulary.control <= set(closed)


@pytest.mark.parametrize("before", ["", "a", "t"])
def test_no_token_contains_the_end_of_the_marker_and_more(before):
    """If `th` closes the reasoning, `the` goes on after it, and so does `he` after `t`."""
    vocabulary = tiny(thought=("so", "th"))
    compiled = Compiler(vocabulary).compile(PERSON)
    matcher = Matcher(compiled, reasoning_of(vocabulary))
    begun = [*markers(vocabulary)[0], *vocabulary.encode(before)]
    assert matcher.accept_all(begun) == len(begun)
    texts = {t: before.encode() + piece for t, piece in enumerate(vocabulary.pieces) if piece}
    both = {token for token, text in texts.items() if b"th" in text[:-1]}
    words = matcher.allowed()
    assert both
    assert tokens_in(words, len(vocabulary)) == texts.keys() - both
    assert not any(matcher.accept(token) for token in both)


@examples(40)
@given(budget=st.integers(0, 30), more=st.integers(0, 6), seed=st.integers(0, 2**32))
@pytest.mark.parametrize("noise", [True, False])
def test_a_thinking_budget_closes_the_reasoning_and_the_answer_still_fits(
    thinking, budget, more, seed, noise
):
    """The model never ends its reasoning: after the marker it prefers noise or one word."""
    vocabulary, compiled = thinking.vocabulary, thinking.compile(PERSON)
    opened, closed = markers(vocabulary)
    reasoning = reasoning_of(vocabulary, budget)
    total = len(compiled.closing.completion(compiled.parser.start) or []) + 1 + budget + more
    rng, so = torch.Generator().manual_seed(seed), vocabulary.encode("so")[0]

    def canvases():
        for wanted in [[*opened, *[so] * L]] + [[so] * L] * total:
            logits = logits_of(vocabulary, wanted, L)
            if noise:
                logits += 30 * torch.randn(L, len(vocabulary), generator=rng)
            yield scores_of(logits, [wanted[0], *logits.argmax(-1).tolist()[1:]])

    tokens = canvas_answer(Frontier(compiled, total, reasoning), canvases())
    assert len(tokens) <= total
    thought, answer = reasoning.split(tokens[:-1])
    assert json.loads(vocabulary.text(answer)).keys() == {"age"}
    spent = len(tokens) - 1 - len(answer)
    assert spent <= budget
    if not noise and budget >= len(opened) + len(closed):
        assert spent == budget
        assert thought == b"so" * (budget - len(opened) - len(closed))
    if budget < len(opened) + len(closed):
        assert spent == 0


@pytest.mark.parametrize("reserve", [0, 100])
@pytest.mark.parametrize("limit", [None, 0, 9])
def test_a_text_after_a_prompt_that_opens_reasoning_begins_within_it(thinking, limit, reserve):
    """The reasoning may be closed at once, whatever its limits."""
    vocabulary, compiled = thinking.vocabulary, thinking.compile(PERSON)
    opened, closed = markers(vocabulary)
    prompt = [*vocabulary.encode("Who?"), *opened]
    reasoning = reasoning_of(vocabulary, limit)
    assert not reasoning.after(prompt[:-1]).opened
    assert not reasoning.after([*prompt, *vocabulary.encode("so")]).opened
    reasoning = replace(reasoning.after([*prompt, *vocabulary.encode("\n")]), reserve=reserve)
    answer = [*vocabulary.encode('{"age": 7}'), STOP]
    thought = vocabulary.encode("hm ") if limit != 0 and not reserve else []
    text = [*thought, *closed, *answer]
    matcher = Matcher(compiled, reasoning)
    matcher.check_budget(len(closed) + len(answer))
    for position, token in enumerate(text):
        left = len(text) - position
        assert token in tokens_in(matcher.allowed(left), len(vocabulary))
        assert matcher.accept(token)
        assert matcher.closes_within(left - 1)
    spoken = vocabulary.text(thought).encode()
    assert reasoning.split(text) == (spoken, answer)
    assert reasoning.answer_places(text) == [*range(len(text) - len(answer), len(text))]
    assert reasoning.split([*thought, *closed[:-1]], ended=False) == (spoken, [])


def test_reasoning_before_a_constrained_answer_is_requested_or_closed_at_once(thinking):
    vocabulary = thinking.vocabulary
    opened, closed = markers(vocabulary)
    reasoning = reasoning_of(vocabulary)
    assert reasoning.constrained(requested=False) is None
    assert reasoning.constrained(requested=True) is reasoning
    after = reasoning.after(opened)
    assert after.constrained(requested=True) is after
    matcher = Matcher(thinking.compile(PERSON), after.constrained(requested=False))
    for token in closed:
        assert tokens_in(matcher.allowed(100), len(vocabulary)) == {token}
        assert matcher.accept(token)


@examples(40)
@given(data=st.data())
def test_rollback_leaves_no_trace_in_the_reasoning_and_the_answer(thinking, data):
    vocabulary = thinking.vocabulary
    compiled = [Compiler(vocabulary).compile(PERSON) for _ in range(2)]  # they share nothing
    opened, closed = markers(vocabulary)
    thought = vocabulary.encode(data.draw(st.sampled_from(["", "so", "</thi <", "{"])))
    answer = [*vocabulary.encode('{"age": 71}'), STOP]
    begun = data.draw(st.sampled_from([[], [*opened, *thought, *closed]]))
    tokens = [*begun, *answer]
    read = data.draw(st.integers(0, len(tokens)))
    count = data.draw(st.integers(0, read))
    used, fresh = (Matcher(each, reasoning_of(vocabulary, 30)) for each in compiled)
    assert used.accept_all(tokens[:read]) == read
    used.rollback(count)
    assert fresh.accept_all(tokens[: read - count]) == read - count
    if not fresh.ended:
        assert (used.allowed() == fresh.allowed()).all()
    assert used.shortest_completion() == fresh.shortest_completion()
    assert used.accept_all(tokens[read - count :]) == len(tokens) - read + count


def test_a_prompt_opens_reasoning_only_at_its_end_and_may_hold_images(thinking):
    vocabulary = thinking.vocabulary
    reasoning, image = reasoning_of(vocabulary), 1 << 40
    begin, close = vocabulary.thought.open, vocabulary.thought.close
    blank, x = vocabulary.encode("\n"), vocabulary.encode("x")
    for prompt, opens in (
        ([image, *begin], True),
        ([image, *begin, *blank], True),
        ([image], False),
        ([*begin, image, *blank], False),
        ([*begin[:-1], image, begin[-1]], len(begin) == 1),
        ([*begin, *x], False),
        ([], False),
    ):
        assert reasoning.after(prompt).opened is opens
        assert reasoning.closed(prompt) == [*prompt, *(close if opens else [])]
