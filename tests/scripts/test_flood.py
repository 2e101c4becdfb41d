"""What the flood script counts, without a flood."""

import flood
import pytest

ROW = flood.Row("quiet", 3, 0, 0.1, 0.2, 400.0, 410.0, 405.0)


def test_an_answer_that_does_not_come_has_no_status():
    took, status = flood.ask(1, "key")  # nobody listens there
    assert status == 0
    assert took < flood.PATIENCE


def test_the_table_compares_with_the_quiet_worst():
    beside = flood.Row("half-open", 3, 1, 0.2, 0.5, 400.0, 420.0, 406.0)
    last = flood.table([ROW, beside]).splitlines()[-1]
    assert last == "| half-open | 0.200 | 0.500 | 2.50 | 1 of 3 | 400, 420, 406 |"


@pytest.mark.parametrize(
    ("rows", "held"),
    [
        ([ROW, ROW], True),
        ([ROW, flood.Row("slow", 3, 0, 0.1, 0.61, 1.0, 1.0, 1.0)], False),
        ([ROW, flood.Row("refused", 3, 1, 0.1, 0.2, 1.0, 1.0, 1.0)], False),
    ],
)
def test_it_fails_where_the_innocent_client_is_refused_or_slowed_down(rows, held):
    assert flood.held(rows, within=3.0) == held
