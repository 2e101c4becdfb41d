"""Batches of stored files, whose rows are answered while no other client needs the slots.

The batches of a client run one after another. To the engine they are a client of their own, so
slots, passes and readers are shared with it as with any other; `BatchSlots` bounds their rows.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from threading import Lock
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
from dlm.serving.file_store import DAY, FileStore, StorageFullError, StoredFile

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
INPUT, OUTPUT = "batch", "batch_output"  # purposes of files
_MOST_BATCHES = 20  # of a client that have not ended
_MOST_OF_ALL = 200  # of all clients that have not ended
_REMEMBERED = 200  # of a client, ended ones included
_REMEMBERED_OF_ALL = 2_000  # of all clients


class UnknownBatchError(UnknownResponseError):
    """Error for a batch that the client does not have: an HTTP 404."""


class Batches:
    """Batches of all clients, in the event loop of an engine."""

    def __init__(
        self, engine: AsyncEngine, files: FileStore, names: tuple[str, ...], seconds: int = DAY
    ):
        """`names` are those of the model. A batch expires after `seconds`."""
        self._engine, self._files, self._seconds = engine, files, seconds
        self._form = BatchLines(names)
        self._slots = BatchSlots(engine)
        self._batches: dict[str, BatchState] = {}  # by id, the oldest first
        self._own: dict[str, dict[str, BatchState]] = {}  # by client and id; none is empty
        self._unended = 0
        self._running: dict[str, asyncio.Task[None]] = {}  # by batch
        self._workers: dict[str, asyncio.Task[None]] = {}  # by client

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
        self._batches[batch.id] = self._own.setdefault(client, {})[batch.id] = batch
        self._unended += 1
        if client not in self._workers:
            self._workers[client] = asyncio.ensure_future(self._work(client))
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
        return batch

    async def close(self) -> None:
        """End all batches."""
        self._slots.close()
        tasks = [*self._workers.values(), *self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget_oldest(self, batches: dict[str, BatchState]) -> None:
        """Forget the oldest of `batches` that has ended; fewer have not than are remembered."""
        batch = next(batch for batch in batches.values() if batch.ended)
        own = self._own[batch.client]
        del self._batches[batch.id], own[batch.id]
        if not own:
            del self._own[batch.client]

    def _note_end(self, file: StoredFile) -> None:
        """Note that a batch, which has read `file`, has ended."""
        self._files.release(file)
        self._unended -= 1

    async def _work(self, client: str) -> None:
        """Run the batches of a client, the oldest first, until all have ended."""
        try:
            while pending := [batch for batch in self.of(client) if not batch.ended]:
                await asyncio.ensure_future(self._run(pending[-1]))
        finally:
            del self._workers[client]

    async def _run(self, batch: BatchState) -> None:
        """Run one batch to its end, in a task of its own."""
        task = asyncio.current_task()
        if task is None or batch.ended:
            return  # it was cancelled before its task began
        self._running[batch.id] = task
        file = self._files.get(batch.client, batch.body.input_file_id)
        rows, writer = BatchInput(file.path), _Writer(self._files, batch)
        try:
            try:
                async with asyncio.timeout(batch.created + batch.seconds - batch.now()):
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
            if not isinstance(error, DlmError):
                _LOG.exception("a batch failed")
            batch.error = str(failure(error)) if isinstance(error, DlmError) else "a fault here"
            batch.become("failed")
        finally:
            rows.stop()
            writer.close()
            del self._running[batch.id]
            self._note_end(file)

    async def _answer(self, batch: BatchState, rows: BatchInput, writer: "_Writer") -> None:
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
        self, batch: BatchState, rows: BatchInput, numbers: Iterator[int], writer: "_Writer"
    ) -> None:
        """Answer rows one after another, those that no other task has taken from `numbers`."""
        for number in numbers:
            async with self._slots.slot(batch.client):
                await self._answer_row(batch, rows, number, writer)

    async def _answer_row(
        self, batch: BatchState, rows: BatchInput, number: int, writer: "_Writer"
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
        self, batch: BatchState, rows: BatchInput, writer: "_Writer", size: int
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

    def _write_expired(self, rows: list[InputRow], writer: "_Writer") -> None:
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


class _Writer:
    """Writer of a batch's two files, of answers and of errors. Threads call it. A file is created
    with its first line."""

    def __init__(self, store: FileStore, batch: BatchState):
        self._store, self._batch = store, batch
        self._files: dict[bool, StoredFile] = {}  # by whether their rows have failed
        self._written = set[int]()  # numbers of rows
        self._closed = False
        self._lock = Lock()  # one thread writes at a time

    def write(self, lines: Mapping[int, bytes], failed: bool) -> None:
        """Write the answers to rows, or the errors of rows that have `failed`, by their numbers:
        those of rows that have no line yet, all or none, and none if the batch has ended. Raises
        `StorageFullError`."""
        with self._lock:
            new = {} if self._closed else {n: lines[n] for n in lines if n not in self._written}
            if not new:
                return
            if failed not in self._files:
                self._create(failed)
            self._store.append(self._files[failed], b"".join(new.values()))
            self._written.update(new)
            if failed:
                self._batch.failed += len(new)
            else:
                self._batch.completed += len(new)

    def close(self) -> None:
        """Write no more; lines that are being written are finished."""
        with self._lock:
            self._closed = True
            for file in self._files.values():
                self._store.release(file)

    def _create(self, failed: bool) -> None:
        name = f"{self._batch.id}_{'error' if failed else 'output'}.jsonl"
        file = self._files[failed] = self._store.create(self._batch.client, name, OUTPUT)
        if failed:
            self._batch.error_file = file.id
        else:
            self._batch.output_file = file.id


def _line(answer: AnswerRow) -> bytes:
    return "".join(json_in_pieces(answer)).encode("utf-8", "backslashreplace") + b"\n"


def _client(batch: BatchState) -> str:
    """Return the client that a batch is to the engine."""
    return f"batches of {batch.client}"
