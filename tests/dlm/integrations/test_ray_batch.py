"""Rows on the actors of a Ray cluster: whatever ends one of them, no row is lost, none doubled."""

import os
from functools import partial
from pathlib import Path
from unittest.mock import patch

import fragile
import pytest

pytest.importorskip("ray")

from dlm.batch.extraction import Extraction
from dlm.batch.rows import Rest, Row
from dlm.batch.template import Template
from dlm.errors import DlmError
from dlm.integrations.ray.batch import Actors
from dlm.integrations.ray.cluster import joined

FORM = Extraction(template=Template.column("text"))


ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def cluster():
    paths = (str(ROOT), str(ROOT / "tests" / "support"))  # of `fragile`, for the actors
    with patch.dict(os.environ, PYTHONPATH=os.pathsep.join(paths)), joined("local", 2) as one:
        yield one


def answered(values, start=fragile.start):
    actors = Actors(start=partial(start, 0), form=FORM, count=2, ahead=8, resources={"num_cpus": 1})
    rest = Rest(partial(rows_of, values), len(values), frozenset())
    found = list(actors.answers(rest))
    assert len(found) == len(values)
    return dict(found)


def rows_of(values):
    return (Row(number, value) for number, value in enumerate(values))


def test_a_row_that_ends_its_actors_is_an_error_and_those_beside_it_are_answered(cluster):
    values = [str(i) for i in range(20)]
    values[5] = "kill"
    found = answered(values)
    told = "workers ended with this row, the last one with this row alone"
    assert found[5]["error"] == told
    said = {number: answer.get("said") for number, answer in found.items() if number != 5}
    assert said == {number: str(number) for number in range(20) if number != 5}


def test_a_model_that_cannot_be_loaded_is_the_end_and_is_named(cluster):
    with pytest.raises(DlmError, match="^ValueError: no such model$"):
        answered(["a"], fragile.refuse)


def test_a_file_that_cannot_be_read_to_its_end_is_no_lost_row(cluster):
    def broken():
        yield Row(0, "a")
        raise OSError("the disk is gone")

    with pytest.raises(DlmError, match="^OSError: the disk is gone$"):
        list(actors(fragile.start).answers(Rest(Sometimes(), 9, frozenset())))
