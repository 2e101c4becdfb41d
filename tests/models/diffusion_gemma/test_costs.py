"""The costs of a network are compared with real models, and with the published 26B."""

import json
from pathlib import Path

import pytest
import torch

from dlm.kernels.gpus import CARDS
from dlm.models import ModelConfig, checkpoint, plan
from dlm.models.diffusion_gemma.layout import LAYOUT
from dlm.models.plan import Load
from dlm.models.quantise import quantise

EXAMPLES = Path(__file__).parents[3] / "examples"
BIG = ModelConfig.from_hf(json.loads((EXAMPLES / "diffusiongemma-26b-a4b.json").read_text()))
FOUR_BIT, HALF = (LAYOUT.unfilled(BIG, weights).costs for weights in ("nvfp4", "bf16"))
FILE = 18_818_050_776  # bytes of nvidia/diffusiongemma-26B-A4B-it-NVFP4
TOWER = 1.15e9  # bytes of its vision tower
_, RTX_5090, H100, _ = CARDS


def test_the_26b_has_25_2_billion_numbers_and_takes_what_its_file_takes():
    count = FOUR_BIT.parameters()
    assert count == HALF.parameters()
    assert sum(count.values()) / 1e9 == pytest.approx(25.2, abs=0.06)
    assert count["experts"] == 30 * 128 * 3 * 704 * 2816
    four_bit, half = FOUR_BIT.weight_bytes(), HALF.weight_bytes()
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
    counted = LAYOUT.unfilled(model.config, weights).costs.weight_bytes()
    assert counted == model.costs.weight_bytes()
    assert sum(counted.values()) == sum(tensor.nbytes for tensor in tensors)
    assert counted["embedding"] == model.embed_tokens.weight.nbytes
    numbers = sum(
        parameter.numel() for parameter in checkpoint.load(tmp_path / "floats").parameters()
    )
    scalars = 2 * len(model.layers)  # buffers
    assert sum(model.costs.parameters().values()) == numbers + scalars


def test_a_slot_s_state_is_an_embedding_and_a_token_for_each_position():
    assert FOUR_BIT.state_bytes() == 256 * (2816 * 2 + 8)


def test_logits_are_the_largest_transient_of_a_vocabulary_of_262_144():
    found = FOUR_BIT.transient_bytes(3)
    assert max(found, key=found.__getitem__) == "logits"
    assert found["logits"] == 3 * 256 * 262_144 * 2


def test_the_work_of_a_step_of_one_canvas_is_that_of_its_products():
    """Operations, in 10^12, are counted by hand: two a weight and row, four a pair in attention."""
    work = FOUR_BIT.step_work(Load(slots=1, context=2048))
    trillions = {name: part.operations / 1e12 for name, part in work.items()}
    assert trillions["experts"] == pytest.approx(256 * 8 * 30 * 3 * 704 * 2816 * 2 / 1e12)
    assert trillions["dense"] == pytest.approx(0.86, rel=0.01)
    assert trillions["vocabulary"] == pytest.approx(0.378, rel=0.01)
    seen = 25 * 256 * (1023 + 256) + 5 * 512 * (2048 + 256)  # keys times their numbers
    assert trillions["attention"] == pytest.approx(4 * 16 * 256 * seen / 1e12)
    far = FOUR_BIT.step_work(Load(slots=1, context=131_072))["attention"]
    assert far.operations / 1e12 == pytest.approx(5.6, rel=0.02)
    assert work["experts"].read == pytest.approx(12.85e9, rel=1e-3)
    assert work["dense"].read == pytest.approx(3.35e9, rel=1e-3)


def test_slots_share_only_weights():
    one, four = (FOUR_BIT.step_work(Load(slots=n, context=4096)) for n in (1, 4))
    for name, part in one.items():
        assert four[name].operations == 4 * part.operations
    assert four["dense"].read == one["dense"].read
    assert four["attention"].read == 4 * one["attention"].read
    assert one["vocabulary"].read < four["vocabulary"].read < 4 * one["vocabulary"].read


def test_experts_are_multiplied_at_the_rate_of_their_activations():
    """Counted by hand for 16 slots: 4,096 rows, 8 of 128 experts each. Other parts stay equal."""
    operations = 4096 * 8 * 30 * 3 * 704 * 2816 * 2
    loads = [Load(slots=16, context=2048, activation_bits=bits) for bits in (16, 4)]
    half, four = (
        [plan.step_times(FOUR_BIT, load, card) for load in loads] for card in (H100, RTX_5090)
    )
    assert half[0] == half[1], "an H100 multiplies four bits in bf16"
    assert four[0].pop("experts")["arithmetic"] == pytest.approx(1e3 * operations / 209.5e12)
    assert four[1].pop("experts")["arithmetic"] == pytest.approx(1e3 * operations / 1676e12)
    assert four[0].pop("step") > four[1].pop("step")
    assert four[0] == four[1]
