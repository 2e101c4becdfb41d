"""The command `dlm generate`: results to stdout, everything else to stderr, and the exit codes."""

import io
import json
import os
import re
import sys
from pathlib import Path

import jsonschema
import pytest
from commands import Ended
from exhaustive import by_default
from invoices import PROMPT, SCHEMA, SCHEMA_FILE

from dlm import DlmError
from dlm.cli import generate

ROOT = Path(__file__).parents[3]
INVOICE = str(SCHEMA_FILE)


@pytest.fixture
def run(monkeypatch, run_command):
    """Run the command in this process: exit code, stdout, stderr."""

    def run(*args: str, stdin: str | bytes = "") -> Ended:
        raw = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
        return run_command(generate, *args)

    return run


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


def test_json_is_one_object_with_the_answer_and_all_measurements(run):
    code, out, err = run("--schema", INVOICE, "--json", "--stats", PROMPT)
    answer = json.loads(out)
    assert code == 0
    jsonschema.validate(answer["parsed"], SCHEMA)
    assert json.loads(answer["text"]) == answer["parsed"]
    assert answer["finish_reason"] == "stop"
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert answer["tokens_per_call"] == pytest.approx(
        usage["completion_tokens"] / answer["denoiser_calls"], abs=1e-3
    )
    assert answer["rollbacks"] == 0
    by_torch = dict.fromkeys(("experts", "attention", "layers", "vocabulary"), "torch")
    assert answer["backends"] == {**by_torch, "graphs": "eager: cpu is no CUDA device"}
    assert "attention by torch, layers by torch, vocabulary by torch; passes eager: cpu" in err
    assert {"load", "denoise", "guide", "settle"} == answer["seconds"].keys()
    assert f"{usage['completion_tokens']} tokens in {answer['denoiser_calls']} calls of the " in err


def test_a_flag_chooses_the_threads_of_a_step(run, monkeypatch):
    loadings = []

    def refuse(loading):
        loadings.append(loading)
        raise DlmError("no model is loaded here")

    monkeypatch.setattr("dlm.engine.Engine.loaded", refuse)
    for flags in [(), ("--threads", "3")]:
        assert run(*flags, PROMPT)[0] == 2
    assert [loading.threads for loading in loadings] == [None, 3]
    assert "--threads must be at least 1, got 0" in run("--threads", "0", PROMPT)[2]


def test_the_seed_decides(run):
    args = "--temperature", "2", "--regex", "[0-9]{4}", "Tell me something."
    first, again, other = (run("--seed", seed, *args).out for seed in ("1", "1", "2"))
    assert first == again != other


def test_drafts_from_canvases_save_passes_of_left_to_right_decoding_and_change_no_text(run):
    answers = {}
    for decoding in ("canvas", "left-to-right", "drafted"):
        code, out, _ = run("--schema", INVOICE, "--decoding", decoding, "--json", PROMPT)
        assert code == 0
        answers[decoding] = json.loads(out)
        jsonschema.validate(answers[decoding]["parsed"], SCHEMA)
    assert answers["left-to-right"]["text"] == answers["drafted"]["text"]
    assert answers["drafted"]["causal_calls"] < answers["left-to-right"]["causal_calls"]
    assert [one["denoiser_calls"] > 0 for one in answers.values()] == [True, False, True]
    assert answers["canvas"]["causal_calls"] == 0


def test_a_system_message_comes_before_the_prompt(run):
    args = "--choice", "yes", "--json", PROMPT
    code, out, err = run("--system", "Answer in JSON.", *args)
    assert (code, err) == (0, "")
    usage, without = json.loads(out)["usage"], json.loads(run(*args).out)["usage"]
    more = usage["prompt_tokens"] - without["prompt_tokens"]
    assert more >= len("Answer in JSON.".split())


def test_white_space_and_open_objects_are_choices(run):
    total = {"type": "object", "properties": {"total": {"type": "number"}}, "required": ["total"]}
    prompt = "Extract total as JSON. Invoice AK-4071 came to 218.50 euros."
    for whitespace, right in (("compact", r"\{\S.*\}\n"), ("pretty", r'\{\n +"[^\0]*\n\}\n')):
        code, out, err = run("--schema", json.dumps(total), "--whitespace", whitespace, prompt)
        assert (code, err) == (0, "")
        assert re.fullmatch(right, out)
        jsonschema.validate(json.loads(out), total)
    absent = {"type": "object", "properties": {"absent": {"type": "boolean"}}}
    args = "--schema", json.dumps(absent), prompt
    assert json.loads(run(*args).out).keys() <= {"absent"}
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
    answer = json.loads(out)
    assert code == 0
    jsonschema.validate(answer["parsed"], SCHEMA)
    assert "thought" not in answer["text"]


def test_too_few_tokens_for_any_answer_are_bad_usage(run):
    code, out, err = run("--schema", INVOICE, "--max-tokens", "5", PROMPT)
    assert (code, out) == (2, "")
    problem = r"max_tokens is 5: the shortest answer takes (at least )?\d+ tokens, more than 5"
    assert re.fullmatch(f"generate.py: {problem}\n", err)


def test_too_few_tokens_without_a_constraint_are_no_valid_result(run):
    code, _, err = run("--schema", INVOICE, "--no-constraint", "--max-tokens", "5", PROMPT)
    assert code == 1
    assert err == "generate.py: max_tokens 5 was reached before the JSON was complete\n"


def test_an_answer_that_max_tokens_cut_short_is_printed_and_is_no_success(run):
    schema = {"type": "array", "items": {"type": "string"}}
    prompt = "Extract the fruits as a JSON array. The list has apples, pears, plums and cherries."
    code, out, err = run("--schema", json.dumps(schema), "--max-tokens", "6", "--json", prompt)
    answer = json.loads(out)
    assert code == 1
    jsonschema.validate(answer["parsed"], schema)
    found = answer["finish_reason"], answer["complete"], answer["squeezed"]
    assert found == ("length", True, True)
    assert re.match("generate.py: max_tokens 6 cut the JSON short: it is valid, but not all", err)


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
        (["--schema", "", "hi"], "--schema must be a file, or - for stdin, got an empty text"),
        (["--schema", "{", "hi"], "JSON schema at line 1 column 2: not JSON"),
        (["--schema", "[1]", "hi"], "a schema must be an object, true or false, got [1]"),
        (["--schema", '{"$ref": "#/no"}', "hi"], "JSON schema at /$ref: '#/no' leads to no schema"),
        (["--schema", ".", "hi"], "cannot read the schema .: Is a directory"),
        (["--model", "/no/such/place", "hi"], "no model directory at /no/such/place"),
        (["--model", str(ROOT / "docs"), "hi"], "holds no config.json: not a model directory"),
        ([""], "prompt must not be empty"),
        (["  "], "prompt must not be empty"),
        ([], "the following arguments are required: prompt"),
        (["--max-tokens", "0", "hi"], "max_tokens must be at least 1, got 0"),
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
        (["--temperature", "3", "hi"], "temperature must be 0 to 2, got 3.0"),
        (["--top-k", "-2", "hi"], "top_k must be at least 1, or 0 or -1 for all tokens, got -2"),
        (["--top-p", "0", "hi"], "top_p must be more than 0, up to 1, got 0.0"),
        (["--min-p", "2", "hi"], "min_p must be 0 to 1, got 2.0"),
        (["--temperature", "nan", "hi"], "temperature must be 0 to 2, got nan"),
        (["--system", "Be brief.", " "], "prompt must not be empty"),
        (["--whitespace", "compact", "hi"], "--whitespace without --schema"),
        (["--regex", "a", "--property-order", "any", "hi"], "--property-order must have --schema,"),
        (["--schema", "{}", "--property-order", "none", "hi"], "invalid choice: 'none'"),
        (["--additional-properties", "schema", "--regex", "a", "hi"], "without --schema"),
        (["--schema", "{}", "--whitespace", "wide", "hi"], "invalid choice: 'wide'"),
        (["--frobnicate", "hi"], "unrecognized arguments: --frobnicate"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(refusal_of, args, problem):
    assert problem in refusal_of(generate, *args)


def test_a_letter_that_stdout_cannot_encode_is_an_error(run, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii"))
    code, _, err = run("--choice", "é", "hi")
    problem = "cannot write the result: stdout is ascii, which has no '\\xe9': set PYTHONIOENCODING"
    assert (code, written.getvalue()) == (1, b"")
    assert err == f"generate.py: {problem}=utf-8\n"


def test_a_full_disk_is_an_error(run, monkeypatch):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        code, _, err = run("--choice", "yes", "hi")
    assert code == 1
    assert err == "generate.py: cannot write the result: No space left on device\n"


def test_a_pipe_that_its_reader_has_closed_is_no_error_message(run, monkeypatch):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        code, _, err = run("--choice", "yes", "hi")
    assert (code, err) == (1, "")


PAIR = {"minItems": 1, "not": {"uniqueItems": True}}  # rules let a single item through
LIST = {"type": "array", "items": {"type": "string"}, "anyOf": [{"minItems": 2}, PAIR]}


def test_a_keyword_that_no_grammar_enforces_is_checked_or_refused(run, refusal_of):
    code, out, err = run("--schema", json.dumps(LIST), "List as JSON. chair, desk, lamp")
    assert code == 0, err
    jsonschema.validate(json.loads(out), LIST)
    refused = "--schema", json.dumps(LIST), "--unenforced", "refuse", "hi"
    assert "/uniqueItems" in refusal_of(generate, *refused)


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
NO_JSON = "generate.py: tools at line 1 column 3: not JSON"
NO_TEXT = "it is not UTF-8 text at byte"
BROKEN = b'{"a": "\xff"}'
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
    rest = "--decoding", "left-to-right", "Say something."
    code, out, err = run(*args, *rest)
    assert (code, err) == (0, "")
    assert re.fullmatch(right, out)
    if file is not None:
        again = run(args[0], "-", *rest, stdin=file)
        assert again[:2] == ((2, "") if args[1].endswith(".lark") else (0, out))


def test_calls_of_tools_are_printed_as_data(run, tmp_path):
    path = tmp_path / "tools.json"
    path.write_text(json.dumps([TOOL]))
    code, out, err = run("--tools", str(path), "--json", "Book 3 seats.")
    answer = json.loads(out)
    assert code == 0, err
    for call in answer["tool_calls"]:
        assert call["name"] == "book"
        assert 1 <= call["arguments"]["seats"] <= 9
    code, plain, _ = run("--tools", str(path), "Book 3 seats.")
    assert code == 0
    calls = answer["tool_calls"]
    assert plain.strip() == (json.dumps(calls) if calls else answer["text"])


@pytest.mark.parametrize(
    ("args", "stdin", "problem"),
    [
        (["-"], BROKEN, f"cannot read the prompt from stdin: {NO_TEXT} 7\n"),
        (["--schema", "-", "hi"], BROKEN, f"cannot read the schema from stdin: {NO_TEXT} 7\n"),
        (["--structural-tag", "-", "hi"], BROKEN, f"the structural tag from stdin: {NO_TEXT} 7\n"),
        (["\udcff"], "", f"cannot read the prompt: {NO_TEXT} 0\n"),
        (
            ["--tools", "-", "hi"],
            "[{]",
            f"{NO_JSON}: the name of a property in double quotes is missing",
        ),
        (["--tools", "-", "hi"], "[" * 5000, "generate.py: tools"),
        (["--tools", "-", "hi"], f"[{'1' * 5000}]", "generate.py: tools"),
        (["--tools", "-", "hi"], "[", "generate.py: tools"),
    ],
    ids=lambda value: None if len(value) < 99 else "long",
)
def test_input_that_cannot_be_read_is_one_line_and_exit_code_2(run, args, stdin, problem):
    code, out, err = run(*args, stdin=stdin)
    assert (code, out, err.count("\n"), problem in err) == (2, "", 1, True), err
