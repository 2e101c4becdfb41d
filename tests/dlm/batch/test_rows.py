"""Files of rows: JSON lines, CSV and Parquet, and their errors."""

import sys

import pytest

from dlm.batch.rows import InputError, rows_of
from dlm.errors import RequestError


def written(folder, name, text):
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def read(path):
    return [(row.number, row.value) for row in rows_of(path).read()]


def test_json_lines_are_objects_or_texts_and_blank_lines_are_skipped(tmp_path):
    path = written(tmp_path, "a.jsonl", '\ufeff{"text": "x", "n": 1}\n\n"y"\n')
    assert read(path) == [(0, {"text": "x", "n": 1}), (1, "y")]
    assert rows_of(path).columns == ("text", "n")
    assert [row.fields["text"] for row in rows_of(path).read()] == ["x", "y"]


def test_a_line_that_is_no_object_is_an_error_of_its_row(tmp_path):
    lines = b'{"text": "x"}\n{\n\xff\n' + b"[" * 100_000 + b'\n[1]\n"last"'
    first, *broken, last = rows_of(written(tmp_path, "a.jsonl", lines)).read()
    assert (first.fields, last.fields) == ({"text": "x"}, {"text": "last"})
    right = ["not JSON: Expecting", "not UTF-8 text at byte 0", "not JSON: ", "got a JSON list"]
    assert len(broken) == 4
    for row, problem in zip(broken, right, strict=True):
        with pytest.raises(RequestError, match=problem):
            _ = row.fields


def test_csv_has_quotes_lines_within_them_and_long_fields(tmp_path):
    long = "x" * 300_000
    path = written(tmp_path, "a.csv", f'\ufeffid,text\r\n1,"a ""b""\r\nc"\r\n2,{long}\r\n')
    assert read(path) == [
        (0, {"id": "1", "text": 'a "b"\r\nc'}),
        (1, {"id": "2", "text": long}),
    ]


def test_a_csv_row_with_too_many_fields_has_a_problem_and_one_with_too_few_lacks_some(tmp_path):
    many, few = rows_of(written(tmp_path, "a.csv", "id,text\n1,a,b\n2\n")).read()
    assert many.problem == "the row has 3 fields, and the header 2"
    assert few.fields == {"id": "2"}


def test_parquet_has_the_columns_and_values_of_its_table(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    table = pyarrow.table({"id": list(range(3000)), "text": [f"t{i}" for i in range(3000)]})
    parquet.write_table(table, path)
    assert rows_of(path).columns == ("id", "text")
    assert read(path) == [(i, {"id": i, "text": f"t{i}"}) for i in range(3000)]
    with pytest.raises(InputError, match="not readable as Parquet"):
        rows_of(written(tmp_path, "b.parquet", "no table"))
    broken = bytearray(path.read_bytes())
    broken[4:400] = bytes(396)  # within the first column
    with pytest.raises(InputError, match="not readable as Parquet"):
        read(written(tmp_path, "c.parquet", bytes(broken)))


def test_without_pyarrow_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"needs pyarrow.*pip install 'dlm\[parquet\]'"):
        rows_of(written(tmp_path, "a.parquet", ""))


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.txt", "", "must end in .jsonl, .csv or .parquet, got '.txt'"),
        ("a.csv", "", "has no columns"),
        ("a.csv", "a,a\n", "has two columns 'a'"),
        ("a.csv", 'a\n"open\n', "unexpected end of data"),
        ("a.csv", 'text\n"a"b\n', "a.csv, line 2: ',' expected after"),
        ("a.csv", b"a\n\xff\n", "a.csv, line 2: it is not UTF-8 text"),
        ("a.csv", b"a\n" * 9999 + b"\xff\n", "a.csv, line 10000: it is not UTF-8 text"),
    ],
)
def test_an_unreadable_file_is_an_error_with_its_place(tmp_path, name, text, problem):
    with pytest.raises(InputError, match=problem):
        read(written(tmp_path, name, text))


@pytest.mark.parametrize(
    ("header", "column"),
    [("prompt,text", "prompt"), ("id,text", "text"), ("words", "words"), ("id,words", None)],
)
def test_the_column_of_texts_is_the_one_named_so_or_the_only_one(tmp_path, header, column):
    rows = rows_of(written(tmp_path, "a.csv", f"{header}\n"))
    if column is not None:
        assert rows.text_column() == column
        return
    with pytest.raises(InputError, match=r"neither a column prompt nor .* of id, words"):
        rows.text_column()


def test_a_file_without_rows_needs_no_column_of_texts(tmp_path):
    assert rows_of(written(tmp_path, "a.jsonl", "\n")).text_column() == "text"


def test_a_file_without_a_readable_row_has_no_column_of_texts(tmp_path):
    with pytest.raises(InputError, match="has no row that can be read"):
        rows_of(written(tmp_path, "a.jsonl", "\n{\n")).text_column()


def test_a_column_that_no_row_has_is_an_error(tmp_path):
    with pytest.raises(InputError, match="has no column 'b': it has a"):
        rows_of(written(tmp_path, "a.csv", "a\n")).need("b")
    with pytest.raises(InputError, match="no column 'b': it has a"):
        rows_of(written(tmp_path, "a.jsonl", '{"a": 1}\n')).need("b")
    rows_of(written(tmp_path, "b.jsonl", '{"a": 1}\n[\n{"b": 1}\n')).need("b")
    rows_of(written(tmp_path, "c.jsonl", "[\n")).need("b")  # each row has its own error
    rows_of(written(tmp_path, "d.jsonl", "")).need("b")
