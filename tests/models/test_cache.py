"""The paged cache holds, shares, returns and refuses pages, in any order of its operations."""

import pytest
import torch
from exhaustive import examples
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from paged import CANVAS, PAGE, SLOTS, WINDOW, config, consistent, make, run, sees

from dlm.models import CacheFullError
from dlm.models.cache import KVCache
from dlm.models.pages import PAGE as USUAL_PAGE
from dlm.models.pages import cache_bytes, pages_of

SEGMENT = 12
SYSTEM = [i % 7 for i in range(40)]  # a beginning that prompts share
KINDS = "sliding_attention", "full_attention"


def encoded(cache: KVCache, slot: int, prompt: list[int]) -> int:
    """Attach and encode a prompt, and return the number of its tokens that were cached."""
    found = cache.attach(slot, prompt)
    assert found is not None
    run(cache, {slot: prompt[:found]}, {slot: prompt[found:]})
    return found


def held(cache: KVCache, kind: str) -> int:
    return cache._pools[kind].held


class Machine(RuleBasedStateMachine):
    """Operations in any order on a cache and on a list of tokens for each slot."""

    @initialize(capacity=st.sampled_from([None, 60, 100]))
    def begin(self, capacity):
        self.cache = make(capacity, SEGMENT)
        self.tokens: list[list[int]] = [[] for _ in range(SLOTS)]
        self.prompts: dict[int, list[int]] = {}  # of slots that are in use
        self.furthest = [0] * SLOTS

    def rest(self, slot):
        return self.prompts[slot][len(self.tokens[slot]) :]

    @precondition(lambda self: len(self.prompts) < SLOTS)
    @rule(
        beginning=st.integers(0, 40),
        end=st.lists(st.integers(0, 1), min_size=1, max_size=6),
        answer=st.integers(0, 20),
    )
    def attach(self, beginning, end, answer):
        slot = next(slot for slot in range(SLOTS) if slot not in self.prompts)
        prompt = SYSTEM[:beginning] + end
        if not self.cache.fits(len(prompt) + answer):
            with pytest.raises(CacheFullError):
                self.cache.reserve(slot, len(prompt) + answer)
            return
        self.cache.reserve(slot, len(prompt) + answer)
        found = self.cache.attach(slot, prompt)
        if found is None:
            assert any(self.rest(other) for other in self.prompts)
            self.cache.release(slot)
            return
        assert found % PAGE == 0
        assert found < len(prompt)
        self.prompts[slot], self.tokens[slot] = prompt, prompt[:found]
        sees(self.cache, slot, found, self.tokens[slot])

    @precondition(lambda self: self.prompts)
    @rule(data=st.data())
    def step(self, data):
        """Encode in each slot some of its prompt's rest, some tokens of an answer, or nothing."""
        encode, canvases = {}, []
        for slot in self.prompts:
            rest = self.rest(slot)
            if not rest and data.draw(st.booleans()):
                rest = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=CANVAS))
            more = rest[: data.draw(st.integers(0, SEGMENT))]
            if more:
                encode[slot] = more
            if len(more) == len(rest) and data.draw(st.booleans()):
                canvases.append(slot)
        held = {slot: self.tokens[slot] for slot in self.prompts}
        try:
            run(self.cache, held, encode, canvases)
        except CacheFullError:
            assert self.cache._pools["full_attention"].capacity is not None
            return
        for slot, more in encode.items():
            self.tokens[slot] = self.tokens[slot] + more
            self.furthest[slot] = max(self.furthest[slot], len(self.tokens[slot]))

    @precondition(lambda self: self.prompts)
    @rule(data=st.data())
    def rewind(self, data):
        slot = data.draw(st.sampled_from([*self.prompts]))
        length = data.draw(st.integers(0, len(self.tokens[slot])))
        reached = self.cache.rewind(slot, length)
        assert reached <= length
        if length >= max(len(self.prompts[slot]), self.furthest[slot] - CANVAS):
            assert reached == length
        self.tokens[slot] = self.tokens[slot][:reached]
        sees(self.cache, slot, reached, self.tokens[slot])

    @precondition(lambda self: self.prompts)
    @rule(data=st.data())
    def release(self, data):
        slot = data.draw(st.sampled_from([*self.prompts]))
        self.cache.release(slot)
        del self.prompts[slot]
        self.tokens[slot], self.furthest[slot] = [], 0

    @invariant()
    def nothing_is_lost(self):
        if hasattr(self, "cache"):
            consistent(self.cache)
            assert [self.cache.length(slot) for slot in range(SLOTS)] == [*map(len, self.tokens)]

    def teardown(self):
        if hasattr(self, "cache"):
            for slot in range(SLOTS):
                self.cache.release(slot)
            consistent(self.cache)
            assert [held(self.cache, kind) for kind in KINDS] == [0, 0]


TestAnyOrder = Machine.TestCase
TestAnyOrder.settings = examples(60, stateful_step_count=30)


def test_sliding_layers_return_pages_that_no_window_and_no_rewind_needs():
    cache, tokens = make(), [i % 5 for i in range(400)]
    for begin in range(0, 400, CANVAS):
        run(cache, {0: tokens[:begin]}, {0: tokens[begin : begin + CANVAS]})
        bound = pages_of(config(), "sliding_attention", begin + CANVAS, CANVAS, PAGE)
        assert held(cache, "sliding_attention") <= bound
        assert held(cache, "full_attention") == (begin + CANVAS) // PAGE
    assert held(cache, "sliding_attention") == 4, "13 tokens before the last, in pages of 4"


def test_a_canvas_can_always_be_rewound_and_a_longer_rewind_begins_at_zero():
    cache, tokens = make(), [i % 5 for i in range(400)]
    for begin in range(0, 400, CANVAS):
        run(cache, {0: tokens[:begin]}, {0: tokens[begin : begin + CANVAS]})
    assert cache.rewind(0, 400 - CANVAS) == 400 - CANVAS
    run(cache, {0: tokens[:392]}, {0: [3] * CANVAS}, canvases=[0])
    assert cache.rewind(0, 200) == 0
    assert held(cache, "full_attention") == 0


def test_a_long_rewind_begins_at_the_end_of_the_prompt_while_its_pages_are_shared():
    cache, prompt = make(), SYSTEM
    encoded(cache, 0, prompt)
    tokens = [*prompt]
    for _ in range(5):
        run(cache, {0: tokens}, {0: [1] * CANVAS})
        tokens += [1] * CANVAS
    assert cache.rewind(0, len(prompt) + 3) == len(prompt)
    run(cache, {0: prompt}, {0: [2] * 3})


@pytest.mark.parametrize("length", [-1, 14])
def test_a_slot_rewinds_only_to_a_length_that_it_had(length):
    cache = make()
    run(cache, {0: []}, {0: [1] * 13})
    with pytest.raises(ValueError, match=f"cannot rewind to {length}: 13 tokens are cached"):
        cache.rewind(0, length)


def test_a_prompt_is_encoded_once_and_then_shared_but_for_its_last_token():
    cache = make()
    assert encoded(cache, 0, SYSTEM) == 0
    full = held(cache, "full_attention")
    assert encoded(cache, 1, SYSTEM) == 36
    assert encoded(cache, 2, [*SYSTEM, 5]) == 40
    assert held(cache, "full_attention") == full + 1 + 1
    assert cache.length(2) == 41


def test_an_answer_is_shared_once_its_request_has_ended():
    """In a conversation, the last answer is part of the next prompt."""
    cache, answer = make(), [6] * 11
    encoded(cache, 0, SYSTEM)
    run(cache, {0: SYSTEM}, {0: answer})
    assert encoded(cache, 1, [*SYSTEM, *answer, 2]) == 40, "it may still be rewound"
    cache.release(0)
    assert encoded(cache, 2, [*SYSTEM, *answer, 2]) == 48


def test_prompts_share_whole_pages_before_their_first_difference():
    for at in (0, 3, 4, 21, 39):
        cache, other = make(), [*SYSTEM[:at], 8, *SYSTEM[at + 1 :], 1]
        encoded(cache, 0, SYSTEM)
        assert encoded(cache, 1, other) == at // PAGE * PAGE


def test_a_shorter_beginning_is_shared_once_sliding_pages_are_gone():
    """Sliding layers must still hold the 5 tokens before the first one to encode."""
    cache = make()
    encoded(cache, 0, SYSTEM)
    node = cache._index.find(SYSTEM)[-1]
    page = node.pages["sliding_attention"]
    cache._index.forget("sliding_attention", page)
    assert cache._index.find([*SYSTEM, 1])[-1].tokens == tuple(SYSTEM[32:36])
    cache._index.forget("full_attention", cache._index.find(SYSTEM)[2].pages["full_attention"])
    assert [node.tokens for node in cache._index.find(SYSTEM)] == [
        tuple(SYSTEM[:4]), tuple(SYSTEM[4:8])
    ]  # fmt: skip


def test_a_prompt_waits_for_a_slot_that_encodes_the_same_beginning():
    cache = make()
    assert cache.attach(0, SYSTEM) == 0
    assert cache.attach(1, [*SYSTEM, 1]) is None
    assert cache.attach(2, [5, *SYSTEM]) == 0
    assert cache.attach(3, SYSTEM[: CANVAS - 1]) == 0, "too little to wait for"
    run(cache, {0: []}, {0: SYSTEM[:20]})
    assert cache.attach(1, [*SYSTEM, 1]) is None
    run(cache, {0: SYSTEM[:20]}, {0: SYSTEM[20:]})
    assert cache.attach(1, [*SYSTEM, 1]) == 40


def test_no_prompt_waits_for_a_released_slot():
    cache = make()
    cache.attach(0, SYSTEM)
    cache.release(0)
    assert cache.attach(1, SYSTEM) == 0


def test_a_shared_page_is_not_written_again():
    """A rewind into the prompt ends at the beginning of a page."""
    cache = make()
    encoded(cache, 0, SYSTEM)
    encoded(cache, 1, [*SYSTEM, 1])
    assert cache.rewind(1, 39) == 36
    run(cache, {1: SYSTEM[:36]}, {1: [8] * 9})
    sees(cache, 0, 40, SYSTEM)


def test_the_pages_that_were_not_used_for_the_longest_time_are_taken_first():
    cache, other = make(capacity=96, slots=2), [8, *SYSTEM[1:]]
    for prompt in (SYSTEM, other):
        encoded(cache, 0, prompt)
        cache.release(0)
    encoded(cache, 0, [*SYSTEM, 1])
    cache.release(0)
    encoded(cache, 0, [7] * 40)
    cache.release(0)
    assert cache.attach(0, [*SYSTEM, 1]) == 40
    assert cache.attach(1, [*other, 1]) == 16, "its last pages were taken first"


def test_a_growing_cache_uses_idle_pages_before_it_grows():
    cache = make()
    for i in range(200):
        encoded(cache, 0, [i % 9, i % 8, i % 7, i % 6, i % 5] * 8)
        cache.release(0)
    for pool in cache._pools.values():
        assert len(pool._holders) <= 64


def test_a_cache_that_is_too_small_refuses_before_it_takes_a_page():
    cache = make(capacity=40, segment=SEGMENT, slots=3)
    cache.reserve(0, 24)
    assert cache.fits(16)
    assert not cache.fits(17)
    with pytest.raises(
        CacheFullError, match=r"17 tokens need 5 more pages of 4 for .*: 4 of 10 are left"
    ):
        cache.reserve(1, 17)
    with pytest.raises(CacheFullError):
        cache.attach(1, [1] * 17)
    with pytest.raises(CacheFullError):
        cache.plan({1: [1] * 8, 2: [1] * 12}, [], CANVAS)
    assert [held(cache, kind) for kind in KINDS] == [0, 0]
    cache.release(0)
    assert cache.fits(40)


def test_reserved_pages_are_kept_from_other_slots():
    cache = make(capacity=40, segment=SEGMENT, slots=3)
    cache.reserve(0, 20)
    encoded(cache, 1, [1] * 12)
    run(cache, {1: [1] * 12}, {1: [2] * 8})
    with pytest.raises(CacheFullError):
        cache.plan({1: [3]}, [], CANVAS)
    for begin in (0, 10):
        run(cache, {0: [4] * begin}, {0: [4] * 10})


def test_a_pass_encodes_at_most_a_segment_of_a_slot():
    with pytest.raises(ValueError, match="a slot must have at most 12 tokens in one pass, got 13"):
        make(segment=SEGMENT).plan({0: [1] * 13}, [], CANVAS)


def test_a_slot_in_use_takes_no_other_prompt():
    cache = make()
    encoded(cache, 0, SYSTEM)
    with pytest.raises(ValueError, match="slot 0 holds 40 tokens: release it first"):
        cache.attach(0, SYSTEM)


def test_a_plan_that_is_not_run_changes_nothing():
    cache = make()
    cache.plan({0: [1] * 9, 1: [2]}, [0], CANVAS)
    run(cache, {0: [], 1: []}, {0: [3] * 10}, canvases=[1])
    consistent(cache)
    cache.release(0)
    cache.release(1)
    assert [held(cache, kind) for kind in KINDS] == [0, 0]


@pytest.mark.parametrize("capacity", [100, None])
def test_the_pages_of_a_cache_with_a_capacity_never_move(capacity):
    """CUDA graphs hold their addresses; tables are at most as wide as the pool."""
    cache = make(capacity, SEGMENT)

    def places() -> list[int]:
        pools = [
            tensors for pool in cache._pools.values() for tensors in (pool._keys, pool._values)
        ]
        return [tensor.data_ptr() for tensors in pools for tensor in tensors]

    def sizes() -> dict[str, int]:
        return {kind: len(pool) for kind, pool in cache._pools.items()}

    run(cache, {0: []}, {0: [1]})
    before, pages = places(), sizes()
    for begin in range(1, 97, SEGMENT):
        plan = run(cache, {0: [1] * begin}, {0: [1] * SEGMENT}, canvases=[0])
        for kind, paging in plan.paging.items():
            assert paging.table.shape[1] <= sizes()[kind]
    assert (places() == before) == (sizes() == pages) == (capacity is not None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize(("capacity", "slots", "segment"), [(4096, 2, 64), (100, 8, None)])
def test_the_memory_of_a_cache_is_computed_before_it_is_made(dtype, capacity, slots, segment):
    cache = KVCache(config(), slots, dtype, torch.device("cpu"), capacity, segment)
    taken = sum(
        tensor.nbytes
        for pool in cache._pools.values()
        for tensors in (pool._keys, pool._values)
        for tensor in tensors
    )
    assert taken == cache_bytes(config(), dtype, capacity, slots, segment)
    pages = len(cache._pools["sliding_attention"]._holders)
    most = (WINDOW - 1 + CANVAS + 64) / USUAL_PAGE + 2
    assert pages <= 2 * most if segment else pages == 7
