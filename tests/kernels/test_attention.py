"""Bounds of errors are derived, with u = 2^-24 and e half a unit of the last place of the type.

A score is a sum of D products, each exact in fp32: its error is (D + 4) u |q| |k| at most, a few
roundings by scales included. An error d of scores changes a weight by the factor e^(2d). Rescaling
sums from block to block adds 4 u a block, and a sum of T terms adds T u. The kernels round weights
to the type, and both paths round the result to it: the error is a share of sum(weight |v|).
"""

from collections.abc import Sequence
from itertools import count

import pytest
import torch
from exhaustive import by_default
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from dlm.kernels import attention as module
from dlm.kernels.attention import attention, attention_reference
from dlm.kernels.paging import CANVAS, CAUSAL, IMAGE, Pages, Paging, Segment, append_

U = 2.0**-24
BF16, FP16, E4M3 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
SLOTS = {  # tokens cached, tokens to encode, whether a canvas follows, and the tokens of an image
    "one token": [(0, 1, False)],
    "one token more": [(36, 1, False)],
    "a canvas alone": [(0, 0, True)],
    "a prompt": [(0, 39, False)],
    "a canvas after a prompt": [(0, 21, True)],
    "an image": [(0, 0, False, 39)],
    "a canvas after an image": [(5, 6, True, 21)],
    "all together": [
        *[(0, 5, True), (40, 0, True), (7, 30, False), (0, 0, True)],
        *[(13, 2, True, 33), (21, 0, False, 9)],
    ],
}
WINDOWS = [7, None, 1, 16, 17]
CASES = sorted(  # those with a window of 7, or of all slots together, come first
    ((name, window, stored) for name in SLOTS for window in WINDOWS for stored in (E4M3, BF16)),
    key=lambda case: (case[1] != 7 and case[0] != "all together", case[2] != E4M3),
)
LENGTH = 9  # of a canvas


class Pass:
    """A pass over slots whose cached tokens lie in random pages; all other places hold NaN."""

    def __init__(
        self,
        slots: Sequence[tuple[int, int, bool] | tuple[int, int, bool, int]],
        rng: torch.Generator,
        heads: tuple[int, int, int] = (4, 2, 16),
        dtype: torch.dtype = BF16,
        stored: torch.dtype | None = None,
        window: int | None = None,
        page: int = 4,
        size: float = 1.0,  # of queries and keys: scores are about size ** 2
        block: int = 1,  # tokens that are cached whole
    ):
        H, h, D = heads
        self.window, self.block, self._page = window, block, page
        images = [sum(s[3:]) for s in slots]
        total = [s[0] + s[1] + image for s, image in zip(slots, images, strict=True)]
        widths = [-(-n // page) for n in total]
        free = iter(torch.randperm(sum(widths) + 3, generator=rng).tolist())
        tables = [[next(free) for _ in range(width)] for width in widths]
        unused = next(free)
        first = [max(0, past - (window or 10**6) + 1) // page for past, *_ in slots]
        parts = [(i, s[0], s[1], CAUSAL) for i, s in enumerate(slots) if s[1]]
        parts += [(i, s[0] + s[1], images[i], IMAGE) for i, s in enumerate(slots) if images[i]]
        parts += [(i, total[i], LENGTH, CANVAS) for i, s in enumerate(slots) if s[2]]
        rows = count()
        segments, rows_to_cache, places = [], [], []
        for slot, position, tokens, kind in parts:
            own = [next(rows) for _ in range(tokens)]
            segments.append(Segment(own[0], tokens, position, kind, first[slot]))
            if kind != CANVAS:
                rows_to_cache += own
                places += [self._place(tables[slot], position + i) for i in range(tokens)]
        N = next(rows)

        def numbers(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=rng) * size / D**0.25

        self.q, self.k = numbers(N, H, D).to(dtype), numbers(N, h, D).to(dtype)
        self.v = torch.randn(N, h, D, generator=rng).to(dtype)
        shape = (sum(widths) + 3, page, h, D)
        keys, values = (torch.full(shape, torch.nan).to(stored or dtype) for _ in range(2))
        for (past, *_), table, begin in zip(slots, tables, first, strict=True):
            at = [self._place(table, i) for i in range(begin * page, past)]
            for pool, new in ((keys, numbers), (values, lambda *s: torch.randn(*s, generator=rng))):
                rounded = new(len(at), h, D).to(pool.dtype)
                pool.flatten(0, 1).view(torch.uint8)[at] = rounded.view(torch.uint8)
        scales = torch.tensor(1.25), torch.tensor(0.75)
        self.pages = Pages(keys, values, *scales)
        width = max(widths) + 1
        held = [tables[slot][first[slot] :] for slot, *_ in parts]
        self.paging = Paging(
            tuple(segments),
            torch.tensor(segments, dtype=torch.int32).T.contiguous(),
            torch.tensor([t + [unused] * (width - len(t)) for t in held], dtype=torch.int32),
            torch.tensor(rows_to_cache, dtype=torch.int64),
            torch.tensor(places, dtype=torch.int64),
        )
        append_(self.pages, self.k, self.v, self.paging, by_kernel=False)

    def _place(self, table: list[int], position: int) -> int:
        return table[position // self._page] * self._page + position % self._page

    @property
    def args(self) -> tuple:
        return self.q, self.k, self.v, self.pages, self.paging, self.window

    def computed(self, by_kernel: bool) -> Tensor:
        return attention(*self.args, by_kernel=by_kernel, block=self.block)

    def exact(self) -> tuple[Tensor, Tensor]:
        """Return the result in fp64, and the largest error that a correct result may have."""
        eps = torch.finfo(self.q.dtype).eps / 2
        expected = attention_reference(*self.args, self.block)
        absolute = self.pages.values.float().abs().to(self.pages.values.dtype)
        pages = self.pages._replace(values=absolute)
        spread = attention_reference(
            self.q, self.k, self.v.abs(), pages, *self.args[4:], self.block
        )
        cached = (self.pages.keys.float() * self.pages.k_scale).norm(dim=-1).nan_to_num(0)
        longest = max(self.k.float().norm(dim=-1).max(), cached.max())
        d = (self.q.shape[2] + 4) * U * self.q.float().norm(dim=-1, keepdim=True) * longest
        terms = max(s.position + s.tokens for s in self.paging.segments)
        share = torch.expm1(2 * d.double()) + (8 + 4 * terms + 2 * terms) * U + eps
        least = torch.finfo(self.q.dtype).tiny * terms * self.v.float().abs().max()  # underflow
        return expected, 1.01 * share * spread + eps * expected.abs() + least


def close(case: Pass, out: Tensor) -> bool:
    expected, off = case.exact()
    return bool(((out.double() - expected).abs() <= off).all())


@pytest.mark.parametrize(("name", "window", "stored"), by_default(CASES, 16))
def test_each_token_attends_to_the_tokens_that_it_may_see(name, window, stored, by_kernel, rng):
    case = Pass(SLOTS[name], rng, stored=stored, window=window)

    assert close(case, attention(*case.args, by_kernel=by_kernel))


@pytest.mark.parametrize(
    ("heads", "dtype", "stored"),
    [
        ((3, 3, 16), FP16, FP16),
        ((8, 1, 32), BF16, E4M3),
        ((6, 2, 64), FP16, E4M3),
        ((2, 2, 128), BF16, BF16),
        ((4, 2, 256), BF16, E4M3),
        ((2, 1, 256), BF16, BF16),
        ((8, 1, 512), BF16, E4M3),
        ((2, 1, 512), FP16, FP16),
    ],
    ids=str,
)
def test_heads_of_every_size_and_type_are_computed(heads, dtype, stored, by_kernel, rng):
    slots = [(37, 3, True), (0, 2, False)]
    case = Pass(slots, rng, heads, dtype, stored, window=20, page=16)

    assert close(case, attention(*case.args, by_kernel=by_kernel))


# Published heads of 128, and those of a key head: SDAR, Nemotron and LLaDA2 have 4 or 8 on each.
GROUPED = [((8, 2, 128), BF16, E4M3), ((8, 1, 128), BF16, BF16), ((5, 1, 128), FP16, E4M3)]
BLOCKS = [  # cached tokens, tokens to encode, and whether a canvas follows, in whole blocks
    (4, [(20, 12, True), (0, 4, False), (8, 0, True)]),
    (32, [(64, 96, False), (0, 32, True)]),
    (7, [(7, 14, True)]),
]


BLOCK_CASES = sorted(  # each block with heads of its own comes first
    ((*block, *heads) for block in BLOCKS for heads in GROUPED),
    key=lambda case: BLOCKS.index(case[:2]) != GROUPED.index(case[2:]),
)


@pytest.mark.parametrize(
    ("block", "slots", "heads", "dtype", "stored"), by_default(BLOCK_CASES, 3), ids=str
)
def test_tokens_of_a_block_that_is_cached_whole_see_all_of_it(
    block, slots, heads, dtype, stored, by_kernel, rng
):
    case = Pass(slots, rng, heads, dtype, stored, page=16, block=block)

    assert close(case, case.computed(by_kernel))


@pytest.mark.parametrize("splits", by_default([2, 16]))
def test_blocks_that_are_cached_whole_are_merged_of_parts_of_the_keys(splits, rng, monkeypatch):
    monkeypatch.setattr(module, "_splits", lambda programs, keys: splits)
    case = Pass([(80, 40, True), (0, 8, False)], rng, (4, 2, 16), stored=E4M3, block=4)

    assert close(case, case.computed(by_kernel=True))


def test_the_bound_excludes_blocks_of_another_length(rng):
    case = Pass([(16, 32, False)], rng, (4, 1, 128), stored=E4M3, block=8)
    expected, off = case.exact()
    for wrong in (1, 4, 16):
        out = attention_reference(*case.args, wrong)
        assert ((out - expected).abs() > off).float().mean() > 0.2


@pytest.mark.parametrize("heads", [(4, 2, 16), (2, 1, 512)], ids=str)
def test_pages_of_bytes_are_read_as_e4m3(heads, rng):
    """GPUs for which Triton has no fp8 are passed such pages."""
    case = Pass(SLOTS["all together"], rng, heads, stored=E4M3)
    keys, values, *scales = case.pages
    pages = Pages(keys.view(torch.uint8), values.view(torch.uint8), *scales)
    args = case.q, case.k, case.v, pages, case.paging, None

    assert torch.equal(attention(*args, by_kernel=True), attention(*case.args, by_kernel=True))


@pytest.mark.parametrize(
    ("splits", "window"), by_default([(2, 17), (16, None), (2, None), (16, 17)])
)
def test_results_of_parts_of_the_keys_are_merged(window, splits, rng, monkeypatch):
    """In some of the parts, a query sees no key."""
    monkeypatch.setattr(module, "_splits", lambda programs, keys: splits)
    case = Pass([(80, 9, True, 40), (0, 3, True)], rng, stored=E4M3, window=window)

    assert close(case, attention(*case.args, by_kernel=True))


def test_keys_are_split_until_there_are_enough_programs_or_each_has_few_keys():
    assert module._splits(programs=10_000, keys=100_000) == 1
    assert module._splits(programs=100, keys=100_000) == 2
    assert module._splits(programs=32, keys=100_000) == 4
    assert module._splits(programs=32, keys=600) == 2
    assert module._splits(programs=1, keys=400) == 1
    assert module._splits(programs=1, keys=10**6) == 16


@pytest.mark.parametrize("stored", [BF16, E4M3], ids=str)
def test_scores_of_any_size_give_finite_weights(stored, by_kernel, rng):
    """At scores in the thousands one key has all the weight, and exp of a score is infinite."""
    case = Pass(SLOTS["all together"], rng, stored=stored, size=30.0)

    out = attention(*case.args, by_kernel=by_kernel)

    assert out.isfinite().all()
    assert close(case, out)


@given(
    slots=st.lists(
        st.tuples(st.integers(0, 90), st.integers(0, 90), st.booleans(), st.integers(0, 90)).filter(
            lambda slot: any(slot[1:])
        ),
        min_size=1,
        max_size=3,
    ),
    window=st.none() | st.integers(1, 100),
    page=st.sampled_from([1, 4, 16]),
    dtype=st.sampled_from([torch.float32, BF16]),
    seed=st.integers(0, 1000),
)
def test_the_cpu_path_agrees_with_the_reference(slots, window, page, dtype, seed):
    rng = torch.Generator().manual_seed(seed)
    case = Pass(slots, rng, (2, 1, 16), dtype, window=window, page=page)

    assert close(case, attention(*case.args, by_kernel=False))


def test_the_bound_excludes_wrong_results(rng):
    """A window of one token less and a scale that is left out are found."""
    case = Pass(SLOTS["all together"], rng, stored=E4M3, window=7)
    expected, off = case.exact()
    pages, window = case.pages, case.window

    for wrong in (
        (pages, case.paging, window - 1),
        (pages._replace(k_scale=torch.tensor(1.0)), case.paging, window),
        (pages._replace(v_scale=torch.tensor(1.0)), case.paging, window),
    ):
        out = attention_reference(case.q, case.k, case.v, *wrong)
        assert ((out - expected).abs() > off).float().mean() > 0.2


@pytest.mark.parametrize("cuts", [[64], [63, 65], list(range(1, 150, 7))])
@pytest.mark.parametrize("window", [None, 17])
@pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=str)
def test_on_a_cpu_a_prompt_in_pieces_has_the_same_result_to_the_bit(dtype, window, cuts, rng):
    whole = Pass([(0, 150, False)], rng, dtype=dtype, window=window)
    expected = attention(*whole.args)
    (segment,) = whole.paging.segments

    for begin, end in zip([0, *cuts], [*cuts, 150], strict=True):
        here = slice(begin, end)
        piece = segment._replace(tokens=end - begin, position=begin)
        paging = whole.paging._replace(segments=(piece,), numbers=torch.zeros(5, 1).int())
        own = (x[here].contiguous() for x in (whole.q, whole.k, whole.v))
        assert torch.equal(attention(*own, whole.pages, paging, window), expected[here])


def test_the_kernels_are_deterministic(rng):
    case = Pass(SLOTS["all together"], rng, stored=E4M3)

    assert torch.equal(attention(*case.args, by_kernel=True), attention(*case.args, by_kernel=True))


def test_padding_after_all_segments_is_zero_and_changes_nothing(by_kernel, rng):
    case = Pass(SLOTS["all together"], rng)
    padded = (torch.cat((x, torch.full_like(x[:3], torch.nan))) for x in (case.q, case.k, case.v))

    out = attention(*padded, *case.args[3:], by_kernel=by_kernel)

    assert torch.equal(out[:-3], attention(*case.args, by_kernel=by_kernel))
    assert (out[-3:] == 0).all()


def test_a_pass_without_tokens_is_no_error(by_kernel, rng):
    case = Pass(SLOTS["one token"], rng)
    none = Paging((), torch.empty(5, 0).int(), torch.empty(0, 0).int(), *case.paging[3:])
    own = (x[:0] for x in (case.q, case.k, case.v))

    assert attention(*own, case.pages, none, by_kernel=by_kernel).shape == (0, 4, 16)


def test_attention_is_traced_without_data():
    with FakeTensorMode():
        q, k = (torch.empty(12, H, 256, dtype=BF16, device="cuda") for H in (4, 2))
        pages = Pages(*(torch.empty(9, 16, 2, 256, dtype=E4M3, device="cuda") for _ in range(2)),
                      *(torch.empty((), device="cuda") for _ in range(2)))  # fmt: skip
        ints = {"dtype": torch.int32, "device": "cuda"}
        rows = torch.empty(12, dtype=torch.int64, device="cuda")
        segment = Segment(0, 12, 0, CAUSAL, 0)
        tables = torch.empty(5, 1, **ints), torch.empty(1, 1, **ints)
        paging = Paging((segment,), *tables, rows, rows)
        append_(pages, k, k, paging)
        out = attention(q, k, k, pages, paging)
        assert out.shape == q.shape
        assert out.device.type == "cuda"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": lambda x: x[:, :3]}, r"q is \[30, H, 16\] of torch.bfloat16, H a multiple of 2"),
        ({"q": lambda x: x.half()}, r"got \[30, 4, 16\] of torch.float16"),
        ({"q": lambda x: x[:5]}, r"q is \[30, H, 16\]"),
        ({"q": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1)}, "must be contiguous"),
        ({"k": lambda x: x[:, :1]}, r"v is \[30, 1, 16\]"),
        (
            {"v": lambda x: x.float()},
            r"v is \[30, 2, 16\] of torch.bfloat16 as k, got .* torch.float32",
        ),
        ({"keys": lambda x: x[..., :8]}, r"pages of keys are contiguous \[pages, p, 2, 16\]"),
        ({"keys": lambda x: x.int()}, "pages of keys are of torch.int32"),
        ({"values": lambda x: x[:3]}, r"pages of values are \[3, 4, 2, 16\]"),
        ({"k_scale": lambda x: x.half()}, "k_scale is one fp32"),
        ({"v_scale": lambda x: x.expand(2)}, "v_scale is one fp32"),
        ({"v_scale": lambda x: x.to("meta")}, "are on .'cpu', 'meta'."),
        ({"numbers": lambda x: x.long()}, r"numbers is int32 \[5, 2\] .* got torch.int64"),
        ({"table": lambda x: x[:1]}, r"table is int32 \[2, 7\] without gaps, got .* \[1, 7\]"),
        ({"table": lambda x: x.to("meta")}, "q is on cpu and table on meta"),
        ({"segments": lambda x: (x[0]._replace(tokens=31),)}, "segments of 31 tokens for 30"),
        ({"window": lambda x: 0}, "a window is 1 token or more"),
        ({"block": lambda x: 0}, "a block is 1 token, or more without a window, got 0"),
        ({"block": lambda x: 3, "window": lambda x: 9}, "more without a window, got 3"),
        ({"block": lambda x: 4}, "whole blocks of 4, got 21 tokens at position 3"),
        ({"block": lambda x: 7}, "whole blocks of 7, got 21 tokens at position 3"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(change, message, rng):
    case = Pass([(3, 21, True)], rng)
    given = {
        **{name: getattr(case, name) for name in ("q", "k", "v", "window", "block")},
        **case.pages._asdict(),
        **case.paging._asdict(),
    }
    for name, changed in change.items():
        given[name] = changed(given[name])
    pages = Pages(*(given[name] for name in Pages._fields))
    paging = Paging(*(given[name] for name in Paging._fields))

    own, options = [given[name] for name in "qkv"], [given["window"], None, None, given["block"]]
    with pytest.raises(ValueError, match=message):
        attention(*own, pages, paging, *options)


@pytest.mark.parametrize(
    ("heads", "dtype", "stored"),
    [
        ((2, 1, 16), torch.float32, torch.float32),
        ((2, 1, 24), BF16, BF16),
        ((2, 1, 16), BF16, FP16),
    ],
)
def test_types_and_sizes_that_no_kernel_takes_are_refused(heads, dtype, stored, rng):
    case = Pass([(3, 2, True)], rng, heads, dtype, stored)
    with pytest.raises(ValueError, match="the kernels take bf16 or fp16, pages of the same type"):
        attention(*case.args, by_kernel=True)


def on_gpu(case: Pass) -> Tensor:
    pages = Pages(*(x.cuda() for x in case.pages))
    paging = Paging(case.paging.segments, *(x.cuda() for x in case.paging[1:]))
    own = case.q.cuda(), case.k.cuda(), case.v.cuda()
    return attention(*own, pages, paging, case.window, block=case.block).cpu()


@pytest.mark.gpu
@pytest.mark.parametrize("stored", [BF16, E4M3], ids=str)
@pytest.mark.parametrize("heads", [(4, 2, 256), (16, 2, 512), (32, 8, 128)], ids=str)
@pytest.mark.parametrize("window", [None, 700])
def test_a_gpu_computes_the_formula(window, heads, stored, rng):
    case = Pass(
        [(1500, 70, True), (90, 0, True)], rng, heads, stored=stored, window=window, page=16
    )

    assert close(case, on_gpu(case))


@pytest.mark.gpu
@pytest.mark.parametrize("stored", [BF16, E4M3], ids=str)
@pytest.mark.parametrize("heads", [(32, 8, 128), (32, 4, 128), (16, 4, 128)], ids=str)
@pytest.mark.parametrize("block", [4, 32])
def test_a_gpu_s_tokens_see_all_of_their_block(block, heads, stored, rng):
    slots = [(1504, 96, True), (0, 64, False), (96, 0, True)]
    case = Pass(slots, rng, heads, stored=stored, page=32, block=block)

    assert close(case, on_gpu(case))
