"""Large bodies beside a busy engine: their pieces, one for each step, and who goes on when."""

import asyncio
import socket
import threading

import pytest
from doubles import Random
from starlette.requests import ClientDisconnect
from values import V
from waiting import PATIENCE, until, wait_until

from dlm import Request
from dlm.errors import UnavailableError
from dlm.grammar import Unfinished
from dlm.openai.body import LARGE
from dlm.serving.async_engine import AsyncEngine
from dlm.serving.guard import ClientGoneError, Guard
from dlm.serving.pace import PIECE, Pace
from dlm.serving.settings import Settings

pytestmark = pytest.mark.anyio
REQUEST = Request(prompt="hi", max_tokens=32)
PART = 64_000  # bytes that arrive at once
SIZE = 2_000_000
HEAD = (
    b"POST /tokenize HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n" % SIZE
)


class Stepped(Random):
    """Model whose passes each wait for one call of `step`, until `free` is called."""

    def __init__(self):
        super().__init__(V, seed=1)
        self._permits, self._is_free = threading.Semaphore(0), False
        self.passes = 0  # passes that have begun

    def step(self):
        self._permits.release()

    def free(self):
        self._is_free = True
        self._permits.release()

    def denoise(self, *args, **more):
        self.passes += 1
        if not self._is_free:
            assert self._permits.acquire(timeout=PATIENCE)
        return super().denoise(*args, **more)


class Failing(Stepped):
    def denoise(self, *args, **more):
        super().denoise(*args, **more)
        raise RuntimeError("the device is gone")


class Arriving:
    """Request whose body arrives in parts; it disconnects after `gone` of them."""

    def __init__(self, size=SIZE, gone=None):
        self.parts = [b" " * PART] * (size // PART)
        self.gone, self.received = gone, 0

    async def stream(self):
        for i, part in enumerate(self.parts):
            await asyncio.sleep(0)
            if i == self.gone:
                raise ClientDisconnect
            self.received += len(part)
            yield part


async def body_of(guard, request, next_piece=None):
    async with guard.body(request, next_piece) as raw:
        return raw


async def several_turns_of_the_loop():
    for _ in range(200):
        await asyncio.sleep(0)


async def test_a_large_body_is_received_in_pieces_one_for_each_step():
    pace, guard, request = Pace(), Guard(Settings()), Arriving()
    pace.busy = True
    receiving = asyncio.ensure_future(body_of(guard, request, lambda: pace.next_piece("a")))
    await several_turns_of_the_loop()
    assert request.received == LARGE // PART * PART + PART  # the first part over the limit
    while not receiving.done():
        before = request.received
        pace.note_step()
        await several_turns_of_the_loop()
        assert 0 < request.received - before <= PIECE + PART or receiving.done()
    assert len(await receiving) == request.received == SIZE // PART * PART
    assert guard._receiving == 0


async def test_beside_an_idle_engine_and_up_to_a_size_bodies_are_received_at_once():
    pace, guard = Pace(), Guard(Settings())

    async def unwanted():
        pytest.fail("a small body has waited")

    assert len(await body_of(guard, Arriving(), lambda: pace.next_piece("a"))) > LARGE
    assert len(await body_of(guard, Arriving(PART), unwanted)) == PART < LARGE


async def test_large_bodies_of_two_clients_advance_alike_and_each_by_turns():
    pace, guard = Pace(), Guard(Settings())
    pace.busy = True
    requests = {"a": Arriving(), "b": Arriving()}
    many = [Arriving() for _ in range(5)]  # further ones of the first client
    tasks = [
        asyncio.ensure_future(
            body_of(guard, request, lambda client=client: pace.next_piece(client))
        )
        for client, request in [*requests.items(), *(("a", request) for request in many)]
    ]
    await several_turns_of_the_loop()
    begun = requests["b"].received
    for _ in range(4):
        pace.note_step()
        await several_turns_of_the_loop()
    advanced = requests["b"].received - begun
    assert advanced > PIECE  # two of the four turns
    assert requests["a"].received + sum(r.received for r in many) == 6 * begun + advanced
    pace.note_rest()
    pace.busy = False
    await asyncio.gather(*tasks)


async def test_the_time_in_which_a_body_waits_for_steps_is_not_the_client_s():
    pace, guard = Pace(), Guard(Settings(body_seconds=0.05))
    pace.busy = True
    slow, waiting = Arriving(), Arriving()
    receiving = asyncio.ensure_future(body_of(guard, waiting, lambda: pace.next_piece("a")))
    await asyncio.sleep(0.1)  # longer than a body may take
    assert not receiving.done()
    pace.busy = False
    pace.note_rest()
    assert len(await receiving) == SIZE // PART * PART

    async def stalled():
        yield b" " * (LARGE + 1)
        await asyncio.Event().wait()

    slow.stream = stalled
    with pytest.raises(Exception, match="did not arrive in time"):
        await body_of(guard, slow, lambda: pace.next_piece("a"))
    assert guard._receiving == 0


async def test_a_body_that_waits_for_a_step_ends_when_the_server_drains():
    pace, guard = Pace(), Guard(Settings())
    pace.busy = True
    receiving = asyncio.ensure_future(body_of(guard, Arriving(), lambda: pace.next_piece("a")))
    await until(lambda: pace.awaited)
    guard.drain()
    with pytest.raises(UnavailableError, match="shutting down"):
        await receiving
    assert not pace.awaited
    assert guard._receiving == 0
    assert not guard._uploads


async def test_a_piece_that_arrives_as_the_server_begins_to_drain_waits_for_no_step():
    pace, guard, request = Pace(), Guard(Settings()), Arriving()
    pace.busy = True

    async def draining():
        guard.drain()
        yield b" " * LARGE

    request.stream = draining
    with pytest.raises(UnavailableError, match="shutting down"):
        await asyncio.wait_for(body_of(guard, request, lambda: pace.next_piece("a")), PATIENCE)
    assert not pace.awaited


async def test_a_body_that_waits_for_a_step_may_be_crowded_out():
    pace, guard = Pace(), Guard(Settings(max_bodies_bytes=300_000))
    pace.busy = True
    first = asyncio.ensure_future(body_of(guard, Arriving(), lambda: pace.next_piece("a")))
    await until(lambda: pace.awaited)
    assert len(await body_of(guard, Arriving(256_000))) == 256_000
    with pytest.raises(Exception, match="too many bodies are arriving"):
        await first
    assert not pace.awaited
    assert guard._receiving == 0


async def test_a_client_that_leaves_in_the_middle_of_a_body_frees_it_at_its_next_turn():
    pace, guard = Pace(), Guard(Settings())
    pace.busy = True
    leaving = Arriving(gone=3)
    receiving = asyncio.ensure_future(body_of(guard, leaving, lambda: pace.next_piece("a")))
    await until(lambda: pace.awaited)
    pace.note_step()
    with pytest.raises(ClientGoneError):
        await receiving
    assert not pace.awaited
    assert guard._receiving == 0


async def test_a_caller_that_is_cancelled_as_its_turn_comes_passes_it_on():
    pace = Pace()
    pace.busy = True
    first, second = (asyncio.ensure_future(pace.next_piece(name)) for name in "ab")
    await asyncio.sleep(0)
    pace.note_step()
    first.cancel()
    await second
    with pytest.raises(asyncio.CancelledError):
        await first
    third = asyncio.ensure_future(pace.next_piece("c"))
    await asyncio.sleep(0)
    third.cancel()
    with pytest.raises(asyncio.CancelledError):
        await third
    assert not pace.awaited


async def test_a_piece_waits_for_a_step_of_an_engine_with_work_and_for_nothing_else(engine_of):
    model = Stepped()
    served = AsyncEngine(engine_of(model, slots=2), 2)
    await served.next_piece()  # it has not begun
    assert await served.run_in_reader(lambda: 7) == 7
    await served.next_piece()  # it has no work
    (stream,) = await served.open([REQUEST])
    await until(lambda: model.passes == 1)
    for passes in (1, 2, 3):
        piece = asyncio.ensure_future(served.next_piece())
        await several_turns_of_the_loop()
        assert not piece.done()
        assert model.passes == passes
        model.step()
        await piece
        await until(lambda passes=passes: model.passes == passes + 1)
    piece = asyncio.ensure_future(served.next_piece())
    await asyncio.sleep(0)
    model.free()
    stream.close()
    await piece
    await until(lambda: not served.engine.busy)
    await served.close()


async def test_a_piece_waits_for_no_pass_while_constraints_are_not_finished(engine_of, monkeypatch):
    model = Stepped()
    served = AsyncEngine(engine_of(model, slots=2), 2)

    def unfinished(_):
        raise Unfinished

    monkeypatch.setattr(served.engine._builder, "build", unfinished)
    (stream,) = await served.open([REQUEST])
    for _ in range(3):
        await asyncio.wait_for(served.next_piece(), PATIENCE)
    assert served.engine.busy
    assert model.passes == 0
    stream.close()
    await served.close()


@pytest.mark.parametrize("ends", ["closed", "failed", "cancelled"])
async def test_no_piece_waits_for_an_engine_that_steps_no_more(engine_of, ends):
    model = Failing() if ends == "failed" else Stepped()
    served = AsyncEngine(engine_of(model, slots=2), 2)
    (stream,) = await served.open([REQUEST])
    await until(lambda: model.passes == 1)
    pieces = [asyncio.ensure_future(served.next_piece()) for _ in range(3)]
    await several_turns_of_the_loop()
    assert not any(piece.done() for piece in pieces)
    closing = None
    if ends == "closed":
        closing = asyncio.ensure_future(served.close())
        await asyncio.gather(*pieces)  # though the step is still under way
        await served.next_piece()
    elif ends == "cancelled":
        stream.close()
    model.free()
    await asyncio.gather(*pieces)
    await (closing or served.close())
    await served.next_piece()


def test_a_client_sends_no_more_of_a_body_than_its_server_s_steps_take(serve, engine_of):
    model = Stepped()
    with serve(engine_of(model)) as served:
        guard = served.server.guard
        answer = served.http.post("/tokenize", content=b"1" * SIZE)  # at once: nothing else runs
        assert answer.status_code == 400
        asking = threading.Thread(
            target=served.http.post,
            args=("/v1/completions",),
            kwargs={"json": {"prompt": "hi", "max_tokens": 32}},
        )
        asking.start()
        wait_until(lambda: model.passes == 1)
        with socket.create_connection(served.address, PATIENCE) as client:
            sending = threading.Thread(target=client.sendall, args=(HEAD + b"1" * SIZE,))
            sending.start()
            wait_until(lambda: guard._receiving >= LARGE)
            most = 2 * PIECE + LARGE  # the server's transport keeps a piece of its own
            for _ in range(2):
                before = guard._receiving
                assert before <= most
                model.step()
                wait_until(lambda before=before: guard._receiving > before)
                most += 2 * PIECE
            assert guard._receiving < SIZE
            model.free()
            sending.join(PATIENCE)
            assert client.recv(1000).startswith(b"HTTP/1.1 400 ")
        asking.join(PATIENCE)
        assert guard._receiving == 0
