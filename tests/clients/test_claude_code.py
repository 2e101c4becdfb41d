"""Claude Code: a task that it finishes with a tool, whole and as a stream."""

import json
from pathlib import Path
from typing import Any

import pytest
from turn_scripts import call, script

TEXT = "The file is made."


@pytest.fixture
def run(url, command, tmp_path: Path):
    """Run a task in the folder `work` of a home of its own; return Claude Code's events."""

    def run(prompt: str, form: str, *words: str) -> list[Any]:
        (tmp_path / "work").mkdir()
        done = command(
            "@anthropic-ai/claude-code",
            "claude",
            "--print",
            prompt,
            "--output-format",
            form,
            "--verbose",
            *words,
            cwd=tmp_path / "work",
            home=tmp_path,
            ANTHROPIC_BASE_URL=url,
            ANTHROPIC_API_KEY="none",
            ANTHROPIC_MODEL="dlm",
            ANTHROPIC_DEFAULT_HAIKU_MODEL="dlm",
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
            DISABLE_AUTOUPDATER="1",
            DISABLE_ERROR_REPORTING="1",
            DISABLE_TELEMETRY="1",
        )
        assert done.returncode == 0, done.stdout + done.stderr
        if form == "json":
            return json.loads(done.stdout)
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


@pytest.mark.parametrize("form", ["json", "stream-json"])
def test_a_task_is_done_with_a_tool(run, tmp_path: Path, form):
    made = tmp_path / "work" / "made.txt"
    prompt = script([call("Write", file_path=str(made), content="made\n")], TEXT)
    last = run(prompt, form, "--allowedTools=Write")[-1]
    assert (last["subtype"], last["result"], last["num_turns"]) == ("success", TEXT, 2)
    assert made.read_text() == "made\n"


def test_a_task_ends_with_a_value_of_a_schema(run):
    schema = {
        "type": "object",
        "properties": {"number": {"type": "integer"}},
        "required": ["number"],
        "additionalProperties": False,
    }
    prompt = script([call("StructuredOutput", number=5)], TEXT)
    last = run(prompt, "json", "--json-schema", json.dumps(schema))[-1]
    assert last["structured_output"] == {"number": 5}
