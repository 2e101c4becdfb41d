"""Scores of logits for tests that have no engine."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dlm.grammar import Vocabulary
from dlm.kernels.vocab import vocab_pass
from dlm.logits.canvas_logits import CANDIDATES, THRESHOLD, CanvasLogits, DeviceCopies, HostRows


def scores_of(logits: Tensor, argmax: Sequence[int] | None = None) -> CanvasLogits:
    """Return the scores of `logits [L, V]` at a temperature of 1; `argmax` replaces theirs."""
    L = len(logits)
    found = vocab_pass(logits, torch.ones(L), torch.zeros(L), threshold=THRESHOLD, k=CANDIDATES)
    rows = HostRows.of(found, logits.shape[1])
    scores = CanvasLogits(rows, logits, 1.0, None, DeviceCopies(logits.device))
    if argmax is not None:
        scores.argmax = list(argmax)
    return scores


def logits_of(vocabulary: Vocabulary, tokens: Sequence[int], L: int, sure: float = 50.0) -> Tensor:
    """Logits of a model that is sure of `tokens`, then of padding."""
    wanted = torch.tensor([*tokens, *[vocabulary.pad] * L][:L])
    return sure * torch.nn.functional.one_hot(wanted, len(vocabulary)).float()


def random_scores(size: int, L: int, seed: int, scale: float = 4.0) -> CanvasLogits:
    """Return scores of normally distributed logits `[L, size]` of standard deviation `scale`."""
    return scores_of(scale * torch.randn(L, size, generator=torch.Generator().manual_seed(seed)))
