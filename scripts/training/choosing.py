"""Which samples of a pool a step trains on: more of those that the model does not know yet.

After some hours a tenth of the samples has most of what is left to learn. Asking the causal half
first costs a seventh of a step over the same sample.
"""

from dataclasses import replace
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dlm.models.objective import TrainingBatch
from training.batches import tokenizer_of

FLOOR = 0.2  # mistakes that a sample counts for at the least
ROUNDS = 20  # over the shares, to keep each below 1


def telling(directory: Path) -> Bool[Tensor, " V"]:
    """Tokens that say something; the others are of an answer's layout, which is any."""
    tokenizer = tokenizer_of(directory)
    texts = (tokenizer.decode([token]) for token in range(len(tokenizer)))
    return torch.tensor([any(map(str.isalnum, text)) and text != "json" for text in texts])


def mistakes(
    unsure: Float[Tensor, "B T"], batch: TrainingBatch, telling: Bool[Tensor, " V"]
) -> Float[Tensor, " B"]:
    """How many of an answer's telling tokens would not be drawn, and `FLOOR`, of each sample."""
    return ((1 - (-unsure).exp()) * telling[batch.tokens]).sum(1) + FLOOR


def chosen(
    batch: TrainingBatch,
    scores: Float[Tensor, " B"],
    size: int,
    fairness: float,
    rng: torch.Generator,
) -> TrainingBatch:
    """`size` of the samples, drawn without repetition by their scores.

    Their weights make up for it: wholly at a `fairness` of 1, so that the loss is expected to be
    that of all samples (importance sampling, arXiv:1803.00942); at 0 each counts the same. Between
    them, as where replayed experience is prioritised (arXiv:1511.05952).
    """
    share = shares(scores.double(), size)
    ends = share.cumsum(0) + torch.rand((), generator=rng, device=share.device)
    samples = (ends.floor() > (ends - share).floor()).nonzero()[:, 0]
    weights = share[samples] ** -fairness
    some = batch.each(lambda tensor: tensor[samples])
    return replace(some, weights=(weights / weights.mean()).float())


def shares(scores: Float[Tensor, " B"], size: int) -> Float[Tensor, " B"]:
    """How likely each sample is to be one of `size`: as its score, 1 at the most."""
    share = torch.full_like(scores, 0.0)
    for _ in range(ROUNDS):
        free = share < 1
        share = torch.where(free, scores * (size - (~free).sum()) / scores[free].sum(), share)
        share = share.clamp(max=1)
    return share
