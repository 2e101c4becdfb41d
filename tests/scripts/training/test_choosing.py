"""Which samples of a pool are trained on."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from training import choosing
from training.batches import tokenizer_of

import dlm.models
from dlm.models.objective import TrainingBatch

TINY = Path(dlm.models.__file__).parent / "tiny"
B = 12


@pytest.fixture
def pool(rng) -> TrainingBatch:
    """Samples that their first token numbers."""
    tokens = torch.randint(1000, (B, 8), generator=rng)
    tokens[:, 0] = torch.arange(B)
    return TrainingBatch(
        tokens=tokens,
        lengths=torch.full((B,), 8),
        answers=torch.full((B,), 3),
        canvases=torch.randint(1000, (B, 2, 4), generator=rng),
        starts=torch.full((B, 2), 3),
        given=torch.zeros(B, 8, dtype=torch.bool),
        weights=torch.ones(B),
    )


def test_shares_are_as_the_scores_but_for_those_that_are_sure_to_be_chosen():
    share = choosing.shares(torch.tensor([100.0, 9.0, 1.0, 1.0, 1.0, 1.0]), 3)
    expected = [1, 1, 0.25, 0.25, 0.25, 0.25]
    assert share.tolist() == pytest.approx(expected)
    assert choosing.shares(torch.tensor([1.0, 2.0, 3.0]), 1).tolist() == pytest.approx(
        [1 / 6, 1 / 3, 1 / 2]
    )


@pytest.mark.parametrize("size", [1, 5, B])
def test_as_many_are_chosen_as_are_asked_for_each_once(pool, rng, size):
    for _ in range(50):
        scores = torch.rand(B, generator=rng) ** 4 + 0.01
        batch = choosing.chosen(pool, scores, size, 1.0, rng)
        assert batch.tokens[:, 0].unique().numel() == size == len(batch.tokens)
        assert batch.weights.mean().item() == pytest.approx(1)
        rows = batch.tokens[:, 0]
        assert torch.equal(batch.canvases, pool.canvases[rows])


def test_samples_are_chosen_as_often_as_they_score(pool, rng):
    scores = torch.arange(1.0, B + 1)
    drawn = [choosing.chosen(pool, scores, 3, 0.0, rng) for _ in range(2000)]
    assert all((batch.weights == 1).all() for batch in drawn)
    count = torch.cat([batch.tokens[:, 0] for batch in drawn]).bincount(minlength=B)
    torch.testing.assert_close(count / 2000, 3 * scores / scores.sum(), rtol=0.1, atol=0.01)


def test_fair_weights_make_up_for_the_choice(pool, rng):
    """Sums over what is chosen are those over all, whatever the scores, but for a factor."""
    scores = torch.tensor([0.1] * 9 + [2.0] * 3)
    share = choosing.shares(scores, 3)
    values = torch.rand(B, generator=rng)
    sums = torch.zeros(2)
    for _ in range(2000):
        batch = choosing.chosen(pool, scores, 3, 1.0, rng)
        rows = batch.tokens[:, 0]
        of_share = batch.weights * share[rows]
        torch.testing.assert_close(of_share, of_share[:1].expand(3))
        sums += torch.stack((values[rows] / share[rows], 1 / share[rows])).sum(1)
    assert (sums[0] / sums[1]).item() == pytest.approx(values.mean().item(), rel=0.05)


def test_mistakes_are_those_at_tokens_that_say_something(pool):
    pool = replace(pool, tokens=torch.tensor([[1, 1, 1, 5, 6, 7, 5, 6]] * B))
    telling = torch.zeros(1000, dtype=torch.bool)
    telling[[5, 7]] = True
    unsure = torch.zeros(B, 8)
    unsure[0, 4] = 9.0  # layout
    unsure[1, 3] = 9.0
    unsure[2, [3, 5]] = torch.tensor(2.0).log()
    found = choosing.mistakes(unsure, pool, telling) - choosing.FLOOR
    assert found[:4].tolist() == pytest.approx([0, 1, 1, 0], abs=1e-3)


def test_tokens_of_words_and_numbers_tell_something_those_of_layout_do_not():
    tokenizer, telling = tokenizer_of(TINY), choosing.telling(TINY)
    assert telling.shape == (len(tokenizer),)

    def tells(text: str) -> list[bool]:
        return telling[tokenizer(text, add_special_tokens=False)["input_ids"]].tolist()

    for text in ("null", "7", "Zurghai"):
        assert all(tells(text))
    for text in ('```json\n{\n  "', '", "'):
        assert not any(tells(text))
