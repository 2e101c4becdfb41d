"""Tests of picks: each row yields its likeliest allowed token, or one that is drawn."""

import numpy as np
import torch

from dlm.logits.canvas_logits import DeviceCopies
from dlm.logits.picks import pick


def test_what_is_drawn_has_the_probability_that_the_model_gives_it(rng):
    """Evenly spread numbers to draw by give each token its share of what a row allows."""
    logits, n = torch.randn(1, 9, generator=rng), 4000
    words = np.array([0b101101], dtype=np.uint32)
    uniform = ((torch.arange(n) + 0.5) / n).tolist()
    link = DeviceCopies(torch.device("cpu"))
    drawn = pick(logits.expand(n, 9).contiguous(), [words] * n, uniform, [0.5] * n, None, link)
    p = (logits[0, [0, 2, 3, 5]] / 0.5).softmax(-1)
    shares = torch.tensor(drawn).bincount(minlength=9)[[0, 2, 3, 5]] / n
    torch.testing.assert_close(shares, p, rtol=0, atol=1 / n)


def test_a_row_that_names_a_token_or_allows_all_needs_no_mask():
    logits = torch.zeros(3, 5)
    logits[:, 4], logits[1, 2] = 1.0, torch.nan
    link = DeviceCopies(torch.device("cpu"))
    assert pick(logits, [~3, ~1, None], [0.0] * 3, [0.0] * 3, 30.0, link) == [3, 1, 4]
    assert pick(logits.fill_(-torch.inf), [None] * 3, [0.0] * 3, [1.0] * 3, None, link) == [-1] * 3
