"""Figures of the flood script, without a flood."""

from dataclasses import replace

import flood
import pytest

ROW = flood.FloodRow(
    attack="quiet",
    answers=3,
    refused=0,
    median=0.1,
    worst=0.2,
    before=400.0,
    peak=410.0,
    after=405.0,
)


def test_an_answer_that_does_not_come_has_no_status():
    took, status = flood.ask(1, "key")  # a port on which nothing listens
    assert status == 0
    assert took < flood.PATIENCE


def test_the_table_compares_times_with_the_longest_quiet_one():
    times = {"median": 0.2, "worst": 0.5, "peak": 420.0, "after": 406.0}
    beside = replace(ROW, attack="half-open", refused=1, **times)
    last = flood.table([ROW, beside]).splitlines()[-1]
    assert last == "| half-open | 0.200 | 0.500 | 2.50 | 1 of 3 | 400, 420, 406 |"


@pytest.mark.parametrize(
    ("rows", "held"),
    [
        ([ROW, ROW], True),
        ([ROW, replace(ROW, worst=0.61)], False),
        ([ROW, replace(ROW, refused=1)], False),
    ],
)
def test_a_server_holds_unless_the_innocent_client_is_refused_or_slowed_down(rows, held):
    assert flood.held(rows, within=3.0) == held
