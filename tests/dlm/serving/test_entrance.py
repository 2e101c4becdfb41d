"""Host names of requests, and paths that only look like a route's."""

import asyncio

import pytest

from dlm import DlmError
from dlm.serving.guard import Entrance
from dlm.serving.settings import Settings


@pytest.fixture(scope="module")
def local(serve_random):
    """A server for this machine only."""
    with serve_random(allowed_hosts=()) as served:
        yield served


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8000",
        "localhost.",
        "a.localhost:1",
        "127.0.0.1",
        "127.0.0.1:8000",
        "127.1.2.3",
        "[::1]",
        "[::1]:8000",
    ],
)
@pytest.mark.parametrize("path", ["/v1/models", "/", "/metrics", "/version"])
def test_requests_to_names_of_this_machine_are_served(local, path, host):
    assert local.http.get(path, headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "notlocalhost",
        "127.0.0.1.evil.example",
        "evil.example:8000",
        "10.0.0.1",
        "0.0.0.0",
        "[::2]:80",
        "",
        "localhost:8000:evil",
        "localhost@evil.example",
    ],
)
def test_requests_to_other_names_are_a_403_that_names_the_flag(local, host):
    for path in ("/v1/models", "/", "/metrics", "/nowhere"):
        answer = local.http.get(path, headers={"Host": host})
        assert answer.status_code == 403
        assert "--allowed-hosts" in answer.json()["error"]["message"]
    answer = local.http.post("/tokenize", json={"prompt": "hi"}, headers={"Host": host})
    assert answer.status_code == 403


def test_the_403_has_the_form_of_the_route(local):
    evil = {"Host": "evil.example"}
    for path in ("/v1/messages", "/v1/messages/count_tokens", "/v1/messages/batches/x"):
        for method in ("GET", "POST"):
            error = local.http.request(method, path, headers=evil).json()
            assert (error["type"], error["error"]["type"]) == ("error", "permission_error")
            assert "--allowed-hosts" in error["error"]["message"]
    for path in ("/v1/responses", "/v1/chat/completions", "/v1/models", "/v1/message"):
        assert local.http.get(path, headers=evil).json()["error"]["code"] == 403
    models = local.http.get("/v1/models", headers=evil | {"anthropic-version": "2023-06-01"})
    assert models.json()["type"] == "error"


def test_health_is_served_under_any_name(local):
    assert local.http.get("/health", headers={"Host": "10.0.0.7:8000"}).status_code == 200


def test_every_host_header_has_to_be_allowed():
    async def reached(*names):
        sent = []

        async def send(message):
            sent.append(message)

        async def app(scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": []})

        headers = [(b"host", name) for name in names]
        scope = {"type": "http", "path": "/v1/models", "headers": headers, "method": "GET"}
        await Entrance(app, ["one.example", "*.two.example"])(scope, None, send)
        return sent[0]["status"]

    def status(*names):
        return asyncio.run(reached(*names))

    assert status() == status(b"localhost", b"one.example:80") == status(b"a.two.example") == 200
    assert status(b"localhost", b"evil.example") == status(b"two.example") == 403


@pytest.mark.parametrize("path", ["/v1/models/tiny", "/v1/models", "/health", "/metrics", "/"])
@pytest.mark.parametrize("end", ["%0a", "%0d", "%0a%0a", "%00", "%0d%0a"])
def test_a_path_with_a_control_character_is_a_404(tiny, path, end):
    assert tiny.http.get(path).status_code == 200
    answer = tiny.http.get(path + end)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == 404
    answer = tiny.http.post(f"/v1/messages{end}", json={})
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")


@pytest.mark.parametrize("host", ["", "a b", "http://x", "x:80", "*x", "a/b"])
def test_an_invalid_name_of_an_allowed_host_is_refused(host):
    with pytest.raises(DlmError, match=r"allowed_hosts\[0\] must be the name of a host"):
        Settings(allowed_hosts=(host,))
