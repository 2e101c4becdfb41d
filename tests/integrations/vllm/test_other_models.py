"""Another model than the plugin's, an autoregressive one, in a vLLM that has the plugin."""

import json
import re

import forged
import jsonschema
import llama
import pytest
from conftest import TINY, served

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    model = llama.write(TINY, tmp_path_factory.mktemp("llama"))
    yield from served(
        tmp_path_factory.mktemp("other"),
        model=model,
        args=("--max-model-len", "1024"),
        # Triton's interpreter cannot run the kernel of the newer runner that applies grammars.
        variables={"VLLM_USE_V2_MODEL_RUNNER": "0"},
    )


def test_its_structured_outputs_are_those_of_vllm(other):
    """`seed` is vLLM's own, too, which the plugin drops beside its own constraints."""
    for seed in range(4):
        choice = other.chat("Hello.", response_format=FORMAT, seed=seed, temperature=1.5).choices[0]
        if choice.finish_reason == "stop":
            jsonschema.validate(json.loads(choice.message.content), SCHEMA)
        pattern = {"structured_outputs": {"regex": "[a-c]{3}"}}
        texts = {
            other.chat("Hello.", extra_body=pattern, seed=seed).choices[0].message.content
            for _ in range(2)
        }
        assert len(texts) == 1
        assert re.fullmatch("[a-c]{3}", texts.pop())


@pytest.mark.parametrize("choice", ["auto", "none", "required"])
def test_its_tools_are_served_without_a_constraint(other, choice):
    body = {"tools": [TOOL], "tool_choice": choice, "max_tokens": 20, "seed": 1}
    answer = other.chat("Hello.", stop=["zzz"], **body).choices[0]
    assert answer.finish_reason in ("stop", "length", "tool_calls")


def test_forged_names_are_nothing_to_it(other):
    """vLLM serves what its `vllm_xargs` takes, and refuses anything else."""
    seen = forged.statuses(other.url)
    assert set(seen.values()) <= {200, 400}
    taken = {repr(value) for value in ("x", "", "{}", 0, 7, ["x", 1])}
    refused = {key: status for key, status in seen.items() if key[2] in taken and status != 200}
    assert not refused
    assert forged.is_healthy(other.url)
    log = other.log.read_text()
    assert "Traceback" not in log
    assert "dlm:" not in log
