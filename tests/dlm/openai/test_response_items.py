"""Responses that are kept: each client's own, within limits."""

from dataclasses import replace

import pytest

from dlm import RequestError
from dlm.openai.response_items import ResponseStore, StoredResponse, UnknownResponseError


def stored(id, size=0, previous=None):
    return StoredResponse(response={"id": id, "output": []}, items=[], previous=previous, size=size)


def kept(store, client, ids):
    return [id for id in ids if store.get(client, id) is not None]


def test_each_client_sees_its_own():
    store = ResponseStore()
    store.of("a").put(stored("x"))
    assert store.of("a").get("x").response["id"] == "x"
    for act in (store.of("b").get, store.of("b").delete):
        with pytest.raises(UnknownResponseError, match="'x'"):
            act("x")
    store.of("a").delete("x")
    with pytest.raises(UnknownResponseError):
        store.of("a").get("x")


def test_the_client_with_most_loses_what_it_used_longest_ago():
    store = ResponseStore(most=4)
    for id in "123":
        store.put("many", stored(id))
    store.put("few", stored("f"))
    store.get("many", "1")
    store.put("few", stored("g"))
    assert kept(store, "many", "123") == ["1", "3"]
    assert kept(store, "few", "fg") == ["f", "g"]


def test_bytes_are_bounded_whoever_sends_them():
    store = ResponseStore(most_bytes=10_000)
    store.put("small", stored("s"))
    for i in range(20):
        store.put("large", stored(str(i), 3_000))
    assert kept(store, "small", "s") == ["s"]
    assert kept(store, "large", map(str, range(20))) == ["18", "19"]
    store.put("large", stored("huge", 20_000))
    assert kept(store, "large", ["19", "huge"]) == []


def test_a_long_conversation_stays_as_long_as_it_goes_on():
    store = ResponseStore(most=5)
    mine = store.of("me")
    for i in range(4):
        mine.put(stored(str(i), previous=str(i - 1) if i else None))
    for i in range(9):
        store.put("me", stored(f"other {i}"))
        mine.conversation("3")
    assert kept(store, "me", "0123") == list("0123")


def test_nothing_is_kept_where_nothing_may_be():
    store = ResponseStore(0)
    assert not store.kept
    store.put("a", stored("x"))
    assert store.get("a", "x") is None


def test_deleted_responses_make_room():
    store = ResponseStore(most=2, most_bytes=10_000)
    for i in range(20):
        store.put(f"client {i}", stored(str(i), 3_000))
        assert store.delete(f"client {i}", str(i))
    store.put("a", stored("x", 3_000))
    store.put("b", stored("y", 3_000))
    assert (kept(store, "a", "x"), kept(store, "b", "y")) == (["x"], ["y"])


def test_a_conversation_is_at_most_as_long_as_the_store_allows():
    mine = ResponseStore(conversation_bytes=4 << 20).of("me")
    for i in range(5):
        part = stored(str(i), 1 << 20, str(i - 1) if i else None)
        mine.put(replace(part, turn_size=1 << 20))
    assert mine.conversation("3") == []
    with pytest.raises(RequestError, match="send the items that matter") as refused:
        mine.conversation("4")
    assert refused.value.field == "previous_response_id"
