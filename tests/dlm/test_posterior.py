"""A step's distributions under an exact posterior, against the definition over whole rows."""

import numpy as np
import pytest
import torch
from enumerated import PAD, STOP, Language
from hypothesis import given, settings
from hypothesis import strategies as st

from dlm.grammar import Exact, Guidance, Posterior, Vocabulary
from dlm.grammar.constraint import Fixed
from dlm.marginals import Marginals
from dlm.mask_table import MaskTable

B, L, V, BUDGET = 3, 6, 90, 9
VOCABULARY = Vocabulary(
    [b"", b"", *(bytes([32 + i]) for i in range(V - 2))],
    control=(),
    stops=[STOP],
    pad=PAD,
    thought=None,
    encode=list,
)


def language_of(rng: np.random.Generator) -> Language:
    """Its 90 tokens are of some seven kinds."""
    few = Language.random(rng, 6, 9).to
    return Language(few[:, np.append([PAD, STOP], rng.integers(2, 9, V - 2))])


def marginals_of(logits: torch.Tensor, rng: np.random.Generator, softcap=None) -> Marginals:
    uniform = torch.tensor(rng.random((B, L)), dtype=torch.float32)
    return Marginals(logits, [0.7, 1.0, 0.5], uniform, softcap, MaskTable(-(-V // 32)))


def exact_rows(p: np.ndarray, posterior: Posterior) -> np.ndarray:
    """The distributions that it means, `[T, V]`."""
    T = len(posterior.factors)
    found = p[:T] * np.exp(posterior.factors.astype(float))[:, posterior.classes.numpy()]
    for position, tokens in posterior.without.items():
        found[position:][:1, list(tokens)] = 0  # it may not be trusted
    found[:, PAD] += np.exp(posterior.factors[:, -1])
    for position, token in enumerate(posterior.pinned):
        found[position] = np.eye(V)[token]
    return found


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32),
    scale=st.sampled_from([0.1, 3.0, 9.0]),
    softcap=st.sampled_from([None, 30.0]),
    suspect=st.sampled_from(["none", "refused"]),
    pins=st.integers(0, 2),
)
def test_entropies_draws_and_expectations_are_those_of_the_posterior(
    seed, scale, softcap, suspect, pins
):
    """Canvas 1 has a posterior, and canvas 2, with some of its tokens pinned and one barred."""
    rng = np.random.default_rng(seed)
    language, logits = language_of(rng), torch.tensor(scale * rng.normal(size=(B, L, V))).float()
    automaton, table = language.automaton, torch.tensor(rng.normal(size=(V, 5))).float()
    marginals = marginals_of(logits, rng, softcap)
    x = logits.double() if softcap is None else softcap * torch.tanh(logits.double() / softcap)
    expected = (x / torch.tensor([0.7, 1.0, 0.5])[:, None, None]).softmax(-1).numpy()
    raw = expected.copy()
    text = next(language.texts(L, BUDGET))
    fixed = Fixed(pinned=text[: min(pins, len(text))], banned={L - 1: {int(rng.integers(2, V))}})
    told: dict[int, Posterior] = {}
    for i, what in ((1, Fixed()), (2, fixed)):
        guidance = Exact(automaton, VOCABULARY, BUDGET, suspect).guide(marginals.scores(i), what)
        told[i] = guidance.posterior
        marginals.restrict(i, guidance)
        expected[i, : guidance.suspect] = exact_rows(expected[i], told[i])
    marginals.mask()

    entropies = torch.special.entr(torch.tensor(expected)).sum(-1)
    torch.testing.assert_close(marginals.entropies.double(), entropies, atol=2e-3, rtol=1e-3)
    mean = marginals.expected(lambda distributions: distributions.expected(table))
    wanted = torch.tensor(expected.reshape(B * L, V)) @ table.double()
    torch.testing.assert_close(mean.double(), wanted, atol=2e-3, rtol=1e-3)
    for i, posterior in told.items():
        for temperature in (1.0, 0.6, 0.0):  # it is one text, and no temperature takes it apart
            drawn = marginals.draws([temperature] * B)[i, : len(posterior.drawn)].tolist()
            for position, draw in enumerate(drawn):
                check_draw(draw, position, posterior, raw[i, position])


def check_draw(draw: int, position: int, posterior: Posterior, p: np.ndarray) -> None:
    """By inverse transform from the class that was drawn."""
    label, of = posterior.drawn[position], posterior.classes.numpy()
    if position < len(posterior.pinned):
        assert draw == posterior.pinned[position]
    elif label == posterior.factors.shape[1] - 1:
        assert draw == PAD
    else:
        p = np.where(of == label, p, 0)
        p[[*posterior.without.get(position, ())]] = 0
        upto, uniform = p.cumsum() / p.sum(), posterior.uniform[position]
        assert of[draw] == label
        assert upto[draw] - p[draw] / p.sum() - 1e-4 <= uniform <= upto[draw] + 1e-4


def test_beside_a_posterior_other_canvases_are_as_they_were():
    rng = np.random.default_rng(0)
    logits = torch.tensor(rng.normal(size=(B, L, V))).float()
    alone, beside = (marginals_of(logits, np.random.default_rng(1)) for _ in range(2))
    exact = Exact(language_of(rng).automaton, VOCABULARY, BUDGET)
    beside.restrict(1, exact.guide(beside.scores(1)))
    table = torch.randn(V, 4)
    for marginals in (alone, beside):
        marginals.mask()
    rows = [*range(L), *range(2 * L, 3 * L)]
    one, other = (m.expected(lambda d: d.expected(table)) for m in (alone, beside))
    assert torch.equal(one[rows], other[rows])
    assert torch.equal(alone.draws([1.0] * 3)[[0, 2]], beside.draws([1.0] * 3)[[0, 2]])
    assert torch.equal(alone.entropies[[0, 2]], beside.entropies[[0, 2]])


def test_classes_are_sent_to_the_device_once():
    rng = np.random.default_rng(0)
    automaton = language_of(rng).automaton
    marginals = marginals_of(torch.zeros(B, L, V), rng)
    one, other = marginals.scores(0), marginals.scores(1)
    for scores in (one, other):
        scores.by_class(automaton.classes, automaton.tail + 1, {})
    assert (one.copies, other.copies) == (2, 1)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"classes": torch.zeros(V + 1, dtype=torch.int32)}, "91 tokens for a vocabulary of 90"),
        ({"classes": torch.full((V,), 3, dtype=torch.int32)}, "for a class 3"),
        ({"factors": np.zeros((L + 1, 4), dtype=np.float32)}, "7 positions with factors"),
        ({"pinned": [0] * 3}, "3 of them pinned"),
    ],
)
def test_a_posterior_that_does_not_fit_the_canvas_is_refused(more, reason):
    marginals = marginals_of(torch.zeros(B, L, V), np.random.default_rng(0))
    factors = more.get("factors", np.zeros((2, 4), dtype=np.float32))
    fields = {
        "classes": torch.zeros(V, dtype=torch.int32),
        "factors": factors,
        "pad": PAD,
        "pinned": [],
        "without": {},
        "drawn": np.zeros(len(factors), dtype=np.int64),
        "uniform": np.zeros(len(factors), dtype=np.float32),
        "log_z": 0.0,
    }
    read = Guidance(
        guess=[0] * L,
        bitmask=None,
        rows=[],
        suspect=L,
        repaired=False,
        stop=L,
        scored=L,
        posterior=Posterior(**fields | more),
    )
    with pytest.raises(ValueError, match=reason):
        marginals.restrict(0, read)
