"""A process that works for another, one task after the other, each within limits of its own.

It starts fast: what it runs is imported when the first task comes, and by then once for all. Tasks
run in a child, which a task may end: another takes its place, forked from here with all imported.
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

SECONDS = struct.Struct("<d")  # in front of a task
MOST_BYTES = 1 << 30  # of memory
MOST_REPLY = 8 << 20  # bytes of a result: who reads them can do nothing else in that time

Call = tuple[Callable[..., Any], tuple[Any, ...]]


class UnreadableError(Exception):
    """This process cannot import what a task is made of."""


class Died(Exception):  # noqa: N818  # it reports
    """The child that ran a task ended."""

    def __init__(self, code: int):
        """`code` is its exit code, or minus the number of the signal that ended it."""
        super().__init__(code)
        self.code = code


def main(descriptor: int, modules: list[str]) -> None:
    """Serve whoever holds the other end of a socket, until it is closed."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for module in modules:
        with suppress(Exception):  # the task will say so
            import_module(module)
    with Connection(descriptor) as asking:
        while True:
            sys.stderr.flush()
            child = os.fork()
            if not child:
                _serve(asking)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if code == _DONE:
                return
            asking.send(Died(code))


_DONE = 77  # the exit code where there is nobody to work for


def _serve(asking: Connection) -> None:
    """Run tasks; never returns."""
    while True:
        try:
            message = asking.recv_bytes()
        except (EOFError, OSError):
            os._exit(_DONE)
        (seconds,) = SECONDS.unpack_from(message)
        signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal ends this process
        reply = _reply(memoryview(message)[SECONDS.size :])
        signal.setitimer(signal.ITIMER_PROF, 0)
        try:
            asking.send_bytes(reply)
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
    except Exception as error:  # a GrammarError of somebody else's
        return pickle.dumps(CrashError(f"{type(problem).__name__}, {type(error).__name__}"))
