"""Work for other processes: whatever it takes, this one goes on.

A task of a class that only this process knows, such as one of a script, runs in this process,
without limits, and a warning says so. What comes over HTTP makes no such task.
"""

import logging
import os
import pickle
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from math import inf
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import PriorityQueue
from threading import Lock, Thread, current_thread
from time import monotonic
from typing import Any

from dlm.grammar.canvas.worker import SECONDS, Died, UnreadableError
from dlm.grammar.errors import CrashError, LimitError

_QUICK = 0.3  # seconds of the processor's time that every task gets at first
_PATIENCE = 10.0  # by the clock, times as long: a task that sleeps is given up too
_START = 30.0  # seconds by the clock in which a process can start
_HEAD_START = 10.0  # seconds by the clock that what is urgent has before what is not
_PARTING = 1.0  # seconds to wait for a thread that is in the middle of something

_MAIN = "import sys; sys.path[:] = {}; from dlm.grammar.canvas.worker import main; main({}, {})"

_LOG = logging.getLogger(__name__)

Then = Callable[[Any], Any]


class Process:
    """A worker process, started when there is something to do, and again where it was killed."""

    def __init__(self):
        self._lock = Lock()
        self._running: tuple[subprocess.Popen[bytes], Connection] | None = None
        self._closed = False

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], seconds: float) -> Any:
        """What `function` returns or raises there, within so many `seconds` of processor time.

        Raises `TimeoutError` where they are over, `UnreadableError` for a task that cannot be sent
        and `CrashError` where the process ends.
        """
        try:
            task = pickle.dumps((function, args))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UnreadableError(str(error)) from error
        asked = self._start(args)
        try:
            asked.send_bytes(SECONDS.pack(seconds) + task)
            if not asked.poll(_START + _PATIENCE * seconds):
                raise TimeoutError
            reply = asked.recv_bytes()
        except (EOFError, OSError) as error:
            self._kill()
            if isinstance(error, TimeoutError):
                raise
            raise CrashError("the process that worked on it was ended") from error
        try:
            reply = pickle.loads(reply)
        except Exception as error:
            raise CrashError(f"what came back cannot be read: {error}") from error
        if isinstance(reply, Died) and reply.code == -signal.SIGPROF:
            raise TimeoutError
        if isinstance(reply, Died):
            raise CrashError(f"the process that worked on it ended with {reply.code}")
        if isinstance(reply, Exception):
            raise reply
        return reply[0]

    def close(self) -> None:
        """Kill it, whatever it does; it starts no more."""
        with self._lock:
            self._closed = True
        self._kill()

    def _start(self, args: tuple[Any, ...]) -> Connection:
        with self._lock:
            if self._closed:
                raise CrashError("the compiler is closed")
            if self._running is None:
                asked, asking = Pipe()
                modules = sorted({type(arg).__module__ for arg in args})
                code = _MAIN.format(sys.path, asking.fileno(), modules)
                with asking:
                    process = subprocess.Popen(
                        [sys.executable, "-c", code],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        pass_fds=[asking.fileno()],
                        start_new_session=True,  # Ctrl-C is for its parent
                    )
                self._running = process, asked
            return self._running[1]

    def _kill(self) -> None:
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            with suppress(ProcessLookupError):
                os.killpg(running[0].pid, signal.SIGKILL)  # its child too
            running[0].wait()


class Task(Future[Any]):
    """What several may wait for. Where nobody does when its turn comes, it is never done."""

    def __init__(self):
        super().__init__()
        self._waiting, self._given_up, self._change = 1, False, Lock()

    def join(self) -> bool:
        """Wait for it too; False: it is never done."""
        with self._change:
            if self.done():
                return not self.cancelled()
            self._waiting += not self._given_up
            return not self._given_up

    def leave(self) -> None:
        """One of those who wait does so no more."""
        with self._change:
            if not self.done() and self._waiting:
                self._waiting -= 1
            if not self._waiting:
                self.cancel()  # unless it has begun

    def give_up(self) -> bool:
        """At its turn: whether it is not worth it, and nobody may join any more."""
        with self._change:
            self._given_up = not self._waiting
        return self._given_up


@dataclass(frozen=True, slots=True)
class _Job:
    function: Callable[..., Any]
    args: tuple[Any, ...]
    seconds: float
    label: str
    then: Then
    future: Task
    warned: set[str]  # labels of the tasks that run here

    def run(self, process: Process, seconds: float) -> bool:
        """False: it takes longer than so many `seconds`, and has more of them.

        So does what no other process can load: it runs here, where nothing else waits for it long.
        """
        try:
            try:
                value = process.run(self.function, self.args, seconds)
            except UnreadableError as error:
                if seconds < self.seconds:
                    return False
                self._warn(error)
                value = self.function(*self.args)
            self.future.set_result(self.then(value))
        except TimeoutError:
            if seconds < self.seconds:
                return False
            said = self.label.format(f"takes over {self.seconds:g} s")
            self.future.set_exception(LimitError(said))
        except BaseException as error:  # the future's to raise
            self.future.set_exception(error)
        return True

    def _warn(self, error: UnreadableError) -> None:
        if self.label in self.warned:
            return
        self.warned.add(self.label)
        _LOG.warning(
            "%s: it runs in this process, without limits of time and memory, since no other can "
            "load it (%s). Classes of a module that can be imported have limits.",
            self.label.format("..."),
            error,
        )


ProcessWork = Callable[[Process], None]
Jobs = PriorityQueue[tuple[float, int, ProcessWork | None]]  # time, number, work; None: no more


class _Lane:
    """One process and what waits for it: first come, first served, with a head start for some."""

    def __init__(self):
        self._jobs: Jobs = PriorityQueue()
        self._numbers = count()
        self._process = Process()
        self._thread: Thread | None = None
        self._lock, self._closed = Lock(), False

    def put(self, job: ProcessWork, urgent: bool) -> None:
        with self._lock:
            if not self._closed:
                due = monotonic() + (0 if urgent else _HEAD_START)
                self._jobs.put((due, next(self._numbers), job))
                if self._thread is None:
                    work = self._jobs, self._process
                    self._thread = Thread(target=_serve, args=work, daemon=True)
                    self._thread.start()
                return
        job(self._process)  # it fails at once

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._jobs.put((inf, next(self._numbers), None))
        self._process.close()  # what waits fails at once
        if self._thread is not None and self._thread is not current_thread():
            self._thread.join(_PARTING)


def _serve(jobs: Jobs, process: Process) -> None:
    while (job := jobs.get()[2]) is not None:
        job(process)
        del job


class Workers:
    """Two lanes: every task gets a moment in the quick one, and those that take longer go to the
    slow one. So nobody waits long for what is quick, whoever else asks for what is not.

    Their processes start with the first task, and end with this object, or with the program.
    """

    def __init__(self):
        self._quick, self._slow = _Lane(), _Lane()
        self._warned: set[str] = set()
        self._end = weakref.finalize(self, _close, self._quick, self._slow)

    def submit(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        *,
        seconds: float,
        label: str = "{}",
        then: Then = lambda value: value,
        urgent: bool = False,
    ) -> Task:
        """`then` of what `function` returns, within so many `seconds` of processor time. What is
        `urgent` overtakes what is not, if that has not waited for long.

        `function` and `args` are what another process can import; if it cannot, they run here, in a
        thread, without limits, which is logged once for each `label`. `then` runs here, too. The
        future raises what they raise, `LimitError` where the time or the memory is over, its text
        put into `label`, and `CrashError` where the process came to an end.
        """
        job = _Job(function, args, seconds, label, then, Task(), self._warned)

        def slow(process: Process) -> None:
            if job.future.give_up():
                job.future.set_exception(CrashError("nobody waits for it any more"))
            else:
                job.run(process, seconds)

        def quick(process: Process) -> None:
            wanted = job.future.set_running_or_notify_cancel()
            if wanted and not job.run(process, min(seconds, _QUICK)):
                self._slow.put(slow, urgent)

        self._quick.put(quick, urgent)
        return job.future

    def close(self) -> None:
        """End the processes; what has not come back fails with `CrashError`."""
        self._end()


def _close(*lanes: _Lane) -> None:
    for lane in lanes:
        lane.close()
