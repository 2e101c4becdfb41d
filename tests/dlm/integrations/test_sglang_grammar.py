"""Constraint of one request in SGLang, bound to the tokens that SGLang has taken."""

import contextlib

import pytest
import torch
from scores import scores_of
from values import V

from dlm.errors import DlmError
from dlm.grammar import (
    BudgetError,
    Compiler,
    Frontier,
    JsonSchema,
    LimitError,
    Regex,
    Unfinished,
    Vocabulary,
)
from dlm.integrations.sglang.grammar import RequestGrammar
from dlm.policy import Policy

L = 8
STATES = {"type": "string", "pattern": "^[ab]*a[ab]{8}$"}  # other ones after each text


@pytest.fixture(scope="module")
def vocabulary(chat):
    return Vocabulary.from_tokenizer(chat.tokenizer, V, (1, 106, 50), 0)


@pytest.fixture(scope="module")
def compiler(vocabulary):
    return Compiler(vocabulary)


def bound(compiled, output, budget=40, policy=None):
    grammar = RequestGrammar(compiled, policy or Policy(), None)
    grammar.bind(5, lambda: output, budget)
    grammar.work = 10**6
    return grammar


def guess(grammar, seed=0):
    rng = torch.Generator().manual_seed(seed)
    guidance = grammar.guide(scores_of(20 * torch.randn(L, V, generator=rng)))
    return guidance.guess[: guidance.stop + 1]


def test_it_follows_what_was_taken_forward_and_back(compiler, vocabulary):
    compiled, output = compiler.compile(Regex("[a-f]{12}")), []
    grammar = bound(compiled, output)
    assert grammar.position == 5
    while not set(vocabulary.stops).intersection(output):
        output += guess(grammar, len(output))[:1]
    assert grammar.position == 5 + len(output)
    assert len(vocabulary.text(output)) == 12
    output[2:] = []
    while not set(vocabulary.stops).intersection(output):
        output += guess(grammar, 7 + len(output))[:1]
    assert len(vocabulary.text(output)) == 12
    assert grammar.check() is None
    assert grammar.copied().bound is False


def test_tokens_that_are_not_allowed_fail_the_request(compiler, vocabulary):
    output = vocabulary.encode("x")
    grammar = bound(compiler.compile(Regex("[a-f]{12}")), output)
    error = grammar.check()
    assert isinstance(error, DlmError)
    assert grammar.check() is error


def test_tokens_after_the_stop_are_nothing(compiler, vocabulary):
    output = [*vocabulary.encode("ab"), vocabulary.stops[0], *vocabulary.encode("zzz")]
    assert bound(compiler.compile(Regex("ab")), output).check() is None


def test_a_budget_that_holds_no_answer_is_refused(compiler):
    with pytest.raises(BudgetError, match="more than 12"):
        bound(compiler.compile(JsonSchema({"const": "abcdefghijkl" * 3})), [], budget=12)


def test_a_grammar_that_is_queried_before_its_request_is_an_error(compiler):
    grammar = RequestGrammar(compiler.compile(Regex("a")), Policy(), None)
    with pytest.raises(DlmError, match="before its request"):
        grammar.position  # noqa: B018
    assert not grammar.squeezed


def test_a_query_that_takes_too_much_work_fails_after_its_limit(compiler, monkeypatch):
    """Making the constraint counts like a query."""
    policy = Policy(step_work=10, max_unfinished_steps=4)

    def never(self, *_):
        raise Unfinished("more work")

    for method in ("guide", "__init__"):
        grammar = bound(compiler.compile(Regex("[a-f]{12}")), [], policy=policy)
        if method == "__init__":
            grammar = RequestGrammar(compiler.compile(Regex("[a-f]{12}")), policy, None)
        with monkeypatch.context() as patch:
            patch.setattr(Frontier, method, never)
            if method == "__init__":
                grammar.bind(5, list, 40)
            grammar.work = 15
            for _ in range(2):
                with pytest.raises(Unfinished):
                    guess(grammar)
            with pytest.raises(LimitError, match="over 40 units"):
                guess(grammar)


def test_work_is_held_up_and_goes_on(compiler, vocabulary):
    spec = JsonSchema(STATES)
    grammar = bound(Compiler(vocabulary).compile(spec), [], budget=30)
    held = 0
    while True:
        grammar.work = 1
        try:
            tokens = guess(grammar)
            break
        except Unfinished:
            held += 1
    assert held
    assert tokens == guess(bound(compiler.compile(spec), [], budget=30))


def test_a_constraint_is_made_with_the_work_of_a_whole_step(compiler, monkeypatch):
    """A share of it may be too little for ever."""
    limits, make = [], Frontier.__init__

    def cold_at_first(self, compiled, budget, reasoning, work):
        limits.append(work)
        if len(limits) == 1:
            raise Unfinished("more work")
        make(self, compiled, budget, reasoning, work)

    monkeypatch.setattr(Frontier, "__init__", cold_at_first)
    grammar = bound(compiler.compile(Regex("[a-f]{12}")), [])
    grammar.work = 1
    with contextlib.suppress(Unfinished):
        guess(grammar)
    assert limits == [Policy().step_work] * 2
