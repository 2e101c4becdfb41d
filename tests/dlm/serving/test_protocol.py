"""Connections whose clients send too much, too slowly, or nothing at all."""

import asyncio
import json
import socket
import threading
from contextlib import ExitStack, contextmanager, suppress

import pytest
from gated import Gated
from waiting import PATIENCE, wait_until

HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def served(serve_random):
    with serve_random() as served:
        yield served


def connected(served):
    """Return a socket that is connected to a server."""
    return socket.create_connection(served.address, PATIENCE)


@contextmanager
def sending(served, *parts, times=1):
    """Yield a socket to which a thread sends `parts`, the last one `times` times."""

    def send():
        with suppress(OSError):
            for part in (*parts[:-1], *[parts[-1]] * times):
                client.sendall(part)

    with connected(served) as client:
        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        yield client
    thread.join(PATIENCE)


def received(client):
    """Return all bytes until the server closes the connection."""
    parts = []
    with suppress(ConnectionResetError):
        while part := client.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize(
    ("parts", "times"),
    [
        ((HEAD + b"X: ", b"x" * 100_000), 100),
        ((HEAD, b"X" * 100_000), 100),
        ((HEAD, b"X: y\r\n" * 10_000), 100),
        ((HEAD, b"X: " + b"y" * 1000 + b"\r\n"), 1000),
        ((HEAD, b"X: y\r\n" * 257 + b"\r\n"), 1),
        ((b"GET /", b"x" * 100_000), 100),
        ((b"", b"\r\n" * 50_000), 100),
        ((CHUNKED + b"2\r\n{}\r\n0\r\nX: ", b"y" * 100_000), 100),
        ((CHUNKED + b"2\r\n{}\r\n0\r\n", b"X: y\r\n" * 10_000), 100),
        ((CHUNKED + b"2;x=", b"y" * 100_000), 100),
    ],
)
def test_headers_and_trailers_that_are_too_large_are_a_431_that_closes(served, parts, times):
    with sending(served, *parts, times=times) as client:
        answer = received(client)
    assert answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
    assert b'"code": 431' in answer
    assert served.http.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("line", "anthropic"),
    [
        (b"POST /v1/messages?beta=true HTTP/1.1\r\n", True),
        (b"POST /v1/m%65ssages/count_tokens HTTP/1.1\r\n", True),
        (b"POST http://localhost/v1/messages HTTP/1.1\r\n", True),
        (b"POST /llm/v1/messages HTTP/1.1\r\n", True),
        (b"GET /v1/models HTTP/1.1\r\nanthropic-version: 2023-06-01\r\n", True),
        (b"GET /v1/models HTTP/1.1\r\n", False),
        (b"POST /v1/chat/completions HTTP/1.1\r\n", False),
    ],
)
@pytest.mark.parametrize("slow", [False, True], ids=["431", "408"])
def test_errors_of_headers_have_the_form_of_the_route(serve_random, line, anthropic, slow):
    limits = {"head_seconds": 0.2} if slow else {}
    with (
        serve_random(root_path="/llm", limits=limits) as served,
        sending(served, line, b"X" if slow else b"X: y\r\n" * 300) as client,
    ):
        answer = received(client)
    head, body = answer.split(b"\r\n\r\n")
    error = json.loads(body)
    assert head.startswith(b"HTTP/1.1 408 " if slow else b"HTTP/1.1 431 ")
    assert ("type" in error) is anthropic
    assert ("code" in error["error"]) is not anthropic


@pytest.mark.parametrize("sent", [b"POST /v1/messages?x=", b"POST /v1/messages", b"\r\n"])
def test_an_error_of_a_line_that_has_not_ended_has_openai_s_form(served, sent):
    with sending(served, sent, b"y" * 100_000, times=10) as client:
        error = json.loads(received(client).partition(b"\r\n\r\n")[2])
    assert error["error"]["code"] in (400, 431)


def test_an_error_has_not_the_form_of_the_previous_request(served):
    request = POST.replace(b"/tokenize", b"/v1/messages") + b"Content-Length: 2\r\n\r\n{}"
    with connected(served) as client:
        client.sendall(request)
        answer = b""
        while not answer.endswith(b"}}"):
            answer += client.recv(1 << 16)
        assert b'"type":"invalid_request_error"' in answer
        client.sendall(b"no HTTP\r\n\r\n")
        body = received(client).partition(b"\r\n\r\n")[2]
    assert json.loads(body)["error"]["code"] == 400


def test_headers_of_a_usual_size_are_read(served):
    headers = {f"X-{i}": "v" * 500 for i in range(100)}
    assert served.http.get("/health", headers=headers).status_code == 200


def test_headers_sent_byte_by_byte_are_read(served):
    with connected(served) as client:
        for byte in HEAD + b"Connection: close\r\n\r\n":
            client.sendall(bytes([byte]))
        assert received(client).startswith(b"HTTP/1.1 200 ")


def test_a_body_of_very_many_tiny_chunks_is_refused(served):
    with sending(served, CHUNKED, b"1\r\n \r\n" * 1000, times=100) as client:
        answer = received(client)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"too many chunks" in answer


def test_a_large_body_in_pieces_of_a_usual_size_is_read(served):
    def parts():
        yield b'{"prompt": "'
        for _ in range(5000):
            yield b"word " * 30
        yield b'"}'

    answer = served.http.post("/tokenize", content=parts())
    assert answer.status_code == 200
    assert answer.json()["count"] > 100_000


def test_trailers_do_not_become_headers(served):
    trailed = CHUNKED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    with sending(served, trailed + b"2\r\n{}\r\n0\r\nX: y\r\n\r\n") as client:
        answer = received(client)
    assert answer.startswith(b"HTTP/1.1 400 ")  # the body holds no prompt
    assert b"prompt" in answer


def test_requests_in_one_packet_are_answered_in_their_order(served):
    ask = b"GET /%s HTTP/1.1\r\nHost: localhost\r\n%s\r\n"
    packet = ask % (b"version", b"") + ask % (b"nowhere", b"")
    packet += ask % (b"v1/models", b"Connection: close\r\n")
    with sending(served, packet) as client:
        answer = received(client)
    at = [answer.index(part) for part in (b'"version"', b"HTTP/1.1 404", b'"object":"list"')]
    assert at == sorted(at)
    assert answer.count(b"HTTP/1.1 ") == 3


def answers(data):
    """Return the statuses of the answers in `data`, and the last of them whole."""
    parts = data.split(b"HTTP/1.1 ")[1:]
    return [int(part[:3]) for part in parts], parts[-1]


MANY = HEAD + b"\r\n"
TOO_MANY_LINES = HEAD + b"X: y\r\n" * 257 + b"\r\n"
BAD_CHUNK = CHUNKED + b"1\r\n{\r\nno number\r\n"


@pytest.mark.parametrize(
    ("sent", "before", "status", "message"),
    [
        (MANY * 400, 129, 400, "over 128 requests wait on this connection"),
        (MANY * 3 + TOO_MANY_LINES + MANY, 3, 431, "over 256 headers"),
        (MANY * 3 + b"no request\r\n\r\n", 3, 400, "not a request of HTTP/1.1"),
        (MANY * 3 + BAD_CHUNK + MANY, 3, 400, "not a request of HTTP/1.1"),
        (BAD_CHUNK + MANY, 0, 400, "not a request of HTTP/1.1"),
    ],
)
@pytest.mark.parametrize("slow", [False, True])
def test_requests_before_a_refused_one_are_answered_first(
    serve_random, sent, before, status, message, slow, monkeypatch
):
    with serve_random() as served:
        if slow:
            health = type(served.server).health

            async def slowly(self, request):
                await asyncio.sleep(0.001)
                return await health(self, request)

            monkeypatch.setattr(type(served.server), "health", slowly)
        with sending(served, sent) as client:
            statuses, last = answers(received(client))
        assert statuses == [200] * before + [status]
        assert message in json.loads(last.partition(b"\r\n\r\n")[2])["error"]["message"]


def test_endless_requests_on_one_connection_end_it(served):
    with sending(served, b"GET /v1/models HTTP/1.1\r\n\r\n" * 5000, times=100) as client:
        client.settimeout(PATIENCE)
        received(client)  # it ends
    assert served.http.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("sent", "status"),
    [(b"", b""), (b"\r\n", b""), (HEAD, b"HTTP/1.1 408 "), (b"GE", b"HTTP/1.1 408 ")],
)
def test_headers_that_do_not_come_in_time_end_a_connection(serve_random, sent, status):
    with serve_random(limits={"head_seconds": 0.05}) as served, connected(served) as client:
        client.sendall(sent)
        answer = received(client)
    assert answer.startswith(status)
    assert bool(answer) == bool(status)


def test_the_deadline_for_headers_does_not_end_an_answer(engine_of, tokens_of, serve):
    model = Gated(tokens_of("hi<turn|>"))
    limits = {"head_seconds": 0.02}
    body = b'{"prompt": "hi", "max_tokens": 8}'
    ask = POST.replace(b"/tokenize", b"/v1/completions") + b"Content-Length: %d\r\n" % len(body)
    with (
        serve(engine_of(model, slots=1), slots=1, limits=limits) as served,
        connected(served) as client,
    ):
        client.sendall(ask + b"\r\n" + body + HEAD)  # and half of another
        wait_until(lambda: served.engine.busy)
        with connected(served) as other:
            received(other)  # its time is over
        model.open.set()
        answer = received(client)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 408 " in answer


def test_the_rest_of_a_refused_body_has_a_deadline(serve_random):
    with serve_random(limits={"rest_seconds": 0.05}) as served, connected(served) as client:
        client.sendall(b"POST /nowhere HTTP/1.1\r\nContent-Length: 1000\r\n\r\nx")
        assert received(client).startswith(b"HTTP/1.1 404 ")


def test_half_open_connections_do_not_block_others(serve_random):
    with serve_random(connections=10) as served, ExitStack() as stack:
        opened = [stack.enter_context(connected(served)) for _ in range(50)]
        for i, one in enumerate(opened):
            with suppress(OSError):  # it was closed
                one.sendall(HEAD[: i % len(HEAD)])
        assert served.http.get("/health").status_code == 200
        for one in opened[:-10]:
            assert received(one) == b""


def test_connections_with_a_request_under_way_are_not_closed_for_new_ones(
    engine_of, tokens_of, serve
):
    model = Gated(tokens_of("hi<turn|>"))
    body = b'{"prompt": "hi", "max_tokens": 8}'
    ask = POST.replace(b"/tokenize", b"/v1/completions") + b"Connection: close\r\n"
    ask += b"Content-Length: %d\r\n\r\n" % len(body) + body
    with (
        serve(engine_of(model, slots=2), slots=2, connections=2) as served,
        ExitStack() as stack,
    ):
        clients = []
        for i in range(2):
            clients.append(stack.enter_context(connected(served)))
            clients[-1].sendall(ask)
            wait_until(lambda i=i: served.in_flight() == i + 1)
        with connected(served) as other:
            assert received(other).startswith(b"HTTP/1.1 503 ")
        model.open.set()
        for one in clients:
            assert received(one).startswith(b"HTTP/1.1 200 ")


def test_connections_of_one_address_are_bounded(serve_random):
    with (
        serve_random(connections=10, by_address=2) as served,
        connected(served) as first,
        connected(served),
        connected(served),
    ):
        assert received(first) == b""


def test_a_client_that_reads_nothing_has_a_deadline(serve_random):
    body = b'{"return_token_strs": true, "prompt": "%s"}' % (b"word " * 400_000)
    with serve_random(limits={"unread_seconds": 0.05}) as served, connected(served) as client:
        client.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        wait_until(lambda: served.running.server_state.connections)
        wait_until(lambda: not served.running.server_state.connections)
        answer = received(client)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert not answer.endswith(b"}")


def test_a_shutdown_ends_half_sent_requests_at_once(serve_random, caplog):
    sent = [b"", HEAD, b"PO", POST + b"Content-Length: 100\r\n\r\n{", CHUNKED + b"5\r\n{"]
    with serve_random() as served, ExitStack() as stack:
        for part in sent * 4:
            one = stack.enter_context(connected(served))
            one.sendall(part)
        wait_until(lambda: len(served.server.guard._uploads) == 8)
        served.running.handle_exit(15, None)
        wait_until(lambda: not served.running.server_state.connections)
        wait_until(lambda: not served.running.server_state.tasks)
    assert not caplog.records
