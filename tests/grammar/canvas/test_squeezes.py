"""Whether a budget took a token from the model, judged by what it writes with any budget.

If the wishes are equal, an answer differs from that of a huge budget exactly where the budget
refused a wish.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from answers import canvas_answer, needed_tokens
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st
from native_calls import answer_tokens
from oracle import judge
from scores import logits_of, scores_of

from dlm.grammar import (
    Fixed,
    Frontier,
    Grammar,
    JsonSchema,
    LeftToRight,
    Reasoning,
    Regex,
    ToolCall,
    Tools,
)
from dlm.grammar.canvas.bounded import Bounded
from dlm.grammar.canvas.squeezes import Squeezes
from dlm.grammar.masks import tokens_in

L, HUGE = 12, 1 << 20


def tool(name, **properties):
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOL = tool("get_weather", city={"type": "string"})
LIST = {"type": "array", "items": {"type": "string"}}
SPECS = {
    "JSON": JsonSchema({"type": "object", "properties": {"of": LIST}, "required": ["of"]}),
    "free keys": JsonSchema({"type": "object", "minProperties": 1}),
    "distinct items": JsonSchema({"type": "array", "uniqueItems": True, "minItems": 2}),
    "calls": Tools([TOOL, tool("now")], choice="required"),
    "text beside calls": Tools([TOOL]),
    "text beside calls in a markup": Tools([TOOL], format="hermes"),
    "regex": Regex("(ab|a)*c?[^a-z]{2,40}."),
    "EBNF": Grammar('root ::= t ("+" t)*\nt ::= [0-9]+ | "(" root ")"'),
}


class Wishes:
    """Logits by position of the answer, the same in every pass."""

    def __init__(self, vocabulary, seed, wished):
        rng = torch.Generator().manual_seed(seed)
        self._logits = 4 * torch.randn(200, len(vocabulary), generator=rng)
        self._logits += logits_of(vocabulary, wished, 200, 20.0)
        self._logits[len(wished) :, vocabulary.pad] = -50.0

    def row(self, position):
        return self._logits[position % 200]

    def canvas(self, begin):
        return scores_of(torch.stack([self.row(begin + i) for i in range(L)]))


def by_canvas(compiled, budget, wishes, tokens):
    """Return the first `tokens` tokens, in whole canvases, and whether they were squeezed."""
    frontier, answer = Frontier(compiled, budget), list[int]()
    while len(answer) < tokens:
        guidance = frontier.guide(wishes.canvas(len(answer)), Fixed(last=True))
        guess = guidance.guess[: guidance.stop + 1]
        frontier.commit(guess)
        answer += guess
        if guidance.stop < L:
            break
    return answer, frontier.squeezed


def by_token(compiled, budget, wishes, tokens):
    """Return the same of an answer whose likeliest tokens are taken from left to right."""
    constraint, answer, exact = LeftToRight(compiled, budget), list[int](), False
    while len(answer) < tokens and not constraint.ended:
        look = constraint.look(exact=exact)
        constraint.commit(look.forced)
        answer += look.forced
        (allowed,) = look.rows
        assert isinstance(allowed, np.ndarray)
        row = wishes.row(len(answer))
        ids = [token for token in tokens_in(allowed).tolist() if token < len(row)]
        token = max(ids, key=lambda one: (float(row[one]), -one))
        exact = constraint.fits([token]) == 0
        if not exact:
            constraint.commit([token])
            answer.append(token)
    return answer, constraint.squeezed


Write = Callable[..., tuple[list[int], bool]]


@pytest.mark.parametrize("write", [by_canvas, by_token])
@pytest.mark.parametrize("kind", SPECS)
@examples(40)
@given(more=st.integers(0, 14), seed=st.integers(0, 2**32), length=st.integers(0, 24))
def test_an_answer_is_squeezed_exactly_if_a_larger_budget_changes_it(
    compiler, vocabulary, write: Write, kind, more, seed, length
):
    spec = SPECS[kind]
    texts = ['{"of": ["pears", "plums and more', "I think ", '["a", ', "ab" * 9, "(12+(3+4"]
    wished = vocabulary.encode(texts[seed % len(texts)])[:length]
    if vocabulary.call is not None and seed % 2:
        call = ToolCall("get_weather", {"city": "Oslo and the rest of the land"})
        wished = answer_tokens(vocabulary, *["So: "] * (seed % 3), call)[:length]
    compiled, wishes = compiler.compile(spec), Wishes(vocabulary, seed, wished)
    needed = 1 if "beside" in kind else needed_tokens(compiled)
    budget = needed + more
    answer, squeezed = write(compiled, budget, wishes, budget)
    free = write(compiled, HUGE, wishes, budget)
    assert not free[1]
    assert len(answer) <= budget
    reader = judge(spec, vocabulary)
    assert all(reader.accept_token(token) for token in answer)
    assert reader.is_terminated()
    if answer == free[0][: len(answer)]:
        assert not squeezed
    elif vocabulary.text(answer) != vocabulary.text(free[0]):
        assert squeezed


@pytest.mark.parametrize("write", [by_canvas, by_token])
@pytest.mark.parametrize("before", ["", "Well. "])
def test_no_part_of_a_call_that_does_not_fit_becomes_text(compiler, vocabulary, write, before):
    compiled = compiler.compile(SPECS["text beside calls"])
    call = ToolCall("get_weather", {"city": "Oslo"})
    wished = [*answer_tokens(vocabulary, *[before] * bool(before), call), vocabulary.stops[1]]
    opened = wished.index(vocabulary.call.open)
    fits = opened + needed_tokens(compiler.compile(Tools([TOOL], choice="required")))
    for budget in range(opened + 1, len(wished)):
        answer, squeezed = write(compiled, budget, Wishes(vocabulary, 1, wished), budget)
        assert squeezed
        assert (vocabulary.call.open in answer) == (budget >= fits)
        if budget < fits:
            assert answer[:-1] == wished[:opened]
    answer, squeezed = write(compiled, len(wished), Wishes(vocabulary, 1, wished), len(wished))
    assert answer == wished
    assert not squeezed


def test_a_refused_wish_stays_noted_when_later_passes_wish_what_replaced_it(compiler, vocabulary):
    """The repaired token is on the canvas, and a model believes what it sees."""
    compiled = compiler.compile(SPECS["JSON"])
    wished = vocabulary.encode('{"of": ["pears and plums and cherries"]}')
    frontier = Frontier(compiled, needed_tokens(compiled) + 4)
    first = frontier.guide(scores_of(logits_of(vocabulary, wished, 40)), Fixed(last=True))
    second = frontier.guide(scores_of(logits_of(vocabulary, first.guess, 40)), Fixed(last=True))
    assert second.guess == first.guess
    assert not frontier.squeezed
    frontier.commit(second.guess[: second.stop + 1])
    assert frontier.squeezed
    frontier.rollback(second.stop + 1)
    assert not frontier.squeezed


def test_a_refused_wish_does_not_count_if_the_model_comes_to_another_text(compiler, vocabulary):
    compiled = compiler.compile(SPECS["JSON"])
    long, short = (
        scores_of(logits_of(vocabulary, vocabulary.encode(text), 40))
        for text in ('{"of": ["pears and plums and cherries"]}', '{"of": []}')
    )
    frontier = Frontier(compiled, needed_tokens(compiled) + 4)
    frontier.guide(long, Fixed(last=True))
    guidance = frontier.guide(short, Fixed(last=True))
    frontier.commit(guidance.guess[: guidance.stop + 1])
    assert not frontier.squeezed


@pytest.mark.parametrize("kind", ["JSON", "calls", "text beside calls"])
def test_a_replacement_that_stays_counts_though_the_tokens_before_it_change(
    compiler, vocabulary, kind
):
    """The model sees the end that the budget put there, and turns to another text before it."""
    compiled = compiler.compile(SPECS[kind])

    def wishes(text):
        if kind == "JSON":
            return vocabulary.encode('{"of": ["' + text + '"]}')
        return answer_tokens(vocabulary, ToolCall("get_weather", {"city": text}))

    long, other = wishes("xxxxxxxxxxxxxxx"), wishes("zzzzzzzzzzzzzzz")
    budget = needed_tokens(compiled if "beside" not in kind else compiler.compile(SPECS["calls"]))
    frontier = Frontier(compiled, budget + 8)
    first = frontier.guide(scores_of(logits_of(vocabulary, long, 40)), Fixed(last=True))
    ended = first.guess[: first.stop + 1]
    at = next(i for i, token in enumerate(ended) if token != long[i])
    changed = [*other[:at], *ended[at:]]
    assert changed != ended
    second = frontier.guide(scores_of(logits_of(vocabulary, changed, 40)), Fixed(last=True))
    assert second.guess[: second.stop + 1] == changed
    frontier.commit(changed)
    assert frontier.squeezed
    frontier.rollback(len(changed))
    assert not frontier.squeezed


def test_a_replacement_that_the_grammar_alone_places_there_does_not_count(compiler, vocabulary):
    compiled = compiler.compile(Regex("xx(a|b{9})|yya"))
    long, short = (vocabulary.encode(text) for text in ("xxbbbbbbbbb", "yya"))
    frontier = Frontier(compiled, 5)
    first = frontier.guide(scores_of(logits_of(vocabulary, long, 12)), Fixed(last=True))
    assert vocabulary.text(first.guess[: first.stop]) == "xxa"
    second = frontier.guide(scores_of(logits_of(vocabulary, short, 12)), Fixed(last=True))
    frontier.commit(second.guess[: second.stop + 1])
    assert not frontier.squeezed


def test_where_a_wish_was_refused_after_a_complete_text_later_passes_end_too(compiler, vocabulary):
    """A later pass may wish the rest of the refused call, which would be text there."""
    compiled = compiler.compile(SPECS["text beside calls"])
    call = answer_tokens(vocabulary, ToolCall("get_weather", {"city": "Oslo"}))
    frontier = Frontier(compiled, 8)
    for wished in (call, vocabulary.encode("I") + call[1:], call):
        guidance = frontier.guide(scores_of(logits_of(vocabulary, wished, 40)))
        assert guidance.stop == 0
        assert guidance.guess[0] in vocabulary.stops


@pytest.mark.parametrize("reserve", [0, 6])
@pytest.mark.parametrize("limit", [None, 5])
def test_reasoning_that_the_budget_ends_is_squeezed_and_its_own_limit_is_not(
    compiler, vocabulary, limit, reserve
):
    compiled, markers = compiler.compile(Regex("[0-9]{1,9}")), Reasoning.of(vocabulary)
    assert markers is not None
    reasoning = Reasoning(markers.open, markers.close, limit, reserve)
    thought = [*markers.open.rest(0), *vocabulary.encode("so on and on and on and on and on")]
    budget, stop = 16, vocabulary.stops[1]
    frontier = Frontier(compiled, budget, reasoning)
    end = markers.close.rest(0)[0]
    wish = [*thought, *[stop] * 20]
    tokens = canvas_answer(frontier, [scores_of(logits_of(vocabulary, wish, budget))])
    assert tokens.index(end) + 1 == (limit or budget - max(reserve, 2))
    assert frontier.squeezed == (limit is None)

    constraint, exact, written = LeftToRight(compiled, budget, reasoning), False, list[int]()
    while not constraint.ended:
        look = constraint.look(exact=exact)
        constraint.commit(look.forced)
        row = look.rows[0]
        assert isinstance(row, np.ndarray)
        wished = wish[len(written)]
        allowed = [t for t in tokens_in(row).tolist() if t < len(vocabulary)]
        token = wished if wished in allowed else allowed[0]
        exact = constraint.fits([token]) == 0
        if not exact:
            constraint.commit([token])
            written.append(token)
    assert written.index(end) + 1 == (limit or budget - max(reserve, 2))
    assert constraint.squeezed == (limit is None)


def test_a_choice_taken_back_for_a_refused_one_was_squeezed_too():
    squeezes = Squeezes()
    squeezes.note([1, 2, 3], 4)
    squeezes.note_bans([1, 2, 9], {1: {2}})
    squeezes.commit(0, [1, 5, 6], lambda at, token: True)
    assert not squeezes
    squeezes.note([1, 2, 3], 4)
    squeezes.note_bans([1, 2, 3], {1: {2}})
    squeezes.commit(3, [1, 5, 6], lambda at, token: True)
    assert squeezes
    squeezes.rollback(5)
    assert squeezes
    squeezes.rollback(4)
    assert not squeezes


def test_the_end_of_reasoning_stays_squeezed_though_its_tokens_change(vocabulary):
    reasoning = Reasoning.of(vocabulary)
    assert reasoning is not None
    opening, budget, words = reasoning.open.rest(0), 16, -(-len(vocabulary) // 32)
    bounded = Bounded(vocabulary.stops, budget, replace(reasoning, reserve=6), words)
    one, other = ([*opening, *vocabulary.encode(text * 20)] for text in ("x y ", "z v "))
    first = bounded.guide(scores_of(logits_of(vocabulary, one, budget)))
    assert first.repaired
    end = first.guess.index(reasoning.close.rest(0)[0])
    changed = [*other[:end], *first.guess[end:]]
    assert not bounded.guide(scores_of(logits_of(vocabulary, changed, budget))).repaired
    bounded.commit(changed[: end + 1])
    assert bounded.squeezed
