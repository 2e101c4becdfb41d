"""Settings of a server process: its garbage collector, and how its threads take turns."""

from processes import printed

COUNTED = """
import gc
import sys
from dlm.loading import tune_process

def full_collections(count):
    before = gc.get_stats()[2]["collections"]
    kept = [[] for _ in range(count)]
    return gc.get_stats()[2]["collections"] - before if kept else 0

made = [[] for _ in range(100_000)]
print(full_collections(300_000))
tune_process()
print(gc.get_freeze_count())
print(full_collections(300_000))
print(int(1e6 * sys.getswitchinterval()))
"""


def test_a_server_process_collects_its_oldest_objects_rarely_and_switches_threads_often():
    before, frozen, after, microseconds = map(int, printed(COUNTED).split())
    assert before > 0
    assert frozen > 100_000
    assert after == 0
    assert microseconds <= 500
