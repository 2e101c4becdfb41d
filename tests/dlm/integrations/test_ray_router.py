"""Order in which replicas get a request; Ray's lookup of queue lengths is a double."""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")

from ray.serve.request_router import PendingRequest

from dlm.integrations.ray import Call
from dlm.integrations.ray.application import PrefixRouter

NAMES = ("a", "b", "c", "d")


def order(prefix, has=None, tried=0, names=NAMES, slots=2):
    """Return names of replicas in their order; `has` is the number of requests of some."""
    router = PrefixRouter.__new__(PrefixRouter)  # without Ray's own __init__, which needs a cluster
    router.initialize_state(slots=slots)
    known = has or {}
    router._replica_queue_len_cache = SimpleNamespace(get=lambda id: known.get(id.unique_id))
    replicas = [SimpleNamespace(replica_id=SimpleNamespace(unique_id=name)) for name in names]
    call = Call(prefix=prefix, tried=tried, method="POST", path="/", body=b"")

    async def chosen():
        pending = PendingRequest(args=[call], kwargs={}, metadata=None)
        ranked = await router.choose_replicas(replicas, pending)
        assert pending.routing_context.should_backoff
        return [one.replica_id.unique_id for (one,) in ranked]

    return asyncio.run(chosen())


def test_a_prefix_always_has_the_same_order_and_prefixes_are_spread():
    firsts = [order(str(i))[0] for i in range(100)]
    assert firsts == [order(str(i), names=NAMES[::-1])[0] for i in range(100)]
    assert all(firsts.count(name) > 10 for name in NAMES)
    assert all(sorted(order(str(i))) == list(NAMES) for i in range(100))


def test_the_order_of_other_replicas_does_not_change_when_one_ends():
    for i in range(50):
        assert order(str(i), names="abc") == [name for name in order(str(i)) if name != "d"]


def test_a_replica_without_a_free_slot_comes_after_those_that_have_one():
    first, second, *_ = order("x")
    assert order("x", {first: 1})[0] == first
    assert order("x", {first: 2})[0] == second
    assert order("x", {first: 2})[-1] == first


def test_if_all_are_busy_the_shortest_queue_comes_first():
    has = {"a": 9, "b": 7, "c": 8, "d": 10}
    assert order("x", has) == ["b", "c", "a", "d"]


def test_a_replica_that_failed_the_request_comes_last():
    first, second, third, fourth = order("x")
    assert order("x", tried=1) == [second, third, fourth, first]
    assert order("x", tried=5) == order("x", tried=1)
    assert order("x", tried=2, names="a") == ["a"]


def test_calls_are_of_another_module_than_the_router_that_recognises_them():
    """Ray pickles a router's whole module, and its copy of a class in it would be another class."""
    assert Call.__module__ != PrefixRouter.__module__
