"""promptfoo: an evaluation by a schema and by a call of a tool, with its own checks."""

import json
from pathlib import Path

from turn_scripts import call, script

PROJECT = Path(__file__).parent / "promptfoo"
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
TOOL = {"type": "function", "function": {"name": "save", "parameters": PERSON}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
OLGA = {"name": "Olga", "age": 61}


def test_an_evaluation_passes_its_checks(command, url, tmp_path):
    settings = {"apiBaseUrl": f"{url}/v1", "apiKey": "none"}
    models = {"typed": {"response_format": FORMAT}, "calling": {"tools": [TOOL]}}
    config = {
        "prompts": ["{{question}}"],
        "providers": [
            {"id": "openai:chat:dlm", "label": name, "config": settings | more}
            for name, more in models.items()
        ],
        "tests": [
            {
                "vars": {"question": script(json.dumps(OLGA))},
                "providers": ["typed"],
                "assert": [{"type": "is-json", "value": PERSON}],
            },
            {
                "vars": {"question": script([call("save", **OLGA)])},
                "providers": ["calling"],
                "assert": [{"type": "is-valid-openai-tools-call"}],
            },
        ],
    }
    (tmp_path / "promptfooconfig.json").write_text(json.dumps(config))
    words = ("eval", "-c", "promptfooconfig.json", "--no-cache", "--no-table", "-o", "out.json")
    done = command(
        "promptfoo",
        "promptfoo",
        *words,
        cwd=tmp_path,
        home=tmp_path,
        project=PROJECT,
        PROMPTFOO_DISABLE_TELEMETRY="1",
        PROMPTFOO_DISABLE_UPDATE="1",
        PROMPTFOO_DISABLE_REMOTE_GENERATION="1",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    stats = json.loads((tmp_path / "out.json").read_text())["results"]["stats"]
    assert (stats["successes"], stats["failures"], stats["errors"]) == (2, 0, 0)
