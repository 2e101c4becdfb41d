"""Settings of a server process: its garbage collector, and how its threads take turns."""

from processes import printed

COUNTED = """
import gc
import sys
from dlm.loading import tune_process

def collections(count):
    before = [generation["collections"] for generation in gc.get_stats()]
    kept = [[] for _ in range(count)]
    after = [generation["collections"] for generation in gc.get_stats()]
    return [a - b for a, b in zip(after, before)] if kept else []

made = [[] for _ in range(100_000)]
print(collections(300_000)[2])
tune_process()
print(gc.get_freeze_count())
print(*collections(300_000))
print(int(1e6 * sys.getswitchinterval()))
"""


def test_a_server_process_collects_its_oldest_objects_rarely_and_switches_threads_often():
    full_before, frozen, young, middle, full, microseconds = map(int, printed(COUNTED).split())
    assert full_before > 0
    assert frozen > 100_000
    assert full == 0
    assert young <= middle + 1  # no middle collection visits what many young ones left
    assert microseconds <= 500
