"""The command line: results to stdout, everything else to stderr, and the exit codes."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import generate
import jsonschema
import pytest

ROOT = Path(__file__).parents[2]
INVOICE = str(ROOT / "examples" / "invoice.json")
SCHEMA = json.loads(Path(INVOICE).read_text())
PROMPT = (
    "Extract invoice_id, customer, total, paid as JSON. "
    "Invoice AK-4071, billed to Silver Robotics, the total is 218.5, payment was received."
)


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command in this process: exit code, stdout, stderr."""

    def command(*args: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["generate.py", *args])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as end:
            generate.main()
        out, err = capsys.readouterr()
        return end.value.code, out, err

    return command


def test_the_answer_alone_goes_to_stdout(run):
    code, out, err = run("--schema", INVOICE, PROMPT)
    assert code == 0, err
    jsonschema.validate(json.loads(out), SCHEMA)
    assert err == ""


def test_prompt_and_schema_may_come_from_stdin_and_the_command_line(run):
    code, out, _ = run("--schema", json.dumps(SCHEMA), "-", stdin=PROMPT)
    assert code == 0
    jsonschema.validate(json.loads(out), SCHEMA)
    code, other, _ = run("--schema", "-", PROMPT, stdin=json.dumps(SCHEMA))
    assert (code, other) == (0, out)


def test_json_tells_everything_in_one_object(run):
    code, out, err = run("--schema", INVOICE, "--json", "--stats", PROMPT)
    said = json.loads(out)
    assert code == 0
    jsonschema.validate(said["parsed"], SCHEMA)
    assert json.loads(said["text"]) == said["parsed"]
    assert said["finish_reason"] == "stop"
    usage = said["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert said["tokens_per_call"] == pytest.approx(
        usage["completion_tokens"] / said["denoiser_calls"], abs=1e-3
    )
    assert said["rollbacks"] == 0
    assert {"load", "encode", "denoise", "guide", "settle"} == said["seconds"].keys()
    assert f"{usage['completion_tokens']} tokens in {said['denoiser_calls']} denoiser calls" in err


def test_the_seed_decides(run):
    outs = {run("--seed", seed, "Tell me something.")[1] for seed in ("1", "1", "2", "3", "4")}
    assert 2 <= len(outs) <= 4


def test_watching_shows_the_canvas_on_stderr_only(run):
    code, out, err = run("--schema", INVOICE, "--watch", PROMPT)
    assert code == 0
    jsonschema.validate(json.loads(out), SCHEMA)
    assert "entropy" in err
    assert "pinned" in err


def test_thinking_is_kept_out_of_the_answer(run):
    code, out, _ = run("--schema", INVOICE, "--thinking", "--json", PROMPT)
    said = json.loads(out)
    assert code == 0
    jsonschema.validate(said["parsed"], SCHEMA)
    assert "thought" not in said["text"]


def test_too_few_tokens_for_any_answer_are_bad_usage(run):
    code, out, err = run("--schema", INVOICE, "--max-tokens", "5", PROMPT)
    assert (code, out) == (2, "")
    assert re.fullmatch(
        r"generate.py: max_tokens is 5: the shortest answer takes \d+ tokens, more than 5\n", err
    )


def test_too_few_tokens_without_a_constraint_are_no_valid_result(run):
    code, _, err = run("--schema", INVOICE, "--no-constraint", "--max-tokens", "5", PROMPT)
    assert code == 1
    assert err == "generate.py: max_tokens 5 was reached before the JSON was complete\n"


def test_without_the_constraint_the_result_is_checked_all_the_same(run):
    schema = {"type": "object", "properties": {"absent": {"const": "xyz"}}, "required": ["absent"]}
    code, out, err = run("--schema", json.dumps(schema), "--no-constraint", PROMPT)
    assert code == 1
    assert "the JSON does not fit the schema" in err or "the text is not JSON" in err
    assert out.strip()


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["--schema", "missing.json", "hi"], "cannot read the schema missing.json: No such file"),
        (["--schema", '{"type": "objectt"}', "hi"], "JSON schema at /type: 'objectt' is not valid"),
        (["--schema", "{", "hi"], "JSON schema at line 1 column 2: not JSON"),
        (["--schema", "[1]", "hi"], "a schema is an object, not [1]"),
        (["--schema", '{"$ref": "#/no"}', "hi"], "JSON schema at /$ref: '#/no' leads to no schema"),
        (["--schema", ".", "hi"], "cannot read the schema .: Is a directory"),
        (["--model", "/no/such/place", "hi"], "no model directory at /no/such/place"),
        (["--model", str(ROOT / "docs"), "hi"], "holds no config.json: not a model directory"),
        ([""], "prompt is empty"),
        (["  "], "prompt is empty"),
        ([], "the following arguments are required: prompt"),
        (["--max-tokens", "0", "hi"], "max_tokens is 0: it takes at least 1"),
        (["--max-tokens", "many", "hi"], "argument --max-tokens: invalid int value: 'many'"),
        (["--max-tokens", "999999", "hi"], "prompt tokens leave"),
        (["--seed", "-1", "hi"], "seed is -1"),
        (["--schema", "-", "-"], "cannot both come from stdin"),
        (["--no-constraint", "hi"], "--no-constraint without --schema"),
        (["--frobnicate", "hi"], "unrecognized arguments: --frobnicate"),
    ],
)
def test_bad_usage_is_one_clear_line_and_exit_code_2(run, args, problem):
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert problem in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_an_interrupt_is_exit_code_130(run, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(generate, "run", interrupted)
    code, out, err = run("hi")
    assert (code, out, err) == (130, "", "generate.py: interrupted\n")


def test_it_runs_from_any_folder_as_a_process_of_its_own(tmp_path):
    command = [sys.executable, str(ROOT / "scripts" / "generate.py"), "--schema", INVOICE, PROMPT]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    jsonschema.validate(json.loads(done.stdout), SCHEMA)
    assert done.stderr == ""
