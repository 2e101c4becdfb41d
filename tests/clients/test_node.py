"""Clients for Node.js: each program in `programs/` runs whole conversations and prints results."""

import json
import subprocess
from typing import Any

import pytest

TEXT = "It is 21 degrees in Paris."
OLGA = {"name": "Olga", "age": 61}
PARIS = {"city": "Paris"}


@pytest.fixture
def run(url, node_package, programs):
    def run(program: str, *packages: str) -> Any:
        for package in packages:
            node_package(package)
        command = ["node", programs / program, url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_openai_node(run):
    found = run("openai_node.mjs", "openai", "zod")
    name, arguments, text = found["chat"]
    assert (name, json.loads(arguments), text) == ("weather", PARIS, TEXT)
    assert found["runTools"] == [TEXT, ["Paris"]]
    name, arguments, *texts = found["response"]
    assert (name, json.loads(arguments), texts) == ("weather", PARIS, [TEXT, TEXT])
    assert found["types"] == [OLGA, OLGA]
    assert found["error"] == [True, 404]


def test_anthropic_node(run):
    assert run("anthropic_node.mjs", "@anthropic-ai/sdk") == {
        "message": ["tool_use", PARIS, TEXT],
        "stream": [PARIS, TEXT, TEXT],
        "runner": [TEXT, ["Paris"]],
        "count": True,
        "error": [True, 404],
    }


def test_ai_sdk(run):
    found = run("ai_sdk.mjs", "ai", "@ai-sdk/openai", "zod")
    whole = {
        "generated": [TEXT, ["Paris"], 2],
        "streamed": [TEXT, ["Paris"], 2],
        "typed": {"city": "Paris", "degrees": 21},
    }
    assert found == {
        "provider": "openai.responses",
        "responses": whole,
        "reasoned": [TEXT, "Paris it is."],
        "chats": whole,
    }


def test_librechat(run):
    title = {"language": "English", "title": "Weather in Paris"}
    assert run("librechat.mjs", "@langchain/core", "@langchain/openai", "zod") == {
        "chat": ["weather", PARIS, TEXT, True],
        "dropped": TEXT,
        "titles": [title, title],
    }
