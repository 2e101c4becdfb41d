"""The engine on the built-in model: what it writes by itself, and under a constraint."""

import json
import shutil
from random import Random

import jsonschema
import pytest
import torch
from training import directory, steps
from training.extraction import extract
from training.lessons import choice, tool_call

from dlm import BackendError, Choice, Engine, JsonSchema, Request
from dlm.engine import BUILT_IN
from dlm.models import ModelConfig


@pytest.fixture(scope="module")
def tasks():
    return [extract(Random(f"built in/{i}"), "heldout") for i in range(5)]


def test_a_code_fence_that_the_model_writes_by_itself_is_prevented(built_in, tasks):
    """vLLM #45436, second reproduction. Each prompt ends in the beginning of a fenced answer."""
    prompts = [f"{task.prompt} ```json" for task in tasks]
    free = built_in.generate([Request(prompt=p, seed=i) for i, p in enumerate(prompts)])
    fenced = [i for i, result in enumerate(free) if result.text.startswith("```")]
    assert fenced
    bound = built_in.generate(
        [Request(prompt=prompts[i], seed=i, constraint=JsonSchema(tasks[i].schema)) for i in fenced]
    )
    for i, result in zip(fenced, bound, strict=True):
        assert result.finish_reason == "stop"
        jsonschema.validate(json.loads(result.text), tasks[i].schema)


def test_reasoning_is_separate_from_a_valid_answer(built_in, tasks):
    results = built_in.generate(
        [
            Request(prompt=s.prompt, seed=i, thinking=True, constraint=JsonSchema(s.schema))
            for i, s in enumerate(tasks[:4])
        ]
    )
    for task, result in zip(tasks, results, strict=False):
        assert result.finish_reason == "stop"
        jsonschema.validate(result.parsed, task.schema)
        assert result.reasoning is None or result.reasoning.startswith("The text is about")
    assert sum(result.reasoning is not None for result in results) >= 3


def test_a_choice_is_an_option_and_mostly_the_right_one(built_in):
    items = [choice(Random(f"choice/{i}"), "heldout") for i in range(6)]
    free = built_in.generate([Request(prompt=s.prompt) for s in items])
    bound = built_in.generate(
        [Request(prompt=s.prompt, constraint=Choice(s.schema["enum"])) for s in items]
    )
    assert all(r.text in s.schema["enum"] for r, s in zip(bound, items, strict=True))
    for results in (free, bound):
        assert sum(r.text == s.value for r, s in zip(results, items, strict=True)) >= 5


def test_without_a_constraint_it_calls_tools_in_gemma_s_own_form(built_in):
    items = [tool_call(Random(f"tool/{i}"), "heldout") for i in range(6)]
    requests = [Request(prompt=s.prompt, tools=s.tools, constrained=False) for s in items]
    results = built_in.generate(requests)
    texts = [built_in.chat.tokenizer.decode(r.token_ids) for r in results]
    assert sum(text == s.answer for text, s in zip(texts, items, strict=True)) >= 2


@pytest.mark.interpreted
def test_requested_kernels_are_reported_or_refused(built_in, tmp_path):
    assert built_in.backends["experts"] == "torch"
    bf16 = {"device": "cpu", "dtype": torch.bfloat16, "kernels": "triton"}  # interpreted
    with pytest.raises(BackendError, match="attention: heads of 48 numbers are none of"):
        Engine.load(**bf16)
    shutil.copytree(BUILT_IN, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    config["text_config"]["head_dim"] = 64
    weights = steps.initialised(ModelConfig.from_hf(config)).state_dict()
    directory.write(weights, config, tmp_path)
    assert Engine.load(tmp_path, **bf16).backends["experts"] == "triton"
    with pytest.raises(BackendError, match=r"experts: activations are torch.float32"):
        Engine.load(device="cpu", kernels="triton")
