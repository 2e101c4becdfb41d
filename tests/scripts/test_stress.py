"""The stress test and times of grammar work, on a few schemas and the built-in vocabulary."""

import json
import sys

import load
import pytest
import stress
from exhaustive import by_default
from loads import grammar

from dlm.engine import BUILT_IN

TOKENIZER = BUILT_IN / "tokenizer.json"
ENTRY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 3, "maxLength": 40},
        "tags": {"type": "array", "items": {"enum": ["a", "bc", "<eos>"]}, "minItems": 2},
        "next": {"anyOf": [{"$ref": "#/definitions/link"}, {"type": "null"}]},
    },
    "required": ["name", "next"],
    "additionalProperties": False,
    "definitions": {
        "link": {
            "type": "object",
            "properties": {"to": {"$ref": "#/definitions/link"}, "at": {"type": "number"}},
            "required": ["at"],
        }
    },
}
SCHEMAS = [
    {"id": "linked", "schema": ENTRY, "data": {"name": "Ann", "next": {"at": 1}}},
    {"id": "any", "schema": True, "data": [[[]]]},
    {"id": "long", "schema": {"type": "string", "minLength": 90}, "data": "a" * 91},
    {
        "id": "code",
        "schema": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
        "data": "AK-1234",
    },
    {"id": "unique", "schema": {"type": "array", "uniqueItems": True}, "data": [1]},
    {"id": "pair", "schema": {"type": "array", "not": {"uniqueItems": True}}, "data": [1, 1]},
]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "schemas.jsonl"
    lines = [
        {**entry, "split": "own", "tests": [{"data": entry["data"], "valid": True}]}
        for entry in SCHEMAS
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


@pytest.mark.parametrize("model", by_default(["spiteful", "random", "endless"]))
def test_every_schema_that_compiles_ends_valid_and_complete(file, model, monkeypatch, capsys):
    flags = "--schemas", file, "--tokenizer", TOKENIZER, "--model", model
    monkeypatch.setattr(sys, "argv", ["stress.py", *map(str, flags)])
    rows = [*stress.stress(stress.arguments())]
    stress.show(rows)
    assert "refused (1): " in capsys.readouterr().out
    rows = {row.id: row for row in rows}
    assert "uniqueItems" in rows.pop("pair").refused
    for row in rows.values():
        assert row.refused is None
        assert (row.valid, row.complete, row.disagreements) == (True, True, [])
        assert row.tokens <= max(512, 2 * row.shortest)


@pytest.mark.exhaustive
def test_the_benchmark_times_every_situation(file, monkeypatch, run_command):
    monkeypatch.setattr(grammar, "HARD", dict([*grammar.HARD.items()][:2]))
    flags = (
        "grammar",
        "--schemas",
        file,
        "--tokenizer",
        TOKENIZER,
        "--limit",
        2,
        "--steps",
        2,
        "--json",
    )
    times = json.loads(run_command(load, *flags).out)
    assert times.keys() == {"compile", "mask", "warmup", "first", "warm", "agree", "repair"}
    assert all(0 < some["p50"] <= some["p99"] <= some["max"] for some in times.values())


def test_a_benchmark_is_a_table_for_people(capsys):
    grammar.show({"compile": [1.0, 3.0], "mask": [0.5]})
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert [row[1] for row in rows] == ["compile", "mask"]
    assert rows[0][3::2] == ["2", "2.000", "2.980", "3.000"]


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--limit", "0"], "--limit must be at least 1, got 0"),
        (["--schemas", "/no"], "there is no file /no"),
    ],
)
def test_shared_flags_are_checked(file, flags, problem, refusal_of):
    args = "--schemas", file, "--tokenizer", TOKENIZER, *flags
    assert refusal_of(stress, *args) == f"stress.py: {problem}\n"
