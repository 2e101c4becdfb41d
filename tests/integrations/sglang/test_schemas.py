"""Answers under many schemas, half of them in budgets of exactly the shortest answer."""

import json
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import pytest
from conftest import FAILS, diffusion, fails_alone, json_schema, served

_ANSWERS = 200
_LONGEST = 150  # tokens of a shortest answer; longer ones take too long here


@pytest.fixture(scope="module")
def editing(model, tmp_path_factory):
    """A server of small blocks, whose algorithm edits, in the order that needs no witness."""
    folder = tmp_path_factory.mktemp("editing")
    flags = diffusion(folder, "JointThreshold", 4, "--no-dllm-fdfo")
    variables = {"DLM_SGLANG_ORDER": "prefix", "DLM_SGLANG_STEP_WORK": "100"}
    variables["DLM_TEST_FAILS"] = str(FAILS)
    yield from served(model, folder, flags=flags, variables=variables)


def needed(server, schema):
    """Return the tokens of the shortest answer, or None: the schema cannot be enforced."""
    answer = server.chat("x", response_format=json_schema(schema), max_tokens=1)
    assert answer.status_code == 400
    message = answer.json()["message"]
    return int(message.split("answer takes ")[1].split()[0]) if "answer takes" in message else None


def answered(server, schema, tokens):
    choice = server.choice("x", response_format=json_schema(schema), max_tokens=tokens)
    assert choice["finish_reason"] in ("stop", "length")
    validator = jsonschema.validators.validator_for(schema)
    validator(schema).validate(json.loads(choice["message"]["content"]))
    return True


def counted(server, schemas, answers):
    with ThreadPoolExecutor(4) as threads:
        shortest = list(threads.map(lambda schema: needed(server, schema), schemas))
        pairs = zip(schemas, shortest, strict=True)
        small = [(schema, tokens) for schema, tokens in pairs if tokens and tokens <= _LONGEST]
        print(f"{len(small)} of {len(schemas)} schemas can be enforced in {_LONGEST} tokens")
        assert len(small) > len(schemas) / 2
        jobs = [job for s, n in small[: answers // 2] for job in ((s, n), (s, n + 40))]
        valid = sum(threads.map(lambda job: answered(server, *job), jobs))
    print(f"{valid} of {len(jobs)} answers are valid")


def test_answers_are_valid_in_tight_and_loose_budgets(server, schemas):
    counted(server, schemas, _ANSWERS)
    assert server.is_well()


def test_answers_are_valid_where_an_algorithm_edits_and_grammars_wait(editing, schemas):
    counted(editing, schemas[:40], _ANSWERS // 5)
    assert editing.is_well()


def test_a_request_whose_grammar_raises_ends_alone_where_an_algorithm_edits(editing):
    fails_alone(editing)
