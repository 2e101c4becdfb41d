"""Tensors on the CPU are sent to a device for a test; here without a GPU."""

import torch
from on_device import Storages


def test_tensors_that_share_memory_share_it_on_the_device_and_come_back():
    x = torch.arange(24.0).view(4, 6)
    storages = Storages("cpu")
    whole, part = storages.sent(x), storages.sent(x[1:, ::2])
    assert whole.data_ptr() != x.data_ptr()
    assert torch.equal(part, x[1:, ::2])
    assert part.stride() == (6, 2)
    part += 100
    assert torch.equal(whole[1:, ::2], part)
    assert x.max() == 23
    storages.bring_back()
    assert torch.equal(x[1:, ::2], part)


def test_tensors_of_all_types_are_sent_and_other_values_are_left():
    storages = Storages("cpu")
    for dtype in (torch.float8_e4m3fn, torch.uint8, torch.int64, torch.bfloat16):
        x = torch.arange(8).to(dtype)
        assert torch.equal(storages.sent(x).float(), x.float())
    for x in (torch.zeros(()), torch.zeros(0, 3)):
        assert storages.sent(x).shape == x.shape
    assert storages.sent(3) == 3
