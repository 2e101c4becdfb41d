"""Plans are compared with real models, and with the published 26B."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from exhaustive import by_default

from dlm.kernels.gpus import CARDS, FOUR_BIT_SMS
from dlm.models import ModelConfig, ModelError, checkpoint, plan
from dlm.models.pages import CHUNK, cache_bytes
from dlm.models.plan import Load
from dlm.models.quantise import quantise

ROOT = Path(__file__).parents[2]
CONFIG_26B = json.loads((ROOT / "examples" / "diffusiongemma-26b-a4b.json").read_text())
BIG = ModelConfig.from_hf(CONFIG_26B)
SLIDING, FULL = "sliding_attention", "full_attention"
FILE = 18_818_050_776  # bytes of nvidia/diffusiongemma-26B-A4B-it-NVFP4
TOWER = 1.15e9  # bytes of its vision tower
GB = 10**9
_, RTX_5090, H100, _ = CARDS


def test_the_26b_has_25_2_billion_numbers_and_takes_what_its_file_takes():
    count = plan.parameters(BIG)
    assert sum(count.values()) / 1e9 == pytest.approx(25.2, abs=0.06)
    assert count["experts"] == 30 * 128 * 3 * 704 * 2816
    four_bit, half = plan.weight_bytes(BIG, "nvfp4"), plan.weight_bytes(BIG, "bf16")
    assert sum(four_bit.values()) + TOWER == pytest.approx(FILE, rel=2e-3)
    assert half == {part: 2 * numbers for part, numbers in count.items()}
    assert four_bit["experts"] == count["experts"] * 9 / 16 + 30 * 128 * 3 * 4
    assert {**four_bit, "experts": 0} == {**half, "experts": 0}


@pytest.mark.parametrize("weights", ["bf16", "nvfp4"])
def test_bytes_of_weights_are_those_of_a_loaded_model(weights, reference, tmp_path):
    reference.make(tmp_path / "floats", moe_intermediate_size=48)
    directory = tmp_path / "floats"
    if weights == "nvfp4":
        directory = tmp_path / "quantised"
        quantise(tmp_path / "floats", directory, canvases=0)
    model = checkpoint.load(directory, dtype=torch.bfloat16)
    tensors = model.state_dict().values()
    counted = plan.weight_bytes(model.config, weights)
    assert sum(counted.values()) == sum(tensor.nbytes for tensor in tensors)
    assert counted["embedding"] == model.embed_tokens.weight.nbytes
    numbers = sum(
        parameter.numel() for parameter in checkpoint.load(tmp_path / "floats").parameters()
    )
    scalars = 2 * len(model.layers)  # buffers
    assert sum(plan.parameters(model.config).values()) == numbers + scalars


def test_bytes_of_a_token_s_keys_and_values_are_counted_by_kind_of_layer():
    assert plan.cache_per_token(BIG, "bf16") == {SLIDING: 25 * 8 * 256 * 4, FULL: 5 * 2 * 512 * 4}
    assert plan.cache_per_token(BIG, "fp8") == {SLIDING: 25 * 8 * 256 * 2, FULL: 5 * 2 * 512 * 2}


@pytest.mark.parametrize(
    ("context", "full", "sliding"),
    [(0, 0, 0), (1, 16, 16), (1808, 1808, 1808), (1809, 1824, 1808), (100_000, 100_000, 1808)],
)
def test_sliding_layers_keep_their_window_a_canvas_and_what_a_pass_encodes(context, full, sliding):
    """1,023 + 256 + 512 tokens in pages of 16, the first and the last of which may be cut."""
    assert plan.cache_bytes(BIG, context, "fp8") == 102_400 * sliding + 10_240 * full


def test_a_slot_s_state_is_an_embedding_and_a_token_for_each_position():
    assert plan.state_bytes(BIG) == 256 * (2816 * 2 + 8)


def test_logits_are_the_largest_transient_of_a_vocabulary_of_262_144():
    found = plan.transient_bytes(BIG, 3)
    assert max(found, key=found.__getitem__) == "logits"
    assert found["logits"] == 3 * 256 * 262_144 * 2


@pytest.mark.parametrize(
    ("memory", "slots", "context", "cache"),
    by_default(
        [
            (memories[i] * GB, *load, cache)
            for memories in ((96, 32, 24), (24, 96, 32), (32, 24, 96))
            for cache in ("fp8", "bf16")
            for i, load in enumerate([(1, 0), (4, 8192), (8, 200_000)])
        ],
        6,
    ),
)
def test_the_planned_capacity_fits_and_no_more_does(memory, slots, context, cache):
    load = {"cache": cache, "weights": "nvfp4"}
    capacity = plan.capacity(BIG, Load(slots=slots, context=context, **load), memory)
    left = memory - plan.RESERVED

    def takes(slots: int, context: int) -> int:
        return plan.total_bytes(BIG, Load(slots=slots, context=context, **load))

    assert takes(capacity.slots + 1, context) > left
    if capacity.slots:
        assert takes(capacity.slots, context) <= left
    if capacity.context is None:
        assert takes(slots, 0) > left
    else:
        assert takes(slots, capacity.context) <= left
        assert capacity.context == BIG.max_positions or takes(slots, capacity.context + 1) > left


def test_the_capacity_beside_weights_that_are_too_large_is_none():
    capacity = plan.capacity(BIG, Load(slots=1, context=0, weights="bf16"), 32 * GB)
    assert (capacity.slots, capacity.context) == (0, None)


def test_the_work_of_a_step_of_one_canvas_is_that_of_its_products():
    """Operations, in 10^12, are counted by hand: two a weight and row, four a pair in attention."""
    work = plan.step_work(BIG, Load(slots=1, context=2048))
    trillions = {name: part.operations / 1e12 for name, part in work.items()}
    assert trillions["experts"] == pytest.approx(256 * 8 * 30 * 3 * 704 * 2816 * 2 / 1e12)
    assert trillions["dense"] == pytest.approx(0.86, rel=0.01)
    assert trillions["vocabulary"] == pytest.approx(0.378, rel=0.01)
    seen = 25 * 256 * (1023 + 256) + 5 * 512 * (2048 + 256)  # keys times their numbers
    assert trillions["attention"] == pytest.approx(4 * 16 * 256 * seen / 1e12)
    far = plan.step_work(BIG, Load(slots=1, context=131_072))["attention"]
    assert far.operations / 1e12 == pytest.approx(5.6, rel=0.02)
    assert work["experts"].read == pytest.approx(12.85e9, rel=1e-3)
    assert work["dense"].read == pytest.approx(3.35e9, rel=1e-3)


def test_slots_share_only_weights():
    one, four = (plan.step_work(BIG, Load(slots=n, context=4096)) for n in (1, 4))
    for name, part in one.items():
        assert four[name].operations == 4 * part.operations
    assert four["dense"].read == one["dense"].read
    assert four["attention"].read == 4 * one["attention"].read
    assert one["vocabulary"].read < four["vocabulary"].read < 4 * one["vocabulary"].read


def test_the_time_of_a_step_is_the_sum_of_the_longer_bound_of_each_part():
    load = Load(slots=1, context=2048)
    by_hand = (7.17, 7.17, 4.28, 2.68), (1.87, 4.09, 1.143, 0.87)
    for card, experts, dense in zip(CARDS, *by_hand, strict=True):
        times = plan.step_times(BIG, load, card)
        step = times.pop("step")
        longer = {name: max(part.values()) for name, part in times.items()}
        assert longer["experts"] == pytest.approx(experts, rel=2e-3)
        assert longer["dense"] == pytest.approx(dense, rel=5e-3)
        assert step == pytest.approx(sum(longer.values()))


def test_experts_are_multiplied_at_the_rate_of_their_activations():
    """Counted by hand for 16 slots: 4,096 rows, 8 of 128 experts each. Other parts stay equal."""
    operations = 4096 * 8 * 30 * 3 * 704 * 2816 * 2
    loads = [Load(slots=16, context=2048, activation_bits=bits) for bits in (16, 4)]
    half, four = ([plan.step_times(BIG, load, card) for load in loads] for card in (H100, RTX_5090))
    assert half[0] == half[1], "an H100 multiplies four bits in bf16"
    assert four[0].pop("experts")["arithmetic"] == pytest.approx(1e3 * operations / 209.5e12)
    assert four[1].pop("experts")["arithmetic"] == pytest.approx(1e3 * operations / 1676e12)
    assert four[0].pop("step") > four[1].pop("step")
    assert four[0] == four[1]


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_a_card_has_a_rate_for_four_bits_where_kernels_multiply_them(card):
    assert (card.four_bit is not None) == (divmod(card.sm, 10) in FOUR_BIT_SMS)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"slots": 0}, "slots is 0: it takes at least 1"),
        ({"context": -1}, "context is -1: it takes 0 or more"),
        ({"cache": "fp4"}, "'fp4' is none of"),
        ({"weights": "int4"}, "'int4' is none of"),
        ({"activation_bits": 8}, "activation_bits is 8: it takes 4 or 16"),
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
    weights = sum(plan.weight_bytes(BIG, "nvfp4").values())
    for free in (32 * GB - weights, 96 * GB - weights):
        tokens = plan.tokens_within(BIG, slots, stored, free)
        step = max(plan.transient_bytes(BIG, slots).values()) + slots * plan.state_bytes(BIG)
        left = free - plan.RESERVED - step
        sizes = [cache_bytes(BIG, stored, t, slots, CHUNK) for t in (tokens, tokens + 1)]
        assert sizes[0] <= left < sizes[1] or tokens == slots * BIG.max_positions
        assert tokens > 10_000


def test_tokens_are_counted_from_a_gpu_s_free_memory_and_too_little_is_refused(monkeypatch):
    model = SimpleNamespace(device=torch.device("cuda"), config=BIG)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10 * GB, 96 * GB))
    tokens = plan.free_tokens(model, 4, torch.float8_e4m3fn)
    assert tokens == plan.tokens_within(BIG, 4, torch.float8_e4m3fn, 10 * GB)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2 * GB, 96 * GB))
    with pytest.raises(ModelError, match="64 slots: of the 2,000,000,000 bytes that are free on"):
        plan.free_tokens(model, 64, torch.float8_e4m3fn)
    model.device = torch.device("cpu")
    assert plan.free_tokens(model, 64, torch.float8_e4m3fn) is None
