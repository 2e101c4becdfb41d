"""Expectations against their definition in fp64.

The error of a probability is a factor of e^(2d) at most, with d as in test_vocab.py; for a table in
bf16 it is rounded too, by 2^-9 of itself. Sums in fp32 add 2^-24 of the largest row for each level
of a tree, of which there are far fewer than 64.
"""

import pytest
import torch
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dlm.kernels import expectation
from dlm.kernels.expectation import Certain, Distributions, Flat, Listed
from dlm.kernels.vocab import vocab_pass
from dlm.kernels.vocab_rows import RowMasks, VocabPass

EMPTY = torch.zeros(0, dtype=torch.int64)
NO_CERTAIN = Certain(rows=EMPTY, tokens=EMPTY)


def lists(n: int, tokens: dict[int, list[int]], probs: dict[int, list[float]]) -> Listed:
    """Return lists for some of `n` rows, as a pass returns them; a logit is log p + 5."""
    found = VocabPass.certain(torch.zeros(n, dtype=torch.int64), 128)
    for row, ids in tokens.items():
        found.ids[row, : len(ids)] = torch.tensor(ids, dtype=torch.int32)
        found.logits[row, : len(ids)] = torch.tensor(probs[row]).log() + 5
    lengths = torch.tensor([len(ids) for ids in tokens.values()], dtype=torch.int64)
    return Listed(
        rows=torch.tensor(list(tokens), dtype=torch.int64),
        found=found.packed(),
        lengths=lengths,
        total=int(lengths.sum()),
        inverse_temperature=torch.ones(len(tokens)),
        lse=torch.full((len(tokens),), 5.0),
        softcap=None,
    )


NO_LISTED = lists(1, {}, {})


def flat_of(logits: Tensor, rows: Tensor, inverse: Tensor, masks: RowMasks | None, softcap) -> Flat:
    """Return `rows` of `logits`, with an inverse temperature and a mask for each."""
    found = vocab_pass(logits, inverse, torch.zeros(len(rows)), masks, rows, softcap=softcap)
    return Flat(
        rows=rows,
        logits=logits,
        inverse_temperature=inverse,
        lse=found.lse,
        masks=masks,
        softcap=softcap,
    )


def probabilities(logits: Tensor, inverse: Tensor, masks: RowMasks | None, softcap) -> Tensor:
    """Return the probabilities of all tokens `[f, V]` in fp64."""
    x = logits.double()
    if softcap is not None:
        x = (softcap * torch.tanh(x / softcap)).masked_fill(logits.isneginf(), -torch.inf)
    x = x * inverse.double()[:, None]
    for i, mask in enumerate(masks.rows.tolist() if masks else ()):
        if masks and mask >= 0:
            token = torch.arange(logits.shape[1])
            x[i, masks.bitmask[mask, token // 32] >> token % 32 & 1 == 0] = -torch.inf
    return x.softmax(-1).nan_to_num(0)


@given(
    f=st.integers(1, 70),
    V=st.integers(2, 90) | st.sampled_from([4096, 4097, 9000]),
    scale=st.sampled_from([0.1, 4.0, 30.0]),
    softcap=st.sampled_from([None, 30.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    masked=st.booleans(),
    seed=st.integers(0, 1000),
)
@examples(40)
def test_flat_rows_have_the_mean_of_the_whole_table(f, V, scale, softcap, dtype, masked, seed):
    rng = torch.Generator().manual_seed(seed)
    N = f + 2
    logits = (scale * torch.randn(N, V, generator=rng)).to(dtype)
    logits[:, 1:][torch.rand(N, V - 1, generator=rng) < 0.1] = -torch.inf
    table = torch.randn(V, 5, generator=rng).to(dtype)
    rows, inverse = torch.randperm(N, generator=rng)[:f], torch.rand(f, generator=rng) + 1
    bitmask = torch.randint(-(2**31), 2**31, (3, -(-V // 32)), generator=rng).int() | 1
    masks = RowMasks(bitmask, torch.randint(-1, 3, (f,), generator=rng)) if masked else None

    flat = flat_of(logits, rows, inverse, masks, softcap)
    actual = Distributions(n=N, certain=NO_CERTAIN, listed=NO_LISTED, flat=flat).expected(table)

    p = probabilities(logits[rows], inverse, masks, softcap)
    X = 75 if softcap else 2 * float(logits[logits.isfinite()].abs().max())
    d, u = 2**-24 * (16 * (X + 1) + 20), {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}[dtype]
    error = (2.1 * d + 64 * u) * (p @ table.double().abs()) + u
    assert actual.dtype == dtype
    assert ((actual[rows].double() - p @ table.double()).abs() <= error).all()
    others = torch.ones(N, dtype=torch.bool).index_fill(0, rows, False)
    assert not actual[others].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_listed_rows_have_the_mean_of_their_listed_tokens(dtype, rng):
    """Rows come in any order; one list is empty, and another has less than all probability."""
    table = torch.randn(50, 6, generator=rng).to(dtype)
    tokens = {3: [7, 49], 0: [], 2: [7, 8, 9]}
    listed = lists(5, tokens, {3: [0.5, 0.25], 0: [], 2: [0.125, 0.125, 0.75]})
    certain = Certain(rows=torch.tensor([4]), tokens=torch.tensor([11]))
    flat = flat_of(torch.zeros(5, 50), torch.zeros(0).long(), torch.zeros(0), None, None)

    actual = Distributions(n=5, certain=certain, listed=listed, flat=flat).expected(table)

    assert torch.equal(actual[4], table[11])
    wide = table.double()
    expected = torch.zeros(5, 6).double()
    expected[4] = wide[11]
    expected[3] = 0.5 * wide[7] + 0.25 * wide[49]
    expected[2] = 0.125 * (wide[7] + wide[8]) + 0.75 * wide[9]
    torch.testing.assert_close(actual, expected.to(dtype))


@pytest.mark.parametrize(("V", "D"), [(1536, 128), (5000, 12), (9000, 40), (1000, 1)])
def test_a_row_has_the_same_result_to_the_bit_in_any_batch(V, D, rng):
    """Flat and listed rows are compared."""
    N = 150
    logits, table = torch.randn(N, V, generator=rng), torch.randn(V, D, generator=rng)
    counts = torch.randint(1, 100, (N,), generator=rng)
    tokens = torch.randint(V, (N, 100), generator=rng).tolist()
    probs = torch.rand(N, 100, generator=rng).tolist()

    def expected(flat: Tensor, few: Tensor) -> Tensor:
        some = {row: int(counts[row]) for row in few.tolist()}
        listed = lists(
            N,
            {row: tokens[row][:count] for row, count in some.items()},
            {row: probs[row][:count] for row, count in some.items()},
        )
        flat = flat_of(logits, flat, torch.ones(len(flat)), None, 30.0)
        return Distributions(n=N, certain=NO_CERTAIN, listed=listed, flat=flat).expected(table)

    order = torch.randperm(N, generator=rng)
    together = expected(order[:100], order[100:])
    for count in (1, 2, 15, 16, 17, 33, 63, 64, 65, 99):
        some = torch.randperm(100, generator=rng)[:count]
        apart = expected(order[:100][some], order[100:][: count // 2 + 1])
        assert torch.equal(apart[order[:100][some]], together[order[:100][some]])
        few = order[100:][: count // 2 + 1]
        assert torch.equal(apart[few], together[few])


def test_logits_are_heated_a_block_at_a_time(monkeypatch, rng):
    sizes, made = [], expectation.heated
    monkeypatch.setattr(expectation, "heated", lambda x, *a: sizes.append(x.numel()) or made(x, *a))
    logits, V = torch.randn(200, 20_000, generator=rng), 20_000
    flat = flat_of(logits, torch.arange(200), torch.ones(200), None, None)

    Distributions(n=200, certain=NO_CERTAIN, listed=NO_LISTED, flat=flat).expected(
        torch.randn(V, 4, generator=rng)
    )

    assert sum(sizes) == 200 * V
    assert max(sizes) <= 1 << 18
