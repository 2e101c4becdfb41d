"""The official test suite: no invalid value is accepted, and each refusal has a known reason."""

import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import conformance
import pytest
from measure.schemas import read_schemas

from dlm.grammar import InvalidValueError
from dlm.grammar.errors import UncheckableError
from dlm.grammar.schema import check

SUITE = Path(__file__).parent / "json-schema-test-suite-2020-12.jsonl.xz"
_CLAIMED = """date date-time time duration email hostname ipv4 ipv6 uri uri-reference uri-template
uuid json-pointer relative-json-pointer""".split()
_REASONS = (
    "no finite value fits",  # the schema accepts nothing
    "leads to no schema here",  # a document that only the suite's server has
    "is no draft from 4 to 2020-12",  # metaschemas of its own
    "its automaton takes more than",  # an integer that is a multiple of 0.123456789
    "its opposite cannot be enforced",  # not with unevaluatedProperties
)
_DIFFERENCES = {conformance.CLOSED, conformance.ORDER, conformance.SPELLING}


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    flags = ["--suite", str(SUITE), "--json"]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as out:
        patch.setattr(sys, "argv", ["conformance.py", *flags])
        conformance.main()
    report = json.loads(out.getvalue())
    optional = [f"optional/format/{name}" for name in _CLAIMED]
    rows = [r for r in report["rows"] if r["file"].partition("/")[0] != "optional"]
    assert report["groups"] == len(rows)
    return rows + [row for row in report["rows"] if row["file"] in optional]


def test_no_invalid_instance_is_accepted(rows: list[dict[str, Any]]):
    accepted = [row for row in rows if row["invalid_accepted"]]
    assert accepted == []
    assert sum(row["invalid"] for row in rows if not row["refused"]) > 600


def test_most_groups_compile_and_each_refusal_has_a_documented_reason(rows: list[dict[str, Any]]):
    required = [row for row in rows if not row["file"].startswith("optional/")]
    refused = [row["refused"] for row in required if row["refused"]]
    assert len(required) == 383
    assert len(required) - len(refused) >= 348
    assert [why for why in refused if not any(reason in why for reason in _REASONS)] == []


def test_valid_instances_are_rejected_for_documented_reasons_only(rows: list[dict[str, Any]]):
    required = [row for row in rows if not row["file"].startswith("optional/")]
    rejected = [one for row in required for one in row["valid_rejected"]]
    unknown = [
        one for one in rejected if not set((one["reason"] or "?").split(", ")) <= _DIFFERENCES
    ]
    assert unknown == []
    assert len(rejected) <= 25


def test_the_check_of_values_agrees_with_the_suite():
    """A schema without `$schema` is read as the newest draft with the keywords of older ones."""
    unknown, wrong, count = dict[str, str](), set[str](), 0
    for group in read_schemas(SUITE):
        file = group["file"]
        for test in () if file.startswith("optional/") else group["tests"]:
            count += 1
            try:
                check(test["data"], group["schema"], formats=False)
                valid = True
            except InvalidValueError:
                valid = False
            except UncheckableError as error:
                unknown[file] = str(error)
                continue
            if valid != test["valid"]:
                wrong.add(file)
    assert count > 1_000
    assert unknown.keys() <= {"dynamicRef", "refRemote"}  # documents of the suite's server
    assert all("leads to no schema here" in reason for reason in unknown.values())
    assert wrong <= {"vocabulary"}  # a metaschema of its own
