"""The ingress without Ray: retries on other replicas, errors within streams, API keys."""

import asyncio
import json
from types import SimpleNamespace

import httpx2
import pytest

pytest.importorskip("ray")

from ray.exceptions import ActorDiedError, ActorUnavailableError

from dlm.integrations.ray.application import Relay
from dlm.serving.app import application
from dlm.serving.guard import Settings

BODY = b'{"ok": true}'


def start(status=200, kind=b"application/json"):
    headers = [(b"content-type", kind)]
    return {"type": "http.response.start", "status": status, "headers": headers}


def body(raw, more=False):
    return {"type": "http.response.body", "body": raw, "more_body": more}


FINE = [start(), body(BODY)]
ILL = [start(503), body(b"the engine has failed")]
DIED = [ActorDiedError()]
ENDED = "the replica that was answering has ended"


class Answer:
    """Answer of a replica: yields `messages`, raises those that are errors, hangs at None."""

    def __init__(self, messages):
        self._messages, self.cancelled = list(messages), False

    def __aiter__(self):
        return self

    async def __anext__(self):
        if not self._messages:
            raise StopAsyncIteration
        message = self._messages.pop(0)
        if isinstance(message, Exception):
            raise message
        if message is None:
            await asyncio.get_running_loop().create_future()
        return message

    def cancel(self):
        self.cancelled = True


class Handle:
    """Handle of a deployment whose replicas give `answers` in turn."""

    def __init__(self, *answers):
        self._left = [Answer(messages) for messages in answers]
        self.answers, self.calls, self.broadcasts = [], [], []

    def options(self, method_name, stream):
        assert (method_name, stream) == ("ask", True)
        return SimpleNamespace(remote=self._ask)

    def _ask(self, call):
        self.calls.append(call)
        self.answers.append(self._left.pop(0))
        return self.answers[-1]

    def broadcast(self, method, *args):
        self.broadcasts.append((method, *args))

        async def results_async(**more):
            return [("a", "# TYPE x gauge\nx 1.0\n"), ActorDiedError()]

        return SimpleNamespace(results_async=results_async)


def response_of(
    handle, path="/v1/chat/completions", settings=None, relay=None, method=None, **more
):
    relay = relay or Relay(settings or Settings(), handle)

    async def run():
        transport = httpx2.ASGITransport(application(relay))
        async with httpx2.AsyncClient(transport=transport, base_url="http://here") as http:
            http.headers["Content-Type"] = "application/json"
            usual = "POST" if path.startswith("/v1/c") else "GET"
            return await http.request(method or usual, path, **more)

    return asyncio.run(run())


@pytest.mark.parametrize(
    "first", [DIED, [ActorUnavailableError("gone", None)], [start(), ActorDiedError()], ILL]
)
def test_a_request_whose_answer_has_not_begun_is_sent_to_another_replica(first):
    handle = Handle(first, FINE)
    answer = response_of(handle, content=b'{"prompt": "hi"}')
    assert (answer.status_code, answer.content) == (200, BODY)
    assert [call.tried for call in handle.calls] == [0, 1]
    assert {(call.prefix, call.body) for call in handle.calls} == {
        (handle.calls[0].prefix, b'{"prompt": "hi"}')
    }
    assert all(one.cancelled for one in handle.answers)


POSTED = """
/v1/chat/completions /v1/completions /v1/responses /v1/responses/input_tokens /v1/messages
/v1/messages/count_tokens /v1/decisions /tokenize /detokenize
""".split()


@pytest.mark.parametrize("prefix", ["", "/api"])
def test_a_replica_gets_the_path_of_the_route_without_a_prefix(prefix):
    read = ["/v1/models", "/v1/models/some/model", "/health"]
    for method, path in [*(("POST", path) for path in POSTED), *(("GET", path) for path in read)]:
        handle = Handle(FINE)
        answer = response_of(handle, prefix + path, Settings(root_path=prefix), method=method)
        assert answer.status_code == 200
        assert [(call.method, call.path) for call in handle.calls] == [(method, path)]


def test_after_three_replicas_ended_the_answer_is_a_503():
    handle = Handle(DIED, ILL, DIED, FINE)
    answer = response_of(handle)
    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == "3 replicas ended with this request, or beside it"
    assert answer.headers["retry-after"] == "1"
    assert response_of(Handle(ILL, DIED, ILL)).text == "the engine has failed"


def test_an_error_of_the_request_itself_is_not_sent_to_another_replica():
    handle = Handle([start(400), body(BODY)], FINE)
    assert response_of(handle).status_code == 400
    assert len(handle.calls) == 1


@pytest.mark.parametrize("headers", [{}, {"anthropic-version": "2023-06-01"}])
def test_a_replica_gets_the_api_of_the_client(headers):
    handle = Handle(FINE)
    response_of(handle, "/v1/models", headers=headers)
    assert [call.anthropic for call in handle.calls] == [bool(headers)]


def test_a_stream_that_has_begun_ends_with_an_error_and_is_not_sent_again():
    begun = [start(kind=b"text/event-stream"), body(b"data: {}\n\n", more=True)]
    handle = Handle([*begun, body(b"data: 1\n\n", more=True), ActorDiedError()], FINE)
    answer = response_of(handle)
    *pieces, error, done = answer.text.removesuffix("\n\n").split("\n\n")
    assert (pieces, done) == (["data: {}", "data: 1"], "data: [DONE]")
    found = json.loads(error.removeprefix("data: "))["error"]
    assert (found["code"], found["message"]) == (503, ENDED)
    assert len(handle.calls) == 1


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/v1/messages", {"error": {"type": "overloaded_error", "message": ENDED}}),
        (
            "/v1/responses",
            {"code": "server_error", "message": ENDED, "param": None, "sequence_number": 2},
        ),
    ],
)
def test_a_stream_ends_with_an_error_in_the_form_of_its_api(path, error):
    pieces = [b"event: a\ndata: {}\n\n", b": keep-alive\n\n", b"event: b\ndata: {}\n\n"]
    begun = [start(kind=b"text/event-stream"), *(body(piece, more=True) for piece in pieces)]
    answer = response_of(Handle([*begun, ActorDiedError()]), path, method="POST")
    *found, last = answer.text.removesuffix("\n\n").split("\n\n")
    assert found == [piece.decode().removesuffix("\n\n") for piece in pieces]
    name, data = last.split("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: ")) == {"type": "error"} | error


@pytest.mark.parametrize("messages", [[None], [start(), None], [*FINE[:1], body(b"a", True), None]])
def test_a_client_that_goes_away_cancels_the_request(messages):
    handle = Handle(messages)
    app = application(Relay(Settings(), handle))
    scope = {"type": "http", "method": "POST", "path": "/v1/completions"}
    scope |= {
        "headers": [(b"content-type", b"application/json")],
        "query_string": b"",
        "root_path": "",
        "http_version": "1.1",
    }

    async def run():
        arrived = [{"type": "http.request", "body": b"{}", "more_body": False}]

        async def receive():
            if arrived:
                return arrived.pop()
            while not handle.answers or handle.answers[0]._messages:
                await asyncio.sleep(0.001)
            return {"type": "http.disconnect"}

        async def send(message):
            pass

        await asyncio.wait_for(app(scope, receive, send), 30)

    asyncio.run(run())
    assert handle.answers[0].cancelled


def test_keys_and_sizes_are_checked_before_a_request_is_sent():
    settings = Settings(api_keys=("right",), max_body_bytes=10)
    handle, right = Handle(FINE), {"Authorization": "Bearer right"}
    for headers, size, status in (({}, 1, 401), (right, 11, 413), (right, 10, 200)):
        assert handle.calls == []
        answer = response_of(handle, settings=settings, headers=headers, content=b"1" * size)
        assert answer.status_code == status


def test_metrics_are_those_of_the_replicas_that_answer():
    assert 'x{replica="a"} 1.0' in response_of(Handle(), "/metrics").text


def test_draining_refuses_requests_at_once_and_drains_the_replicas():
    handle = Handle(FINE)
    relay = Relay(Settings(), handle)
    asyncio.run(relay.drain(7.0))
    assert handle.broadcasts == [("drain", 7.0)]
    assert response_of(handle, relay=relay).status_code == 503
    assert response_of(handle, "/health", relay=relay).status_code == 503
    assert handle.calls == []
