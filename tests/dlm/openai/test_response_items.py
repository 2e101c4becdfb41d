"""Stored responses: each client's own, within limits."""

import gc
import json
import tracemalloc

import pytest

from dlm import Policy, RequestError
from dlm.openai.body import parse_json
from dlm.openai.response_items import ResponseStore, StoredResponse, UnknownResponseError
from dlm.openai.responses import response_of


def stored(id, size=0, previous=None):
    items = json.dumps([{"type": "reasoning", "x": "y" * size}]) if size else "[]"
    return StoredResponse(
        id=id, response=json.dumps({"id": id}).encode(), items=items.encode(), previous=previous
    )


def kept(store, client, ids):
    return [id for id in ids if store.get(client, id) is not None]


def test_each_client_sees_its_own():
    store = ResponseStore()
    store.of("a").put(stored("x"))
    assert json.loads(store.of("a").get("x").whole)["id"] == "x"
    for act in (store.of("b").get, store.of("b").delete):
        with pytest.raises(UnknownResponseError, match="'x'"):
            act("x")
    store.of("a").delete("x")
    with pytest.raises(UnknownResponseError):
        store.of("a").get("x")


def test_the_client_with_most_responses_loses_its_least_recently_used():
    store = ResponseStore(most=4)
    for id in "123":
        store.put("many", stored(id))
    store.put("few", stored("f"))
    store.get("many", "1")
    store.put("few", stored("g"))
    assert kept(store, "many", "123") == ["1", "3"]
    assert kept(store, "few", "fg") == ["f", "g"]


def test_the_client_with_most_bytes_loses_its_oldest_responses():
    store = ResponseStore(most_bytes=10_000)
    store.put("small", stored("s"))
    for i in range(20):
        store.put("large", stored(str(i), 3_000))
    assert kept(store, "small", "s") == ["s"]
    assert kept(store, "large", map(str, range(20))) == ["18", "19"]
    store.put("large", stored("huge", 20_000))
    assert kept(store, "large", ["19", "huge"]) == []


def test_a_conversation_that_goes_on_is_kept_whole():
    store = ResponseStore(most=5)
    mine = store.of("me")
    for i in range(4):
        mine.put(stored(str(i), previous=str(i - 1) if i else None))
    for i in range(9):
        store.put("me", stored(f"other {i}"))
        mine.conversation("3")
    assert kept(store, "me", "0123") == list("0123")


def test_a_store_of_size_0_keeps_nothing():
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
        mine.put(stored(str(i), (1 << 20) - 100, str(i - 1) if i else None))
    assert len(mine.conversation("3")) == 4
    with pytest.raises(RequestError, match="send the items that matter") as refused:
        mine.conversation("4")
    assert refused.value.field == "previous_response_id"


NESTED = ("[" * 50 + "]" * 50 + ",") * 900
BODIES = {  # each of some 90 KB
    "lists": f'{{"input": "x", "metadata": {{"a": [{NESTED}0]}}}}',
    "objects": json.dumps({"input": "x", "metadata": {str(i): {"b": {}} for i in range(5000)}}),
    "numbers": f'{{"input": "x", "user": [{"1," * 45_000}1]}}',
    "items": f'{{"input": [{{"role": "user", "content": "x", "a": [{NESTED}0]}}]}}',
    "text": f'{{"input": "{"x" * 90_000}"}}',
    "letters beyond ASCII": f'{{"input": "{"é" * 45_000}"}}',
    "tools": '{"input": "x", "tools": [%s{"type": "mcp"}]}'
    % ('{"type": "mcp", "x": [[]]},' * 3300),
}


@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize("body", BODIES.values(), ids=[*BODIES])
def test_a_stored_response_takes_the_memory_that_is_counted(body):
    store = ResponseStore()
    mine = store.of("me")

    def put(number):
        generation = response_of(parse_json("the body", body), Policy(), mine)
        mine.put(
            StoredResponse(
                id=str(number),
                response=b"{}",
                repeated=generation.repeated,
                items=generation.items,
            )
        )

    put("first")
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(4):
            put(number)
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    counted = sum(mine.get(str(number)).taken for number in range(4))
    assert 0.8 * counted < taken < 1.2 * counted


@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize("body", BODIES.values(), ids=[*BODIES])
def test_a_generation_keeps_no_values_of_its_body(body):
    """A generation lives until its answer has been sent, beside those of other clients."""
    mine = ResponseStore().of("me")

    def read():
        return response_of(parse_json("the body", body), Policy(), mine)

    read()
    gc.collect()
    tracemalloc.start()
    try:
        kept_alive = [read() for _ in range(4)]
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 3.5 * len(body) * len(kept_alive)


def test_a_conversation_of_too_many_values_is_not_continued():
    mine = ResponseStore().of("me")
    items = json.dumps([{"type": "reasoning", "x": [0] * 100_000}]).encode()
    for number, previous in enumerate((None, "0", "1")):
        mine.put(StoredResponse(id=str(number), response=b"{}", items=items, previous=previous))
    assert len(mine.conversation("1")) == 2
    with pytest.raises(RequestError, match="too many values: send the items that matter"):
        mine.conversation("2")
