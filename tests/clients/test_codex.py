"""codex: a task that it finishes with a command or with a patch."""

import json
from pathlib import Path

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
STEPS = {
    # codex knows no model of this name, and offers it commands and functions
    "dlm": call("exec_command", cmd="echo made > made.txt; cat made.txt"),
    # codex knows a model of this name, and offers it a custom tool with a grammar too
    "gpt-5.5": call("apply_patch", input=PATCH),
}


@pytest.mark.parametrize("model", STEPS)
def test_a_task_is_done_with_a_tool(url, command, tmp_path: Path, model):
    codex = tmp_path / ".codex"
    codex.mkdir()
    (codex / "config.toml").write_text(CONFIG.format(model=model, url=url))
    work = tmp_path / "work"
    work.mkdir()
    done = command(
        "@openai/codex",
        "codex",
        "exec",
        "--json",
        "--skip-git-repo-check",
        "--dangerously-bypass-approvals-and-sandbox",
        script([STEPS[model]], "The file is made."),
        cwd=work,
        home=tmp_path,
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    assert items[-1]["type"] == "agent_message", done.stdout
    assert items[-1]["text"] == "The file is made."
    assert (work / "made.txt").read_text() == "made\n"
    assert events[-1]["type"] == "turn.completed"
