"""Plans of the published 26B. Its costs have tests of their own, in `diffusion_gemma/`."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from exhaustive import by_default

from dlm.kernels.gpus import CARDS, FOUR_BIT_SMS
from dlm.models import ModelConfig, ModelError, plan
from dlm.models.diffusion_gemma.layout import LAYOUT
from dlm.models.pages import CHUNK, cache_bytes
from dlm.models.plan import Load

ROOT = Path(__file__).parents[2]
CONFIG_26B = json.loads((ROOT / "examples" / "diffusiongemma-26b-a4b.json").read_text())
BIG = ModelConfig.from_hf(CONFIG_26B)
FOUR_BIT, HALF = (LAYOUT.unfilled(BIG, weights).costs for weights in ("nvfp4", "bf16"))
GB = 10**9


@pytest.mark.parametrize(
    ("context", "full", "sliding"),
    [(0, 0, 0), (1, 16, 16), (1808, 1808, 1808), (1809, 1824, 1808), (100_000, 100_000, 1808)],
)
def test_sliding_layers_keep_their_window_a_canvas_and_what_a_pass_encodes(context, full, sliding):
    """1,023 + 256 + 512 tokens in pages of 16, the first and the last of which may be cut."""
    assert plan.cache_bytes(BIG, context, "fp8") == 102_400 * sliding + 10_240 * full


@pytest.mark.parametrize(
    ("memory", "context", "cache"),
    by_default(
        [
            (memories[i] * GB, context, cache)
            for memories in ((96, 32, 24), (24, 96, 32), (32, 24, 96))
            for cache in ("fp8", "bf16")
            for i, context in enumerate([0, 8192, 200_000])
        ],
        6,
    ),
)
def test_the_planned_slots_fit_and_no_more_do(memory, context, cache):
    def bytes_of(slots: int) -> int:
        return plan.total_bytes(FOUR_BIT, Load(slots=slots, context=context, cache=cache))

    slots = plan.slots_within(FOUR_BIT, Load(slots=1, context=context, cache=cache), memory)
    free = memory - plan.RESERVED
    assert bytes_of(slots + 1) > free
    assert slots == 0 or bytes_of(slots) <= free


def test_beside_weights_that_are_too_large_there_is_no_slot():
    assert plan.slots_within(HALF, Load(slots=1, context=0, weights="bf16"), 32 * GB) == 0


def test_the_time_of_a_step_is_the_sum_of_the_longer_bound_of_each_part():
    load = Load(slots=1, context=2048)
    by_hand = (7.17, 7.17, 4.28, 2.68), (1.87, 4.09, 1.143, 0.87)
    for card, experts, dense in zip(CARDS, *by_hand, strict=True):
        times = plan.step_times(FOUR_BIT, load, card)
        step = times.pop("step")
        longer = {name: max(part.values()) for name, part in times.items()}
        assert longer["experts"] == pytest.approx(experts, rel=2e-3)
        assert longer["dense"] == pytest.approx(dense, rel=5e-3)
        assert step == pytest.approx(sum(longer.values()))


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_a_card_has_a_rate_for_four_bits_where_kernels_multiply_them(card):
    assert (card.four_bit is not None) == (divmod(card.sm, 10) in FOUR_BIT_SMS)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"slots": 0}, "slots must be at least 1, got 0"),
        ({"context": -1}, "context must be at least 0 tokens, got -1"),
        ({"cache": "fp4"}, "'fp4' is none of"),
        ({"weights": "int4"}, "'int4' is none of"),
        ({"activation_bits": 8}, "activation_bits must be 4 or 16, got 8"),
        ({"weights": "bf16", "activation_bits": 4}, "=4 is for experts in nvfp4, not in bf16"),
    ],
)
def test_an_impossible_load_is_refused(wrong, message):
    with pytest.raises(ModelError, match=message):
        Load(**{"slots": 1, "context": 1, **wrong})


@pytest.mark.parametrize("stored", [torch.float8_e4m3fn, torch.bfloat16], ids=str)
@pytest.mark.parametrize("slots", [1, 16])
def test_a_cache_has_the_memory_that_a_step_leaves(stored, slots):
    """One token more, in whole pages, would not fit."""
    weights = sum(FOUR_BIT.weight_bytes().values())
    for free in (32 * GB - weights, 96 * GB - weights):
        tokens = plan.tokens_within(FOUR_BIT, slots, stored, free)
        step = max(FOUR_BIT.transient_bytes(slots).values()) + slots * FOUR_BIT.state_bytes()
        left = free - plan.RESERVED - step
        sizes = [cache_bytes(BIG, stored, t, slots, CHUNK) for t in (tokens, tokens + 1)]
        assert sizes[0] <= left < sizes[1] or tokens == slots * BIG.max_positions
        assert tokens > 10_000


def test_tokens_are_counted_from_a_gpu_s_free_memory_and_too_little_is_refused(monkeypatch):
    model = SimpleNamespace(device=torch.device("cuda"), costs=FOUR_BIT)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10 * GB, 96 * GB))
    tokens = plan.free_tokens(model.costs, model.device, 4, torch.float8_e4m3fn)
    assert tokens == plan.tokens_within(FOUR_BIT, 4, torch.float8_e4m3fn, 10 * GB)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2 * GB, 96 * GB))
    with pytest.raises(ModelError, match="64 slots: of the 2,000,000,000 bytes that are free on"):
        plan.free_tokens(model.costs, model.device, 64, torch.float8_e4m3fn)
    model.device = torch.device("cpu")
    assert plan.free_tokens(model.costs, model.device, 64, torch.float8_e4m3fn) is None
