"""Settings of the loop: defaults, those of a checkpoint, and refusals."""

import json
import shutil

import pytest
from doubles import Obsessed
from published_configs import PUBLISHED
from transformers.models.diffusion_gemma.generation_diffusion_gemma import (
    DiffusionGemmaGenerationConfig,
)
from values import PROMPT, V

from dlm import Autoregressive, DecodeConfig, Diffusion, DlmError, Engine, Policy, Request
from dlm.engine import BUILT_IN
from dlm.loading import Loading
from dlm.models.diffusion_gemma.family import DIFFUSION_GEMMA
from dlm.samplers import EntropyBound, Reveal, register, sampler_of
from dlm.storage import read_directory
from dlm.writes import checkpoint_decoding


def test_the_defaults_are_those_of_transformers():
    theirs = DiffusionGemmaGenerationConfig._get_default_generation_params()
    ours = EntropyBound()
    assert ours.max_steps == theirs["max_denoising_steps"]
    assert ours.entropy_bound == theirs["sampler_config"].entropy_bound
    assert (ours.t_min, ours.t_max) == (theirs["t_min"], theirs["t_max"])
    assert ours.confidence == theirs["confidence_threshold"]


def test_settings_of_a_checkpoint_are_used():
    config = read_directory(BUILT_IN).config
    assert config.sampler == EntropyBound(max_steps=24, confidence=0.02)
    assert config.stops == (1, 106, 50)
    assert DecodeConfig.from_hf({"eos_token_id": 7}).stops == (7,)
    assert DecodeConfig.from_hf({}) == DecodeConfig()


@pytest.mark.parametrize(
    ("kind", "fields", "problem"),
    [
        (EntropyBound, {"max_steps": 0}, "max_steps must be at least 1, got 0"),
        (EntropyBound, {"entropy_bound": 0.0}, "entropy_bound must be more than 0 nats, got 0.0"),
        (EntropyBound, {"confidence": -1.0}, "confidence must be more than 0 nats, got -1.0"),
        (EntropyBound, {"t_min": 0.9}, "0 < t_min <= t_max, got 0.9 and 0.8"),
        (EntropyBound, {"t_min": 0.0}, "t_min and t_max must"),
        (DecodeConfig, {"sampler": 3}, "sampler must be a Sampler, got a int"),
        (DecodeConfig, {"patience": 0}, "patience must be at least 1, got 0"),
        (DecodeConfig, {"stops": ()}, "stops is empty"),
        (DecodeConfig, {"stops": ("a",)}, "stops must be an id of a token, got 'a'"),
        (DecodeConfig, {"pad": "x"}, "pad must be an id of a token, got 'x'"),
        (DecodeConfig, {"excluded": (3, -1)}, "excluded must be an id of a token, got -1"),
    ],
)
def test_impossible_settings_are_refused(kind, fields, problem):
    with pytest.raises(DlmError, match=problem):
        kind(**fields)


def test_a_sampler_is_chosen_by_its_name():
    assert sampler_of("entropy_bound", {"max_steps": 3}) == EntropyBound(max_steps=3)
    with pytest.raises(DlmError, match=r"sampler must be one of .*entropy_bound.*, got 'tosses'"):
        sampler_of("tosses", {})
    register("entropy_bound", EntropyBound)  # again: nothing changes
    with pytest.raises(DlmError, match="sampler 'entropy_bound' is registered already"):
        register("entropy_bound", object)


@pytest.mark.parametrize("decoding", [Diffusion(), Autoregressive(drafts=True)])
def test_a_stop_token_cannot_be_the_padding_of_canvases(engine_of, decoding):
    config = DecodeConfig(pad=106)
    with pytest.raises(DlmError, match="pad 106 is a stop token too"):
        engine_of(Obsessed(V, [300]), config, decoding=decoding)
    assert engine_of(Obsessed(V, [300]), config, decoding=Autoregressive()).config.pad == 106


def test_a_stop_token_may_be_the_padding_of_masked_canvases(engine_of):
    """Published masked models pad with the end of a text."""
    config = DecodeConfig(pad=106, sampler=Reveal(mask=4))
    assert engine_of(Obsessed(V, [300]), config, decoding=Diffusion()).config.pad == 106


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_masked_models_have_their_mask_and_the_thresholds_of_the_file(name, tmp_path):
    generation = {"eos_token_id": [151645, 151643], "pad_token_id": 151643, "edit_threshold": 0.25}
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED[name]))
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    config = read_directory(tmp_path).config
    mask = 151669 if name.startswith("SDAR") else 156895
    assert config.sampler == Reveal(mask=mask, threshold=0.95, edit_threshold=0.25)
    assert (config.stops, config.pad) == ((151645, 151643), 151643)
    (tmp_path / "generation_config.json").write_text('{"threshold": 1.5}')
    with pytest.raises(DlmError, match="threshold must be a number from 0"):
        read_directory(tmp_path)


def test_tokens_by_which_a_block_is_edited_are_excluded(tmp_path):
    def settings(**fields):
        (tmp_path / "config.json").write_text(json.dumps(PUBLISHED["LLaDA2.1-mini"] | fields))
        return read_directory(tmp_path).config

    assert settings(delete_token_id=156930, split_token_id=156931).excluded == (156930, 156931)
    assert settings().excluded == ()
    with pytest.raises(DlmError, match=r"split_token_id must be at most the last token, .* 157183"):
        settings(split_token_id=157184)


@pytest.mark.parametrize(
    "decoding", [Diffusion(), Autoregressive(), Autoregressive(drafts=True)], ids=str
)
def test_an_excluded_token_is_never_written_though_the_model_prefers_it(engine_of, decoding):
    def written(*excluded):
        config = DecodeConfig(excluded=excluded)
        engine = engine_of(Obsessed(V, [300]), config, decoding=decoding)
        assert engine.vocabulary.control >= {*excluded}
        return engine.generate(Request(token_ids=PROMPT, max_tokens=20)).token_ids

    assert 300 in written()
    tokens = written(300)
    assert tokens
    assert 300 not in tokens
    with pytest.raises(DlmError, match=f"excluded must be one of the model's {V} tokens, got {V}"):
        written(V)


def test_an_error_names_the_file_that_has_a_field_of_the_wrong_type():
    with pytest.raises(
        DlmError, match=r"generation_config\.json: sampler_config must be an object"
    ):
        DIFFUSION_GEMMA.sampler({}, {"sampler_config": 3})


@pytest.mark.parametrize("name", ["drafted", "left-to-right", "canvas"])
def test_the_decoding_that_a_checkpoint_names_is_the_default(tmp_path, name):
    shutil.copytree(BUILT_IN, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dlm": {"decoding": name}}))

    assert Engine.load(tmp_path, device="cpu").decoding.name == name
    assert Engine.load(tmp_path, device="cpu", decoding="canvas").decoding.name == "canvas"
    assert Engine.load(tmp_path, device="cpu", decoding=Autoregressive()).decoding.drafts is False
    engine = Engine.loaded(Loading(policy=Policy(), model=str(tmp_path), device="cpu"))
    assert engine.decoding.name == name


def test_a_checkpoint_that_names_no_decoding_writes_canvases():
    assert checkpoint_decoding({}, {}) == checkpoint_decoding({"dlm": {}}, {}) == "canvas"


@pytest.mark.parametrize("own", [{"decoding": "sideways"}, {"decoding": 3}, "drafted", [1]])
def test_an_unknown_decoding_of_a_checkpoint_is_refused(own):
    with pytest.raises(DlmError, match=r"config.json: dlm.decoding must be one of canvas, .* got "):
        checkpoint_decoding({"dlm": own}, {})


def test_a_decoding_in_the_wrong_file_is_refused(tmp_path):
    shutil.copytree(BUILT_IN, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "generation_config.json"
    own = {"dlm": {"decoding": "canvas"}}
    path.write_text(json.dumps(json.loads(path.read_text()) | own))
    with pytest.raises(DlmError, match=r"generation_config.json: the field dlm must be in config"):
        Engine.load(tmp_path, device="cpu")
