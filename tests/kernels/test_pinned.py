"""Buffers of pinned memory: reused, and not before the copy from them has ended."""

import torch

from dlm.kernels.pinned import PinnedMemory


class Event:
    """An event of a device, which has passed once it was waited for."""

    def __init__(self, log):
        self.log, self.recorded = log, False

    def record(self):
        self.recorded = True

    def synchronize(self):
        assert self.recorded
        self.log.append(self)


def memory_of():
    sizes, waits = [], []

    def allocate(size):
        sizes.append(size)
        return torch.empty(size, dtype=torch.uint8)

    return PinnedMemory(allocate, lambda: Event(waits)), sizes, waits


def test_buffers_are_allocated_once_and_each_waits_for_its_own_copy():
    memory, sizes, waits = memory_of()
    places = []
    for turn in range(12):
        with memory.lend(1000) as buffer:
            assert len(buffer) == 1000
            places.append(buffer.data_ptr())
        assert len(waits) == max(0, turn - 3)
    assert len(sizes) == 4
    assert places == places[:4] * 3
    assert len({id(event) for event in waits}) == 8


def test_a_buffer_that_is_too_small_is_replaced_by_one_with_room():
    memory, sizes, _ = memory_of()
    for size in (10, 70_000, 0, 3, 5, 100_000, 90_000):
        with memory.lend(size) as buffer:
            assert len(buffer) == size
    assert sizes == [65536, 131072, 65536, 65536, 131072]


def test_a_copy_that_was_never_begun_is_not_waited_for():
    memory, _, waits = memory_of()
    for _ in range(6):
        try:
            with memory.lend(8):
                raise RuntimeError("no copy")
        except RuntimeError:
            pass
    assert waits == []
