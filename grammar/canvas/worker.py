"""The worker process: it runs tasks of another process, one by one, each within its own limits.

The process imports the modules of the first task, then forks a child that runs the tasks. If a
task ends the child, a new child is forked, with the modules already imported.
"""

import os
import pickle
import resource
import signal
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from dlm.grammar.errors import CrashError, GrammarError, LimitError

SECONDS = struct.Struct("<d")  # the prefix of a task
MOST_BYTES = 1 << 30  # of memory
MOST_REPLY = 8 << 20  # bytes of a result: reading it blocks the other process

Call = tuple[Callable[..., Any], tuple[Any, ...]]


class UnreadableError(Exception):
    """A task that this process can not import."""


class Died(Exception):  # noqa: N818  # a report, not an error
    """The child process that ran a task has ended."""

    def __init__(self, code: int):
        """`code` is the exit code, or minus the number of the signal that ended the child."""
        super().__init__(code)
        self.code = code


def main(descriptor: int, modules: list[str]) -> None:
    """Serve the process at the other end of a socket until it closes the socket."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for module in modules:
        with suppress(Exception):  # the task will raise it again
            import_module(module)
    with Connection(descriptor) as parent:
        while True:
            sys.stderr.flush()
            child = os.fork()
            if not child:
                _serve(parent)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if code == _DONE:
                return
            parent.send(Died(code))


_DONE = 77  # the exit code after the socket was closed


def _serve(parent: Connection) -> None:
    """Run tasks until the socket is closed. Never returns."""
    while True:
        try:
            message = parent.recv_bytes()
        except (EOFError, OSError):
            os._exit(_DONE)
        (seconds,) = SECONDS.unpack_from(message)
        signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal ends this process
        reply = _reply(memoryview(message)[SECONDS.size :])
        signal.setitimer(signal.ITIMER_PROF, 0)
        try:
            parent.send_bytes(reply)
        except OSError:
            os._exit(_DONE)


def _reply(message: memoryview) -> bytes:
    try:
        function, args = pickle.loads(message)
    except (ImportError, AttributeError) as error:
        return pickle.dumps(UnreadableError(str(error)))
    except Exception as error:
        return pickle.dumps(CrashError(f"{type(error).__name__}: {str(error)[:500]}"))
    try:
        reply = pickle.dumps((function(*args),))
        if len(reply) <= MOST_REPLY:
            return reply
        problem = LimitError(f"comes to {len(reply)} bytes, and at most {MOST_REPLY} are taken")
    except GrammarError as error:
        problem = error
    except MemoryError:
        problem = LimitError(f"takes over {MOST_BYTES >> 20} MiB of memory")
    except Exception as error:
        problem = CrashError(f"{type(error).__name__}: {str(error)[:500]}")
    try:
        return pickle.dumps(problem)
    except Exception as error:  # a GrammarError of another package that can not be pickled
        return pickle.dumps(CrashError(f"{type(problem).__name__}, {type(error).__name__}"))
