"""Python's garbage collector in a process that serves.

A full collection visits every container of the process: 0.1 s for 300,000 of them, in the middle of
some step, and the states of a few dozen grammars are that many. Requests and grammars are freed by
reference counts alone.
"""

import gc

_FULL = 1000  # middle collections before a full one: some seven million new containers


def tune_garbage_collector() -> None:
    """Exclude all existing objects from collections, and make full collections rare. This holds for
    the whole process: a server calls it once, after everything is loaded."""
    young, middle, _ = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(young, middle, _FULL)
