"""Processes that answer rows: whatever ends one of them, no row is lost and none comes twice."""

from contextlib import closing

import fragile
import pytest

from dlm.batch.batch import Extraction, Pool, answers
from dlm.batch.rows import InputRow, Template
from dlm.errors import DlmError

FORM = Extraction(template=Template.column("text"))


def answered(values, start=fragile.start, count=2):
    rows = [InputRow(number, value) for number, value in enumerate(values)]
    with closing(Pool(start, count, FORM, ahead=4)) as pool:
        found = list(answers(rows, pool))
        assert not pool.busy
    assert len(found) == len(values)
    return dict(found)


def test_a_row_that_ends_its_worker_three_times_is_an_error_and_those_beside_it_are_answered():
    values = [str(i) for i in range(20)]
    values[5] = "kill"
    found = answered(values)
    assert found[5]["error"] == "3 workers ended with this row, the last one with -9"
    answers = {number: answer.get("answer") for number, answer in found.items() if number != 5}
    assert answers == {number: str(number) for number in range(20) if number != 5}


def test_no_rows_start_no_process():
    assert answered([], start=fragile.vanish) == {}


@pytest.mark.parametrize(
    ("start", "problem"),
    [
        (fragile.refuse, "ValueError: no such model"),
        (fragile.vanish, "3 workers ended before their models were loaded, the last one with -9"),
    ],
)
def test_a_worker_that_cannot_start_is_the_end(start, problem, capfd):
    with pytest.raises(DlmError, match=problem):
        answered(["a"], start, count=1)
    logged = "Traceback" in capfd.readouterr().err
    assert logged == problem.startswith("ValueError")  # which is a bug, and not a user's mistake
