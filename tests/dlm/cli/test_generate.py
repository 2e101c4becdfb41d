"""The command `dlm generate`: results to stdout, everything else to stderr, and the exit codes."""

import io
import json
import os
import re
import signal
import sys
from pathlib import Path

import jsonschema
import pytest
from commands import ended
from exhaustive import by_default

from dlm.cli import generate

ROOT = Path(__file__).parents[3]
INVOICE = str(ROOT / "examples" / "invoice.json")
SCHEMA = json.loads(Path(INVOICE).read_text())
PROMPT = (
    "Extract invoice_id, customer, total, paid as JSON. "
    "Invoice AK-4071 for Silver Robotics came to 218.50 euros and has been paid."
)


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command in this process: exit code, stdout, stderr."""

    def command(*args: str, stdin: str | bytes = "") -> tuple[int, str, str]:
        raw = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
        monkeypatch.setattr(signal, "signal", lambda *_: None)  # pytest has its own
        code = ended(monkeypatch, generate, *args)
        out, err = capsys.readouterr()
        return code, out, err

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
    code, other, _ = run("--schema", "-", PROMPT, stdin="\ufeff" + json.dumps(SCHEMA))
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
    by_torch = dict.fromkeys(("experts", "attention", "layers", "vocabulary"), "torch")
    assert said["backends"] == {**by_torch, "graphs": "eager: cpu is no CUDA device"}
    assert "attention by torch, layers by torch, vocabulary by torch; passes eager: cpu" in err
    assert {"load", "denoise", "guide", "settle"} == said["seconds"].keys()
    assert f"{usage['completion_tokens']} tokens in {said['denoiser_calls']} calls of the " in err


def test_the_seed_decides(run):
    asked = "--temperature", "2", "--regex", "[0-9]{4}", "Tell me something."
    first, again, other = (run("--seed", seed, *asked)[1] for seed in ("1", "1", "2"))
    assert first == again != other


def test_it_writes_left_to_right_and_canvases_spare_passes_but_change_nothing(run):
    said = {}
    for decoding in ("canvas", "left-to-right", "drafted"):
        code, out, _ = run("--schema", INVOICE, "--decoding", decoding, "--json", PROMPT)
        assert code == 0
        said[decoding] = json.loads(out)
        jsonschema.validate(said[decoding]["parsed"], SCHEMA)
    assert said["left-to-right"]["text"] == said["drafted"]["text"]
    assert said["drafted"]["causal_calls"] < said["left-to-right"]["causal_calls"]
    assert [one["denoiser_calls"] > 0 for one in said.values()] == [True, False, True]
    assert said["canvas"]["causal_calls"] == 0


def test_a_system_message_comes_before_the_prompt(run):
    code, out, err = run("--system", "Answer in JSON.", "--schema", INVOICE, "--json", PROMPT)
    assert (code, err) == (0, "")
    said, without = json.loads(out), json.loads(run("--schema", INVOICE, "--json", PROMPT)[1])
    jsonschema.validate(said["parsed"], SCHEMA)
    more = said["usage"]["prompt_tokens"] - without["usage"]["prompt_tokens"]
    assert more >= len("Answer in JSON.".split())


def test_white_space_and_open_objects_are_choices(run):
    total = {"type": "object", "properties": {"total": {"type": "number"}}, "required": ["total"]}
    asked = "Extract total as JSON. Invoice AK-4071 came to 218.50 euros."
    for whitespace, right in (("compact", r"\{\S.*\}\n"), ("pretty", r'\{\n +"[^\0]*\n\}\n')):
        code, out, err = run("--schema", json.dumps(total), "--whitespace", whitespace, asked)
        assert (code, err) == (0, "")
        assert re.fullmatch(right, out)
        jsonschema.validate(json.loads(out), total)
    absent = {"type": "object", "properties": {"absent": {"type": "boolean"}}}
    args = "--schema", json.dumps(absent), asked
    assert json.loads(run(*args)[1]).keys() <= {"absent"}
    code, out, _ = run("--additional-properties", "schema", *args)
    assert code == 0
    assert json.loads(out).keys() - {"absent"}


def test_watching_shows_the_canvas_on_stderr_only(run):
    code, out, err = run("--schema", INVOICE, "--watch", PROMPT)
    assert code == 0
    jsonschema.validate(json.loads(out), SCHEMA)
    assert "entropy" in err
    assert "pinned" in err
    assert err.endswith("noise\n")


def test_thinking_is_kept_out_of_the_answer(run):
    code, out, _ = run("--schema", INVOICE, "--thinking", "--json", PROMPT)
    said = json.loads(out)
    assert code == 0
    jsonschema.validate(said["parsed"], SCHEMA)
    assert "thought" not in said["text"]


def test_too_few_tokens_for_any_answer_are_bad_usage(run):
    code, out, err = run("--schema", INVOICE, "--max-tokens", "5", PROMPT)
    assert (code, out) == (2, "")
    problem = r"max_tokens is 5: the shortest answer takes (at least )?\d+ tokens, more than 5"
    assert re.fullmatch(f"generate.py: {problem}\n", err)


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
        (["--schema", '{"type": "objectt"}', "hi"], "JSON schema at /type: 'objectt' is no"),
        (["--schema", "", "hi"], "--schema is empty: it takes a file, or - for stdin"),
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
        (["--schema", "-", "-"], "cannot both come from stdin"),
        (["--no-constraint", "hi"], "--no-constraint without --schema"),
        (["--no-constraint", "--regex", "a", "hi"], "--no-constraint without --schema"),
        (["--regex", "a", "--choice", "a,b", "hi"], "not allowed with argument"),
        (["--regex", "(a", "hi"], "regex at "),
        (["--choice", "a,,b", "hi"], "choice"),
        (["--grammar", "missing.ebnf", "hi"], "cannot read the grammar missing.ebnf: No such file"),
        (["--tools", "missing.json", "hi"], "cannot read the tools missing.json: No such file"),
        (["--tools", "-", "-"], "prompt and --tools cannot both come from stdin"),
        (["--structural-tag", "-", "-"], "prompt and --structural-tag cannot both"),
        (["--unenforced", "ignore", "hi"], "invalid choice: 'ignore'"),
        (["--temperature", "3", "hi"], "temperature is 3.0: it takes 0 to 2"),
        (["--top-k", "-2", "hi"], "top_k is -2"),
        (["--top-p", "0", "hi"], "top_p is 0.0"),
        (["--min-p", "2", "hi"], "min_p is 2.0"),
        (["--temperature", "nan", "hi"], "temperature is nan: it takes 0 to 2"),
        (["--system", "Be brief.", " "], "prompt is empty"),
        (["--whitespace", "compact", "hi"], "--whitespace without --schema"),
        (["--additional-properties", "schema", "--regex", "a", "hi"], "without --schema"),
        (["--schema", "{}", "--whitespace", "wide", "hi"], "invalid choice: 'wide'"),
        (["--frobnicate", "hi"], "unrecognized arguments: --frobnicate"),
    ],
)
def test_bad_usage_is_one_clear_line_and_exit_code_2(run, args, problem):
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert problem in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_a_stdout_that_lacks_letters_is_told_of(run, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii"))
    code, _, err = run("--choice", "é", "hi")
    said = "cannot write the result: stdout is ascii, which has no '\\xe9': set PYTHONIOENCODING"
    assert (code, written.getvalue()) == (1, b"")
    assert err == f"generate.py: {said}=utf-8\n"


def test_a_full_disk_is_told_of(run, monkeypatch):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        code, _, err = run("--choice", "yes", "hi")
    assert code == 1
    assert err == "generate.py: cannot write the result: No space left on device\n"


def test_a_reader_that_has_gone_is_no_error(run, monkeypatch):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        code, _, err = run("--choice", "yes", "hi")
    assert (code, err) == (1, "")


PAIR = {"minItems": 1, "not": {"uniqueItems": True}}  # rules let a single item through
LIST = {"type": "array", "items": {"type": "string"}, "anyOf": [{"minItems": 2}, PAIR]}


def test_what_no_grammar_enforces_is_checked_or_refused(run):
    """Whether a keyword is one of these is for the grammar to say; the result is valid or none."""
    code, out, err = run("--schema", json.dumps(LIST), "List as JSON. chair, desk, lamp")
    assert code == 0, err
    jsonschema.validate(json.loads(out), LIST)
    code, out, err = run("--schema", json.dumps(LIST), "--unenforced", "refuse", "hi")
    assert (code, out) == (2, "")
    assert "/uniqueItems" in err


TOOL = {
    "type": "function",
    "function": {
        "name": "book",
        "parameters": {
            "type": "object",
            "properties": {"seats": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["seats"],
        },
    },
}
TAG = {"type": "structural_tag", "format": {"type": "const_string", "value": "<b>yes</b>"}}


@pytest.mark.parametrize(
    ("args", "file", "right"),
    by_default(
        [
            (["--regex", "[0-9]{2}-[ab]"], None, "[0-9]{2}-[ab]\n"),
            (["--choice", "mage, healer of all"], None, "(mage|healer of all)\n"),
            (["--grammar", "FILE.ebnf"], 'root ::= "(" [0-9] ")"', r"\([0-9]\)\n"),
            (["--grammar", "FILE.lark"], 'start: "(" /[0-9]/ ")"', r"\([0-9]\)\n"),
            (["--structural-tag", "FILE.json"], json.dumps(TAG), "<b>yes</b>\n"),
        ],
        3,
    ),
)
def test_every_kind_of_constraint_is_kept(run, tmp_path, args, file, right):
    if file is not None:
        path = tmp_path / args[1]
        path.write_text(file)
        args = [args[0], str(path)]
    code, out, err = run(*args, "--seed", "3", "Say something.")
    assert (code, err) == (0, "")
    assert re.fullmatch(right, out)
    if file is not None:
        again = run(args[0], "-", "--seed", "3", "Say something.", stdin=file)
        assert again[:2] == ((2, "") if args[1].endswith(".lark") else (0, out))


def test_calls_of_tools_are_told_as_data(run, tmp_path):
    path = tmp_path / "tools.json"
    path.write_text(json.dumps([TOOL]))
    code, out, err = run("--tools", str(path), "--json", "Book 3 seats.")
    said = json.loads(out)
    assert code == 0, err
    for call in said["tool_calls"]:
        assert call["name"] == "book"
        assert 1 <= call["arguments"]["seats"] <= 9
    code, plain, _ = run("--tools", str(path), "Book 3 seats.")
    assert code == 0
    assert plain.strip() == (json.dumps(said["tool_calls"]) if said["tool_calls"] else said["text"])
    code, _, err = run("--tools", "-", "hi", stdin="[{]")
    assert (code, err) == (
        2,
        "generate.py: tools at line 1 column 3: not JSON: "
        "Expecting property name enclosed in double quotes\n",
    )


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (["-"], "the prompt from stdin"),
        (["--schema", "-", "hi"], "the schema from stdin"),
        (["--structural-tag", "-", "hi"], "the structural tag from stdin"),
    ],
)
def test_what_is_no_utf_8_is_named(run, args, what):
    code, out, err = run(*args, stdin=b'{"a": "\xff"}')
    assert (code, out) == (2, "")
    assert err == f"generate.py: cannot read {what}: it is not UTF-8 text at byte 7\n"
    code, _, err = run("\udcff")
    assert (code, err) == (
        2,
        "generate.py: cannot read the prompt: it is not UTF-8 text at byte 0\n",
    )


@pytest.mark.parametrize("written", ["[" * 5000, f"[{'1' * 5000}]", "["])
def test_tools_that_are_no_json_are_one_clear_line(run, tmp_path, written):
    path = tmp_path / "tools.json"
    path.write_text(written)
    code, out, err = run("--tools", str(path), "hi")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("generate.py: tools")
