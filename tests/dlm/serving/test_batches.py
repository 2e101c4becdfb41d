"""Batches on a gated model: when their rows begin, and what of them is bounded."""

import asyncio
import json
import threading
from concurrent.futures import CancelledError
from functools import partial
from pathlib import Path

import pytest
from batch_lines import CHAT, line, lines
from batch_work import Work
from gated import Gated
from waiting import PATIENCE, until

from dlm import DlmError, Request
from dlm.openai.batch import BatchLines
from dlm.openai.batches import BatchBody
from dlm.openai.body import LARGE
from dlm.serving import batches as batches_module


@pytest.fixture
def gate(tokens_of):
    return Gated(tokens_of("hi there<turn|>"))


@pytest.fixture
def work(engine_of, gate, tmp_path):
    """The engine of a gated model, its batches, and the files they read."""
    return partial(Work, engine_of, gate, tmp_path)


@pytest.mark.anyio
async def test_a_row_begins_only_while_a_slot_stays_free_for_live_requests(work, gate, monkeypatch):
    async with work() as at:
        beside, open_ = [], at.engine.open

        async def noted(requests, *args, client="", **more):
            if client.startswith("batches of"):
                beside.append(at.engine.under_way)
            return await open_(requests, *args, client=client, **more)

        monkeypatch.setattr(at.engine, "open", noted)
        batch = at.begin(6)
        await until(lambda: at.engine.engine.busy)  # with the first row
        live = await at.engine.open([Request(prompt="hi", max_tokens=8)] * 3, client="live")
        gate.open.set()
        for stream in live:
            assert [event async for event in stream]
            stream.close()
        await until(lambda: batch.ended)
        assert (batch.status, batch.completed) == ("completed", 6)
        assert beside == [0] * 6


@pytest.mark.anyio
async def test_a_cancelled_batch_keeps_its_answers_and_begins_no_more(work, gate):
    async with work() as at:
        batch, waiting = at.begin(5), at.begin(2)
        await until(lambda: at.engine.under_way == 1)
        file = at.files.get("a", batch.body.input_file_id)
        with pytest.raises(DlmError, match="must not be deleted while a batch needs it"):
            at.files.delete("a", file.id)
        assert at.batches.cancel("a", waiting.id).status == "cancelled"
        assert at.batches.cancel("a", batch.id).status == "cancelling"
        await until(lambda: batch.ended)
        assert (batch.status, batch.completed, batch.failed) == ("cancelled", 0, 0)
        assert at.engine.under_way == 0
        at.files.delete("a", file.id)
        with pytest.raises(DlmError, match="must not have ended, got the status cancelled"):
            at.batches.cancel("a", batch.id)


@pytest.mark.anyio
async def test_rows_that_did_not_run_before_their_batch_expired_have_error_lines(
    work, gate, monkeypatch
):
    async with work(seconds=2) as at:
        opened, open_ = [], at.engine.open

        async def noted(*args, **more):
            opened.append(gate.open.set() if len(opened) < 2 else gate.open.clear())
            return await open_(*args, **more)

        monkeypatch.setattr(at.engine, "open", noted)
        batch = at.begin(5)  # one row at a time
        await until(lambda: batch.ended)
        assert (batch.status, batch.total, batch.error) == ("expired", 5, None)
        assert at.engine.under_way == 0
        answered = []
        if batch.output_file is not None:  # else the machine was too busy for any
            output = at.files.get("a", batch.output_file).path.read_text().splitlines()
            answered = [json.loads(text)["custom_id"] for text in output]
        assert answered + at.error_lines(batch) == list("01234")
        assert (batch.completed, batch.failed) == (len(answered), 5 - len(answered))
        assert batch.completed < 3


@pytest.mark.anyio
async def test_a_batch_expires_while_its_file_is_checked(work, monkeypatch):
    go_on, ends = threading.Event(), []

    def check(_, rows):
        try:
            for _row in rows:
                go_on.wait(PATIENCE)
        except BaseException as error:
            ends.append(type(error))
            raise

    monkeypatch.setattr(BatchLines, "check", check)
    async with work(seconds=1) as at:
        try:
            batch = at.begin(5)
            await until(lambda: batch.ended)
        finally:
            go_on.set()
        assert (batch.status, batch.total, batch.failed) == ("expired", 5, 5)
        assert at.error_lines(batch) == list("01234")
        await until(lambda: ends)
        assert ends == [CancelledError]  # at its next row


@pytest.mark.anyio
async def test_a_batch_that_expires_with_a_full_store_says_what_is_not_written(work):
    async with work(seconds=0, room=256 << 10) as at:
        batch = at.begin(600)
        await until(lambda: batch.ended)
        assert (batch.status, batch.total) == ("expired", 600)
        assert 0 < batch.failed < 600
        assert at.error_lines(batch) == [str(number) for number in range(batch.failed)]
        (problem,) = batch.answer()["errors"]["data"]
        missing = 600 - batch.failed
        assert f"{missing} rows that did not run have no error line: the file" in problem["message"]


@pytest.mark.anyio
async def test_a_batch_may_be_cancelled_while_it_expires(work, monkeypatch):
    begun, go_on, expired = threading.Event(), threading.Event(), BatchLines.expired
    ended = threading.Event()

    def wait(form, row):
        begun.set()
        go_on.wait(PATIENCE)
        if row.number == 4:
            ended.set()
        return expired(form, row)

    monkeypatch.setattr(BatchLines, "expired", wait)
    async with work(seconds=0) as at:
        batch = at.begin(5)
        await until(begun.is_set)
        assert at.batches.cancel("a", batch.id).status == "cancelling"
        await until(lambda: batch.ended)
        go_on.set()
        await until(ended.is_set)
        assert (batch.status, batch.failed, batch.error_file) == ("cancelled", 0, None)
        at.files.delete("a", batch.body.input_file_id)


@pytest.mark.anyio
async def test_a_batch_that_expires_reads_its_file_once_and_lets_others_read_meanwhile(
    work, monkeypatch
):
    begun, go_on, expired = threading.Event(), threading.Event(), BatchLines.expired
    paths, open_ = [], Path.open

    def wait(form, row):
        begun.set()
        go_on.wait(PATIENCE)
        return expired(form, row)

    def noted(path, *args, **more):
        paths.append(path)
        return open_(path, *args, **more)

    monkeypatch.setattr(BatchLines, "expired", wait)
    async with work(seconds=0) as at:
        monkeypatch.setattr(Path, "open", noted)
        batch = at.begin(2_000)
        await until(begun.is_set)
        path = at.files.get("a", batch.body.input_file_id).path
        count = paths.count(path)
        other = asyncio.ensure_future(
            at.engine.run_in_reader(lambda: batch.failed, LARGE, client="b")
        )
        await asyncio.sleep(0)  # it waits for its turn
        go_on.set()
        assert await other < 1_000
        await until(lambda: batch.ended)
        assert (batch.status, batch.failed) == ("expired", 2_000)
        assert paths.count(path) == count
        assert len(paths) < 20  # for files of 2,000 lines


@pytest.mark.anyio
async def test_a_client_has_a_bounded_number_of_batches(work):
    async with work() as at:
        for _ in range(20):
            at.begin(1)
        with pytest.raises(DlmError, match="20 batches of this client have not ended"):
            at.begin(1)
        at.begin(1, "b")


@pytest.mark.anyio
async def test_all_clients_have_a_bounded_number_of_batches(work, monkeypatch):
    monkeypatch.setattr(batches_module, "_MOST_OF_ALL", 3)
    async with work() as at:
        for client in "aab":
            at.begin(1, client)
        with pytest.raises(DlmError, match="3 batches of all clients have not ended"):
            at.begin(1, "c")
        at.batches.cancel("a", at.batches.of("a")[0].id)
        at.begin(1, "c")


@pytest.mark.anyio
async def test_the_oldest_batches_are_forgotten(work, monkeypatch):
    monkeypatch.setattr(batches_module, "_REMEMBERED_OF_ALL", 2)
    async with work() as at:
        for client in "abc":
            at.batches.cancel(client, at.begin(1, client).id)
        assert [len(at.batches.of(client)) for client in "abc"] == [0, 1, 1]
        monkeypatch.setattr(batches_module, "_REMEMBERED", 1)
        batch = at.begin(1, "c")
        assert at.batches.of("c") == [batch]


@pytest.mark.anyio
async def test_files_are_read_and_written_in_threads(work, gate, monkeypatch):
    """The event loop would stand still while it passes over blank lines."""
    threads = {"open": set(), "touch": set(), "_line": set()}

    def note(owner, name):
        original = getattr(owner, name)

        def noted(*args, **more):
            threads[name].add(threading.current_thread())
            return original(*args, **more)

        monkeypatch.setattr(owner, name, noted)

    async with work() as at:
        content = lines(line("a"), *[b" "] * 1000, line("b", temperature=9), b"", line("c"))
        file = at.files.add("a", "rows", "batch", content)
        note(Path, "open")
        note(Path, "touch")
        note(batches_module, "_line")
        gate.open.set()
        batch = at.batches.create("a", BatchBody(input_file_id=file.id, endpoint=CHAT))
        await until(lambda: batch.ended)
        assert (batch.status, batch.completed, batch.failed) == ("completed", 2, 1)
        assert all(threads.values())
        assert threading.current_thread() not in set.union(*threads.values())


@pytest.mark.anyio
async def test_the_check_of_a_file_counts_as_a_request_and_ends_with_its_batch(work, monkeypatch):
    begun, checked, go_on, numbers = threading.Event(), threading.Event(), threading.Event(), []

    def check(_, rows):
        try:
            for row in rows:
                numbers.append(row.number)
                begun.set()
                go_on.wait(PATIENCE)
        finally:
            checked.set()

    monkeypatch.setattr(BatchLines, "check", check)
    async with work() as at:
        batch = at.begin(5)
        await until(begun.is_set)
        assert at.engine.under_way == 1
        at.batches.cancel("a", batch.id)
        await until(lambda: batch.ended)
        go_on.set()
        await until(checked.is_set)
        assert numbers == [0]


@pytest.mark.anyio
@pytest.mark.parametrize("steps", range(6))
async def test_a_batch_is_cancelled_at_any_moment_and_the_next_one_runs(work, gate, steps):
    gate.open.set()
    async with work() as at:
        batch, later = at.begin(1), at.begin(1)
        for _ in range(steps):
            await asyncio.sleep(0)
        at.batches.cancel("a", batch.id)
        await until(lambda: later.ended)
        assert (batch.status, later.status) == ("cancelled", "completed")
        for each in (batch, later):
            at.files.delete("a", each.body.input_file_id)


@pytest.mark.anyio
async def test_a_row_with_several_answers_takes_one_slot(work, gate, monkeypatch):
    gate.open.set()
    async with work(slots=4) as at:
        counts, open_ = [], at.engine.open

        async def noted(requests, *args, **more):
            counts.append((len(requests), at.engine.under_way))
            return await open_(requests, *args, **more)

        monkeypatch.setattr(at.engine, "open", noted)
        batch = at.begin(4, n=5)
        await until(lambda: batch.ended)
        assert batch.completed == 4
        assert len(counts) == 20
        assert max(counts) <= (1, 1)  # rows have half of the slots
        (output,) = (file for file in at.files.of("a") if file.id == batch.output_file)
        rows = [json.loads(text) for text in output.path.read_text().splitlines()]
        assert [len(row["response"]["body"]["choices"]) for row in rows] == [5] * 4


@pytest.mark.anyio
async def test_batches_of_clients_take_turns(work, gate, monkeypatch):
    async with work() as at:
        clients, open_ = [], at.engine.open

        async def noted(requests, *args, client="", **more):
            clients.append(client.removeprefix("batches of "))
            return await open_(requests, *args, client=client, **more)

        monkeypatch.setattr(at.engine, "open", noted)
        batches = [at.begin(4, client) for client in "abc"]
        await until(lambda: all(batch.status == "in_progress" for batch in batches))
        gate.open.set()
        await until(lambda: all(batch.ended for batch in batches))
        turns = "".join(clients)  # any client's file may be read first
        assert {*turns[:3]} == {*"abc"}
        assert turns == turns[:3] * 4


@pytest.mark.anyio
async def test_a_batch_needs_a_file_for_batches(work, gate):
    gate.open.set()
    async with work() as at:
        batch = at.begin(1)
        await until(lambda: batch.ended)
        body = BatchBody(input_file_id=batch.output_file, endpoint=CHAT)
        with pytest.raises(
            DlmError, match="must be a file of the purpose batch, got one of batch_"
        ):
            at.batches.create("a", body)
        at.files.delete("a", batch.output_file)
