"""Plain decoders against transformers' Ministral 3 and Qwen 3, causal and with masks of blocks."""

import pytest
import torch
from plain_decoders import CANVAS, CLOSE, PAIRS, VOCABULARY, DecoderPair


@pytest.fixture(scope="module", params=PAIRS)
def decoders(request) -> DecoderPair:
    return PAIRS[request.param]()


def drawn(rng: torch.Generator, length: int) -> list[int]:
    return torch.randint(VOCABULARY, (length,), generator=rng).tolist()


@pytest.mark.parametrize("pieces", [[1], [40], [1, 30, 9], [17, 1, 1, 60]])
def test_encoded_states_are_those_of_transformers_in_whatever_pieces(decoders, rng, pieces):
    tokens, cache = drawn(rng, sum(pieces)), decoders.ours.new_cache(2)
    parts = torch.tensor(tokens).split(pieces)
    states = torch.cat([decoders.ours.encode([part.tolist()], cache, [1]) for part in parts])
    torch.testing.assert_close(states, decoders.states(tokens), **CLOSE)


@pytest.mark.parametrize("length", [0, 1, 16, 70])
def test_logits_of_a_canvas_are_those_of_transformers_with_a_full_mask_for_the_block(
    decoders, rng, length
):
    """Whether what is before it was cached earlier, or is encoded by the same pass."""
    tokens, canvas, model = drawn(rng, length), drawn(rng, CANVAS), decoders.ours
    expected = decoders.logits(decoders.states(tokens + canvas, CANVAS)[-CANVAS:])
    for early in {0, length // 2, length}:
        cache = model.new_cache(1)
        model.encode([tokens[:early]], cache, [0])
        for _ in range(2):  # a canvas leaves nothing in the cache
            encode = {0: tokens[cache.length(0) :]}
            logits = model.denoise(torch.tensor([canvas]), None, cache, [0], encode)
            torch.testing.assert_close(logits[0], expected, **CLOSE)


def test_a_pass_predicts_and_denoises_for_several_slots(decoders, rng):
    tokens = {2: drawn(rng, 20), 0: drawn(rng, 7)}
    canvas, last = torch.tensor([drawn(rng, CANVAS), drawn(rng, CANVAS)]), {2: 3, 0: 1}
    cache = decoders.ours.new_cache(3)
    logits, canvases = decoders.ours.predict_and_denoise(tokens, last, canvas, None, cache)
    expected = [decoders.logits(decoders.states(tokens[slot])[-n:]) for slot, n in last.items()]
    torch.testing.assert_close(logits, torch.cat(expected), **CLOSE)
    for got, slot, row in zip(canvases, last, canvas.tolist(), strict=True):
        states = decoders.states(tokens[slot] + row, CANVAS)[-CANVAS:]
        torch.testing.assert_close(got, decoders.logits(states), **CLOSE)


def test_a_canvas_sees_its_later_positions(decoders, rng):
    """Otherwise the parity of canvases would not show that they are bidirectional."""
    canvas = torch.tensor([drawn(rng, CANVAS)] * 2)
    canvas[1, -1] = (canvas[1, -1] + 1) % VOCABULARY
    logits = decoders.ours.denoise(canvas, None, decoders.ours.new_cache(2), [0, 1])
    assert (logits[0, 0] - logits[1, 0]).abs().max() > 1e-3


def test_a_soft_embedding_is_refused(decoders):
    canvas = torch.zeros(1, CANVAS, dtype=torch.long)
    soft = torch.zeros(1, CANVAS, decoders.ours.config.hidden_size)
    with pytest.raises(ValueError, match="reads no soft embeddings"):
        decoders.ours.denoise(canvas, soft, decoders.ours.new_cache(1), [0])
