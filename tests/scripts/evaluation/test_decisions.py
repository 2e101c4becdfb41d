"""Calibration of decisions: figures computed by hand, and those of the built-in model."""

from random import Random

import pytest
from evaluation import decisions


def test_the_calibration_error_is_the_mean_gap_of_bins_by_their_counts():
    confidences, hits = [0.95, 0.95, 1.0, 0.55], [True, True, False, True]
    gap = 3 / 4 * abs((0.95 + 0.95 + 1) / 3 - 2 / 3) + 1 / 4 * abs(0.55 - 1)
    assert decisions.ece(confidences, hits) == pytest.approx(gap)
    bins = decisions.reliability(confidences, hits)
    assert [i for i, one in enumerate(bins) if one] == [5, 9]
    assert (bins[9].count, bins[9].right) == (3, pytest.approx(2 / 3))


def test_the_brier_score_is_0_for_a_certain_right_answer_and_2_for_a_wrong_one():
    assert decisions.brier({"a": 1.0, "b": 0.0}, "a") == 0
    assert decisions.brier({"a": 1.0, "b": 0.0}, "b") == 2
    assert decisions.brier({"a": 0.5, "b": 0.5}, "b") == 0.5


def test_a_field_has_four_values_one_of_which_the_text_gives():
    for i in range(50):
        case = decisions.field_value(Random(i))
        text = case.prompt.partition(f"{', '.join(case.labels)}. ")[2].lower()
        assert len(set(case.labels)) == 4
        assert [label for label in case.labels if label.lower() in text] == [case.right]


@pytest.mark.exhaustive
def test_decisions_about_words_are_as_right_as_generated_words(built_in):
    rows = decisions.report(built_in, n=8, seed=1)
    assert [(row.task, row.by) for row in rows] == [
        ("words", "canvas"),
        ("words", "causal"),
        ("fields", "canvas"),
        ("fields", "causal"),
    ]
    for row in rows[:2]:
        assert min(row.right, row.generated_right) == 8
        assert row.ece < 0.08
        assert row.mass > 0.8
    assert rows[1].right >= rows[1].generated_right
    for row in rows:
        assert sum(one.count for one in row.bins if one) == row.n == 8
        assert 0 <= row.brier <= 2
