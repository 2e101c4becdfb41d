"""Calls whose annotated shapes are checked."""

import pytest
from exhaustive import is_exhaustive
from jaxtyping import TypeCheckError
from shapes import FIRST, schedule
from torch import ones

from dlm.logits.sampling import sharpen


def is_refused() -> bool:
    """Return whether a call is an error whose shapes torch broadcasts and annotations forbid."""
    try:
        sharpen(ones(3, 4), temperatures=ones(1), uniform=ones(3))
    except TypeCheckError:
        return True
    return False


def refused(calls: int) -> list[int]:
    return [number for number in range(1, calls + 1) if is_refused()]


def test_the_first_calls_of_each_test_are_checked_and_then_some():
    for _ in range(2):
        schedule.begin(every=6)
        assert refused(20) == [*range(1, FIRST + 1), 6, 12, 18]


def test_all_calls_are_checked_where_all_tests_run():
    schedule.begin(every=1)
    assert refused(20) == [*range(1, 21)]


@pytest.mark.parametrize("turn", ["one", "another"])
def test_each_test_begins_with_calls_that_are_checked_and_then_some_are(turn):
    every = 1 if is_exhaustive() else 20
    assert refused(41) == [n for n in range(1, 42) if n <= FIRST or n % every == 0]
