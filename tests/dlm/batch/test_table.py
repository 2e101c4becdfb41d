"""Tables of answers."""

import csv

import pytest

from dlm import DlmError
from dlm.batch.table import write_table

END = {"text": "t", "finish_reason": "stop", "tokens": 3, "error": None}


def table_of(path, *answers):
    write_table(path, lambda: iter(answers))
    with path.open(newline="", encoding="utf-8") as file:
        return [*csv.DictReader(file)]


def test_properties_of_values_are_columns(tmp_path):
    first = {"row": 0, "id": "a", "value": {"name": "é,\n", "row": [1, None]}} | END
    second = {"row": 1, "id": "b", "value": {"name": None, "late": True}} | END
    rows = table_of(tmp_path / "t.csv", first, second)
    assert [*rows[0]] == [
        *("row", "id", "name", "value.row", "late"),
        *("text", "finish_reason", "tokens", "error"),
    ]
    assert (rows[0]["name"], rows[0]["value.row"], rows[0]["late"]) == ("é,\n", "[1, null]", "")
    assert (rows[1]["row"], rows[1]["name"], rows[1]["late"]) == ("1", "", "true")


@pytest.mark.parametrize(
    ("value", "cell"), [("yes", "yes"), (3, "3"), ([{"a": 1}], '[{"a": 1}]'), (None, "")]
)
def test_other_values_have_a_column_of_their_own(tmp_path, value, cell):
    (row,) = table_of(tmp_path / "t.csv", {"row": 0, "value": value} | END)
    assert row["value"] == cell


def test_a_row_that_failed_has_its_error_alone(tmp_path):
    bad = {"row": 1, "error": "no \ud800"}
    rows = table_of(tmp_path / "t.csv", {"row": 0, "value": {"a": 1}} | END, bad)
    assert rows[1] == dict.fromkeys(rows[0], "") | {"row": "1", "error": "no \\ud800"}


def test_the_number_of_columns_is_bounded(tmp_path):
    answers = ({"row": i, "value": {str(i): 1}} | END for i in range(1001))
    with pytest.raises(DlmError, match="at most 1000 columns of values, got more by row 1000"):
        write_table(tmp_path / "t.csv", lambda: answers)
    assert not (tmp_path / "t.csv").exists()
