"""Bodies: how much is received and held at once, and who is refused where it is too much."""

import asyncio
import select
import socket
import threading

import pytest
from doubles import Random
from starlette.requests import ClientDisconnect, Request
from values import V
from waiting import PATIENCE

from dlm.errors import QueueFullError, UnavailableError
from dlm.openai.body import LARGE
from dlm.serving.guard import ClientGoneError, Guard, Settings, _Upload


def test_where_too_much_is_received_the_one_that_takes_longest_gets_a_429(engine_of, serve):
    limits = {"max_body_bytes": 10_000, "max_bodies_bytes": 12_000}
    with serve(engine_of(Random(V, seed=1)), **limits) as served:
        place = (served.http.base_url.host, served.http.base_url.port)
        with socket.create_connection(place, PATIENCE) as slow:
            head = b"POST /tokenize HTTP/1.1\r\nHost: here\r\nContent-Length: 9999\r\n"
            slow.sendall(head + b"Content-Type: application/json\r\n\r\n" + b" " * 9000)
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


def test_slow_bodies_keep_nobody_out():
    guard = Guard(Settings(max_body_bytes=1000, max_bodies_bytes=10_000))

    class Sent:
        def __init__(self, *parts: bytes, ends: bool):
            self.parts, self.ends = parts, ends

        async def stream(self):
            for part in self.parts:
                await asyncio.sleep(0)
                yield part
            if not self.ends:
                await asyncio.Event().wait()

    async def body(sent: Sent) -> bytes:
        async with guard.body(sent) as raw:
            return raw

    async def all_of_them():
        slow = [asyncio.create_task(body(Sent(b"a" * 900, ends=False))) for _ in range(50)]
        for _ in range(50):
            sent = Sent(b"b" * 500, b"c" * 500, ends=True)
            assert await body(sent) == b"b" * 500 + b"c" * 500
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

    asyncio.run(all_of_them())


def test_an_upload_whose_time_is_over_as_it_is_crowded_out_disturbs_nobody():
    class Sent:
        async def stream(self):
            yield b" " * 200

    async def main():
        late = _Upload(asyncio.timeout(0), 900)  # that can be rescheduled no more
        guard._uploads[late], guard._receiving = None, late.size
        async with guard.body(Sent()) as raw:
            assert len(raw) == 200
        assert not guard._uploads
        assert not guard._receiving

    guard = Guard(Settings(max_body_bytes=1000, max_bodies_bytes=1000))
    asyncio.run(main())


def test_a_large_body_within_the_limit_is_read(tiny):
    """By the framework too, which has a limit of its own."""
    answer = tiny.http.post("/tokenize", json={"prompt": "word " * 500_000})
    assert answer.status_code == 200
    assert answer.json()["count"] > 500_000


def test_a_body_that_does_not_arrive_is_a_408(engine_of, serve):
    with serve(engine_of(Random(V, seed=1)), body_seconds=0.1) as served:
        wait = threading.Event()

        def parts():
            yield b"{"
            wait.wait(1)

        assert served.http.post("/tokenize", content=parts()).status_code == 408


@pytest.mark.parametrize("began", [True, False])
def test_bodies_are_refused_while_the_server_drains(began):
    """Those that are arriving too, at once."""

    class Sent:
        async def stream(self):
            yield b"{"
            if began:
                guard.drain()
            await asyncio.Event().wait()

    async def main():
        if not began:
            guard.drain()
        async with guard.body(Sent()):
            pass

    guard = Guard(Settings())
    with pytest.raises(UnavailableError, match="shutting down"):
        asyncio.run(main())
    assert not guard._uploads


def asking(address, **headers):
    given = [(name.encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": given, "client": (address, 1)})


def test_a_client_is_its_key_or_else_its_network():
    guard = Guard(Settings(api_keys=("one", "two")))
    names = {
        guard.client(asking(address, authorization=f"Bearer {key}"))
        for key in ("one", "two")
        for address in ("1.1.1.1", "2.2.2.2")
    }
    assert len(names) == 2
    assert not any("one" in name for name in names)
    guard = Guard(Settings())
    assert guard.client(asking("1.1.1.1")) != guard.client(asking("2.2.2.2"))
    assert guard.client(asking("2001:db8::1")) == guard.client(asking("2001:db8::2"))
    assert guard.client(Request({"type": "http", "headers": [], "client": None})) == ""


def test_a_client_that_hangs_up_while_it_sends_is_no_fault_of_the_server():
    class Leaving:
        async def stream(self):
            yield b"{"
            raise ClientDisconnect

    async def main():
        async with guard.body(Leaving()):
            pass

    guard = Guard(Settings())
    with pytest.raises(ClientGoneError):
        asyncio.run(main())
    assert guard._receiving == 0


def test_large_bodies_that_wait_to_be_read_are_bounded_and_small_ones_come_in():
    guard = Guard(Settings(max_bodies_bytes=2 * LARGE))

    class Sent:
        def __init__(self, size):
            self.size = size

        async def stream(self):
            yield b" " * self.size

    async def main():
        async with guard.body(Sent(LARGE)), guard.body(Sent(LARGE)):
            async with guard.body(Sent(LARGE - 1)) as raw:
                assert len(raw) == LARGE - 1
            with pytest.raises(QueueFullError, match="waits to be read"):
                async with guard.body(Sent(LARGE)):
                    pass
        async with guard.body(Sent(LARGE)):
            assert guard._held == LARGE
        assert guard._held == guard._receiving == 0

    asyncio.run(main())
