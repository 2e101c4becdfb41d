"""Tasks for worker processes, which import this module."""

import gc
import os
import signal
import time

from dlm.grammar import GrammarError


def double(number: int) -> int:
    return 2 * number


def process_id() -> int:
    return os.getpid()


def fail(error: Exception) -> None:
    raise error


def spin(seconds: float = 1e9) -> str:
    """Keep the processor busy."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return "done"


def sleep() -> None:
    time.sleep(3600)


def leave(code: int) -> None:
    os._exit(code)


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def fill_memory() -> list[bytes]:
    return [bytes(1 << 26) for _ in range(1 << 10)]


def say_much() -> bytes:
    return bytes(1 << 26)


def nest(depth: int) -> list:
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


class StrangeError(GrammarError):
    """An error that pickle cannot make again."""

    def __init__(self, one: int, other: int):
        super().__init__(f"{one} and {other}")


def fail_strangely() -> None:
    raise StrangeError(1, 2)


class Circle:
    """An object that refers to itself, so that a collection alone frees it."""

    alive = 0

    def __init__(self):
        self.itself = self
        Circle.alive += 1

    def __del__(self):
        Circle.alive -= 1


def circles(count: int) -> tuple[bool, int]:
    """Make circles; return whether the collector is on, and how many there were before."""
    before = Circle.alive
    for _ in range(count):
        Circle()
    return gc.isenabled(), before
