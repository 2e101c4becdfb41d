"""Rows by Ray Data: a pool of actors, each with an engine of its own.

The file of rows is read in this process, and rows travel in small blocks. The answers of a block
come back together and in its order, however often it is tried: Ray takes the results of a second
try in place of those that the first one did not deliver.
"""

import logging
import os
import pickle
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any

import pyarrow
from ray.data import ActorPoolStrategy, DataContext, Datasource, ReadTask, read_datasource
from ray.data.block import BlockMetadata
from ray.exceptions import RayError

from dlm.batch.batch import AnswerForm, Batch, Ended
from dlm.batch.rows import InputRow, Rest
from dlm.engine import Engine
from dlm.errors import DlmError, failure
from dlm.integrations.ray import Owner, end_with
from dlm.loading import Loading, tune_process

LoadBatch = Callable[[], Batch]  # loads an engine; it travels to an actor
Block = Sequence[InputRow]

_CALLS = 4  # blocks under way in an actor, so that its slots are full while one of them ends
_WAITING = 2  # blocks that wait there for one of these to end
_RETRIES = 2  # times that a block is tried again whose actor ended
_RESTARTS = 4  # of an actor; Ray Data then makes another in its place
_COLUMN = "pickled"  # of blocks and of their answers: what JSON may hold fits no table


@dataclass(frozen=True, slots=True, kw_only=True)
class Actors:
    """A pool of actors that answer rows.

    Each actor reserves `resources`, as Ray names them, has up to `ahead` rows under way, and ends
    with its `owner`. Rows whose actor ended are tried again. Any of them may have ended it, so at
    last each row is alone with an actor; a row that still gets no answer is an error, and the
    others succeed.
    """

    start: LoadBatch
    form: AnswerForm
    count: int
    ahead: int
    resources: dict[str, Any]
    owner: Owner

    def answers(self, unanswered: Rest) -> Iterator[Ended]:
        """Yield an answer to each row, in the order in which their blocks end.

        Raises `DlmError` if no engine can be loaded, or if the rows cannot be read.
        """
        shared = _BlockPlan(rows=max(1, self.ahead // _CALLS), calls=_CALLS, waiting=_WAITING)
        for plan in (shared, _BlockPlan(rows=1, calls=1, waiting=0)):
            few = sum(1 for _ in islice(unanswered(), self.count * plan.rows))
            if few == 0:
                return
            ended = set[int]()
            for number, answer in self._run(
                unanswered, plan, min(self.count, -(-few // plan.rows))
            ):
                ended.add(number)
                yield number, answer
            unanswered = replace(unanswered, answered=unanswered.answered | ended)
        for row in unanswered():
            error = DlmError("workers ended with this row, the last one with this row alone")
            yield row.number, self.form.refusal(row, error)

    def _run(self, unanswered: Rest, plan: "_BlockPlan", count: int) -> Iterator[Ended]:
        """Yield the answers of the blocks that one of `count` actors has survived."""
        context = DataContext.get_current().copy()
        context.enable_progress_bars = False
        context.max_errored_blocks = -1  # they are tried again, or named
        context.target_max_block_size = 1  # byte: blocks stay as small as they are
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # the same, with its traces
        with DataContext.current(context), warnings.catch_warnings():
            # Until 2.64 there is no other way to bound how often a block is tried.
            warnings.filterwarnings("ignore", "`ray_remote_args` is deprecated")
            source = _Source(unanswered, plan.rows)
            blocks = read_datasource(source, override_num_blocks=1, num_cpus=0).map_batches(
                _Actor,
                fn_constructor_args=(self.start, self.owner),
                batch_size=None,
                batch_format="pyarrow",
                compute=ActorPoolStrategy(
                    size=count,
                    max_tasks_in_flight_per_actor=plan.calls + plan.waiting,
                    max_concurrent_calls_per_actor=plan.calls,
                    enable_true_multi_threading=True,
                ),
                max_restarts=_RESTARTS,
                max_task_retries=_RETRIES,
                **self.resources,
            )
        try:
            for table in blocks.iter_batches(
                batch_size=None, batch_format="pyarrow", prefetch_batches=0
            ):
                for answers in _unpacked(table):
                    if isinstance(answers, DlmError):
                        raise answers
                    yield from answers
        except RayError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise DlmError(f"the workers could not be started: {' '.join(lines)[:500]}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _BlockPlan:
    """Sizes of a round of blocks."""

    rows: int  # of a block
    calls: int  # blocks that an actor works at together
    waiting: int  # blocks that are with an actor beside these


class _Source(Datasource):
    """Blocks of rows, made by one task as they are needed."""

    def __init__(self, unanswered: Rest, size: int):
        super().__init__()
        self._unanswered, self._size = unanswered, size

    def get_name(self) -> str:
        return "Rows"

    @property
    def supports_distributed_reads(self) -> bool:
        """Whether other machines may read: no, the file is on this one."""
        return False

    def estimate_inmemory_data_size(self) -> int | None:
        return None

    def get_read_tasks(self, parallelism: int, *args: Any, **options: Any) -> list[ReadTask]:
        unanswered, size = self._unanswered, self._size
        unknown = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
        return [ReadTask(lambda: _blocks(unanswered, size), unknown)]


def _blocks(unanswered: Rest, size: int) -> Iterator[pyarrow.Table]:
    """Yield blocks. One that cannot be read is its error, and the last: Ray drops exceptions."""
    try:
        rows = unanswered()
        while block := list(islice(rows, size)):
            yield _packed(block)
    except Exception as error:
        yield _packed(failure(error))


class _Actor:
    """An actor of the pool: a thread that steps an engine, and calls that wait for answers."""

    def __init__(self, start: LoadBatch, owner: Owner):
        end_with(owner)
        self._problem: DlmError | None = None
        self._rows = SimpleQueue[InputRow | None]()
        self._waiting: dict[int, list[Future[Ended]]] = {}  # by the row's number
        self._lock = Lock()  # over it
        try:
            self._batch = start()
        except Exception as error:  # raised here, it would be one line in a core dump of Ray's
            self._problem = failure(error)
            return
        tune_process()
        Thread(target=self._serve, name="dlm-batch", daemon=True).start()

    def __call__(self, table: pyarrow.Table) -> pyarrow.Table:
        return pyarrow.concat_tables([_packed(self._answered(row)) for row in _unpacked(table)])

    def _answered(self, block: Block | DlmError) -> list[Ended] | DlmError:
        if self._problem is not None:
            return self._problem
        if isinstance(block, DlmError):
            return block
        futures = [self._queue(row) for row in block]
        return [future.result() for future in futures]

    def _queue(self, row: InputRow) -> Future[Ended]:
        """Queue a row. Ray may repeat a row that is under way, after it lost the connection."""
        future = Future[Ended]()
        with self._lock:
            others = self._waiting.setdefault(row.number, [])
            if not others:
                self._rows.put(row)
            others.append(future)
        return future

    def _serve(self) -> None:
        """Step the engine. If it fails, the process ends, and Ray starts another for its blocks."""
        try:
            while take(self._rows, self._batch):
                for ended in self._batch.step():
                    self._deliver(ended)
        except Exception:
            traceback.print_exc()
            os._exit(1)

    def _deliver(self, ended: Ended) -> None:
        with self._lock:
            futures = self._waiting.pop(ended[0])
        for future in futures:
            future.set_result(ended)


def take(rows: "SimpleQueue[InputRow | None]", batch: Batch) -> bool:
    """Add all rows in the queue, and wait for one if the batch is idle. False: no more will
    come."""
    with suppress(Empty):
        while (row := rows.get(block=not batch.busy)) is not None:
            batch.add(row)
        return False
    return True


def loaded(loading: Loading, form: AnswerForm, ahead: int) -> Batch:
    """Load an engine for up to `ahead` rows."""
    return Batch(Engine.loaded(loading), form, ahead)


def _packed(value: Any) -> pyarrow.Table:
    return pyarrow.table({_COLUMN: pyarrow.array([pickle.dumps(value)], pyarrow.large_binary())})


def _unpacked(table: pyarrow.Table) -> Iterator[Any]:
    return map(pickle.loads, table[_COLUMN].to_pylist())
