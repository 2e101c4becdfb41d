"""The garbage collector of a process that serves."""

from processes import printed

COUNTED = """
import gc
from dlm.loading import tune_garbage_collector

def full_collections(count):
    before = gc.get_stats()[2]["collections"]
    kept = [[] for _ in range(count)]
    return gc.get_stats()[2]["collections"] - before if kept else 0

made = [[] for _ in range(100_000)]
print(full_collections(300_000))
tune_garbage_collector()
print(gc.get_freeze_count())
print(full_collections(300_000))
"""


def test_a_process_that_serves_seldom_looks_at_everything():
    """While so many containers are made and kept, in a process that nothing else has run in."""
    before, frozen, after = map(int, printed(COUNTED).split())
    assert before > 0
    assert frozen > 100_000
    assert after == 0
