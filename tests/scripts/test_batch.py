"""The batch script: a file in, a file out, and on again where it was interrupted."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
ASK = "Extract name, age as JSON. This is Olga Lopez, 61 years old."


def run(*args):
    command = [sys.executable, str(ROOT / "scripts" / "batch.py"), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_file_is_answered_and_what_was_answered_before_is_not_asked_again(tmp_path):
    requests, answers = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    asked = {"messages": [{"role": "user", "content": ASK}], "seed": 1, "max_tokens": 96}
    asked |= {"response_format": {"type": "json_object"}}
    lines = [
        {"custom_id": f"r{i}", "url": "/v1/chat/completions", "body": asked | more}
        for i, more in enumerate([{}, {"temperature": 9}, {"n": 2}])
    ]
    requests.write_text("\n".join(map(json.dumps, lines)))
    answers.write_text('{"custom_id": "r0", "mine": 1}\n{"custom_id": "r2", "cut o')
    done = run(requests, answers)
    assert done.returncode == 1, done.stderr
    assert "2 answers, 1 errors" in done.stderr
    found = {one["custom_id"]: one for one in map(json.loads, answers.read_text().splitlines())}
    assert found["r0"] == {"custom_id": "r0", "mine": 1}
    assert "temperature is 9" in found["r1"]["error"]["message"]
    choices = found["r2"]["response"]["body"]["choices"]
    assert [json.loads(c["message"]["content"])["age"] for c in choices] == [61, 61]


def test_bad_usage_is_one_line(tmp_path):
    missing = run(tmp_path / "none.jsonl", tmp_path / "answers.jsonl")
    assert missing.returncode == 2
    assert missing.stderr == f"batch.py: {tmp_path}/none.jsonl: No such file or directory\n"
