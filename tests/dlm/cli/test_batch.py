"""The batch script: rows of a file answered into a file, also after it was killed."""

import csv
import json
import signal
from functools import partial
from pathlib import Path
from random import Random

import jsonschema
import pytest
from commands import batched
from processes import is_running, named, started, wait_for
from training.extraction import extract
from waiting import wait_until

ROOT = Path(__file__).parents[3]
ASK = "Extract name, age as JSON. This is Olga Lopez, 61 years old."
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
ROWS = 16


@pytest.fixture
def run(monkeypatch):
    """Run the command in this process: exit code, stderr."""
    return partial(batched, monkeypatch)


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Options for a file of prompts, and the answers of one run by row."""
    folder = tmp_path_factory.mktemp("whole")
    random = Random("batch")
    prompts = [extract(random, "heldout").prompt for _ in range(ROWS)]
    rows = written(folder / "in.jsonl", ({"prompt": prompt} for prompt in prompts))
    schema = {"type": "object", "additionalProperties": {"type": "string", "maxLength": 20}}
    options = ["--input", rows, "--schema", json.dumps(schema), "--max-tokens", 64]
    out = folder / "out.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        code, err = batched(patch, *options, "--output", out)
    assert code == 0, err
    assert f"{ROWS} rows, 0 errors" in err
    return options, by_row(out)


def by_row(out):
    """Return the answers by row; each row is answered once."""
    lines = lines_of(out)
    assert len(lines) == ROWS
    return {line["row"]: line for line in lines}


@pytest.mark.exhaustive
def test_killed_with_its_workers_it_ends_with_the_rows_of_one_run(run, whole, tmp_path):
    options, right = whole
    out = tmp_path / "out.jsonl"
    with started(*options, "--output", out, "--slots", 2, "--workers", 2) as process:
        wait_for(process, out, 3)
        actors = named(process.pid, "ray::MapWorker")
        assert actors
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    wait_until(lambda: not any(map(is_running, actors)))
    assert out.read_bytes().count(b"\n") < ROWS
    with out.open("a") as file:
        file.write('{"row": 0, "value": {"na')  # what a kill in the middle of a write leaves
    code, err = run(*options, "--output", out)
    assert code == 0, err
    assert by_row(out) == right


def test_a_csv_is_extracted_and_a_bad_row_is_its_own_error(run, tmp_path):
    table, out = tmp_path / "in.csv", tmp_path / "out.jsonl"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows(
            [["key", "text"], ["a", "This is Olga Lopez, 61 years old."], ["b"], ["c", "Max, 3."]]
        )
    args = ["--input", table, "--output", out, "--schema", json.dumps(PERSON), "--id", "key"]
    args += ["--template", "Extract name, age as JSON. {text}", "--max-tokens", 64]
    code, err = run(*args)
    assert code == 1, err
    assert err.endswith("3 rows, 1 errors\n")
    found = {line["id"]: line for line in lines_of(out)}
    assert found["a"]["value"] == {"name": "Olga Lopez", "age": 61}
    jsonschema.validate(found["c"]["value"], PERSON)
    assert found["b"]["error"] == "the row has no field 'text': it has key"
    code, err = run(*args, "--slots", 3)  # nothing is missing, and the error stays one
    problem = "the first error is that of row 1: the row has no field 'text': it has key\n"
    assert (code, err) == (1, f"{problem}3 rows, 1 errors\n")


def test_lines_of_text_are_answered_up_to_a_limit_that_may_grow(run, tmp_path):
    rows, out = written(tmp_path / "in.jsonl", ["one", "two", "three"]), tmp_path / "out.jsonl"
    args = ["--input", rows, "--output", out, "--choice", "yes,no"]
    assert run(*args, "--limit", 1)[0] == 0
    assert [line["row"] for line in lines_of(out)] == [0]
    assert run(*args)[0] == 0
    assert sorted(line["row"] for line in lines_of(out)) == [0, 1, 2]
    assert {line["value"] for line in lines_of(out)} <= {"yes", "no"}


def test_openai_s_lines_are_answered_in_their_own_form(run, tmp_path):
    out = tmp_path / "answers.jsonl"
    body = {"messages": [{"role": "user", "content": ASK}], "seed": 1, "max_tokens": 96}
    body |= {"response_format": {"type": "json_object"}}
    bodies = [body | {"model": "gpt-x"}, body | {"temperature": 9}, body | {"n": 2}]
    url = "/v1/chat/completions"
    lines = [{"custom_id": f"r{i}", "url": url, "body": one} for i, one in enumerate(bodies)]
    args = ["--input", written(tmp_path / "in.jsonl", lines), "--output", out]
    args += ["--served-model-name", "own", "gpt-x"]
    assert run(*args, "--limit", 2)[0] == 1
    kept = out.read_text()
    code, err = run(*args)
    assert (code, err.endswith("3 rows, 1 errors\n")) == (1, True), err
    assert out.read_text().startswith(kept)
    found = {line["custom_id"]: line for line in lines_of(out)}
    assert found["r0"]["response"]["body"]["model"] == "gpt-x"
    assert "temperature must be 0 to 2, got 9" in found["r1"]["error"]["message"]
    choices = found["r2"]["response"]["body"]["choices"]
    assert [json.loads(c["message"]["content"])["age"] for c in choices] == [61, 61]
    refused = run("--seed", 1, "--input", args[1], "--output", tmp_path / "other.jsonl")
    assert refused == (2, "batch.py: --seed with OpenAI's lines: each line has a field for it\n")


def test_an_output_of_another_input_or_of_other_settings_is_refused(run, tmp_path):
    rows, out = written(tmp_path / "in.jsonl", ["one"]), tmp_path / "out.jsonl"
    args = ["--input", rows, "--output", out, "--choice", "yes,no"]
    settings = "--temperature", 1, "--system", "Be brief."
    assert run(*args, *settings)[0] == 0
    for more, name in (
        ([*settings, "--seed", 3], "seed"),
        ([*settings, "--choice", "yes"], "constraint"),
        ([*settings, "--temperature", 2], "temperature"),
        ([], "system"),
    ):
        code, err = run(*args, *more)
        assert (code, f"has answers with {name} " in err) == (2, True), err
    written(rows, ["one", "two"])
    code, err = run(*args, *settings)
    assert (code, "has answers with input " in err) == (2, True), err


LACKS = "FILE.csv has no column"


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{nosuch}", f"--template reads {{nosuch}}: {LACKS} 'nosuch': it has a, b"),
        ("{a} and {b} and {c}", f"--template reads {{c}}: {LACKS} 'c': it has a, b"),
        ("{0}", f"--template reads {{0}}: {LACKS} '0': it has a, b"),
        ("{a.b}", f"--template reads {{a.b}}: {LACKS} 'a.b': it has a, b"),
        ("{a[0]}", f"--template reads {{a[0]}}: {LACKS} 'a[0]': it has a, b"),
        ("{ a }", f"--template reads {{ a }}: {LACKS} ' a ': it has a, b"),
        ("{}", "the template cannot be read: braces hold the name of a field"),
        ("{a!r}", "the template cannot be read: braces hold the name of a field"),
        ("{a", "the template cannot be read: expected '}'"),
        ("a}", "the template cannot be read: Single '}'"),
        ("text", "the template names no field"),
    ],
)
def test_a_template_is_checked_before_anything_is_written(run, tmp_path, template, problem):
    table, out = tmp_path / "FILE.csv", tmp_path / "out.jsonl"
    table.write_text("a,b\n1,2\n3,4\n")
    code, err = run(
        *("--input", table, "--output", out, "--choice", "yes,no", "--template", template)
    )
    assert (code, err.count("\n")) == (2, 1)
    assert problem in err.replace(f"{tmp_path}/", "")
    assert [path.name for path in tmp_path.iterdir()] == ["FILE.csv"]


def test_some_lines_of_json_may_lack_a_field_but_not_all_of_them(run, tmp_path):
    rows, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows.write_text('not JSON\n{"a": "x"}\n[1]\n{"a": "x", "b": "y"}\n')
    args = ["--input", rows, "--output", out, "--choice", "yes,no"]
    for flag, value in (("--template", "{a} {c}"), ("--column", "c"), ("--id", "c")):
        code, err = run(*args, flag, value)
        assert (code, err.count("\n"), out.exists()) == (2, 1, False)
        assert "in.jsonl has no column 'c': it has a" in err
    code, err = run(*args, "--template", "{a} {b}")
    assert (code, err.endswith("4 rows, 3 errors\n")) == (1, True), err


def test_the_temperature_applies_to_all_rows(run, tmp_path):
    rows, out = written(tmp_path / "in.jsonl", [{"prompt": "Tell me."}] * 2), tmp_path / "out.jsonl"
    args = "--input", rows, "--output", out, "--regex", "[0-9]{8}", "--temperature"
    assert run(*args, 3) == (2, "batch.py: temperature must be 0 to 2, got 3.0\n")
    assert not out.exists()
    assert run(*args, 2)[0] == 0
    assert len({line["value"] for line in lines_of(out)}) == 2


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["--input", "none.jsonl"], "none.jsonl: No such file or directory"),
        (["--input", "FILE.txt"], "must end in .jsonl, .csv or .parquet, got '.txt'"),
        (["--input", "FILE.csv"], "neither a column prompt nor a column text"),
        (["--input", "FILE.csv", "--column", "c"], "has no column 'c': it has a, b"),
        (["--input", "FILE.csv", "--column", "a", "--id", "c"], "has no column 'c': it has a, b"),
        (["--input", "FILE.csv", "--template", "{"], "the template cannot be read"),
        (["--input", "FILE.csv", "--column", "a", "--template", "{a}"], "--column with --template"),
        (["--input", "FILE.csv", "--column", "a", "--schema", "{"], "JSON schema at line 1"),
        (["--input", "FILE.csv", "--column", "a", "--schema", "no"], "cannot read the schema no"),
        (["--input", "FILE.csv", "--column", "a", "--model", "/no"], "no model directory at /no"),
        (["--input", "FILE.csv", "--column", "a", "--served-model-name", "b"], "OpenAI's lines"),
        (["--input", "FILE.csv", "--workers", "0"], "--workers must be at least 1, got 0"),
        (["--input", "FILE.csv", "--seed", "-1"], "--seed must be 0 to 2**63 - 1, got -1"),
        ([], "the following arguments are required: --input"),
    ],
)
def test_bad_usage_is_one_clear_line_and_exit_code_2(run, tmp_path, args, problem):
    for name in ("FILE.csv", "FILE.txt"):
        (tmp_path / name).write_text("a,b\n1,2\n")
    args = [arg.replace("FILE", str(tmp_path / "FILE")) for arg in args]
    code, err = run(*args, "--output", tmp_path / "out.jsonl")
    assert (code, problem in err, err.count("\n")) == (2, True, 1), err


def test_the_answers_are_sorted_and_a_table_too_and_a_log_says_how_far_it_is(
    run, tmp_path, monkeypatch
):
    monkeypatch.setattr("dlm.cli.batch.LOG_SECONDS", 0.0)
    rows = [{"text": "Extract name, age as JSON. Olga Lopez is 61."}, {"prompt": "no"}]
    rows += [{"text": f"Extract name, age as JSON. Ben Kim is {age}."} for age in (30, 31)]
    out, table = tmp_path / "out.jsonl", tmp_path / "out.csv"
    args = ["--input", written(tmp_path / "in.jsonl", rows), "--output", out, "--sorted"]
    args += ["--csv", table, "--schema", json.dumps(PERSON), "--max-tokens", 64]
    code, err = run(*args, "--column", "text")
    assert code == 1, err
    assert "1 of 4 rows, " in err
    assert "4 of 4 rows, " in err
    assert [line["row"] for line in lines_of(out)] == [0, 1, 2, 3]
    with table.open(newline="") as file:
        cells = [*csv.DictReader(file)]
    assert [*cells[0]] == ["row", "name", "age", "text", "finish_reason", "tokens", "error"]
    assert [cell["row"] for cell in cells] == ["0", "1", "2", "3"]
    assert (cells[0]["name"], cells[0]["age"]) == ("Olga Lopez", "61")
    assert "no field 'text'" in cells[1]["error"]
    code, err = run(*args, "--column", "text")  # again, with nothing left to do
    assert [line["row"] for line in lines_of(out)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("out.jsonl", "must be another file"),
        ("out.jsonl.settings.json", "must be another file"),
        ("here/in.jsonl", "must be another file"),
        ("no/out.csv", "must be in a folder that exists"),
    ],
)
def test_a_table_needs_a_place_of_its_own(run, tmp_path, table, problem):
    args = ["--input", written(tmp_path / "in.jsonl", ["one"]), "--output", tmp_path / "out.jsonl"]
    (tmp_path / "here").symlink_to(tmp_path)
    code, err = run(*args, "--csv", tmp_path / table)
    assert (code, problem in err) == (2, True), err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "in.jsonl"]


def test_a_model_that_is_refused_leaves_no_output(run, tmp_path):
    args = ["--input", written(tmp_path / "in.jsonl", ["one"]), "--output", tmp_path / "out.jsonl"]
    assert run(*args, "--model", ROOT / "docs")[0] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.exhaustive
def test_a_worker_that_cannot_load_the_model_is_bad_usage(run, tmp_path):
    args = ["--input", written(tmp_path / "in.jsonl", ["one"]), "--output", tmp_path / "out.jsonl"]
    code, err = run(*args, "--workers", 2, "--model", ROOT / "docs")
    assert code == 2
    assert err.splitlines()[-1].startswith("batch.py: ")
    assert "holds no config.json" in err.splitlines()[-1]
