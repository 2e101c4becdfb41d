"""Files of answers: lines are whole, and a run continues only with its own settings."""

import json
import os
from contextlib import closing
from datetime import date
from decimal import Decimal

import pytest

from dlm.batch.batch import Extraction, Output
from dlm.batch.rows import LinesError, Template

FORM = Extraction(template=Template.column("text"))
SETTINGS = {"seed": 0, "model": "m"}


def opened(path, **changed):
    return closing(Output(path, SETTINGS | changed, FORM))


def answer(row, **more):
    return {"row": row, "text": "ä\ud800", "error": None} | more


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out.jsonl"


def test_ids_of_types_that_json_lacks_are_written_as_texts(path):
    with opened(path) as output:
        output.write(answer(0, id=date(2026, 11, 24)))
        output.write(answer(1, id=Decimal("1.50")))
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == [
        "2026-11-24",
        "1.50",
    ]


def test_a_truncated_last_line_is_removed_and_the_others_stay(path):
    with opened(path) as output:
        output.write(answer(4))
        output.write(answer(2, error="no"))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    with opened(path) as output:
        assert (output.done, output.failed) == ({2, 4}, 1)
        output.write(answer(7))
    lines = path.read_bytes()[len(whole) :].splitlines()
    assert [json.loads(line) for line in lines] == [answer(7)]
    assert path.read_bytes().startswith(whole)


def test_a_file_of_one_truncated_line_becomes_empty(path):
    with opened(path):
        path.write_text('{"row": 1')
    with opened(path) as output:
        assert output.done == set()
    assert path.read_bytes() == b""


@pytest.mark.parametrize("changed", [{"seed": 1}, {"more": 2}])
def test_other_settings_are_refused_and_the_file_stays(path, changed):
    with opened(path) as output:
        output.write(answer(0))
    before = path.read_bytes()
    name = next(iter(changed))
    with pytest.raises(LinesError, match=f"has answers with {name} .*, not {changed[name]}"):
        Output(path, SETTINGS | changed, FORM)
    assert path.read_bytes() == before
    path.unlink()
    with opened(path, **changed) as output:
        assert output.done == set()


@pytest.mark.parametrize("kept", ["", "[]", None])
def test_a_file_that_no_run_wrote_is_refused(path, kept):
    path.write_text("mine\n")
    if kept is not None:
        path.with_name("out.jsonl.settings.json").write_text(kept)
    with pytest.raises(LinesError, match="without the settings of a run"):
        Output(path, SETTINGS, FORM)
    assert path.read_text() == "mine\n"


@pytest.mark.parametrize("line", ["mine", "{}", '{"row": 1}', '{"row": "x", "error": null}', "3"])
def test_a_line_that_is_no_answer_is_refused_by_its_number(path, line):
    with opened(path) as output:
        output.write(answer(0))
    with path.open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(LinesError, match="line 2: no answer of a run"):
        Output(path, SETTINGS, FORM)


def test_a_second_run_may_not_write_the_same_file(path):
    with opened(path), pytest.raises(LinesError, match="another run writes"):
        Output(path, SETTINGS, FORM)
    with opened(path):
        pass


def test_a_pipe_is_refused(path):
    os.mkfifo(path)
    with pytest.raises(LinesError, match="must be a file, got a pipe or a terminal"):
        Output(path, SETTINGS, FORM)


def test_a_full_disk_is_an_error_that_names_the_file(path):
    path.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device") as raised, opened(path) as output:
        output.write(answer(0))
    assert raised.value.filename == str(path)


def test_lines_come_into_the_order_of_rows_and_a_run_goes_on_after_that(path):
    with opened(path) as output:
        for row in (3, 0, 2):
            output.write(answer(row))
        assert [each["row"] for each in output.in_order()] == [0, 2, 3]
        output.sort()
    with opened(path) as output:
        assert output.done == {0, 2, 3}
        output.write(answer(1))
        output.sort()
    assert [json.loads(line)["row"] for line in path.read_text().splitlines()] == [0, 1, 2, 3]
    assert len(list(path.parent.iterdir())) == 2  # with the settings


def test_sorting_keeps_the_link_and_the_mode_of_the_file(path):
    target = path.with_name("target.jsonl")
    target.touch(0o640)
    target.chmod(0o640)
    path.symlink_to(target)
    with opened(path) as output:
        for row in (1, 0):
            output.write(answer(row))
        output.sort()
    assert path.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    assert [json.loads(line)["row"] for line in target.read_text().splitlines()] == [0, 1]


def test_an_error_while_lines_are_sorted_leaves_the_file_alone(path, monkeypatch):
    with opened(path) as output:
        for row in (1, 0):
            output.write(answer(row))
        content = path.read_bytes()
        monkeypatch.setattr("dlm.batch.rows.copymode", lambda *_: path.with_name("no").stat())
        with pytest.raises(OSError, match="No such file"):
            output.sort()
    assert path.read_bytes() == content
    assert len(list(path.parent.iterdir())) == 2  # with the settings


def test_the_first_error_is_that_of_the_first_row(path):
    with opened(path) as output:
        for row, error in ((4, "late"), (1, {"message": "early", "code": 400}), (2, None)):
            output.write(answer(row, error=error))
        assert (output.failed, output.first_error) == (2, (1, "early"))


def test_files_that_hold_nothing_are_removed_and_others_stay(path):
    with opened(path) as output:
        output.abandon()
    assert list(path.parent.iterdir()) == []
    with opened(path) as output:
        output.write(answer(1))
        output.abandon()
    assert path.read_bytes().count(b"\n") == 1
    path.write_bytes(b"")
    with opened(path) as output:
        output.abandon()
    assert path.exists()  # it was there before
