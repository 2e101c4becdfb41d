"""Settings of the garbage collector in a server process."""

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


def test_a_server_process_collects_its_oldest_objects_rarely():
    before, frozen, after = map(int, printed(COUNTED).split())
    assert before > 0
    assert frozen > 100_000
    assert after == 0
