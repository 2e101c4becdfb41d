"""codex: a task that it finishes with a command or with a patch."""

import json
from pathlib import Path
from typing import Any

import pytest
from turn_scripts import call, script

CONFIG = """
model = "{model}"
model_provider = "local"
[model_providers.local]
name = "local"
base_url = "{url}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
[analytics]
enabled = false
"""
PATCH = "*** Begin Patch\n*** Add File: made.txt\n+made\n*** End Patch\n"
PROGRAM = json.dumps({"cmd": "echo made > made.txt; cat made.txt"})
STEPS = {
    # codex knows no model of this name, and offers it commands and functions
    "dlm": call("exec_command", cmd="echo made > made.txt; cat made.txt"),
    # codex knows a model of this name, and offers it a custom tool with a grammar too
    "gpt-5.5": call("apply_patch", input=PATCH),
    # codex knows a newer model of this name: its item `additional_tools` has a tool for programs
    "gpt-6.2-sol": call("functions__exec", input=f"text(await tools.exec_command({PROGRAM}));"),
}


TEXT = "The file is made."


@pytest.fixture
def execute(url, command, tmp_path: Path):
    """Run a task in the folder `work` of a home of its own; return codex's events."""

    def execute(model: str, *words: str) -> list[Any]:
        codex = tmp_path / ".codex"
        codex.mkdir()
        (codex / "config.toml").write_text(CONFIG.format(model=model, url=url))
        (tmp_path / "work").mkdir()
        done = command(
            "@openai/codex",
            "codex",
            "exec",
            "--json",
            "--skip-git-repo-check",
            "--dangerously-bypass-approvals-and-sandbox",
            *words,
            cwd=tmp_path / "work",
            home=tmp_path,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return execute


def last_text(events: list[Any]) -> str:
    assert events[-1]["type"] == "turn.completed"
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    assert items[-1]["type"] == "agent_message"
    return items[-1]["text"]


@pytest.mark.parametrize("model", STEPS)
def test_a_task_is_done_with_a_tool(execute, tmp_path: Path, model):
    assert last_text(execute(model, script([STEPS[model]], TEXT))) == TEXT
    assert (tmp_path / "work" / "made.txt").read_text() == "made\n"


def test_a_task_ends_with_a_value_of_a_schema(execute, tmp_path: Path):
    schema = {
        "type": "object",
        "properties": {"number": {"type": "integer"}},
        "required": ["number"],
        "additionalProperties": False,
    }
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    prompt = script([call("exec_command", cmd="echo 5")], '{"number": 5}')
    events = execute("dlm", "--output-schema", str(tmp_path / "schema.json"), prompt)
    assert json.loads(last_text(events)) == {"number": 5}
