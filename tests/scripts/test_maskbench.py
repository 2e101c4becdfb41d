"""The benchmark of masks and matcher, on a few cases and the built-in model's vocabulary."""

import json

import maskbench
import pytest

from dlm.engine import BUILT_IN

CASES = [
    {
        "id": "right",
        "schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        "tests": [{"valid": True, "data": {"a": 1, "b\u2028": 2}}, {"valid": False, "data": {}}],
    },
    {"id": "refused", "schema": {"type": "nothing"}, "tests": [{"valid": True, "data": 1}]},
    {
        "id": "closed",
        "schema": {"properties": {"a": {}}, "additionalProperties": False},
        "tests": [{"valid": True, "data": {"a": []}}, {"valid": True, "data": "not an object"}],
    },
]


@pytest.fixture
def run(run_command):
    """Run the command: the data that it prints."""
    return lambda path, *args: json.loads(
        run_command(maskbench, "--data", path, "--json", *args).out
    )


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "cases.jsonl"
    path.write_text("\n".join(json.dumps(case, ensure_ascii=False) for case in CASES))
    return path


def test_cases_are_judged_by_their_instances(run, file):
    found = run(file)
    counts = ("cases", "passing", "refused", "valid_rejected", "invalid_accepted")
    assert [found[name] for name in counts] == [3, 1, 1, 1, 0]
    rows = {row["id"]: row for row in found["rows"]}
    assert rows["refused"]["refused"]
    assert rows["closed"]["valid_rejected"] == 1  # a keyword implies its type
    assert found["compile_ms"].keys() >= {"p50", "p99", "max"}


def test_tokens_are_timed_beside_another_engine(run, file):
    found = run(file, "--tokenizer", BUILT_IN / "tokenizer.json", "--beside", "llguidance")
    theirs = found["beside"]["llguidance"]
    assert found["mask_us"].keys() == theirs["mask_us"].keys() == {"cold", "warm"}
    assert found["mask_us"]["cold"]["count"] > 10
    assert found["first_ms"]["p50"] > found["compile_ms"]["p50"]
    assert theirs["passing"] == 2
    assert run(file, "--additional-properties", "closed")["passing"] == 0
    maskbench.show(found)


@pytest.mark.parametrize(("kind", "names"), [("tools", ["BFCL", "Glaiveai"]), ("schemas", ["Git"])])
def test_a_kind_chooses_cases_by_their_names(run, tmp_path, kind, names):
    path = tmp_path / "named.jsonl"
    cases = [{**CASES[0], "id": f"{name}---1"} for name in ("BFCL", "Git", "Glaiveai")]
    path.write_text("\n".join(map(json.dumps, cases)))
    assert {row["id"] for row in run(path, "--kind", kind)["rows"]} == {f"{n}---1" for n in names}


@pytest.mark.parametrize("word", ["$ref", "$dynamicRef"])
def test_cases_together_are_a_choice_of_calls(run, tmp_path, word):
    path = tmp_path / "tools.jsonl"
    refers = {**CASES[0], "schema": {word: "#/$defs/a", "$defs": {"a": {}}}}
    path.write_text("\n".join(map(json.dumps, [*[CASES[0]] * 3, refers, *[CASES[2]] * 2])))
    figures = run(path, "--together", "2")
    assert figures["cases"] == 2  # of five without a reference
    assert sum(row["refused"] is None for row in figures["rows"]) == 2


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ([], "the following arguments are required: --data"),
        (["--data", "nowhere.jsonl"], "there is no file nowhere.jsonl"),
        (["--data", "{file}", "--kind", "tools"], "has no cases of the kind tools"),
        (["--data", "{file}", "--kind", "maths"], "choose from"),
        (["--data", "{file}", "--together", "4"], "has no cases for 4 functions"),
        (["--data", "{file}", "--together", "0"], "at least 1"),
    ],
)
def test_a_command_without_usable_cases_is_refused(refusal_of, file, args, reason):
    assert reason in refusal_of(maskbench, *(arg.format(file=file) for arg in args))
