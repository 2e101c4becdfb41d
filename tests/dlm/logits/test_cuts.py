"""top_k, top_p and min_p: what is left of a step's distributions, and what is drawn of it."""

import numpy as np
import pytest
import torch
from doubles import Dreamer, Obsessed
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper
from values import PROMPT, V

from dlm import (
    Autoregressive,
    DecodeConfig,
    Draft,
    JsonSchema,
    Regex,
    Request,
    RequestError,
)
from dlm.grammar import Guidance
from dlm.kernels.vocab_cut import cut_masks_reference
from dlm.kernels.vocab_rows import RowMasks
from dlm.logits.canvas_logits import DeviceCopies
from dlm.logits.distributions import TokenDistributions
from dlm.logits.masks import MaskTable
from dlm.logits.picks import pick
from dlm.logits.sampling import Cut, columns
from dlm.samplers import EntropyBound

B, L, SIZE = 4, 5, 700
WORDS = -(-SIZE // 32)
CUTS = [
    Cut(temperature=1.0, top_k=3),
    None,
    Cut(temperature=1.0, top_p=0.8),
    Cut(temperature=1.5, top_k=400, top_p=0.99, min_p=0.001),
]
SCHEMA = JsonSchema(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    max_whitespace=1,
)


@pytest.fixture
def step():
    """Logits of four canvases from flat to peaked, numbers to draw by, and masks."""
    rng = torch.Generator().manual_seed(5)
    logits = torch.randn(B, L, SIZE, generator=rng) * torch.tensor([0.1, 2, 5, 0.5, 9])[:, None]
    bitmask = torch.randint(-(2**31), 2**31, (3, WORDS + 1), generator=rng).int()
    bitmask[1] = -1
    bitmask[2] = 0
    bitmask[2, 1] = 1 << 7  # token 39 alone, whatever the model says of it
    return logits, torch.rand(B, L, generator=rng), bitmask


def read(logits, uniform, bitmask, cuts, by_kernel=None) -> TokenDistributions:
    """Canvases of which two positions are named or masked by one token, and two are not masked."""
    heat = [0.5] * len(logits)
    table = MaskTable(WORDS)
    marginals = TokenDistributions(logits, heat, uniform, 30.0, table, by_kernel, cuts)
    for i in range(len(logits)):
        rows = [0, 2, ~9] if i < 3 else []
        guidance = Guidance(
            guess=[0] * L, bitmask=bitmask, rows=rows, suspect=L, repaired=False, stop=L, scored=L
        )
        marginals.restrict(i, guidance)
    marginals.mask()
    return marginals


def left(logits, bitmask, i: int, position: int, cut: Cut | None) -> torch.Tensor:
    """The distribution of a position in fp64: under its mask, cut, at the pass's temperature."""
    row = logits[i, position][None]
    mask = [0, 2, -1, -1, -1][position] if i < 3 else -1
    if i < 3 and position == 2:
        return torch.nn.functional.one_hot(torch.tensor(9), SIZE).double()
    masks = RowMasks(bitmask, torch.tensor([mask]))
    cut = cut or Cut(temperature=1.0)
    heat, cuts = columns([cut])
    words = cut_masks_reference(row, heat, cuts, masks, softcap=30.0).bitmask[0]
    token = torch.arange(SIZE)
    kept = (words[token // 32] >> token % 32 & 1).bool()
    x = 30 * torch.tanh(row[0].double() / 30) / 0.5
    return x.masked_fill(~kept, -torch.inf).softmax(-1)


@pytest.mark.parametrize(
    ("canvases", "by_kernel"), [(range(B), False), ([2], True)], ids=["cpu", "kernel"]
)
def test_entropies_draws_guesses_and_soft_embeddings_are_of_what_is_left(step, canvases, by_kernel):
    logits, uniform, bitmask = step
    cuts, some = [CUTS[i] for i in canvases], list(canvases)
    n, uniform = len(some), uniform[some]
    marginals = read(logits[some], uniform, bitmask, cuts, by_kernel)
    p = torch.stack(
        [torch.stack([left(logits, bitmask, i, at, CUTS[i]) for at in range(L)]) for i in canvases]
    )

    expected = torch.special.entr(p).sum(-1).float()
    torch.testing.assert_close(marginals.entropies, expected, atol=2e-4, rtol=1e-4)
    drawn = marginals.draws([1.0] * n)[..., None]
    reached = p.cumsum(-1).gather(-1, drawn)[..., 0]
    assert (p.gather(-1, drawn) > 0).all()
    assert (uniform - 1e-5 <= reached).all()
    assert (uniform + 1e-5 >= reached - p.gather(-1, drawn)[..., 0]).all()
    assert torch.equal(marginals.draws([0.0] * n), p.argmax(-1))
    table = torch.randn(SIZE, 7, generator=torch.Generator().manual_seed(1))
    means = marginals.distributions().expected(table)
    far = table.norm(dim=1).max() * 1e-4 + 1e-3
    assert ((means.double() - p.flatten(0, 1) @ table.double()).norm(dim=1) <= far).all()


def test_a_canvas_is_cut_bit_for_bit_as_it_is_alone(step):
    logits, uniform, bitmask = step
    together = read(*step, CUTS)
    means = together.distributions().expected(torch.eye(SIZE))
    for i in range(3):  # those with masks
        one = slice(i, i + 1)
        alone = read(logits[one], uniform[one], bitmask, CUTS[one])
        assert torch.equal(alone.entropies, together.entropies[one])
        assert torch.equal(alone.draws([1.0]), together.draws([1.0] * B)[one])
        found = alone.distributions().expected(torch.eye(SIZE))
        assert torch.equal(found, means.unflatten(0, (B, L))[i])


def test_without_a_cut_nothing_is_read_twice(step):
    logits, uniform, _ = step
    for cuts in ([None] * B, ()):
        marginals = TokenDistributions(
            logits, [0.5] * B, uniform, 30.0, MaskTable(WORDS), None, cuts
        )
        for i in range(B):
            guidance = Guidance(
                guess=[0] * L, bitmask=None, rows=[], suspect=L, repaired=False, stop=L, scored=L
            )
            marginals.restrict(i, guidance)
        copies = marginals.copies.count
        marginals.mask()
        assert marginals.copies.count == copies


def test_a_constraint_reads_whole_distributions(step):
    logits, uniform, _ = step
    every = np.full(WORDS, -1, dtype=np.int32).view(np.uint32)
    cut, whole = (
        TokenDistributions(logits, [0.5] * B, uniform, 30.0, MaskTable(WORDS), None, cuts).scores()[
            0
        ]
        for cuts in (CUTS, ())
    )
    for position in range(L):
        assert cut.candidates(position, every, 40) == whole.candidates(position, every, 40)


@pytest.mark.parametrize(
    ("name", "value"),
    [("top_k", 0), ("top_k", -1), ("top_k", 10**30), ("top_p", 1), ("top_p", 1.0), ("min_p", 0)],
)
def test_a_value_that_leaves_everything_changes_nothing(name, value, engine_of):
    request = {"token_ids": PROMPT, "max_tokens": 20, "seed": 4}
    plain, neutral = (
        engine_of(Dreamer(V, 2)).generate(Request(**request, **more))
        for more in ({}, {name: value})
    )
    assert plain.token_ids == neutral.token_ids
    assert name == "top_k" or plain.stats.copies == neutral.stats.copies


@pytest.mark.parametrize("cut", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1}], ids=str)
def test_one_token_left_is_the_likeliest(cut, engine_of):
    """Left to right it is what is written at a temperature of 0, whatever the seed; a canvas has no
    entropy then, and settles in its second pass."""
    for spec in (None, SCHEMA):
        request = {"token_ids": PROMPT, "max_tokens": 30, "constraint": spec}
        decoding = Autoregressive(temperature=1.0)
        drawn = engine_of(Dreamer(V, 2), decoding=decoding).generate(
            [Request(**request, **cut, seed=seed) for seed in range(2)]
        )
        greedy = engine_of(Dreamer(V, 2), decoding=Autoregressive()).generate(Request(**request))
        assert [one.token_ids for one in drawn] == [greedy.token_ids] * 2

    engine = engine_of(Dreamer(V, 2), DecodeConfig(sampler=EntropyBound(max_steps=20), patience=30))
    engine.add(Request(token_ids=PROMPT, max_tokens=40, **cut))
    drafts = [event for _ in range(99) if engine.busy for event in engine.step()]
    assert {event.entropy for event in drafts if isinstance(event, Draft)} == {0.0}


@pytest.mark.parametrize(
    "decoding",
    [None, Autoregressive(temperature=1.0), Autoregressive(temperature=1.0, drafts=True)],
    ids=["canvases", "left to right", "drafted"],
)
def test_the_grammar_wins_where_it_allows_only_what_a_cut_would_take_away(decoding, engine_of):
    """The model wants one token everywhere, of which no sentence has any."""
    more = {} if decoding is None else {"decoding": decoding}
    engine = engine_of(Obsessed(V, [300]), **more)
    for spec, right in ((Regex("[a-c]{3}-[0-9]{2}"), Regex("[a-c]{3}-[0-9]{2}")), (SCHEMA, SCHEMA)):
        results = engine.generate([
            Request(token_ids=PROMPT, constraint=spec, max_tokens=80, **cut)
            for cut in ({"top_k": 1}, {"top_p": 0.01}, {"min_p": 0.99}, {"top_k": 2, "min_p": 0.5})
        ])  # fmt: skip
        for result in results:
            assert result.complete
            assert result.parsed is not None, right


def test_drafted_answers_are_those_of_the_plain_loop(engine_of):
    cuts = [{"top_k": 20}, {"top_p": 0.7}, {"min_p": 0.02, "top_p": 0.9}, {}]
    for spec in (None, SCHEMA):
        requests = [
            Request(token_ids=PROMPT, max_tokens=40, seed=i, constraint=spec, **cut)
            for i, cut in enumerate(cuts)
        ]
        plain, drafted = (
            engine_of(
                Dreamer(V, 3, scale=4.0), decoding=Autoregressive(temperature=1.0, drafts=drafts)
            ).generate(requests)
            for drafts in (False, True)
        )
        assert [one.token_ids for one in plain] == [one.token_ids for one in drafted]


@pytest.mark.parametrize("left_to_right", [False, True])
def test_a_request_that_cuts_changes_nothing_for_those_beside_it(left_to_right, engine_of):
    more = {"decoding": Autoregressive(temperature=1.0)} if left_to_right else {}
    requests = [
        Request(token_ids=PROMPT, max_tokens=40, seed=i, constraint=spec, **cut)
        for i, (spec, cut) in enumerate(
            [(SCHEMA, {"top_p": 0.5}), (SCHEMA, {}), (None, {"top_k": 9}), (None, {})]
        )
    ]
    together = engine_of(Dreamer(V, 3), **more).generate(requests)
    for request, result in zip(requests, together, strict=True):
        assert engine_of(Dreamer(V, 3), **more).generate(request).token_ids == result.token_ids


@pytest.mark.parametrize("cut", [(50, 1.0, 0.0), (0, 0.6, 0.0), (0, 1.0, 0.2), (300, 0.9, 0.01)])
def test_left_to_right_tokens_are_drawn_as_transformers_own_warpers_leave_them(cut):
    """Evenly spaced numbers draw each token as often as it is likely, to one draw."""
    top_k, top_p, min_p = cut
    rng, n, heat = torch.Generator().manual_seed(1), 4096, 0.7
    row = 2 * torch.randn(1, 500, generator=rng)
    warped = row / heat
    for warper, wanted in (
        (MinPLogitsWarper(min_p), min_p > 0),
        (TopKLogitsWarper(max(1, top_k)), top_k > 0),
        (TopPLogitsWarper(top_p), top_p < 1),
    ):
        warped = warper(torch.zeros(1, 1, dtype=torch.long), warped) if wanted else warped
    one = Cut(temperature=heat, top_k=top_k, top_p=top_p, min_p=min_p)
    uniform = (torch.arange(n) / n).tolist()

    picks = pick(row.expand(n, -1).contiguous(), [None] * n, uniform, [heat] * n, None,
                 DeviceCopies(torch.device("cpu")), None, [one] * n)  # fmt: skip

    counts = torch.tensor(picks).bincount(minlength=500)
    assert (counts - n * warped.softmax(-1)[0]).abs().max() <= 1.01


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"top_k": -2}, "top_k must be at least 1, or 0 or -1 for all tokens, got -2"),
        ({"top_k": 1.5}, r"top_k must be at least 1, .*, got 1\.5"),
        ({"top_k": True}, "top_k must be .*, got True"),
        ({"top_p": 0}, "top_p must be more than 0, up to 1, got 0"),
        ({"top_p": 1.01}, r"top_p must be .*, got 1\.01"),
        ({"top_p": float("nan")}, "top_p must be .*, got nan"),
        ({"top_p": "0.9"}, "top_p must be .*, got '0.9'"),
        ({"top_p": None}, "top_p must be .*, got None"),
        ({"min_p": -0.1}, r"min_p must be 0 to 1, got -0\.1"),
        ({"min_p": 1.1}, r"min_p must be 0 to 1, got 1\.1"),
        ({"min_p": True}, "min_p must be 0 to 1, got True"),
        ({"temperature": 2.5}, r"temperature must be 0 to 2, got 2\.5"),
        ({"temperature": float("nan")}, "temperature must be 0 to 2, got nan"),
        ({"temperature": False}, "temperature must be 0 to 2, got False"),
    ],
)
def test_values_out_of_range_are_refused_by_name(fields, message):
    with pytest.raises(RequestError, match=f"^{message}"):
        Request(prompt="Hi.", **fields)


def test_numbers_of_numpy_are_taken(engine_of):
    fields = {"top_k": np.int64(7), "top_p": np.float32(0.5), "min_p": np.float64(0.25)}
    plain = {"top_k": 7, "top_p": 0.5, "min_p": 0.25}
    one, other = (
        engine_of(Dreamer(V, 2)).generate(
            Request(token_ids=PROMPT, max_tokens=8, seed=seed, temperature=heat, **more)
        )
        for more, seed, heat in ((fields, np.int32(3), np.float32(1.5)), (plain, 3, 1.5))
    )
    assert one.token_ids == other.token_ids
