"""Threads of torch on a CPU while a model runs.

The operations of a small model end before several threads have divided them: the threads then wait
for each other, on a busy machine for most of the time. So a small model runs on one thread, unless
the user has chosen a number. The host's part of a step of a model on a GPU does so, too: on a
virtual machine of 16 processors, an index of 4,096 numbers took two milliseconds. Other models of
the process keep theirs.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

# Parameters; an answer of 3 passes of the built-in model's 6 million takes 0.3 s.
SMALL = 50_000_000
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # by which users choose a number
_CORES = Path("/sys/devices/system/cpu")


def threads_for(parameters: int) -> int | None:
    """Return the number of threads for a model with `parameters` parameters on the CPU, of which
    one on a GPU has none: one for a small model. None leaves torch's own number, which a user has
    chosen or a large model needs."""
    chosen = any(os.environ.get(name) for name in _VARIABLES)
    if parameters > SMALL or chosen or torch.get_num_threads() not in default_numbers():
        return None
    return 1


def default_numbers() -> set[int]:
    """Return the numbers of threads that torch may have if nobody has chosen one: the processors
    that this process may use, or their cores."""
    processors = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
    if not processors:
        return {os.cpu_count() or 1}
    cores = set[str]()
    for number in processors:
        try:
            siblings = _CORES / f"cpu{number}" / "topology" / "thread_siblings_list"
            cores.add(siblings.read_text())
        except OSError:
            cores.add(str(number))
    return {len(processors), len(cores)}


@contextmanager
def using(threads: int | None) -> Iterator[None]:
    """Let torch use `threads` threads within the context; None: torch keeps its number."""
    before = torch.get_num_threads()
    if threads in (None, before):
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
