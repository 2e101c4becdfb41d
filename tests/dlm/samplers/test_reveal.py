"""Positions that a pass over a masked canvas reveals, by its order."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dlm import DlmError
from dlm.logits.distributions import TokenDistributions
from dlm.samplers import Reveal

ORDERS = {"joint": {}, "prefix": {"order": "prefix"}, "doubt": {"doubt": 0.5}}


class Rows(TokenDistributions):
    """Distributions of which only the confidences are known."""

    def __init__(self, confidences):
        self._known = torch.tensor(confidences)

    @property
    def confidences(self):
        return self._known


def revealed(sampler, confidences, free=None):
    """Return the positions of one canvas that a pass reveals."""
    free = torch.tensor([free or [True] * len(confidences)])
    accepted = sampler.accept(Rows([confidences]), free)
    return accepted[0].nonzero()[:, 0].tolist()


def expected(order, confidences, free):
    """Decide position by position, as the orders are described."""
    masks = [p for p, is_free in enumerate(free) if is_free]
    sure, doubt, unsure = [], 0.0, False
    for p in masks:
        unsure |= confidences[p] <= 0.75
        close = {"joint": True, "prefix": not unsure, "doubt": doubt <= 0.5}[order]
        if confidences[p] > 0.75 and close:
            sure.append(p)
        doubt += 1 - confidences[p]
    surest = max(masks, key=lambda p: confidences[p], default=None)
    fallback = surest if order == "joint" else min(masks, default=None)
    return sure or [fallback] * bool(masks)


@pytest.mark.parametrize("order", ORDERS)
@given(rows=st.lists(st.tuples(st.integers(0, 16), st.booleans()), min_size=1, max_size=12))
def test_each_order_reveals_what_it_says(order, rows):
    confidences = [sixteenths / 16 for sixteenths, _ in rows]
    free = [is_free for _, is_free in rows]
    sampler = Reveal(mask=4, threshold=0.75, **ORDERS[order])
    assert revealed(sampler, confidences, free) == expected(order, confidences, free)


def test_a_sure_token_right_of_much_doubt_waits():
    confidences = [0.9, 0.7, 1.0, 0.6, 1.0]
    assert revealed(Reveal(mask=4, threshold=0.8), confidences) == [0, 2, 4]
    assert revealed(Reveal(mask=4, threshold=0.8, order="prefix"), confidences) == [0]
    assert revealed(Reveal(mask=4, threshold=0.8, doubt=0.5), confidences) == [0, 2]
    assert revealed(Reveal(mask=4, threshold=0.8, doubt=1.0), confidences) == [0, 2, 4]


def test_with_a_doubt_the_first_mask_is_revealed_where_none_is_sure():
    confidences = [0.3, 0.2, 0.7, 0.4]
    assert revealed(Reveal(mask=4), confidences) == [2]
    assert revealed(Reveal(mask=4, doubt=3.0), confidences) == [0]
    assert revealed(Reveal(mask=4, doubt=3.0), confidences, [False, True, True, True]) == [1]


def test_a_doubt_is_refused_where_nothing_is_revealed_right_of_unsure_masks():
    with pytest.raises(DlmError, match='doubt must be None by the order "prefix"'):
        Reveal(mask=4, order="prefix", doubt=0.5)
