"""Models whose blocks are cached whole, against the modules that define them."""

import pytest
import torch
from block_models import CLOSE, CONFIGS, Oracle

from dlm.models import checkpoint


@pytest.fixture(scope="module", params=CONFIGS)
def pair(request, tmp_path_factory):
    """Return an oracle and ours, read from the oracle's file."""
    oracle = Oracle(CONFIGS[request.param])
    return oracle, checkpoint.load(oracle.write(tmp_path_factory.mktemp("blocks")))


def drawn(rng: torch.Generator, blocks: int, block: int) -> list[int]:
    return torch.randint(61, (blocks * block,), generator=rng).tolist()


@pytest.mark.parametrize("pieces", [[1], [9], [2, 1, 5], [1, 1, 1]])
def test_states_are_those_of_the_definition_in_whatever_pieces(pair, pieces, rng):
    oracle, model = pair
    tokens, cache = drawn(rng, sum(pieces), oracle.block), model.new_cache(2)
    parts = torch.tensor(tokens).split([oracle.block * piece for piece in pieces])

    states = torch.cat([model.encode([part.tolist()], cache, [1]) for part in parts])

    torch.testing.assert_close(states, oracle.states(tokens), **CLOSE)
    torch.testing.assert_close(model.logits(states), oracle.logits(tokens), **CLOSE)


@pytest.mark.parametrize("blocks", [0, 1, 6])
def test_logits_of_a_canvas_are_those_of_the_last_block_cached_or_not(pair, blocks, rng):
    oracle, model = pair
    block = oracle.block
    tokens, canvas = drawn(rng, blocks, block), drawn(rng, 1, block)
    expected = oracle.logits(tokens + canvas)[-block:]
    for early in {0, blocks // 2, blocks}:
        cache = model.new_cache(1)
        model.encode([tokens[: early * block]], cache, [0])
        for _ in range(2):  # a canvas leaves nothing in the cache
            encode = {0: tokens[cache.length(0) :]}
            logits = model.denoise(torch.tensor([canvas]), None, cache, [0], encode)
            torch.testing.assert_close(logits[0], expected, **CLOSE)


def test_slots_of_one_pass_do_not_see_each_other(pair, rng):
    oracle, model = pair
    block, cache = oracle.block, model.new_cache(3)
    texts = {slot: drawn(rng, 1 + 2 * slot, block) for slot in range(3)}
    canvases = torch.tensor([drawn(rng, 1, block) for _ in texts])

    logits = model.denoise(canvases, None, cache, [2, 0, 1], texts)

    for row, slot in enumerate([2, 0, 1]):
        expected = oracle.logits(texts[slot] + canvases[row].tolist())[-block:]
        torch.testing.assert_close(logits[row], expected, **CLOSE)


def test_a_token_sees_its_block_and_none_after(pair, rng):
    """Otherwise the parity of states would prove nothing about blocks."""
    oracle, model = pair
    tokens, block = drawn(rng, 3, oracle.block), oracle.block
    states = model.encode([tokens], model.new_cache(1), [0])
    for changed, same in ((2 * block - 1, block), (2 * block, 2 * block)):
        other = tokens.copy()
        other[changed] = (tokens[changed] + 1) % 61
        found = model.encode([other], model.new_cache(1), [0])
        assert torch.equal(found[:same], states[:same])
        assert not torch.isclose(found[same : same + block], states[same : same + block]).all()
