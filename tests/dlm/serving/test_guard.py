"""Bodies: how much is received and held at once, and who is refused when it is too much."""

import asyncio
import select
import socket

import pytest
from starlette.requests import ClientDisconnect, Request
from waiting import PATIENCE

from dlm.errors import QueueFullError, UnavailableError
from dlm.openai.body import LARGE
from dlm.serving.guard import ClientGoneError, Guard, _Upload, until_disconnected
from dlm.serving.settings import Settings

pytestmark = pytest.mark.anyio
HEAD = (
    b"POST /tokenize HTTP/1.1\r\nHost: here\r\nContent-Length: 9999\r\n"
    b"Content-Type: application/json\r\n\r\n"
)


class Sent:
    """Request whose body comes in `parts`; without `ends` it never ends."""

    def __init__(self, *parts: bytes, ends: bool = True):
        self.parts, self.ends = parts, ends

    async def stream(self):
        for part in self.parts:
            await asyncio.sleep(0)
            yield part
        if not self.ends:
            await asyncio.Event().wait()


async def body_of(guard: Guard, sent: Sent) -> bytes:
    async with guard.body(sent) as raw:
        return raw


def test_the_slowest_of_too_many_bytes_being_received_gets_a_429(serve_random):
    limits = {"max_body_bytes": 10_000, "max_bodies_bytes": 12_000}
    with serve_random(**limits) as served:
        with socket.create_connection(served.address, PATIENCE) as slow:
            slow.sendall(HEAD + b" " * 9000)
            while not select.select([slow], [], [], 0)[0]:  # until it is answered
                short = served.http.post("/tokenize", content=b" " * 9000)
                assert short.status_code == 400  # it was read: it holds no object
            answer = b""
            while b"try again later" not in answer:
                part = slow.recv(10_000)
                assert part  # it is still open
                answer += part
        assert answer.startswith(b"HTTP/1.1 429 ")
        assert b"retry-after: 1\r\n" in answer


async def test_slow_bodies_do_not_block_others():
    guard = Guard(Settings(max_body_bytes=1000, max_bodies_bytes=10_000))
    unending = Sent(b"a" * 900, ends=False)
    slow = [asyncio.create_task(body_of(guard, unending)) for _ in range(50)]
    for _ in range(50):
        sent = Sent(b"b" * 500, b"c" * 500)
        assert await body_of(guard, sent) == b"b" * 500 + b"c" * 500
    refused = [task for task in slow if task.done()]
    for task in refused:
        assert isinstance(task.exception(), QueueFullError)
    assert refused == slow[: len(refused)]
    assert guard._receiving == 900 * (50 - len(refused)) <= 10_000
    for task in slow:
        task.cancel()
    await asyncio.wait(slow)
    assert guard._receiving == 0
    assert not guard._uploads


async def test_an_upload_that_times_out_as_it_is_refused_does_not_affect_others():
    guard = Guard(Settings(max_body_bytes=1000, max_bodies_bytes=1000))
    late = _Upload(asyncio.timeout(0), 900)  # too late to be rescheduled
    guard._uploads[late], guard._receiving = None, late.size
    assert len(await body_of(guard, Sent(b" " * 200))) == 200
    assert not guard._uploads
    assert not guard._receiving


def test_a_body_within_the_limit_is_read_though_larger_than_the_framework_s_default(tiny):
    answer = tiny.http.post("/tokenize", content=b'{"prompt": "hi"}' + b" " * 2_500_000)
    assert answer.status_code == 200
    assert answer.json()["count"] < 10


def test_a_body_that_does_not_arrive_is_a_408(serve_random):
    with (
        serve_random(body_seconds=0.1) as served,
        socket.create_connection(served.address, PATIENCE) as client,
    ):
        client.sendall(HEAD + b"{")
        assert client.recv(10_000).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("arriving", [True, False])
async def test_new_and_arriving_bodies_are_refused_while_the_server_drains(arriving):
    guard = Guard(Settings())

    class Draining(Sent):
        async def stream(self):
            yield b"{"
            guard.drain()
            await asyncio.Event().wait()

    if not arriving:
        guard.drain()
    with pytest.raises(UnavailableError, match="shutting down"):
        await body_of(guard, Draining() if arriving else Sent(b"{", ends=False))
    assert not guard._uploads


def request_from(address, **headers):
    given = [(name.encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": given, "client": (address, 1)})


def test_a_client_is_its_key_or_else_its_network():
    guard = Guard(Settings(api_keys=("one", "two")))
    names = {
        guard.client(request_from(address, authorization=f"Bearer {key}"))
        for key in ("one", "two")
        for address in ("1.1.1.1", "2.2.2.2")
    }
    assert len(names) == 2
    assert not any("one" in name for name in names)
    guard = Guard(Settings())
    assert guard.client(request_from("1.1.1.1")) != guard.client(request_from("2.2.2.2"))
    assert guard.client(request_from("2001:db8::1")) == guard.client(request_from("2001:db8::2"))
    assert guard.client(Request({"type": "http", "headers": [], "client": None})) == ""


async def test_a_client_that_hangs_up_while_it_sends_is_no_fault_of_the_server():
    class Leaving(Sent):
        async def stream(self):
            yield b"{"
            raise ClientDisconnect

    guard = Guard(Settings())
    with pytest.raises(ClientGoneError):
        await body_of(guard, Leaving())
    assert guard._receiving == 0


async def test_large_bodies_waiting_to_be_read_are_bounded_and_small_ones_are_accepted():
    guard = Guard(Settings(max_bodies_bytes=2 * LARGE))
    large = Sent(b" " * LARGE)
    async with guard.body(large), guard.body(large):
        assert len(await body_of(guard, Sent(b" " * (LARGE - 1)))) == LARGE - 1
        with pytest.raises(QueueFullError, match="receiving too much data"):
            await body_of(guard, large)
    async with guard.body(large):
        assert guard._held == LARGE
    assert guard._held == guard._receiving == 0


async def test_a_result_that_comes_after_the_client_has_left_is_undone():
    class Staying:
        async def receive(self):
            await asyncio.Event().wait()

    async def work():
        task.cancel()
        return "opened"

    undone = []
    task = asyncio.ensure_future(until_disconnected(Staying(), work(), undone.append))
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    assert undone == ["opened"]
