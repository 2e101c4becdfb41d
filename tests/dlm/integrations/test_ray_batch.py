"""Rows on actors of a Ray cluster: no row is lost or answered twice, whatever ends an actor."""

import json
import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import fragile
import pytest
from commands import batched
from processes import is_running, named, started, wait_for

pytest.importorskip("ray")

import ray
from waiting import wait_until

from dlm import JsonSchema
from dlm.batch.batch import Batch, Extraction, answers
from dlm.batch.rows import InputRow, Rest, Template
from dlm.errors import DlmError
from dlm.integrations.ray import joined
from dlm.integrations.ray.batch import Actors
from dlm.loading import Loading
from dlm.policy import Policy

ROOT = Path(__file__).parents[3]
FORM = Extraction(template=Template.column("text"))
ACTOR = "ray::MapWorker"
ROWS = 20


@pytest.fixture(scope="module")
def cluster():
    paths = (str(ROOT), str(ROOT / "tests" / "support"))  # of `fragile`, for the actors
    with patch.dict(os.environ, PYTHONPATH=os.pathsep.join(paths)):
        with joined("local", 2) as one:
            yield one
        assert not named(os.getpid(), "ray::")


def actors_of(cluster, start):
    return Actors(
        start=start,
        form=FORM,
        count=2,
        ahead=8,
        resources={"num_cpus": 1},
        owner=cluster.owner,
    )


@pytest.mark.exhaustive
def test_a_row_that_ends_its_actors_is_an_error_and_the_other_rows_are_answered(cluster):
    rows = [InputRow(number, "kill" if number == 5 else str(number)) for number in range(20)]
    rest = Rest(partial(iter, rows), 18, frozenset({7}))
    found = list(actors_of(cluster, fragile.start).answers(rest))
    wanted = set(range(18)) - {7}
    assert sorted(number for number, _ in found) == sorted(wanted)
    by_number = dict(found)
    problem = "workers ended with this row, the last one with this row alone"
    assert by_number.pop(5)["error"] == problem
    assert {number: answer["answer"] for number, answer in by_number.items()} == {
        number: str(number) for number in wanted - {5}
    }


@pytest.mark.parametrize(
    ("start", "read", "problem"),
    [
        (fragile.refuse, partial(iter, [InputRow(0, "a")]), r"^ValueError: no such model$"),
        pytest.param(
            *(fragile.start, fragile.torn, r"^OSError: the disk is gone$"),
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            *(fragile.vanish, partial(iter, [InputRow(0, "a")])),
            "^the workers could not be started: ",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_an_error_of_all_rows_is_raised(cluster, start, read, problem):
    with pytest.raises(DlmError, match=problem):
        list(actors_of(cluster, start).answers(Rest(read, 99, frozenset())))


@pytest.mark.exhaustive
def test_rows_are_those_of_one_run_although_actors_and_the_script_are_killed(
    cluster, tmp_path, built_in, monkeypatch
):
    path, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    ask = "Extract name, age as JSON. This is Olga Lopez, {} years old."
    rows = [InputRow(number, ask.format(20 + number)) for number in range(ROWS)]
    path.write_text("".join(json.dumps(row.value) + "\n" for row in rows))
    schema = {"type": "object", "additionalProperties": {"type": "string", "maxLength": 20}}
    options = ["--input", path, "--output", out, "--schema", json.dumps(schema)]
    options += ["--max-tokens", 64, "--slots", 2, "--decoding", "canvas"]

    address = ray.get_runtime_context().gcs_address
    with started(*options, "--ray", address, "--workers", 2) as process:
        wait_for(process, out, 2)
        wait_until(lambda: len(named(os.getpid(), ACTOR)) == 2)  # one may start before the other
        before = named(os.getpid(), ACTOR)
        os.kill(before[0], signal.SIGKILL)
        wait_for(process, out, out.read_bytes().count(b"\n") + 4)
        wait_until(lambda: len(named(os.getpid(), ACTOR)) == 2)  # the killed one is replaced
        process.kill()
        process.communicate()
    kept = out.read_bytes()
    assert kept.count(b"\n") < ROWS
    code, output = batched(monkeypatch, *options)  # goes on without Ray
    assert code == 0, output
    assert f"{ROWS} rows, 0 errors" in output
    assert out.read_bytes().startswith(kept)

    form = replace(FORM, constraint=JsonSchema(schema), max_tokens=64)
    expected = dict(answers(rows, Batch(built_in, form, 16)))
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(found) == ROWS
    assert {line["row"]: line for line in found} == expected
    wait_until(lambda: not [*filter(is_running, before), *named(os.getpid(), ACTOR)])


def test_engines_beyond_the_resources_of_the_cluster_are_refused(cluster):
    with pytest.raises(DlmError, match="9000 engines need 9000 cores: the cluster has"):
        cluster.places(Loading(policy=Policy()), 9000)
    with pytest.raises(DlmError, match="2 engines need 2 GPUs: the cluster has"):
        cluster.places(Loading(policy=Policy(), model="m", device="cuda"), 2)
    place = cluster.places(Loading(policy=Policy()), 2)
    cores = max(2, os.cpu_count() or 1) // 2  # of a cluster that is this test's own
    assert (place[0].device, place[1]) == ("cpu", {"num_cpus": cores})  # the built-in model
    (loading, reserved) = replace(cluster, local=False).places(Loading(policy=Policy()), 2)
    assert (loading.device, reserved) == ("cpu", {"num_cpus": 1})


def test_an_address_without_a_cluster_is_an_error_at_once():
    with (
        pytest.raises(DlmError, match=r"^no Ray cluster at 127\.0\.0\.1:1: "),
        joined("127.0.0.1:1", 1),
    ):
        pass
