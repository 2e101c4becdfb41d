"""Probabilities of continuations, left to right, against one pass for each of them."""

import pytest
import torch
from chained import STOPS, one_by_one
from exhaustive import by_default

from dlm.decisions.decide import log_probabilities

TEXTS = ["mage", "mages and warriors", "warrior", "a label of many words", "a label of few", "é日"]


@pytest.fixture(scope="module")
def spelled(built_in):
    return [built_in.vocabulary.encode(text) for text in TEXTS]


@pytest.mark.parametrize(
    ("slots", "long"),
    by_default([(1, 3), (2, 1), (9, 40), (4, 530), (4, 40), (1, 700), (2, 40), (9, 3)], 4),
)
def test_texts_in_a_tree_have_the_probabilities_that_each_has_alone(built_in, spelled, slots, long):
    """Prompts are shorter than a page, longer, and longer than what is encoded at once."""
    model, rng = built_in.model, torch.Generator().manual_seed(long)
    prompt = torch.randint(200, 1500, (long,), generator=rng).tolist()
    cache = model.new_cache(slots)
    found = log_probabilities(model, cache, range(slots), prompt, spelled, STOPS)
    expected = [one_by_one(model, prompt, text) for text in spelled]
    torch.testing.assert_close(found.tolist(), expected, atol=2e-3, rtol=1e-4)
    assert [cache.length(slot) for slot in range(slots)] == [0] * slots


def test_a_beginning_that_texts_share_is_encoded_once(built_in, spelled, monkeypatch):
    model, encoded = built_in.model, []
    encode = type(model).encode

    def counted(self, tokens, cache, slots):
        encoded.append(sum(map(len, tokens)))
        return encode(self, tokens, cache, slots)

    monkeypatch.setattr(type(model), "encode", counted)
    log_probabilities(model, model.new_cache(1), [0], [2, 200, 201], spelled, STOPS)
    beginnings = {tuple(text[:end]) for text in spelled for end in range(1, len(text) + 1)}
    assert sum(encoded) == 3 + len(beginnings)
    assert len(beginnings) < sum(map(len, spelled))


def test_fewer_slots_are_used_if_memory_is_short(built_in, spelled):
    """The cache holds 64 tokens, for a prompt of 40 and texts of up to 20 after it."""
    model, prompt = built_in.model, list(range(200, 240))
    cache = model.new_cache(4, None, 64, 512)
    found = log_probabilities(model, cache, range(4), prompt, spelled, STOPS)
    expected = [one_by_one(model, prompt, text) for text in spelled]
    torch.testing.assert_close(found.tolist(), expected, atol=2e-3, rtol=1e-4)
    assert cache.fits(64)


def test_slots_are_empty_again_after_a_failed_pass(built_in, spelled, monkeypatch):
    model = built_in.model
    cache = model.new_cache(2)
    monkeypatch.setattr(type(model), "logits", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        log_probabilities(model, cache, [0, 1], [2, 200, 201], spelled, STOPS)
    assert [cache.length(slot) for slot in (0, 1)] == [0, 0]
