"""The garbage collector of a process that serves."""

import gc

import pytest

from dlm.collector import collect_seldom


@pytest.fixture
def restored():
    threshold, enabled = gc.get_threshold(), gc.isenabled()
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)
    (gc.enable if enabled else gc.disable)()


def full_collections(count: int) -> int:
    """How many full collections there are while so many containers are made and kept."""
    before = gc.get_stats()[2]["collections"]
    kept = [[] for _ in range(count)]
    return gc.get_stats()[2]["collections"] - before if kept else 0


@pytest.mark.usefixtures("restored")
def test_a_process_that_serves_seldom_looks_at_everything():
    gc.collect()
    gc.freeze()
    gc.collect()  # one that counts what is not frozen: a full collection waits for a quarter more
    assert full_collections(300_000) > 0
    collect_seldom()
    assert gc.get_freeze_count() > 300_000 // 10
    assert full_collections(300_000) == 0
