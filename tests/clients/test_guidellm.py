"""guidellm: short benchmarks of streamed chats and completions, one by one and at once."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
from turn_scripts import script

pytestmark = pytest.mark.skipif(find_spec("guidellm") is None, reason="guidellm is not installed")

TEXT = "It is 21 degrees in Paris."


@pytest.mark.timeout(300)  # it imports torch and reads data in processes of its own
@pytest.mark.parametrize(
    ("route", "profile"),
    [
        ("/v1/chat/completions", "kind=synchronous"),
        ("/v1/completions", "kind=concurrent,streams=3"),
    ],
)
def test_all_requests_of_a_benchmark_are_answered(url, tmp_path, route, profile):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(f"{json.dumps({'prompt': script(TEXT)})}\n" * 6)
    command = [
        *(sys.executable, "-m", "guidellm", "run", "--disable-console"),
        *("--backend", f"kind=openai_http,target={url},model=dlm,request_format={route}"),
        *("--profile", profile),
        *("--constraint", "kind=max_requests,count=6"),
        *("--data", f"kind=json_file,path={prompts}"),
        *("--output", f"kind=json,path={tmp_path / 'report.json'}"),
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}  # it looks for the model's tokenizer
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    (benchmark,) = json.loads((tmp_path / "report.json").read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"], totals["incomplete"]) == (6, 0, 0)
    answers = benchmark["requests"]["successful"]
    assert all(answer["output_tokens"] > 0 for answer in answers)
    if route == "/v1/chat/completions":
        assert {answer["output"] for answer in answers} == {TEXT}
