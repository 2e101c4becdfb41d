"""Random rows of logits, and random masks of them, for tests of passes over the vocabulary."""

import torch
from torch import Tensor

from dlm.kernels.vocab_rows import RowMasks


def random_logits(n: int, V: int, dtype: torch.dtype, rng: torch.Generator) -> Tensor:
    """Return rows from flat to peaked, with ties, both zeros, and a tenth of -inf."""
    logits = torch.randn(n, V, generator=rng) * torch.logspace(-1, 1.3, n)[:, None]
    logits[:, : V // 3] = (logits[:, : V // 3] * 2).round() / 2
    forbidden = torch.rand(n, V, generator=rng) < 0.1
    return logits.masked_fill(forbidden, -torch.inf).to(dtype)


def random_masks(n: int, V: int, rng: torch.Generator) -> RowMasks:
    """Return for each row one of six masks, or none: all tokens, no token, one, and random ones."""
    words = torch.randint(-(2**31), 2**31, (6, -(-V // 32) + 1), generator=rng)
    words[1], words[2:4] = -1, 0
    token = int(torch.randint(V, (), generator=rng))
    words[3, token // 32] = 1 << token % 32
    return RowMasks(words.int(), torch.randint(-1, 6, (n,), generator=rng))
