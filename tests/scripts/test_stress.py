"""The stress test and the benchmark, on a few schemas and the built-in model's small vocabulary."""

import argparse
import json
from pathlib import Path

import bench
import pytest
import stress

import dlm.models

TOKENIZER = Path(dlm.models.__file__).parent / "tiny" / "tokenizer.json"
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


@pytest.mark.parametrize("model", ["random", "spiteful", "endless"])
def test_every_schema_that_compiles_ends_valid_and_complete(file, model):
    args = argparse.Namespace(
        schemas=str(file), tokenizer=str(TOKENIZER), model=model, limit=None, seed=0
    )
    rows = {row.id: row for row in stress.stress(args)}
    assert "uniqueItems" in rows.pop("pair").refused
    for row in rows.values():
        assert row.refused is None
        assert (row.valid, row.complete, row.disagreements) == (True, True, [])
        assert row.tokens <= max(512, 2 * row.shortest)


def test_the_benchmark_times_every_situation(file):
    args = argparse.Namespace(schemas=str(file), tokenizer=str(TOKENIZER), limit=2, steps=2, seed=0)
    times = bench.measure(args)
    assert {"first", "warm", "agree", "repair", "compile"} <= times.keys()
    assert len(times["first"]) == 2
    bench.show(times)
