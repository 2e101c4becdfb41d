"""Small random checkpoints of Nemotron-Labs-Diffusion, written in all three ways under a schema."""

import json
import shutil
from random import Random as Dice

import jsonschema
import nemotron
import pytest
import torch
from exhaustive import by_default
from nemotron import CONFIG
from training.extraction import extract

from dlm import Autoregressive, Engine, JsonSchema, Request
from dlm.engine import BUILT_IN
from dlm.models import CheckpointError
from dlm.samplers import Reveal
from dlm.storage import read_directory

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"enum": [1, 20]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
REQUESTS = [Request(prompt=f"Who is {n}?", constraint=JsonSchema(SCHEMA)) for n in ("Ada", "Bo")]
DECODINGS = {
    "canvas": None,
    "drafted": Autoregressive(drafts=True),
    "left-to-right": Autoregressive(),
}


def complete(directory):
    """Copy the built-in model's tokenizer beside a checkpoint, and return its directory."""
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(BUILT_IN / name, directory)
    return directory


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return complete(nemotron.write(tmp_path_factory.mktemp("nemotron")))


def answers(directory, decoding, requests):
    engine = Engine.load(directory, slots=2, device="cpu", decoding=DECODINGS[decoding])
    try:
        return engine.generate(requests)
    finally:
        engine.close()


@pytest.mark.parametrize("decoding", by_default(DECODINGS, 2))
def test_answers_are_valid(directory, decoding):
    for result in answers(directory, decoding, REQUESTS):
        jsonschema.validate(json.loads(result.text), SCHEMA)
        assert result.finish_reason == "stop"
        assert CONFIG["mask_token_id"] not in result.token_ids


@pytest.mark.parametrize("adapted", by_default([True, False]))
def test_a_drafted_answer_is_that_left_to_right_token_for_token(directory, tmp_path, adapted):
    drafting = shutil.copytree(directory, tmp_path / "drafting")
    if adapted:
        nemotron.write_adapter(drafting)
    free = [Request(prompt="Who is Ada?", max_tokens=40)]
    plain, drafted = (
        answers(where, decoding, REQUESTS + free)
        for where, decoding in ((directory, "left-to-right"), (drafting, "drafted"))
    )
    assert [each.token_ids for each in plain] == [each.token_ids for each in drafted]
    assert all(each.stats.denoiser_calls for each in drafted)


@pytest.mark.parametrize(("prompts", "adapted"), by_default([(4, True), (200, True), (200, False)]))
def test_drafts_that_are_kept_in_part_change_no_token(tmp_path, prompts, adapted):
    """Under a schema and free, in turns."""
    directory = complete(nemotron.write_wavering(tmp_path))
    if adapted:
        nemotron.write_adapter(directory)
    items = [extract(Dice(f"drafted/{i}"), "heldout") for i in range(prompts)]
    requests = [
        Request(prompt=item.prompt, constraint=JsonSchema(item.schema), max_tokens=128)
        if i % 2
        else Request(prompt=item.prompt, max_tokens=24)
        for i, item in enumerate(items)
    ]
    plain, drafted = (answers(directory, d, requests) for d in ("left-to-right", "drafted"))
    assert [each.token_ids for each in plain] == [each.token_ids for each in drafted]
    for some in drafted[::2], drafted[1::2]:
        assert 0 < sum(r.stats.drafts_kept for r in some) <= sum(r.stats.drafted for r in some)
    assert any(r.stats.drafts_kept < r.stats.drafted for r in drafted)


@pytest.mark.parametrize("adapted", by_default([True, False]))
def test_drafts_that_agree_with_what_verifies_them_save_passes(tmp_path, adapted):
    """The model repeats one token, since all its states are nearly the same. Masks are what it
    likes best, but it cannot write them."""
    named = nemotron.tensors()
    constant = torch.randn(CONFIG["hidden_size"], generator=torch.Generator().manual_seed(5))
    named["encoder.embed_tokens.weight"] += 40 * constant
    gain = named["encoder.norm.weight"]
    for token, logit in ((CONFIG["mask_token_id"], 90), (600, 60)):
        named["diffusion_head.weight"][token] = logit * constant / gain / constant.square().sum()
    nemotron.write_tensors(complete(nemotron.write(tmp_path)), named)
    if adapted:
        nemotron.write_adapter(tmp_path)
    again = [Request(prompt="Again", max_tokens=60)]
    (plain,), (drafted,) = (answers(tmp_path, d, again) for d in ("left-to-right", "drafted"))
    assert plain.token_ids == drafted.token_ids == [600] * 60
    assert plain.stats.causal_calls == 60
    assert drafted.stats.causal_calls <= 2 + 60 // CONFIG["block_size"]


def test_the_sampler_has_the_checkpoint_s_mask_and_stops_are_its_own(tmp_path):
    directory = nemotron.write(tmp_path)
    config = read_directory(directory).config
    assert config.sampler == Reveal(mask=CONFIG["mask_token_id"], threshold=0.9)
    assert config.stops == (1,)
    (directory / "generation_config.json").unlink()
    assert read_directory(directory).config.stops == (11,)


def test_a_mask_that_is_no_token_is_refused(tmp_path):
    complete(nemotron.write(tmp_path, mask_token_id=-1))
    with pytest.raises(CheckpointError, match=r"config\.json: mask_token_id must be an integer"):
        read_directory(tmp_path)
