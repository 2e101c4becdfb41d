"""Batches of stored files, whose rows are answered while no other client needs the slots.

The batches of a client run one after another. To the engine they are a client of their own, so
slots, passes and readers are shared with it as with any other; `BatchSlots` bounds their rows.
Batches are recorded, and a later server goes on with those that have not ended.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TypeVar

from dlm.batch.batch import AnswerRow, Job
from dlm.batch.rows import InputRow
from dlm.errors import DlmError, QueueFullError, RequestError, UnavailableError, failure
from dlm.events import Failed, Finished
from dlm.openai.batch import BatchLines
from dlm.openai.batches import BatchBody, BatchState
from dlm.openai.body import json_in_pieces
from dlm.openai.response_items import UnknownResponseError
from dlm.request import Request, Result
from dlm.serving.async_engine import AsyncEngine
from dlm.serving.batch_input import BatchInput
from dlm.serving.batch_slots import BatchSlots
from dlm.serving.batch_writer import BatchWriter
from dlm.serving.file_store import DAY, FileStore, StoredFile, UnknownFileError
from dlm.serving.records import StorageFullError, StoredRecords

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
INPUT = "batch"  # the purpose of a file that may be a batch's
_MOST_BATCHES = 20  # of a client that have not ended
_MOST_OF_ALL = 200  # of all clients that have not ended
_REMEMBERED = 200  # of a client, ended ones included
_REMEMBERED_OF_ALL = 2_000  # of all clients


class UnknownBatchError(UnknownResponseError):
    """Error for a batch that the client does not have: an HTTP 404."""


class Batches:
    """Batches of all clients, in the event loop of an engine."""

    def __init__(
        self,
        engine: AsyncEngine,
        files: FileStore,
        records: StoredRecords,
        names: tuple[str, ...],
        seconds: int = DAY,
    ):
        """`names` are those of the model. A batch expires after `seconds`."""
        self._engine, self._files, self._seconds = engine, files, seconds
        self._records = records
        self._recording = set[asyncio.Future[None]]()
        self._form = BatchLines(names)
        self._slots = BatchSlots(engine)
        self._batches: dict[str, BatchState] = {}  # by id, the oldest first
        self._own: dict[str, dict[str, BatchState]] = {}  # by client and id; none is empty
        self._unended = 0
        self._running: dict[str, asyncio.Task[None]] = {}  # by batch
        self._workers: dict[str, asyncio.Task[None]] = {}  # by client
        earlier = records.read(lambda _, record: BatchState.of_record(record))
        # Records are in order, but for the one of a batch that had begun: it was written again.
        for batch in sorted(earlier, key=lambda batch: (batch.created, not batch.times)):
            self._resume(batch)

    def _resume(self, batch: BatchState) -> None:
        """Go on with a batch of an earlier server, without what it may have been writing."""
        if not batch.ended:
            try:
                self._files.hold(batch.client, batch.body.input_file_id)
            except UnknownFileError as error:
                batch.error = str(error)
                batch.become("failed")
                self._record(batch)
        self._put(batch)

    def _put(self, batch: BatchState) -> None:
        self._batches[batch.id] = self._own.setdefault(batch.client, {})[batch.id] = batch
        if not batch.ended:
            self._unended += 1
            if batch.client not in self._workers:
                self._workers[batch.client] = asyncio.ensure_future(self._work(batch.client))

    def create(self, client: str, body: BatchBody) -> BatchState:
        """Begin a batch. Raises `RequestError`, `UnknownFileError` and `QueueFullError`."""
        body.check()
        purpose = self._files.get(client, body.input_file_id).purpose
        if purpose != INPUT:
            raise RequestError(
                f"input_file_id must be a file of the purpose {INPUT}, got one of {purpose}"
            )
        own = self._own.get(client, {})
        waiting = sum(not batch.ended for batch in own.values())
        if waiting >= _MOST_BATCHES:
            raise QueueFullError(f"{waiting} batches of this client have not ended: wait for one")
        if self._unended >= _MOST_OF_ALL:
            raise QueueFullError(f"{self._unended} batches of all clients have not ended: wait")
        self._files.hold(client, body.input_file_id)
        if len(own) >= _REMEMBERED:
            self._forget_oldest(own)
        if len(self._batches) >= _REMEMBERED_OF_ALL:
            self._forget_oldest(self._batches)
        batch = BatchState(client=client, body=body, seconds=self._seconds)
        self._put(batch)
        self._record(batch)
        return batch

    def of(self, client: str) -> list[BatchState]:
        """Return the batches of a client, the newest first."""
        return [*reversed(self._own.get(client, {}).values())]

    def get(self, client: str, id: str) -> BatchState:
        """Return a batch of a client. Raises `UnknownBatchError`."""
        batch = self._batches.get(id)
        if batch is None or batch.client != client:
            raise UnknownBatchError(f"there is no batch {id!r:.60} here")
        return batch

    def cancel(self, client: str, id: str) -> BatchState:
        """Cancel a batch: rows that are answered already stay. Raises `RequestError`."""
        batch = self.get(client, id)
        if batch.ended:
            raise RequestError(f"{id} must not have ended, got the status {batch.status}")
        if batch.status != "cancelling":
            batch.become("cancelling")
            if (running := self._running.get(id)) is not None:
                running.cancel()
            else:
                batch.become("cancelled")
                self._note_end(self._files.get(client, batch.body.input_file_id))
            self._record(batch)
        return batch

    async def recorded(self) -> None:
        """Wait until the records of all batches are written."""
        if self._recording:
            await asyncio.wait(self._recording)

    def _record(self, batch: BatchState) -> None:
        """Write the record of a batch, as it then is, in a thread."""

        def write() -> None:
            try:
                self._records.write(batch.id, batch.record)
            except StorageFullError as error:
                _LOG.warning("a later server does not know %s as it is now: %s", batch.id, error)

        recording = asyncio.ensure_future(asyncio.to_thread(write))
        self._recording.add(recording)
        recording.add_done_callback(self._recording.discard)

    async def close(self) -> None:
        """End all batches."""
        self._slots.close()
        tasks = [*self._workers.values(), *self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.recorded()

    def _forget_oldest(self, batches: dict[str, BatchState]) -> None:
        """Forget the oldest of `batches` that has ended; fewer have not than are remembered."""
        batch = next(batch for batch in batches.values() if batch.ended)
        own = self._own[batch.client]
        del self._batches[batch.id], own[batch.id]
        self._records.delete(batch.id)
        if not own:
            del self._own[batch.client]

    def _note_end(self, file: StoredFile) -> None:
        """Note that a batch, which has read `file`, has ended."""
        self._files.release(file)
        self._unended -= 1

    async def _work(self, client: str) -> None:
        """Run the batches of a client, the oldest first, until all have ended or the server
        drains."""
        try:
            while pending := [batch for batch in self.of(client) if not batch.ended]:
                await asyncio.ensure_future(self._run(pending[-1]))
                if not pending[-1].ended:
                    break
        finally:
            del self._workers[client]

    async def _run(self, batch: BatchState) -> None:
        """Run one batch to its end, in a task of its own."""
        task = asyncio.current_task()
        if task is None or batch.ended:
            return  # it was cancelled before its task began
        self._running[batch.id] = task
        file = self._files.get(batch.client, batch.body.input_file_id)
        rows, writer = BatchInput(file.path), BatchWriter(self._files, self._records, batch)
        try:
            written = writer.hold()
            await self._read(batch, partial(writer.resume, self._form.row_of), written)
            if batch.status == "cancelling":
                raise asyncio.CancelledError  # under an earlier server
            try:
                async with asyncio.timeout(batch.created + batch.seconds - time.time()):
                    await self._read(batch, partial(rows.check, self._form), file.size)
                    batch.total = len(rows)
                    batch.become("in_progress")
                    await self._answer(batch, rows, writer)
            except TimeoutError:
                rows.stop()
                await self._expire(batch, rows, writer, file.size)
                batch.become("expired")
            else:
                batch.become("finalizing")
                batch.become("completed")
        except asyncio.CancelledError:
            if batch.status != "cancelling":
                raise  # the server is shutting down
            batch.become("cancelled")
        except Exception as error:
            if isinstance(error, UnavailableError) and self._engine.failure is None:
                return  # the server drains: a later one goes on
            if not isinstance(error, DlmError):
                _LOG.exception("a batch failed")
            batch.error = str(failure(error)) if isinstance(error, DlmError) else "a fault here"
            batch.become("failed")
        finally:
            rows.stop()
            writer.close()
            del self._running[batch.id]
            if batch.ended:
                self._note_end(file)
                self._record(batch)

    async def _answer(self, batch: BatchState, rows: BatchInput, writer: BatchWriter) -> None:
        """Answer all rows, and write their answers."""
        numbers = iter(range(len(rows)))
        tasks = [
            asyncio.ensure_future(self._answer_next(batch, rows, numbers, writer))
            for _ in range(min(self._slots.most, len(rows)))
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer_next(
        self, batch: BatchState, rows: BatchInput, numbers: Iterator[int], writer: BatchWriter
    ) -> None:
        """Answer rows one after another, those that no other task has taken from `numbers`."""
        for number in numbers:
            if number in writer.written:
                continue
            async with self._slots.slot(batch.client):
                await self._answer_row(batch, rows, number, writer)

    async def _answer_row(
        self, batch: BatchState, rows: BatchInput, number: int, writer: BatchWriter
    ) -> None:
        """Answer a row in one slot: its requests run one after another."""
        row, size = InputRow(number, None, "the line was not read"), rows.size(number)
        try:
            row = await self._read(batch, partial(rows.row, number), size)
            job = await self._read(batch, partial(self._job, batch, row), size)
            results = [await self._result(batch, request, size) for request in job.requests]
            line = await self._read(batch, lambda: _line(job.answer(results)))
        except UnavailableError:
            raise  # of the server, not of this row
        except Exception as error:
            refusal = partial(self._form.refusal, row, failure(error))
            line = await self._read(batch, lambda: _line(refusal()))
            await self._read(batch, partial(writer.write, {number: line}, failed=True))
        else:
            await self._read(batch, partial(writer.write, {number: line}, failed=False))

    async def _expire(
        self, batch: BatchState, rows: BatchInput, writer: BatchWriter, size: int
    ) -> None:
        """Write an error for each row that has no line yet. Between two pieces of the file, which
        has `size` bytes, other clients have their turns. If the store has no room for some of the
        errors, the batch says so."""
        pieces, problem = rows.pieces(), None
        while (piece := await self._read(batch, lambda: next(pieces, None), size)) is not None:
            if piece:
                batch.total = max(batch.total, piece[-1].number + 1)
            try:
                await self._read(batch, partial(self._write_expired, piece, writer), size)
            except StorageFullError as error:
                problem = error
        if problem is not None:
            missing = batch.total - batch.completed - batch.failed
            batch.error = f"{missing} rows that did not run have no error line: {problem}"

    def _write_expired(self, rows: list[InputRow], writer: BatchWriter) -> None:
        expired = {row.number: _line(self._form.expired(row)) for row in rows}
        writer.write(expired, failed=True)

    def _job(self, batch: BatchState, row: InputRow) -> Job:
        endpoint = batch.body.endpoint
        url = row.value.get("url") if isinstance(row.value, dict) else None
        if url is not None and url != endpoint:
            raise RequestError(f"url must be the batch's endpoint {endpoint}, got {url!r:.60}")
        return self._form.job(row, self._engine.engine)

    async def _read(self, batch: BatchState, work: Callable[[], T], size: int = 0) -> T:
        """Return what `work` returns, which runs in a thread and reads `size` bytes."""
        read = self._engine.run_in_reader
        return await self._patiently(lambda: read(work, size, _client(batch)))

    async def _result(self, batch: BatchState, request: Request, size: int) -> Result:
        (stream,) = await self._patiently(
            lambda: self._engine.open([request], size=size, client=_client(batch))
        )
        try:
            async for event in stream:
                if isinstance(event, Failed):
                    raise event.error
                if isinstance(event, Finished):
                    return event.result
        finally:
            stream.close()
        raise UnavailableError("the engine was closed")

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return what `work` returns, begun anew as long as the engine's queue is full."""
        while True:
            with suppress(QueueFullError):
                return await work()
            await self._engine.until_fewer()


def _line(answer: AnswerRow) -> bytes:
    return "".join(json_in_pieces(answer)).encode("utf-8", "backslashreplace") + b"\n"


def _client(batch: BatchState) -> str:
    """Return the client that a batch is to the engine."""
    return f"batches of {batch.client}"
