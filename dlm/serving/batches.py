"""Batches of stored files, whose rows are answered while no other client needs the slots.

A row is begun only while a slot is free, and another one is left for a client that comes next. The
batches of a client run one after another; to the engine they are a client of their own, so slots
and passes are shared with it as with any other.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from typing import BinaryIO, TypeVar

from dlm.batch.batch import AnswerRow
from dlm.batch.rows import InputRow
from dlm.errors import DlmError, QueueFullError, RequestError, UnavailableError, failure
from dlm.events import Failed, Finished
from dlm.openai.batch import BatchLines
from dlm.openai.batches import BatchBody, BatchState
from dlm.openai.body import parse_json
from dlm.openai.response_items import UnknownResponseError
from dlm.request import Request, Result
from dlm.serving.async_engine import AsyncEngine
from dlm.serving.file_store import DAY, FileStore, StoredFile

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
OUTPUT = "batch_output"  # purpose of files of answers
_MOST_ROWS = 50_000  # as OpenAI has it
_MOST_BATCHES = 20  # of a client that have not ended
_REMEMBERED = 200  # of a client, ended ones included
_WAIT = 0.02  # seconds between two looks for a free slot


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
        # A row takes one slot at least; a slot stays free, if there are several.
        self._most = max(1, engine.engine.slots - 1)
        self._batches: dict[str, BatchState] = {}  # by id, the oldest first
        self._running: dict[str, asyncio.Task[None]] = {}  # by batch
        self._workers: dict[str, asyncio.Task[None]] = {}  # by client
        self._rows = 0  # that are being answered

    def create(self, client: str, body: BatchBody) -> BatchState:
        """Begin a batch. Raises `RequestError` and `UnknownFileError`."""
        body.check()
        self._files.get(client, body.input_file_id).readers += 1
        own = self.of(client)
        waiting = sum(not batch.ended for batch in own)
        if waiting >= _MOST_BATCHES:
            self._files.get(client, body.input_file_id).readers -= 1
            raise QueueFullError(f"{waiting} batches of this client have not ended: wait for one")
        for batch in own[_REMEMBERED - 1 :]:
            if batch.ended:
                del self._batches[batch.id]
        batch = BatchState(client=client, body=body, seconds=self._seconds)
        self._batches[batch.id] = batch
        if client not in self._workers:
            self._workers[client] = asyncio.ensure_future(self._work(client))
        return batch

    def of(self, client: str) -> list[BatchState]:
        """Return the batches of a client, the newest first."""
        return [batch for batch in reversed(self._batches.values()) if batch.client == client]

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
                self._files.get(client, batch.body.input_file_id).readers -= 1
        return batch

    async def close(self) -> None:
        """End all batches."""
        tasks = [*self._workers.values(), *self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, client: str) -> None:
        """Run the batches of a client, the oldest first, until all have ended."""
        try:
            while pending := [batch for batch in self.of(client) if not batch.ended]:
                batch = pending[-1]
                self._running[batch.id] = asyncio.ensure_future(self._run(batch))
                await self._running[batch.id]
        finally:
            del self._workers[client]

    async def _run(self, batch: BatchState) -> None:
        """Run one batch to its end."""
        file = self._files.get(batch.client, batch.body.input_file_id)
        try:
            left = batch.created + batch.seconds - batch.now()
            async with asyncio.timeout(max(0.0, left)):
                batch.total = await asyncio.to_thread(self._checked, file)
                batch.become("in_progress")
                await self._answer(batch, file)
            batch.become("finalizing")
            batch.become("completed")
        except TimeoutError:
            batch.become("expired")
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
            file.readers -= 1
            del self._running[batch.id]

    def _checked(self, file: StoredFile) -> int:
        """Return the number of rows. Raises `RequestError` for too many, for none, and for two with
        one `custom_id`."""
        count = 0

        def rows() -> Iterator[InputRow]:
            nonlocal count
            for count, line in enumerate(self._files.lines(file), 1):
                if count > _MOST_ROWS:
                    raise RequestError(f"the file must have at most {_MOST_ROWS} rows")
                yield _row(count - 1, line)

        self._form.check(rows())
        if not count:
            raise RequestError("the file must have at least one row, and has none")
        return count

    async def _answer(self, batch: BatchState, file: StoredFile) -> None:
        """Answer all rows, and write their answers."""
        running = set[asyncio.Task[None]]()
        with ExitStack() as stack:
            writer = _Writer(self._files, batch, stack)
            try:
                for number, line in enumerate(self._files.lines(file)):
                    while self._rows >= self._most or self._engine.under_way >= self._most:
                        await asyncio.sleep(_WAIT)
                    task = asyncio.ensure_future(self._answer_row(batch, number, line, writer))
                    running.add(task)
                    await asyncio.sleep(0)  # the row has begun, and is counted
                    for ended in [task for task in running if task.done()]:
                        running.remove(ended)
                        ended.result()
                await asyncio.gather(*running)
            finally:
                for task in running:
                    task.cancel()
                await asyncio.gather(*running, return_exceptions=True)

    async def _answer_row(
        self, batch: BatchState, number: int, line: bytes, writer: "_Writer"
    ) -> None:
        self._rows += 1
        try:
            row = InputRow(number, None, "the line was not read")
            try:
                client, size = f"batches of {batch.client}", len(line)
                read = self._engine.run_in_reader
                row = await _patiently(lambda: read(partial(_row, number, line), size, client))
                if isinstance(row.value, dict):
                    _check_url(batch, row.value.get("url"))
                make = partial(self._form.job, row, self._engine.engine)
                job = await _patiently(lambda: read(make, size, client))
                results = await self._results([*job.requests], size, client)
                answer = await _patiently(lambda: read(partial(job.answer, results), 0, client))
            except UnavailableError:
                raise  # of the server, not of this row
            except DlmError as error:
                answer = self._form.refusal(row, error)
            except Exception as error:
                answer = self._form.refusal(row, failure(error))
            writer.write(answer)
        finally:
            self._rows -= 1

    async def _results(self, requests: list[Request], size: int, client: str) -> list[Result]:
        streams = await _patiently(lambda: self._engine.open(requests, size=size, client=client))
        try:
            results = list[Result]()
            for stream in streams:
                async for event in stream:
                    if isinstance(event, Failed):
                        raise event.error
                    if isinstance(event, Finished):
                        results.append(event.result)
            return results
        finally:
            for stream in streams:
                stream.close()


class _Writer:
    """Files of a batch's answers, which are made with their first lines."""

    def __init__(self, files: FileStore, batch: BatchState, stack: ExitStack):
        """`stack` closes the files."""
        self._files, self._batch, self._stack = files, batch, stack
        self._output: tuple[StoredFile, BinaryIO] | None = None
        self._errors: tuple[StoredFile, BinaryIO] | None = None

    def write(self, answer: AnswerRow) -> None:
        """Write the answer to a row. Raises `StorageFullError`."""
        line = json.dumps(answer, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
        batch = self._batch
        if answer["error"] is None:
            if self._output is None:
                self._output = self._opened("output")
                batch.output_file = self._output[0].id
            self._files.append(*self._output, line)
            batch.completed += 1
        else:
            if self._errors is None:
                self._errors = self._opened("error")
                batch.error_file = self._errors[0].id
            self._files.append(*self._errors, line)
            batch.failed += 1

    def _opened(self, kind: str) -> tuple[StoredFile, BinaryIO]:
        name = f"{self._batch.id}_{kind}.jsonl"
        file = self._files.create(self._batch.client, name, OUTPUT)
        file.readers += 1
        self._stack.callback(_release, file)
        return file, self._stack.enter_context(file.path.open("ab"))


def _release(file: StoredFile) -> None:
    file.readers -= 1


def _row(number: int, line: bytes) -> InputRow:
    """Return the row of a line; an error in it is the row's problem."""
    try:
        return InputRow(number, parse_json("the line", line))
    except RequestError as error:
        return InputRow(number, None, str(error))


def _check_url(batch: BatchState, url: object) -> None:
    endpoint = batch.body.endpoint
    if url is not None and url != endpoint:
        raise RequestError(f"url must be the batch's endpoint {endpoint}, got {url!r:.60}")


async def _patiently(work: Callable[[], Awaitable[T]]) -> T:
    """Return what `work` returns, begun anew as long as the engine's queue is full."""
    while True:
        with suppress(QueueFullError):
            return await work()
        await asyncio.sleep(_WAIT)
