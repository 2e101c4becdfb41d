"""Sharing of encoded prompts among requests, and requests that wait for memory of the cache."""

from dataclasses import replace

import pytest
from doubles import Dreamer, Ledger, Scripted
from exhaustive import by_default
from specs import checked
from values import V

from dlm import Choice, DlmError, Engine, Failed, Finished, Policy, Regex, Request, RequestError
from dlm.engine import BUILT_IN
from dlm.models import KVCache

SYSTEM = [2] + [20 + i * i % 1000 for i in range(399)]  # 400 tokens
DIRECTIONS = Choice(["north", "south", "east", "west"])


def request(i: int) -> Request:
    end = [200 + i % 50, 300 + i // 50]
    return Request(token_ids=SYSTEM + end, constraint=DIRECTIONS, max_tokens=8, seed=i)


class Counting(KVCache):
    """A cache that counts the tokens encoded into it, and shares them if `sharing`."""

    sharing, encoded = True, 0

    def attach(self, slot, tokens):
        return super().attach(slot, tokens) if self.sharing else 0

    def advance(self, plan):
        self.encoded += sum(len(tokens) for _, tokens in plan.encode)
        super().advance(plan)


def outcome(
    engine: Engine, requests: list[Request], sharing: bool, monkeypatch
) -> tuple[list, int]:
    model = engine.model
    cache = Counting(model.config, 8, model.dtype, model.device)
    cache.sharing = sharing
    sampler = replace(engine.config.sampler, max_steps=4)  # to save time
    config = replace(engine.config, sampler=sampler)
    served = Engine(model, engine.chat, config, 8, cache=cache)
    monkeypatch.setattr(served._admission, "_compiler", engine._compiler)
    return served.generate(requests), cache.encoded


def test_many_requests_encode_their_system_prompt_once(built_in, monkeypatch):
    """Their answers are, token for token, those of requests that encode it themselves."""
    requests = [request(i) for i in range(9)]
    shared, few = outcome(built_in, requests, True, monkeypatch)
    alone, many = outcome(built_in, requests[::4], False, monkeypatch)
    assert [r.token_ids for r in shared[::4]] == [r.token_ids for r in alone]
    assert [r.stats.denoiser_calls for r in shared[::4]] == [r.stats.denoiser_calls for r in alone]
    assert sorted(r.stats.cached for r in shared) == [0] + [400] * 8
    assert {r.stats.cached for r in alone} == {0}
    assert few == 402 + 8 * 2
    assert many == 3 * 402


def test_the_next_turn_of_a_conversation_shares_the_turns_before(built_in):
    first = built_in.generate(Request(token_ids=SYSTEM, constraint=Regex("[a-z]{40}")))
    turns = [*SYSTEM, *first.token_ids]
    second = built_in.generate(Request(token_ids=[*turns, 5], constraint=DIRECTIONS))
    assert second.stats.cached >= len(turns) // 32 * 32 - 32
    assert second.prompt_tokens == len(turns) + 1


def test_requests_wait_until_the_cache_has_memory_for_them(built_in, monkeypatch):
    engine = Engine.load(device="cpu", slots=4, cache_tokens=1000)
    requests = [request(i) for i in range(3)]
    expected = built_in.generate(requests)
    numbers, most, ends = [engine.add(request) for request in requests], 0, {}
    while engine.busy:
        for event in engine.step():
            if isinstance(event, Finished | Failed):
                ends[event.request] = event
        most = max(most, len(engine._scheduler.running))
    engine.close()
    assert most == 2, "410 tokens each"
    assert [ends[n].result.token_ids for n in numbers] == [r.token_ids for r in expected]


def test_a_request_larger_than_the_cache_is_refused_when_it_is_added():
    engine = Engine.load(device="cpu", cache_tokens=400)
    with pytest.raises(RequestError, match=r"402 prompt tokens and max_tokens 8 .* holds: 400"):
        engine.add(request(0))
    assert not engine.busy
    engine.close()


class Small(Ledger):
    """A cache of `capacity` tokens, which records the sizes of reservations in `served`."""

    capacity = 30

    def __init__(self, slots: int):
        super().__init__(slots)
        self.reserved, self.served = [0] * slots, []

    def fits(self, tokens):
        return sum(self.reserved) + tokens <= self.capacity

    def reserve(self, slot, tokens):
        assert self.fits(tokens)
        self.reserved[slot] = tokens
        self.served.append(tokens)

    def release(self, slot):
        super().release(slot)
        self.reserved[slot] = 0


def test_a_large_request_is_not_overtaken_by_small_ones(engine_of):
    engine = engine_of(Dreamer(V, 3, canvas_length=4), slots=3, cache=(cache := Small(3)))
    sizes = [12, 26, 5, 6]
    engine.generate([Request(token_ids=[2], max_tokens=size - 1) for size in sizes])
    assert cache.served == sizes


class Reluctant(Ledger):
    """A cache in which another request encodes the same prompt during three passes."""

    def attach(self, slot, tokens):
        self.attempts = getattr(self, "attempts", 0) + 1
        return None if self.attempts <= 3 else 0


def test_a_request_that_waits_for_a_prompt_of_another_has_the_same_answer(engine_of):
    short = Request(token_ids=[2, 5], constraint=DIRECTIONS)
    model = Dreamer(V, 3, canvas_length=4)
    waiting = engine_of(model, slots=1, cache=Reluctant(1)).generate(short)
    at_once = engine_of(model, slots=1).generate(short)
    assert waiting.token_ids == at_once.token_ids
    assert waiting.stats.denoiser_calls == at_once.stats.denoiser_calls


class Forgetful(Ledger):
    """A cache that loses the whole sequence whenever a request rewinds it."""

    def rewind(self, slot, length):
        self.tokens[slot] = []
        return 0


@pytest.mark.parametrize("length", by_default([700, 2]))
def test_tokens_that_the_cache_has_lost_are_encoded_again(length, engine_of, tokens_of):
    """Sliding layers keep fewer tokens than a refused answer may go back."""
    script = tokens_of("[11, 12, 13, 13]<turn|>")
    model = Scripted(V, length, script, canvas_length=3)
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 4, "uniqueItems": True}
    long = Request(token_ids=[5] * length, constraint=checked(schema), max_tokens=24)
    again = engine_of(model, cache=Forgetful(8)).generate(long)
    once = engine_of(model).generate(long)
    assert again.stats.rollbacks > 0
    assert again.token_ids == once.token_ids
    assert len({*again.parsed}) == 4


@pytest.mark.parametrize("kv", ["fp8", "bf16"])
def test_the_cache_may_store_smaller_numbers(kv, built_in):
    engine = Engine.load(device="cpu", slots=2, kv=kv, policy=Policy())
    results = engine.generate([request(i) for i in range(2)])
    engine.close()
    sizes = {"fp8": 1, "bf16": 2}
    assert engine._cache._pools["full_attention"]._keys[0].itemsize == sizes[kv]
    assert all(r.text in {"north", "south", "east", "west"} for r in results)
    assert [r.stats.cached for r in results].count(400) == 1


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"kv": "int4"}, "kv must be auto or one of fp8, bf16, fp16, fp32, got 'int4'"),
        ({"kv": "fp32", "device": "cuda"}, "on cuda, torch.bfloat16 takes auto or fp8"),
        ({"cache_tokens": 0}, "cache_tokens must be at least 1, got 0"),
    ],
)
def test_an_impossible_cache_is_refused_before_weights_are_read(more, message):
    with pytest.raises(DlmError, match=message):
        Engine.load(BUILT_IN, **{"device": "cpu"} | more)
