"""The exact constraint against all texts of small automata, one by one."""

from collections import Counter
from sys import maxsize

import numpy as np
import pytest
import torch
from enumerated import PAD, STOP, Language, marginals, weights
from full_rows import FullRows
from hypothesis import assume, given
from hypothesis import strategies as st

from dlm.grammar import BudgetError, DeadEndError, GrammarError, Vocabulary
from dlm.grammar.constraint import Fixed, Posterior
from dlm.grammar.exact.exact import Exact

V = 6
VOCABULARY = Vocabulary(
    [b"", b"", b"a", b"b", b"c", b"d"], control=(), stops=[STOP], pad=PAD, thought=None, encode=list
)

cases = given(
    seed=st.integers(0, 2**32),
    states=st.integers(2, 6),
    L=st.integers(1, 5),
    budget=st.integers(1, 12),
    scale=st.sampled_from([0.1, 1.0, 5.0]),
)


def made(seed, states, L, budget, scale, **more):
    """A language, its constraint, scores, their probabilities `[L, V]`, and the budget, which is
    raised to what the shortest text takes."""
    rng = np.random.default_rng(seed)
    language = Language.random(rng, states, V)
    automaton = language.automaton
    budget = max(budget, int(automaton.distance[0]))
    logits = torch.tensor(scale * rng.normal(size=(L, V)))
    scores = FullRows(logits, rng.random(L))
    exact = Exact(automaton, VOCABULARY, budget, **more)
    return language, exact, scores, logits.softmax(-1).numpy(), budget


def told(p: np.ndarray, posterior: Posterior) -> np.ndarray:
    """The marginals that a constraint tells of."""
    found = p * np.exp(posterior.factors.astype(float))[:, posterior.classes.numpy()]
    for position, tokens in posterior.without.items():
        found[position, list(tokens)] = 0
    found[:, PAD] += np.exp(posterior.factors[:, -1])
    for position, token in enumerate(posterior.pinned):
        found[position] = np.eye(p.shape[1])[token]
    return found


@cases
def test_marginals_and_the_mass_of_what_is_allowed_are_those_of_all_texts(
    seed, states, L, budget, scale
):
    language, exact, scores, p, budget = made(seed, states, L, budget, scale)
    weighted = weights(language, p, budget)
    posterior = exact.guide(scores).posterior
    assert posterior.log_z == pytest.approx(np.log(sum(weighted.values())), abs=1e-5)
    np.testing.assert_allclose(told(p, posterior), marginals(weighted, p.shape), atol=1e-5)


@cases
def test_the_guess_is_the_most_likely_text(seed, states, L, budget, scale):
    language, exact, scores, p, budget = made(seed, states, L, budget, scale)
    weighted = weights(language, p, budget)
    guidance = exact.guide(scores)
    text = tuple(guidance.guess[: guidance.scored])
    assert weighted[text] == pytest.approx(max(weighted.values()), rel=1e-9)
    assert guidance.guess[guidance.scored :] == [PAD] * (L - guidance.scored)
    assert guidance.stop == (len(text) - 1 if text[-1] == STOP else L)
    assert guidance.suspect == L


@cases
def test_on_each_further_canvas_it_goes_on_from_what_was_committed(seed, states, L, budget, scale):
    language, exact, scores, p, budget = made(seed, states, L, budget, scale)
    first = exact.guide(scores)
    assume(first.stop == L)
    exact.commit(first.guess)
    state = 0
    for token in first.guess:
        state = language.to[state, token]
    weighted = weights(language, p, budget - L, state)
    second = exact.guide(scores).posterior
    assert second.log_z == pytest.approx(np.log(sum(weighted.values())), abs=1e-5)
    np.testing.assert_allclose(told(p, second), marginals(weighted, p.shape), atol=1e-5)
    exact.rollback(L)
    again = exact.guide(scores)
    assert again.guess == first.guess
    assert again.posterior.log_z == first.posterior.log_z


@cases
def test_what_is_pinned_is_certain_and_what_is_barred_impossible(seed, states, L, budget, scale):
    language, exact, scores, p, budget = made(seed, states, L, budget, scale)
    rng = np.random.default_rng(seed)
    texts = [*weights(language, p, budget)]
    pinned = texts[rng.integers(len(texts))][: rng.integers(L + 1)]
    without = {len(pinned): {int(rng.integers(V))}} if len(pinned) < L else {}
    weighted = weights(language, p, budget, pinned=pinned, without=without)
    fixed = Fixed(pinned=pinned, banned=without)
    if not weighted:
        with pytest.raises(DeadEndError, match="no text that the grammar allows"):
            exact.guide(scores, fixed)
        return
    posterior = exact.guide(scores, fixed).posterior
    assert posterior.log_z == pytest.approx(np.log(sum(weighted.values())), abs=1e-5)
    np.testing.assert_allclose(told(p, posterior), marginals(weighted, p.shape), atol=1e-5)


def test_draws_are_those_of_the_joint_posterior():
    """A chi-squared test over whole texts; their tokens are drawn in classes, as told."""
    language, exact, scores, p, _ = made(seed=11, states=5, L=4, budget=7, scale=1.0)
    weighted = weights(language, p, 7)
    rng, n = np.random.default_rng(0), 1500
    seen: Counter[tuple[int, ...]] = Counter()
    logp = np.log(p)
    for _ in range(n):
        scores._uniform = rng.random(4)
        seen[drawn(exact.guide(scores).posterior, logp)] += 1
    assert seen.keys() <= weighted.keys()
    expected = n * np.array([*weighted.values()]) / sum(weighted.values())
    found = np.array([seen[text] for text in weighted])
    rare = expected < 5
    expected = np.append(expected[~rare], expected[rare].sum())
    found = np.append(found[~rare], found[rare].sum())
    assert len(expected) > 15
    chi_squared = ((found - expected) ** 2 / expected).sum()
    half = torch.tensor([(len(expected) - 1) / 2, chi_squared / 2], dtype=torch.float64)
    assert torch.special.gammaincc(*half) > 1e-3


def drawn(posterior: Posterior, logp: np.ndarray) -> tuple[int, ...]:
    """The text that is drawn, token by token from each class, by inverse transform."""
    of, text = posterior.classes.numpy(), []
    for position, (label, uniform) in enumerate(
        zip(posterior.drawn, posterior.uniform, strict=True)
    ):
        members = np.flatnonzero(of == label)
        if not len(members):
            break
        upto = np.exp(logp[position, members]).cumsum()
        text.append(int(members[np.searchsorted(upto, uniform * upto[-1], side="right")]))
    return tuple(text)


def test_a_look_leaves_no_trace():
    _, exact, scores, _, _ = made(seed=3, states=5, L=4, budget=9, scale=1.0)
    one, other = exact.guide(scores), exact.guide(scores)
    assert one.guess == other.guess
    np.testing.assert_array_equal(one.posterior.factors, other.posterior.factors)


def test_a_token_that_the_grammar_refuses_is_not_committed_and_nothing_moves():
    _, exact, scores, _, _ = made(seed=3, states=5, L=4, budget=9, scale=1.0)
    before = exact.guide(scores).posterior.log_z
    text = exact.guide(scores).guess
    with pytest.raises(GrammarError, match="token 0 at position 1 is not allowed"):
        exact.commit([text[0], PAD])
    assert exact.guide(scores).posterior.log_z == before


@pytest.mark.parametrize("loop", [False, True])
def test_positions_that_no_text_reaches_are_padding_and_cost_nothing(loop):
    to = np.full((5, 4), -1)
    to[0, 2], to[2, 3], to[3, 2], to[2, STOP], to[4, STOP], to[0, 3] = 2, 3, 4, 1, 1, 4
    if loop:
        to[4, 3] = 3
    automaton = Language(to).automaton
    exact = Exact(automaton, VOCABULARY, 9)
    posterior = exact.guide(FullRows(torch.zeros(7, 4))).posterior
    assert automaton.longest == (maxsize if loop else 4)
    assert (posterior.factors[4:, -1] == 0).all() == (not loop)
    expected = marginals(weights(Language(to), np.full((7, 4), 0.25), 9), (7, 4))
    np.testing.assert_allclose(told(np.full((7, 4), 0.25), posterior), expected, atol=1e-6)


def test_a_budget_that_the_shortest_text_does_not_fit_is_refused_with_what_it_takes():
    to = np.full((4, 4), -1)
    to[0, 2], to[2, 3], to[3, STOP] = 2, 3, 1
    automaton = Language(to).automaton
    with pytest.raises(BudgetError, match="takes 3 tokens, more than 2") as caught:
        Exact(automaton, VOCABULARY, 2)
    assert caught.value.needed == 3
    assert Exact(automaton, VOCABULARY, 3)


def test_where_the_model_rules_out_every_text_that_is_an_error():
    _, exact, _, _, _ = made(seed=3, states=5, L=2, budget=9, scale=1.0)
    logits = torch.full((2, V), -torch.inf)
    logits[:, PAD] = 0
    with pytest.raises(DeadEndError, match="no text that the grammar allows any probability"):
        exact.guide(FullRows(logits))


@cases
def test_behind_the_first_choice_that_is_refused_the_posterior_is_silent_if_that_is_asked(
    seed, states, L, budget, scale
):
    language, exact, scores, p, budget = made(seed, states, L, budget, scale, suspect="refused")
    alive = {text[:n] for text in weights(language, p, budget) for n in range(len(text) + 1)}
    agreed = next(n for n in range(L, -1, -1) if tuple(scores.argmax[:n]) in alive)
    ended = STOP in scores.argmax[:agreed]
    guidance = exact.guide(scores)
    assert guidance.repaired == (agreed < L and not ended)
    assert guidance.suspect == (agreed + 1 if guidance.repaired else L)
    assert len(guidance.posterior.factors) == len(guidance.posterior.drawn) == guidance.suspect


@cases
def test_or_where_most_of_the_models_probability_is_in_no_text(seed, states, L, budget, scale):
    language, exact, scores, p, budget = made(seed, states, L, budget, scale, suspect="mass")
    texts = [*weights(language, p, budget)]
    upto = [
        sum(np.prod([p[i, t] for i, t in enumerate(b)]) for b in {text[:n] for text in texts})
        for n in range(L + 1)
    ]
    low = [n for n in range(L) if upto[n + 1] < 0.5 * upto[n]]
    assert exact.guide(scores).suspect == (low[0] + 1 if low else L)
