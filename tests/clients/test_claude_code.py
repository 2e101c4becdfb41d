"""Claude Code: a task that it finishes with a tool, whole and as a stream."""

import json
from pathlib import Path

import pytest
from turn_scripts import call, script

TEXT = "The file is made."
STEPS = [call("Write", file_path="{work}/made.txt", content="made\n")], TEXT


@pytest.mark.parametrize("form", ["json", "stream-json"])
def test_a_task_is_done_with_a_tool(url, command, tmp_path: Path, form):
    work = tmp_path / "work"
    work.mkdir()
    done = command(
        "@anthropic-ai/claude-code",
        "claude",
        "--print",
        script(*STEPS).replace("{work}", str(work)),
        "--output-format",
        form,
        "--verbose",
        "--allowedTools=Write",
        cwd=work,
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
    if form == "json":
        events = json.loads(done.stdout)
    else:
        events = [json.loads(line) for line in done.stdout.splitlines()]
    assert (events[-1]["subtype"], events[-1]["result"]) == ("success", TEXT), done.stdout
    assert events[-1]["num_turns"] == 2
    assert (work / "made.txt").read_text() == "made\n"
