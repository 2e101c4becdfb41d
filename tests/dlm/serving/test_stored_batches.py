"""Batches that outlive their server: what a later one goes on with."""

import asyncio
import json
import os
from functools import partial

import pytest
from batch_work import Work
from gated import Gated
from waiting import until

from dlm import DlmError


@pytest.fixture
def gate(tokens_of):
    gate = Gated(tokens_of("hi there<turn|>"))
    gate.open.set()
    return gate


@pytest.fixture
def work(engine_of, gate, tmp_path):
    """A server's batches; those of a later call are a later server's."""
    return partial(Work, engine_of, gate, tmp_path)


async def stopped_after(at, monkeypatch, count):
    """Begin a batch of five rows, and close it once `count` are answered."""
    opened, open_ = [], at.engine.open

    async def few(*args, **more):
        if len(opened) == count:
            await asyncio.Event().wait()
        opened.append(args)
        return await open_(*args, **more)

    monkeypatch.setattr(at.engine, "open", few)
    batch = at.begin(5)
    await until(lambda: batch.completed == count)
    await at.batches.close()
    return batch


@pytest.mark.anyio
async def test_a_batch_has_not_ended_when_its_server_drains(work, monkeypatch):
    async with work() as at:
        batch, open_ = at.begin(5), at.engine.open

        async def drained(*args, **more):
            if batch.completed == 2:
                await at.engine.drain(0)
            return await open_(*args, **more)

        monkeypatch.setattr(at.engine, "open", drained)
        await until(lambda: at.engine.problem is not None and not at.engine.under_way)
        assert (batch.status, batch.error) == ("in_progress", None)
        at.batches.cancel("a", batch.id)
        await until(lambda: batch.status == "cancelled")
        at.files.delete("a", batch.body.input_file_id)
    async with work() as at:
        assert at.batches.get("a", batch.id).answer() == batch.answer()


@pytest.mark.anyio
async def test_a_later_server_answers_the_rows_that_have_no_answer_yet(work, monkeypatch, tmp_path):
    async with work() as at:
        before = await stopped_after(at, monkeypatch, 2)
    assert before.status == "in_progress"
    with (tmp_path / before.output_file).open("ab") as output:
        output.write(b'{"id": "batch_req_0000')  # a crash came while it was written
    async with work() as at:
        batch = at.batches.get("a", before.id)
        await until(lambda: batch.ended)
        assert (batch.status, batch.completed, batch.failed) == ("completed", 5, 0)
        answers = at.files.get("a", batch.output_file).path.read_text().splitlines()
        assert sorted(json.loads(answer)["custom_id"] for answer in answers) == list("01234")
        assert [file.purpose for file in at.files.of("a")].count("batch_output") == 1
        at.files.delete("a", batch.body.input_file_id)
    async with work() as at:
        assert at.batches.get("a", before.id).answer() == batch.answer()
        with pytest.raises(DlmError, match="must not have ended, got the status completed"):
            at.batches.cancel("a", before.id)


def changed(path, **fields):
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("fields", "status", "failed"),
    [({"status": "cancelling"}, "cancelled", 0), ({"seconds": 0}, "expired", 3)],
)
async def test_a_batch_may_end_where_a_later_server_begins(
    work, monkeypatch, tmp_path, fields, status, failed
):
    async with work() as at:
        before = await stopped_after(at, monkeypatch, 2)
    changed(tmp_path / f"{before.id}.json", **fields)
    async with work() as at:
        batch = at.batches.get("a", before.id)
        await until(lambda: batch.ended)
        assert (batch.status, batch.completed, batch.failed) == (status, 2, failed)
        answers = at.files.get("a", batch.output_file).path.read_text().splitlines()
        assert len(answers) == 2
        if failed:
            assert len(at.error_lines(batch)) == failed


@pytest.mark.anyio
@pytest.mark.parametrize("deleted", [False, True])
async def test_a_later_server_needs_the_file_of_a_batch_also_if_it_has_expired(
    work, monkeypatch, tmp_path, deleted
):
    async with work() as at:
        batches = [await stopped_after(at, monkeypatch, 0), at.begin(1, "b")]
    for batch in batches:
        record = tmp_path / f"{batch.body.input_file_id}.json"
        record.unlink() if deleted else changed(record, expires=0)
    async with work() as at:
        later = [at.batches.get(batch.client, batch.id) for batch in batches]
        await until(lambda: all(batch.ended for batch in later))
        assert [batch.status for batch in later] == ["failed" if deleted else "completed"] * 2
        for batch in later:
            assert batch.error == (
                f"there is no file {batch.body.input_file_id!r} here" if deleted else None
            )
        at.begin(1)


@pytest.mark.anyio
async def test_a_batch_without_a_record_is_logged_and_runs(work, tmp_path, caplog):
    async with work() as at:
        batch = at.begin(1)
        (tmp_path / f"{batch.id}.new").mkdir()
        await until(lambda: batch.ended)
        await at.batches.recorded()
        assert f"a later server does not know {batch.id} as it is now" in caplog.text


@pytest.mark.anyio
@pytest.mark.parametrize(
    "damage", [b"", b"{}", b"[]", b"\0\0", {"status": "later"}, {"created": "x"}]
)
async def test_a_damaged_record_of_a_batch_is_logged_and_others_go_on(
    work, tmp_path, caplog, damage
):
    async with work() as at:
        batches = [at.begin(1), at.begin(1, "b")]
        await until(lambda: all(batch.ended for batch in batches))
        await at.batches.recorded()
    record = tmp_path / f"{batches[0].id}.json"
    changed(record, **damage) if isinstance(damage, dict) else record.write_bytes(damage)
    content = record.read_bytes()
    async with work() as at:
        assert f"{record} cannot be read, and is left as it is" in caplog.text
        assert record.read_bytes() == content
        with pytest.raises(DlmError, match="there is no batch"):
            at.batches.get("a", batches[0].id)
        assert at.batches.get("b", batches[1].id).answer() == batches[1].answer()


@pytest.mark.anyio
async def test_a_batch_that_had_begun_goes_on_first_and_keeps_its_files(
    work, monkeypatch, gate, tmp_path
):
    monkeypatch.setattr("time.time", lambda: 1_000_000.0)  # both begin in one second
    async with work() as at:
        begun, waiting = await stopped_after(at, monkeypatch, 2), at.begin(1)
    os.utime(tmp_path / f"{begun.id}.json", (2e9, 2e9))  # it was written again later
    gate.open.clear()
    async with work() as at:
        later = at.batches.get("a", begun.id)
        await until(
            lambda: at.batches.get("a", begun.id).status == "in_progress" and at.engine.busy
        )
        with pytest.raises(DlmError, match="must not be deleted while a batch needs it"):
            at.files.delete("a", begun.output_file)
        assert at.batches.get("a", waiting.id).status == "validating"
        gate.open.set()
        await until(lambda: later.ended)
        assert (later.status, later.completed) == ("completed", 5)


@pytest.mark.anyio
async def test_rows_whose_lines_are_damaged_are_answered_again(work, monkeypatch, tmp_path):
    async with work() as at:
        before = await stopped_after(at, monkeypatch, 2)
    output = tmp_path / before.output_file
    first, second = output.read_bytes().splitlines(keepends=True)
    output.write_bytes(first + bytes(len(second) - 1) + b"\n")
    async with work() as at:
        batch = at.batches.get("a", before.id)
        await until(lambda: batch.ended)
        assert (batch.status, batch.completed, batch.failed) == ("completed", 5, 0)
        answers = output.read_text().splitlines()
        assert sorted(json.loads(answer)["custom_id"] for answer in answers) == list("01234")
