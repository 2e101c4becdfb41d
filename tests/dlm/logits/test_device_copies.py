"""Copies between host and device: unchanged, in one transfer, and counted."""

import torch

from dlm.logits.canvas_logits import DeviceCopies


def test_tensors_of_all_kinds_arrive_in_one_copy():
    copies = DeviceCopies(torch.device("cpu"))
    sent = [
        torch.tensor([True, False, True]),
        torch.arange(5),
        torch.zeros(0, 7),
        torch.randn(3, 5, generator=torch.Generator().manual_seed(0)),
        torch.arange(12).view(3, 4).T.int(),
        torch.tensor(2.5).double(),
        torch.tensor([1.5, -2.0]).bfloat16(),
    ]

    arrived = copies.to_device(*sent)

    assert copies.count == 1
    for one, other in zip(sent, arrived, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def test_tensors_begin_where_kernels_expect_it():
    """Triton compiles a kernel anew for tensors that do not begin at a multiple of 16 bytes."""
    sent = DeviceCopies(torch.device("cpu")).to_device(
        torch.ones(3), torch.arange(5), torch.ones(7).bool()
    )
    assert len({tensor.data_ptr() % 16 for tensor in sent}) == 1


def test_each_copy_to_the_host_counts():
    copies = DeviceCopies(torch.device("cpu"))
    for _ in range(3):
        assert copies.to_host(torch.ones(2)).tolist() == [1, 1]
    assert copies.count == 3
