"""Keys and values are stored in pages by the kernel and torch alike, to the bit, also in e4m3."""

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from dlm.kernels.paging import Pages, Paging, append_, decoded, e4m3_bytes

E4M3 = torch.float8_e4m3fn
KINDS = [  # types of numbers computed, and of numbers stored
    (torch.float32, torch.float32),
    (torch.float32, torch.bfloat16),
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, E4M3),
    (torch.float16, E4M3),
    (torch.float32, E4M3),
]


@triton.jit
def _encode(x_ptr, y_ptr, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(y_ptr + i, e4m3_bytes(tl.load(x_ptr + i)))


@triton.jit
def _decode(x_ptr, y_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y_ptr + i, decoded(tl.load(x_ptr + i), tl.float16).to(tl.float32))


def encoded(x: Tensor) -> Tensor:
    _encode[(len(x) // 1024,)](x, y := torch.empty_like(x, dtype=torch.uint8), 1024)
    return y


def test_every_number_of_bf16_becomes_the_same_e4m3_as_in_torch():
    """Among them are every power of two, every tie, both zeros, infinities and NaN."""
    x = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    expected, bytes_ = x.clamp(-448, 448).to(E4M3), encoded(x)

    there = ~x.isnan()
    assert torch.equal(bytes_[there], expected.view(torch.uint8)[there])
    assert bytes_.view(E4M3).float()[~there].isnan().all()


def test_ties_and_their_neighbours_become_the_same_e4m3_as_in_torch():
    """A tie lies between two numbers of e4m3; its neighbours are rounded in other directions."""
    numbers = torch.arange(127, dtype=torch.uint8).view(E4M3).float()
    ties = (numbers[1:] + numbers[:-1]) / 2
    below, above = (ties.nextafter(torch.tensor(to)) for to in (0.0, 1e9))
    x = torch.cat((ties, below, above, -ties, -below, -above))
    x = torch.nn.functional.pad(x, (0, 1024 - len(x)))

    assert torch.equal(encoded(x), x.to(E4M3).view(torch.uint8))


def test_every_byte_of_e4m3_is_decoded():
    every = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    _decode[(1,)](every, y := torch.empty(256), 256)

    expected = every.view(E4M3).float()
    assert torch.equal(y[~expected.isnan()], expected[~expected.isnan()])
    assert y[expected.isnan()].abs().tolist() == [480.0, 480.0]


def case(kind: torch.dtype, stored: torch.dtype, rng: torch.Generator) -> tuple:
    k, v = (torch.randn(9, 3, 24, generator=rng) * 300 for _ in range(2))
    pools = (torch.full((5, 4, 3, 24), torch.nan).to(stored) for _ in range(2))
    pages = Pages(*pools, torch.tensor(2.5), torch.tensor(0.75))
    rows, places = torch.tensor([8, 0, 3, 4]), torch.tensor([19, 2, 7, 8])
    tables = torch.zeros(5, 0).int(), torch.zeros(0, 0).int()
    return pages, k.to(kind), v.to(kind), Paging((), *tables, rows, places)


@pytest.mark.parametrize(("kind", "stored"), KINDS, ids=str)
def test_rows_are_divided_by_their_scales_and_stored_in_their_places(kind, stored, by_kernel, rng):
    """Numbers too large for e4m3 are stored as the largest one."""
    pages, k, v, paging = case(kind, stored, rng)

    append_(pages, k, v, paging, by_kernel=by_kernel)

    for pool, x, scale in ((pages.keys, k, 2.5), (pages.values, v, 0.75)):
        expected = torch.full((20, 3, 24), torch.nan)
        limit = 448 if stored == E4M3 else torch.inf
        expected[paging.places] = (x[paging.rows].float() / scale).clamp(-limit, limit)
        expected = expected.to(stored).float()
        torch.testing.assert_close(
            pool.flatten(0, 1).float(), expected, rtol=0, atol=0, equal_nan=True
        )


@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "stored"), KINDS, ids=str)
def test_a_gpu_stores_the_same_bits_as_a_cpu(kind, stored, rng):
    pages, k, v, paging = case(kind, stored, rng)
    there = Pages(*(x.cuda() for x in pages))
    append_(pages, k, v, paging)
    append_(there, k.cuda(), v.cuda(), Paging((), *(x.cuda() for x in paging[1:])))
    for mine, theirs in zip(pages[:2], there[:2], strict=True):
        assert torch.equal(mine.view(torch.uint8), theirs.cpu().view(torch.uint8))
