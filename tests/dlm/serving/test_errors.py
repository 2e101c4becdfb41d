"""What a client is told when it cannot be served: the right exception, nothing of the machine."""

import json
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from doubles import Random
from gated import Gated
from values import V

from dlm import DlmError
from dlm.errors import RequestError, failure
from dlm.grammar import CrashError, DeadEndError
from dlm.openai.answers import describe_error, status_of

HI = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 16}

ASKED = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/decisions",
    "/tokenize",
    "/detokenize",
)


class Broken(Random):
    def denoise(self, *args, **more):
        raise RuntimeError("/a/path of the device")


def error_of(problem: openai.APIStatusError):
    body = problem.response.json()["error"]
    assert set(body) == {"message", "type", "param", "code"}
    assert body["code"] == problem.status_code
    return body


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"temperature": 3}, "temperature", "temperature is 3: it takes 0 to 2"),
        ({"max_tokens": 5000}, "max_tokens", "leave .* for the answer, fewer than max_tokens 5000"),
        ({"extra_body": {"guided_json": {}}}, "guided_json", "use structured_outputs"),
        ({"extra_body": {"top_k": -2}}, "top_k", "top_k is -2: it takes 1 or more tokens"),
        (
            {"extra_body": {"repetition_penalty": 1.5}},
            "repetition_penalty",
            r"repetition_penalty is 1\.5, which is not supported",
        ),
        ({"extra_body": {"foo": 5}}, "foo", "foo is unknown here"),
        ({"functions": [{"name": "f"}]}, "functions", "functions is not supported: use tools"),
        ({"messages": [{"role": "x"}]}, "messages", r"messages\[0\].role is 'x'"),
        (
            {"extra_body": {"structured_outputs": {"choice": ["a word" * 9]}}, "max_tokens": 2},
            "max_tokens",
            "max_tokens is 2: .* tokens",
        ),
        (
            {"extra_body": {"structured_outputs": {"regex": "(?=a)b"}}},
            None,  # it is found where fields have no names any more
            "regex",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_the_client_can_mend_is_a_400(tiny, fields, param, message, stream):
    """A stream too: nothing has been sent when it is found."""
    with pytest.raises(openai.BadRequestError, match=message) as raised:
        tiny.client.chat.completions.create(**HI | fields, stream=stream)
    body = error_of(raised.value)
    assert (body["type"], body["param"]) == ("BadRequestError", param)


@pytest.mark.parametrize("field", ["stop", "stop_token_ids", "seed", "max_tokens", "messages"])
def test_a_field_may_be_nested_as_deep_as_json_can_be_read(tiny, field):
    """Python shows no list that is nested this deep."""
    body = json.dumps(HI | {field: "NESTED"}).replace('"NESTED"', "[" * 985 + "]" * 985)
    answer = tiny.http.post("/v1/chat/completions", content=body)
    assert answer.status_code == 400
    assert field in answer.json()["error"]["message"]


def test_a_model_that_is_not_there_is_a_404(tiny):
    with pytest.raises(openai.NotFoundError, match="'gpt' does not exist here") as raised:
        tiny.client.chat.completions.create(**HI | {"model": "gpt"})
    body = error_of(raised.value)
    assert (body["type"], body["param"]) == ("NotFoundError", "model")


@pytest.mark.parametrize("raw", [b"", b"{", b"[" * 100_000, b'{"a": NaN}', b"\xff", b"[]", b"3"])
def test_a_body_that_is_none_is_a_400(tiny, raw):
    for path in ASKED:
        answer = tiny.http.post(path, content=raw)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith("the body is")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("text/plain", "Content-Type is 'text/plain': send `Content-Type: application/json`"),
        (
            "application/x-www-form-urlencoded",
            "Content-Type is 'application/x-www-form-urlencoded'",
        ),
        ("text/plain; application/json", "Content-Type is 'text/plain; application/json'"),
        ("é" * 1000, "Content-Type is 'Ã©Ã©"),
        ("", "Content-Type is missing: send `Content-Type: application/json`"),
    ],
)
def test_a_body_that_any_web_page_can_send_is_a_415(tiny, given, problem):
    """A browser asks before it sends another one (CORS), and is not told that it may."""
    for path in ASKED:
        headers = {"Content-Type": given.encode()}
        answer = tiny.http.post(path, content=b'{"prompt": "hi"}', headers=headers)
        assert answer.status_code == 415
        error = answer.json()["error"]
        assert error["type"] == "UnsupportedMediaTypeError"
        assert error["message"].startswith(problem)
        assert len(error["message"]) < 200
    origin = {"Origin": "https://a.page", "Access-Control-Request-Method": "POST"}
    asks = tiny.http.options("/v1/completions", headers=origin)
    assert "access-control-allow-origin" not in asks.headers


def test_json_has_a_charset_and_any_case(tiny):
    headers = {"Content-Type": "Application/JSON ; charset=UTF-8"}
    body = b'{"prompt": "hi", "max_tokens": 4}'
    answer = tiny.http.post("/v1/completions", content=body, headers=headers)
    assert answer.status_code == 200


def test_a_way_that_leads_nowhere_is_told_in_the_same_form(tiny):
    assert tiny.http.get("/v1/nothing").json()["error"]["code"] == 404
    assert tiny.http.get("/v1/chat/completions").json()["error"]["code"] == 405
    assert tiny.http.get("/docs").status_code == 404  # a page of scripts from elsewhere
    assert tiny.http.get("/openapi.json").status_code == 404
    for path in ("/v1/chat/completions/", "/tokenize/"):  # never a redirect, which a proxy breaks
        assert tiny.http.post(path, json={}).status_code == 404


@pytest.mark.parametrize("path", ["/", "/health", "/metrics", "/version", "/v1/models"])
def test_where_there_is_something_to_get_its_head_is_there_too(tiny, path):
    head, whole = tiny.http.head(path), tiny.http.get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers.get("content-type") == whole.headers.get("content-type")


def test_keys_open_what_costs_something_and_others_do_not(engine_of, serve):
    with serve(engine_of(Random(V, seed=1)), api_keys=("first", "second")) as served:
        for key in ("first", "second"):
            client = served.client.with_options(api_key=key)
            assert client.models.list().data[0].id == "tiny"
        for key in ("third", "firs", "first2"):
            client = served.client.with_options(api_key=key)
            with pytest.raises(openai.AuthenticationError, match="Incorrect API key") as raised:
                client.chat.completions.create(**HI)
            assert error_of(raised.value)["type"] == "AuthenticationError"
        strange = {"Authorization": b"Bearer \xc3\xa9\xff"}
        assert served.http.get("/v1/models", headers=strange).status_code == 401
        for path in ("/v1/completions", "/tokenize", "/detokenize"):
            answer = served.http.post(path, content=b"{}")
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
        assert served.http.get("/v1/models", headers={"Authorization": "first"}).status_code == 401
        assert [served.http.get(p).status_code for p in ("/health", "/version", "/metrics")] == [
            200
        ] * 3


def test_a_body_that_is_too_large_is_a_413(engine_of, serve):
    with serve(engine_of(Random(V, seed=1)), max_body_bytes=1000) as served:
        long = [{"role": "user", "content": "a" * 1000}]
        with pytest.raises(openai.APIStatusError, match="more than 1000 bytes") as raised:
            served.client.chat.completions.create(**HI | {"messages": long})
        assert error_of(raised.value)["code"] == 413

        def parts():
            for _ in range(100):
                yield b" " * 100

        assert served.http.post("/tokenize", content=parts()).status_code == 413


def test_an_answer_that_could_not_be_made_valid_is_a_422(engine_of, tokens_of, serve):
    """Its schema asks for what only a check can tell, and the model never does it."""
    engine = engine_of(Gated(tokens_of("[1, 2]<turn|>")), slots=1)
    engine.model.open.set()
    schema = {
        "type": "array",
        "prefixItems": [{"const": 1}, {"const": 2}],
        "items": False,
        "minItems": 2,
        "not": {"uniqueItems": True},
    }
    named = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    with serve(engine) as served, pytest.raises(openai.UnprocessableEntityError) as raised:
        served.client.chat.completions.create(**HI | {"response_format": named})
    error = error_of(raised.value)
    assert error["type"] == "UnprocessableEntityError"
    assert "the result is refused" in error["message"]


def test_a_full_queue_is_a_429_that_says_when_to_come_again(engine_of, tokens_of, serve):
    model = Gated(tokens_of("hi<turn|>"))
    with (
        serve(engine_of(model, slots=1), slots=1, max_queue=1, retry_after=7) as served,
        ThreadPoolExecutor(2) as pool,
    ):
        waiting = [pool.submit(served.client.chat.completions.create, **HI) for _ in range(2)]
        while len(served.server.engine._streams) < 2:
            pass
        with pytest.raises(openai.RateLimitError, match="try again later") as raised:
            served.client.chat.completions.create(**HI)
        assert error_of(raised.value)["type"] == "RateLimitError"
        assert raised.value.response.headers["retry-after"] == "7"
        model.open.set()
        assert [w.result().choices[0].message.content for w in waiting] == ["hi", "hi"]


@pytest.mark.parametrize(
    ("path", "fields", "param", "message"),
    [
        ("chat/completions", HI | {"n": 3}, "n", "n is 3: it takes 1 to 2 answers together"),
        ("completions", {"prompt": "a", "n": 3}, "n", "n is 3: it takes 1 to 2 answers together"),
        (
            "completions",
            {"prompt": ["a", "b", "c"]},
            "prompt",
            "prompt holds 3 prompts of 1 answers each: it takes 1 to 2 answers together",
        ),
    ],
)
def test_more_answers_than_ever_fit_are_a_400_even_where_nothing_runs(
    engine_of, serve, path, fields, param, message
):
    """To come again later would not help."""
    with serve(engine_of(Random(V, seed=1), slots=1), slots=1, max_queue=1) as served:
        answer = served.http.post(f"/v1/{path}", json=fields)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["message"]) == (400, param, message)


def test_an_engine_that_failed_is_a_503_and_ill(engine_of, serve):
    with serve(engine_of(Broken(V, seed=1))) as served:
        assert served.http.get("/health").content == b""
        for stream in (False, True, False):
            with pytest.raises(openai.InternalServerError, match="the engine has failed") as raised:
                served.client.chat.completions.create(**HI, stream=stream)
            assert error_of(raised.value)["code"] == 503
            assert "path" not in raised.value.response.text
        health = served.http.get("/health")
        assert (health.status_code, health.json()["error"]["code"]) == (503, 503)
        assert served.http.get("/metrics").status_code == 200


def test_an_error_in_mid_stream_is_the_last_thing_told_of_it(
    engine_of, tokens_of, serve, monkeypatch
):
    engine = engine_of(Gated(tokens_of("word " * 40)), slots=1)
    engine.model.open.set()
    advance, calls = engine._decoder.advance, []

    def failing(slot, sequence, outcome):
        calls.append(1)
        if sequence.tokens:
            raise OSError("/a/path of the machine")
        yield from advance(slot, sequence, outcome)

    monkeypatch.setattr(engine._decoder, "advance", failing)
    asked = HI | {"stream": True, "max_tokens": 64}
    with serve(engine) as served:
        answer = served.http.post("/v1/chat/completions", json=asked)
        assert answer.status_code == 200
        lines = [line for line in answer.text.split("\n\n") if line]
        assert lines[-1] == "data: [DONE]"
        error = json.loads(lines[-2].removeprefix("data: "))["error"]
        assert (error["code"], error["type"]) == (500, "InternalServerError")
        assert "path" not in answer.text
        assert "word" in answer.text
        with pytest.raises(openai.APIError, match="by no fault of its own"):
            list(served.client.chat.completions.create(**asked))
        with pytest.raises(openai.InternalServerError):
            served.client.chat.completions.create(**HI | {"max_tokens": 64})


def test_an_error_that_nobody_foresaw_is_told_to_who_may_read_it(engine_of, serve, caplog):
    """Browsers show a page only what has the header of its origin, and logs are searched by id."""
    origin = "https://a.example"
    settings = {"allowed_origins": (origin,), "request_ids": True}
    with serve(engine_of(Random(V, seed=1)), **settings) as served:
        served.server.metrics.text = lambda: 1 // 0
        answer = served.http.get("/metrics", headers={"Origin": origin, "X-Request-Id": "mine"})
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "InternalServerError"
    assert "zero" not in answer.text
    assert answer.headers["x-request-id"] == "mine"
    assert answer.headers["access-control-allow-origin"] == origin
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RequestError("seed is 3"), 400),
        (DlmError("the result is refused"), 422),
        (failure(DeadEndError("no way")), 422),
        (failure(CrashError("ended")), 500),
        (failure(OSError("/a/path")), 500),
        (ValueError("/a/path"), 500),
    ],
)
def test_whose_fault_an_error_is_decides_its_status(error, status):
    assert status_of(error) == status
    assert describe_error(error)["error"]["code"] == status
    assert "/a/path" not in describe_error(error)["error"]["message"]
