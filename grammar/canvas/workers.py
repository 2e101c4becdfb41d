"""Tasks in other processes, which can be ended without harm to this one.

If only this process can load a task, such as one of a class in a script, it runs here, without
limits and with a warning. Requests over HTTP make no such tasks.

A worker process runs tasks one by one, each within its own limits. It imports the modules of the
first task, then forks a child that runs the tasks. If a task ends the child, a new child is forked,
with the modules already imported. It needs neither numpy nor torch.
"""

import gc
import logging
import os
import pickle
import resource
import signal
import struct
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from math import inf
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import PriorityQueue
from threading import Lock, Thread, current_thread
from time import monotonic
from types import TracebackType
from typing import Any, NamedTuple

from dlm.grammar.errors import CrashError, GrammarError, LimitError
from dlm.grammar.parse.network import Network
from dlm.grammar.specs.spec import Spec
from dlm.grammar.vocabulary.pieces import CallMarkers, VocabularySlice

_SECONDS = struct.Struct("<d")  # the prefix of a task
_MOST_BYTES = 1 << 30  # of memory
_MOST_REPLY = 8 << 20  # bytes of a result: reading it blocks the other process


class UnreadableError(Exception):
    """A task that this process can not import."""


def main(descriptor: int, modules: list[str]) -> None:
    """Serve the process at the other end of a socket until it closes the socket.

    A reply is a result in a tuple, an error, or the exit code of a child that ended with its task.
    """
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for module in modules:
        with suppress(Exception):  # the task will raise it again
            import_module(module)
    with Connection(descriptor) as parent:
        while True:
            sys.stderr.flush()
            child = os.fork()
            if not child:
                _run_tasks(parent)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if code == _DONE:
                return
            parent.send(code)


_DONE = 77  # the exit code after the socket was closed


def _run_tasks(parent: Connection) -> None:
    """Run tasks until the socket is closed. Never returns.

    Garbage is collected after a reply, not while a task runs.
    """
    gc.disable()
    gc.freeze()
    while True:
        try:
            message = parent.recv_bytes()
        except (EOFError, OSError):
            os._exit(_DONE)
        (seconds,) = _SECONDS.unpack_from(message)
        signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal ends this process
        reply = _reply(memoryview(message)[_SECONDS.size :])
        signal.setitimer(signal.ITIMER_PROF, 0)
        try:
            parent.send_bytes(reply)
        except OSError:
            os._exit(_DONE)
        del message, reply
        gc.collect()


def _reply(message: memoryview) -> bytes:
    try:
        function, args = pickle.loads(message)
    except (ImportError, AttributeError) as error:
        return pickle.dumps(UnreadableError(str(error)))
    except Exception as error:
        return pickle.dumps(CrashError(f"{type(error).__name__}: {str(error)[:500]}"))
    try:
        reply = pickle.dumps((function(*args),))
        if len(reply) <= _MOST_REPLY:
            return reply
        problem = LimitError(f"comes to {len(reply)} bytes, and at most {_MOST_REPLY} are taken")
    except GrammarError as error:
        problem = error
    except MemoryError:
        problem = LimitError(f"takes over {_MOST_BYTES >> 20} MiB of memory")
    except Exception as error:
        problem = CrashError(f"{type(error).__name__}: {str(error)[:500]}")
    try:
        return pickle.dumps(problem)
    except Exception as error:  # a GrammarError of another package that can not be pickled
        return pickle.dumps(CrashError(f"{type(problem).__name__}, {type(error).__name__}"))


class Built(NamedTuple):
    """Network of a spec's rules."""

    network: Network
    checked: bool  # finished answers need a check
    enforced: bool  # the check would refuse none


def build(spec: Spec, markers: CallMarkers | None, written: Any = None) -> Built:
    """Return a spec's network, and whether it is wider than the spec. `written` is what
    `Spec.take_written` returned."""
    spec.put_written(written)
    return Built(Network(spec.rules(markers)), spec.checked, spec.enforced)


def read(spec: Spec, tokens: Sequence[int], excerpt: VocabularySlice) -> Any:
    """Return a finished answer's value. Raises `InvalidValueError` if the spec refuses it."""
    return spec.read(tokens, excerpt)


_QUICK = 0.3  # seconds of processor time for a task in the quick lane
_PATIENCE = 10.0  # limit by the clock, as a multiple of processor time: for tasks that sleep
_START = 30.0  # seconds by the clock for a process to start
_HEAD_START = 10.0  # seconds by the clock by which urgent tasks precede others
_PARTING = 1.0  # seconds to wait for a busy thread at close

_MAIN = "import sys; sys.path[:] = {}; from dlm.grammar.canvas.workers import main; main({}, {})"

_LOG = logging.getLogger(__name__)

Then = Callable[[Any], Any]


class Process:
    """A worker process, started with its first task, and restarted after it was killed."""

    def __init__(self):
        self._lock = Lock()
        self._running: tuple[subprocess.Popen[bytes], Connection] | None = None
        self._closed = False

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], seconds: float) -> Any:
        """Return what `function` returns there, or raise what it raises.

        Raises `TimeoutError` after `seconds` of processor time, `UnreadableError` if the task can
        not be pickled or loaded there, and `CrashError` if the process ends.
        """
        try:
            task = pickle.dumps((function, args))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UnreadableError(str(error)) from error
        connection = self._start(args)
        try:
            connection.send_bytes(_SECONDS.pack(seconds) + task)
            if not connection.poll(_START + _PATIENCE * seconds):
                raise TimeoutError
            reply = connection.recv_bytes()
        except (EOFError, OSError) as error:
            self._kill()
            if isinstance(error, TimeoutError):
                raise
            raise CrashError("the process that worked on it was ended") from error
        try:
            reply = pickle.loads(reply)
        except Exception as error:
            raise CrashError(f"what came back cannot be read: {error}") from error
        if reply == -signal.SIGPROF:
            raise TimeoutError
        if isinstance(reply, int):
            raise CrashError(f"the process that worked on it ended with {reply}")
        if isinstance(reply, Exception):
            raise reply
        return reply[0]

    def close(self) -> None:
        """Kill the process, for good."""
        with self._lock:
            self._closed = True
        self._kill()

    def _start(self, args: tuple[Any, ...]) -> Connection:
        with self._lock:
            if self._closed:
                raise CrashError("the compiler is closed")
            if self._running is None:
                ours, theirs = Pipe()
                modules = sorted({type(arg).__module__ for arg in args})
                code = _MAIN.format(sys.path, theirs.fileno(), modules)
                with theirs:
                    process = subprocess.Popen(
                        [sys.executable, "-c", code],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        pass_fds=[theirs.fileno()],
                        start_new_session=True,  # Ctrl-C must reach the parent only
                    )
                self._running = process, ours
            return self._running[1]

    def _kill(self) -> None:
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            with suppress(ProcessLookupError):
                os.killpg(running[0].pid, signal.SIGKILL)  # its child too
            running[0].wait()


class Task(Future[Any]):
    """A future that several callers may wait for. It is not run if no caller waits any more.

    Its error is raised by each of them: without the frames of the others, whose objects it would
    keep as long as it is known.
    """

    def __init__(self):
        super().__init__()
        self._frames: TracebackType | None = None  # of the error, where it was raised first
        self._waiting, self._given_up, self._change = 1, False, Lock()

    def set_exception(self, exception: BaseException | None) -> None:
        self._frames = exception and exception.__traceback__
        super().set_exception(exception)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        error = super().exception(timeout)
        return error and error.with_traceback(self._frames)

    def result(self, timeout: float | None = None) -> Any:
        if (error := self.exception(timeout)) is not None:
            raise error
        return super().result()

    def join(self) -> bool:
        """Add a waiting caller. Returns False if the task will never be done."""
        with self._change:
            if self.done():
                return not self.cancelled()
            self._waiting += not self._given_up
            return not self._given_up

    def leave(self) -> None:
        """Remove a waiting caller. Cancels the task if it was the last one."""
        with self._change:
            if not self.done() and self._waiting:
                self._waiting -= 1
            if not self._waiting:
                self.cancel()  # has no effect on a task that has begun

    def give_up(self) -> bool:
        """Whether no caller waits. Then no caller can join any more."""
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
        """Set the future's result. Returns False if `seconds` do not suffice, but more are allowed.

        A task that no other process can load runs here, and only if `seconds` are all it may take.
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
            message = self.label.format(f"takes over {self.seconds:g} s")
            self.future.set_exception(LimitError(message))
        except BaseException as error:
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
Jobs = PriorityQueue[tuple[float, int, ProcessWork | None]]  # time, number, work; None: the end


class _Lane:
    """One process with a queue: first come, first served, with a head start for urgent tasks."""

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
        job(self._process)  # fails at once: the process is closed

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._jobs.put((inf, next(self._numbers), None))
        self._process.close()  # waiting tasks fail at once
        if self._thread is not None and self._thread is not current_thread():
            self._thread.join(_PARTING)


def _serve(jobs: Jobs, process: Process) -> None:
    while (job := jobs.get()[2]) is not None:
        job(process)
        del job


class Workers:
    """Two lanes of tasks, so that short tasks do not wait for long ones.

    Every task begins in the quick lane. If it takes too long there, it moves to the slow lane. The
    processes start with the first task, and end with this object or with the program.
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
        """Run `function` in another process, and `then` on its result in a thread of this one.

        `seconds` limits the processor time. An `urgent` task overtakes others that have not waited
        for long. If the other process can not import `function` or `args`, they run here, in a
        thread, without limits: that is logged once for each `label`. The task raises what the
        functions raise, `LimitError` if time or memory runs out, with its text put into `label`,
        and `CrashError` if the process ends.
        """
        job = _Job(function, args, seconds, label, then, Task(), self._warned)

        def slow(process: Process) -> None:
            if job.future.give_up():
                job.future.set_exception(CrashError("no request waits for it any more"))
            else:
                job.run(process, seconds)

        def quick(process: Process) -> None:
            wanted = job.future.set_running_or_notify_cancel()
            if wanted and not job.run(process, min(seconds, _QUICK)):
                self._slow.put(slow, urgent)

        self._quick.put(quick, urgent)
        return job.future

    def close(self) -> None:
        """End the processes. Unfinished tasks fail with `CrashError`."""
        self._end()


def _close(*lanes: _Lane) -> None:
    for lane in lanes:
        lane.close()
