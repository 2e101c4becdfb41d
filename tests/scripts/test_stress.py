"""The stress test and times of grammar work, on a few schemas and the built-in vocabulary."""

import json
import sys
from typing import get_args

import load
import pytest
import stress
import torch
from exhaustive import by_default
from loads import grammar
from measure import contrary

from dlm.engine import BUILT_IN
from dlm.samplers import Reveal

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
    lines = [{**entry, "tests": [{"data": entry["data"], "valid": True}]} for entry in SCHEMAS]
    lines[0]["split"] = "own"  # not every file says
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


@pytest.fixture
def rows_of(file, monkeypatch):
    """Return the rows of a run with more flags."""

    def run(*flags):
        everything = "--schemas", file, "--tokenizer", TOKENIZER, *flags
        monkeypatch.setattr(sys, "argv", ["stress.py", *map(str, everything)])
        return [*stress.stress(stress.arguments())]

    return run


@pytest.mark.parametrize("model", by_default(["spiteful", "random", "endless"]))
def test_every_schema_that_compiles_ends_valid_and_complete(rows_of, model, capsys):
    rows = rows_of("--model", model)
    stress.show(rows)
    assert "refused (1): " in capsys.readouterr().out
    rows = {row.id: row for row in rows}
    assert "uniqueItems" in rows.pop("pair").refused
    for row in rows.values():
        assert row.refused is None
        assert (row.valid, row.complete, row.disagreements) == (True, True, [])
        assert row.tokens <= max(512, 2 * row.shortest)
        assert row.calls


@pytest.mark.parametrize(("share", "seed"), by_default([(0.05, 1), (1.0, 2)]))
def test_masked_canvases_end_valid_and_complete_in_every_case(rows_of, share, seed, capsys):
    """Under each denoiser and sampler, in blocks of 4 and 32, with budgets of just the shortest
    answer too: each pass reveals a token, and no answer has a mask."""
    masked = [name for name in contrary.SAMPLERS if name != "noise"]
    settings = {
        "model": get_args(contrary.Denoiser),
        "sampler": masked,
        "block": (4, 32),
        "budget": ("roomy", "shortest"),
    }
    flags = [flag for name, values in settings.items() for flag in (f"--{name}", *values)]
    rows = rows_of(*flags, "--share", share, "--seed", seed)
    stress.show(rows)
    assert "FAILED" not in capsys.readouterr().out
    ran = [row for row in rows if row.refused is None]
    assert all(row.good and not row.disagreements for row in ran)
    for name, values in settings.items():
        assert {getattr(row.case, name) for row in ran} == {*values}
    tight = [row for row in ran if row.case.budget == "shortest"]
    assert all(row.tokens <= row.shortest for row in tight)
    assert len(ran) == 5 * round(share * 4 * len(masked) * 4)


def test_schemas_take_the_combinations_in_turn_at_least_one_each(rows_of, capsys):
    flags = "--model", "random", "spiteful", "--block", 4, 32, "--share", 0, "--every", 0
    flags = *flags, "--sampler", "surest", "--budget", "shortest", "--seed", 1
    rows = rows_of(*flags)
    lines = capsys.readouterr().err.splitlines()
    assert len(rows) == len({row.id for row in rows}) == len(lines) == len(SCHEMAS)
    taken = [row.case for row in rows if row.case is not None]
    assert len({*taken[:4]}) == 4
    assert taken[4:] == taken[:1]
    assert rows[2].refused  # the turn goes on after it
    assert [row.case for row in rows_of(*flags)] == [row.case for row in rows]
    last = rows[-1].id
    assert lines[-1] == f"schema 6 of 6, {last}: 1 refused so far, 5 of 5 answers good"


class Lazy(Reveal):
    """Sampler that accepts no position: the loop pins them at last."""

    def accept(self, rows, free):
        return torch.zeros_like(free)


def test_canvases_that_reveal_nothing_fail(rows_of, monkeypatch, capsys):
    monkeypatch.setitem(contrary.SAMPLERS, "surest", Lazy(mask=4, max_steps=12))
    rows = rows_of("--sampler", "surest", "--block", 8, "--budget", "shortest")
    stress.show(rows)
    ran = [row for row in rows if row.refused is None]
    assert all(row.valid and row.complete and row.idle and not row.good for row in ran)
    assert capsys.readouterr().out.count("FAILED") == len(ran) > 0


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
        (["--block", "4", "0"], "--block must be at least 1, got 0"),
        (["--share", "-0.5"], "--share must be at least 0 and at most 1, got -0.5"),
        (["--every", "-1"], "--every must be at least 0, got -1"),
        (["--every", "nan"], "--every must be at least 0, got nan"),
    ],
)
def test_shared_flags_are_checked(file, flags, problem, refusal_of):
    args = "--schemas", file, "--tokenizer", TOKENIZER, *flags
    assert refusal_of(stress, *args) == f"stress.py: {problem}\n"
