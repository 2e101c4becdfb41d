"""The commands on checkpoints of masked families, as a user runs them, with tools."""

import json

import calling
import jsonschema
import pytest
from calling import CASES
from commands import batched
from exhaustive import by_default

from dlm.cli import generate, plan

NOTE = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}, "age": {"enum": [1, 20]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "note", "parameters": NOTE}}]
NAMED = {"type": "function", "function": {"name": "note"}}


@pytest.fixture(scope="module", params=by_default([*CASES], 1))
def directory(request, tmp_path_factory):
    return calling.write(tmp_path_factory.mktemp("families") / "model", request.param)


def test_a_batch_of_openais_lines_has_calls_and_texts(directory, tmp_path, monkeypatch):
    bodies = [
        {"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 56} | more
        for more in (
            {"tools": TOOLS, "tool_choice": NAMED},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": NOTE},
                }
            },
            {"tools": TOOLS, "tool_choice": "required", "max_tokens": 3},
        )
    ]
    lines = [
        {"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions", "body": body}
        for i, body in enumerate(bodies)
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = tmp_path / "out.jsonl"
    options = "--model", directory, "--input", tmp_path / "in.jsonl", "--output", out
    code, err = batched(monkeypatch, *options)
    assert code in (0, 1), err
    rows = (json.loads(line) for line in out.read_text().splitlines())
    answers = {row["custom_id"]: row for row in rows}
    called, formed = (answers[i]["response"]["body"]["choices"][0]["message"] for i in "01")
    (call,) = called["tool_calls"]
    assert call["function"]["name"] == "note"
    jsonschema.validate(json.loads(call["function"]["arguments"]), NOTE)
    jsonschema.validate(json.loads(formed["content"]), NOTE)
    refused = json.dumps(answers["2"])
    assert "max_tokens is 3: the shortest answer takes" in refused


def test_a_plan_has_the_weights_and_the_blocks_of_the_family(directory, run_command):
    code, out, err = run_command(plan, "--model", directory, "--slots", 2, "--json")
    assert (code, err) == (0, "")
    planned = json.loads(out)
    assert planned["load"]["slots"] == 2
    assert 0 < sum(planned["weights"].values()) < planned["total"]


def test_a_watched_answer_with_tools_shows_masks(directory, tmp_path, run_command):
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    options = "--model", directory, "--tools", tmp_path / "tools.json", "--max-tokens", 24
    code, out, err = run_command(generate, *options, "--watch", "Who?")
    assert code == 1  # random weights write on
    assert "cut the answer short: it is valid" in err
    assert out.strip()
    assert "░ mask" in err
