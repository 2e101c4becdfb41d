"""Files of a checkpoint with any value in any field: an error that names file and field, or an
engine. Nothing else is raised, and no work grows with a number that is refused."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import edit_tensors
from exhaustive import by_default
from safetensors.torch import load_file

from dlm import DlmError, Engine
from dlm.chat import Chat
from dlm.config import DecodeConfig
from dlm.engine import BUILT_IN
from dlm.models import CheckpointError, ModelConfig, checkpoint
from dlm.models.diffusion_gemma.family import DIFFUSION_GEMMA
from dlm.models.json_files import read_json
from dlm.samplers import sampler_of
from dlm.writes import checkpoint_decoding

VALUES: dict[str, Any] = {
    "NaN": float("nan"),
    "infinity": float("inf"),
    "-infinity": float("-inf"),
    "-1": -1,
    "0": 0,
    "10^18": 10**18,
    "10^40": 10**40,
    "0.5": 0.5,
    "text": "x",
    "null": None,
    "list": [],
    "object": {},
    "true": True,
}
TEXT_FIELDS = (
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "
    "num_key_value_heads num_global_key_value_heads head_dim global_head_dim num_experts "
    "top_k_experts moe_intermediate_size sliding_window max_position_embeddings rms_norm_eps "
    "final_logit_softcapping layer_types rope_parameters per_layer_config"
).split()
GENERATION_FIELDS = (
    "max_denoising_steps t_min t_max confidence_threshold pad_token_id eos_token_id bos_token_id "
    "sampler_config max_new_tokens temperature top_k top_p min_p repetition_penalty"
).split()
TOKENIZER_FIELDS = (
    "tokenizer_class bos_token eos_token pad_token unk_token model_max_length chat_template "
    "added_tokens_decoder extra_special_tokens auto_map"
).split()
OFTEN_FINE = {"null", "0.5", "0", "list", "object", "true", "text"}  # for some fields


def linked(tmp_path: Path, *files: str) -> Path:
    """Return a copy of the built-in directory with links but for `files`."""
    directory = tmp_path / "model"
    shutil.copytree(BUILT_IN, directory, copy_function=os.symlink)
    for file in files:
        (directory / file).unlink()
        shutil.copy(BUILT_IN / file, directory / file)
    return directory


def changed(tmp_path: Path, file: str, change: dict[str, Any], inside: str | None = None) -> Path:
    """Return a copy of the built-in directory with `change` in a file, or in an object of it."""
    directory = linked(tmp_path, file)
    path = directory / file
    content = json.loads(path.read_text())
    (content[inside] if inside else content).update(change)
    path.write_text(json.dumps(content))
    return directory


def refusal(read: Any) -> str | None:
    """Return the text of the error with which `read` fails; None if it does not."""
    try:
        read()
    except DlmError as error:
        text = str(error)
        assert "\n" not in text
        assert "trust_remote_code" not in text
        return text
    return None


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("field", [*TEXT_FIELDS, "canvas_length"])
def test_any_value_in_a_field_of_the_config_is_read_or_refused_by_name(tmp_path, field, value):
    inside = None if field == "canvas_length" else "text_config"
    directory = changed(tmp_path, "config.json", {field: VALUES[value]}, inside)
    text = refusal(lambda: ModelConfig.from_hf(read_json(directory / "config.json")))
    if text is None:
        assert value in OFTEN_FINE
    else:
        assert "config.json" in text
        known = {
            "global_head_dim": "head_dim",
            "num_global_key_value_heads": "key_value_heads",
            "layer_types": "per_layer_config",  # they do not fit each other
        }
        names = (field, known.get(field, field), field.replace("num_", ""))
        assert any(name in text for name in names), text


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("field", ["rope_theta", "factor", "partial_rotary_factor", "rope_type"])
def test_any_value_in_a_rotary_embedding_is_read_or_refused_by_name(tmp_path, field, value):
    rope = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0, field: VALUES[value]}
    ropes = {"sliding_attention": {"rope_theta": 1e4}, "full_attention": rope}
    directory = changed(tmp_path, "config.json", {"rope_parameters": ropes}, "text_config")
    text = refusal(lambda: ModelConfig.from_hf(read_json(directory / "config.json")))
    if text is None:
        assert value in OFTEN_FINE
    else:
        assert "config.json" in text
        assert field in text or "rope" in text


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("field", [*GENERATION_FIELDS, "dlm", "entropy_bound"])
def test_any_value_in_a_setting_of_generation_is_read_or_refused_by_name(tmp_path, field, value):
    change = {field: VALUES[value]}
    if field == "entropy_bound":
        change = {"sampler_config": change}
    path = changed(tmp_path, "generation_config.json", change) / "generation_config.json"

    def read():
        settings = read_json(path)
        sampler = sampler_of(*DIFFUSION_GEMMA.sampler({}, settings))
        DecodeConfig.from_hf(settings, sampler=sampler)
        checkpoint_decoding({}, settings)

    text = refusal(read)
    if text is None:
        assert value in OFTEN_FINE | {"10^18", "10^40"} - {"text"}
    else:
        assert "generation_config.json" in text
        assert field in text


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("field", ["dlm", "decoding"])
def test_any_value_in_the_name_of_a_decoding_is_read_or_refused_by_name(field, value):
    own = {"dlm": VALUES[value] if field == "dlm" else {field: VALUES[value]}}
    text = refusal(lambda: checkpoint_decoding(own, {}))
    assert value in OFTEN_FINE if text is None else "config.json: dlm.decoding" in text


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("field", TOKENIZER_FIELDS)
def test_any_value_in_a_setting_of_the_tokenizer_is_read_or_refused(tmp_path, field, value):
    directory = changed(tmp_path, "tokenizer_config.json", {field: VALUES[value]})
    (directory / "chat_template.jinja").unlink()
    text = refusal(lambda: Chat.load(directory))
    if text is not None:
        assert "model" in text
    else:
        assert value in OFTEN_FINE | {"-1", "10^18", "10^40"}


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("config.json", DEEP, "nested too deeply"),
        ("config.json", '{"a": ' * 70 + "1" + "}" * 70, "nested too deeply: at most 64 levels"),
        ("config.json", "[]", "holds no JSON object"),
        ("config.json", '{"a": 1e999}', "a must be a finite number, got Infinity"),
        ("config.json", '{"a": [{"b": NaN}]}', "a.0.b must be a finite number, got NaN"),
        ("config.json", '{"a": ' + "1" * 5000 + "}", "it holds an integer of 5000 digits"),
        ("config.json", "\x00", "cannot be read"),
        ("generation_config.json", DEEP, "nested too deeply"),
        ("tokenizer_config.json", DEEP, "nested too deeply"),
        ("tokenizer.json", "{}", "tokenizer.json has no 'model'"),
        ("tokenizer.json", "[]", "tokenizer.json must hold an object, got []"),
        ("tokenizer.json", DEEP, "tokenizer.json is no JSON"),
        ("tokenizer.json", "", "tokenizer.json is no JSON"),
    ],
)
def test_a_file_that_is_no_such_file_is_named(tmp_path, file, content, problem):
    directory = linked(tmp_path, file)
    (directory / file).write_text(content)
    text = refusal(lambda: Engine.load(directory, device="cpu").close())
    assert text is not None
    assert file in text
    assert problem in text


def test_a_program_in_a_tokenizer_is_never_run_and_not_advised(tmp_path):
    auto = {"auto_map": {"AutoTokenizer": ["mine.Tokenizer", None]}, "tokenizer_class": "Mine"}
    directory = changed(tmp_path, "tokenizer_config.json", auto)
    (directory / "mine.py").write_text("raise SystemExit('run')")
    text = refusal(lambda: Chat.load(directory))
    assert text is not None
    assert "which is never run" in text


@pytest.mark.parametrize("token", [1536, 10**9, 2**32 - 1])
def test_a_token_beyond_the_embedding_is_refused_before_memory_grows_with_its_id(tmp_path, token):
    directory = linked(tmp_path, "tokenizer.json")
    path = directory / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["vocab"]["zzzz"] = token
    path.write_text(json.dumps(content))
    with pytest.raises(DlmError, match=rf"1 of its 1,537 pieces .* such as {token}"):
        Engine.load(directory, device="cpu")


WEIGHT = "model.decoder.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 1e39])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_weight_that_is_no_number_is_refused_with_its_tensor(tmp_path, value, dtype):
    directory = shutil.copytree(BUILT_IN, tmp_path / "model")

    def edit(tensors: dict[str, torch.Tensor]) -> None:
        tensors[WEIGHT] = tensors[WEIGHT].to(dtype)
        tensors[WEIGHT][3, 5] = value

    edit_tensors(directory, edit)
    if value == 1e39 and dtype == torch.bfloat16:
        value = load_file(directory / "model.safetensors")[WEIGHT][3, 5].item()
    with pytest.raises(CheckpointError, match=rf"model\.safetensors: {WEIGHT} holds NaN or inf"):
        checkpoint.load(directory)


def test_scales_of_eight_bits_that_are_no_numbers_are_found():
    scales = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    finite = [checkpoint.all_finite(scales[i : i + 1]) for i in range(256)]
    assert finite == scales.float().isfinite().tolist()
    assert finite.count(False) == 2


def header(text: str, size: int | None = None) -> bytes:
    return (len(text) if size is None else size).to_bytes(8, "little") + text.encode()


TWO = '{{"a": {{"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, "b": {}}}'
BROKEN = {
    "cut off": lambda raw: raw[: len(raw) // 2],
    "cut within its header": lambda raw: raw[:100],
    "empty": lambda raw: b"",
    "a header of 2^60 bytes": lambda raw: header("{}", 2**60),
    "a header that is no JSON": lambda raw: header("{" * 1000),
    "a type that does not exist": lambda raw: (
        header(TWO.format('{"dtype": "F99", "shape": [1], "data_offsets": [4, 8]}')) + bytes(8)
    ),
    "tensors that overlap": lambda raw: (
        header(TWO.format('{"dtype": "F32", "shape": [1], "data_offsets": [2, 6]}')) + bytes(6)
    ),
    "sizes that overflow": lambda raw: (
        header(TWO.format(f'{{"dtype": "F32", "shape": [{2**62}, 8], "data_offsets": [4, 8]}}'))
        + bytes(8)
    ),
    "a shape of another size": lambda raw: (
        header(TWO.format('{"dtype": "F32", "shape": [5], "data_offsets": [4, 8]}')) + bytes(8)
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_of_weights_that_is_broken_is_named(tmp_path, name):
    directory = shutil.copytree(BUILT_IN, tmp_path / "model")
    path = directory / "model.safetensors"
    path.write_bytes(BROKEN[name](path.read_bytes()))
    with pytest.raises(CheckpointError) as error:
        checkpoint.load(directory)
    assert "model.safetensors" in str(error.value)


@pytest.mark.parametrize("weight_map", [None, [], {}, {"a": 5}, {"a": "../x"}, {"a": "/etc/hosts"}])
def test_an_index_of_shards_names_files_of_its_own_directory(tmp_path, weight_map):
    directory = linked(tmp_path)
    (directory / "model.safetensors").unlink()
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json: weight_map"):
        checkpoint.load(directory)


@pytest.mark.parametrize("seed", by_default(range(40), 4))
def test_random_changes_of_all_files_raise_nothing_else(tmp_path, seed):
    rng = torch.Generator().manual_seed(seed)

    def one_of(values: Any) -> Any:
        return [*values][int(torch.randint(len(values), (), generator=rng))]

    files = "config.json", "generation_config.json", "tokenizer_config.json"
    directory = linked(tmp_path, *files)
    for file in files:
        path = directory / file
        content = json.loads(path.read_text())
        for _ in range(int(torch.randint(3, (), generator=rng))):
            target = content
            while isinstance(inner := target[name := one_of(target)], dict) and inner:
                target = inner
            target[name] = VALUES[one_of(VALUES)]
        path.write_text(json.dumps(content))
    refusal(lambda: Engine.load(directory, device="cpu").close())
