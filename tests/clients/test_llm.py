"""The command `llm`: tools and schemas, by a model of its `extra-openai-models.yaml`."""

import json
import os
import subprocess
import sys
from importlib.metadata import version

import pytest
from turn_scripts import call, script

pytest.importorskip("llm", reason="llm is not installed")

TEXT = "It is 21 degrees in Paris."
WEATHER = """
def weather(city: str) -> str:
    "Return the weather of a city."
    return f"21 degrees in {city}"
"""
OLGA = {"name": "Olga", "age": 61}
MODEL = """
- model_id: dlm
  model_name: dlm
  api_base: {url}/v1
  supports_tools: true
  supports_schema: true
"""


@pytest.fixture
def llm(url, tmp_path):
    """Run the command with settings of its own."""
    (tmp_path / "extra-openai-models.yaml").write_text(MODEL.format(url=url))
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}

    def run(*words):
        command = [sys.executable, "-m", "llm", *words]
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.mark.parametrize("form", [(), ("--no-stream",)], ids=["streamed", "whole"])
def test_a_tool_of_the_command_is_called_and_its_result_answered(llm, form):
    prompt = script([call("llm_version")], TEXT)
    assert llm("-m", "dlm", "-T", "llm_version", *form, prompt) == TEXT
    calling, answered = json.loads(llm("logs", "--json"))
    assert calling["tool_calls"][0]["name"] == "llm_version"
    (result,) = answered["tool_results"]
    assert result["output"] == version("llm")


def test_a_function_of_the_user_gets_its_arguments(llm):
    prompt = script([call("weather", city="Paris")], TEXT)
    assert llm("-m", "dlm", "--functions", WEATHER, prompt) == TEXT
    _, answered = json.loads(llm("logs", "--json"))
    assert answered["tool_results"][0]["output"] == "21 degrees in Paris"


def test_a_schema_is_the_form_of_the_answer(llm):
    prompt = script(json.dumps(OLGA))
    assert json.loads(llm("-m", "dlm", "--schema", "name, age int", prompt)) == OLGA
    people = script(json.dumps({"items": [OLGA]}))
    answer = llm("-m", "dlm", "--schema-multi", "name, age int", "--no-stream", people)
    assert json.loads(answer) == {"items": [OLGA]}


def test_a_conversation_goes_on(llm):
    assert llm("-m", "dlm", script("Hello.", TEXT)) == "Hello."
    assert llm("-c", "Go on.") == TEXT
