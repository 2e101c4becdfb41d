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


def test_every_property_has_a_column_of_its_own(tmp_path):
    value = {"row": 1, "value.row": 2, "value": 3, "value.value.row": 4}
    (row,) = table_of(tmp_path / "t.csv", {"row": 7, "value": value} | END)
    assert [*row.items()][:5] == [
        *(("row", "7"), ("value.value.value.row", "1"), ("value.row", "2")),
        *(("value.value", "3"), ("value.value.row", "4")),
    ]


@pytest.mark.parametrize("text", ["=1+1", "+x", "-x", "@a", "\t=1", "\r=1", "=", "--1"])
def test_a_text_that_a_spreadsheet_would_compute_is_marked_as_text(tmp_path, text):
    (row,) = table_of(tmp_path / "t.csv", {"row": 0, "value": {text: text}} | END)
    assert row[f"'{text}"] == f"'{text}"


@pytest.mark.parametrize("number", ["-5", "+47", "-1.5e3", -5])
def test_a_number_with_a_sign_stays_one(tmp_path, number):
    (row,) = table_of(tmp_path / "t.csv", {"row": 0, "value": {"n": number}} | END)
    assert row["n"] == str(number)


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
