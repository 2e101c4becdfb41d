"""Python's garbage collector in a process that serves.

A full collection looks at every container of the process, 0.1 s for 300,000 of them, in whatever
step it falls due, and the states of a few dozen grammars are as many. What a request or a grammar
leaves behind is freed without it.
"""

import gc

_FULL = 1000  # collections of the middle generation: some seven million containers more than before


def tune_garbage_collector() -> None:
    """Never look at what exists now again, and seldom at all that is made from now on.

    For the whole process: who serves calls it once, when everything is loaded.
    """
    young, middle, _ = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(young, middle, _FULL)
