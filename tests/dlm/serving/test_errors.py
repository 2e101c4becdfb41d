"""Errors that clients get: the right exception, and nothing about the machine."""

import json

import openai
import pytest
from doubles import Random
from gated import Gated
from values import V

from dlm import DlmError
from dlm.errors import RequestError, failure
from dlm.grammar import CrashError, DeadEndError
from dlm.openai.answers import describe_error, status_of

CHAT, COMPLETION, RESPONSE = "/v1/chat/completions", "/v1/completions", "/v1/responses"
TURN = {"messages": [{"role": "user", "content": "hi"}]}
HI = TURN | {"model": "tiny", "max_tokens": 16}
PATHS = (
    CHAT,
    COMPLETION,
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
    assert body["code"] in (problem.status_code, "context_length_exceeded")
    return body


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"temperature": 3}, "temperature", "temperature must be 0 to 2, got 3"),
        ({"max_tokens": 5000}, "max_tokens", "leave .* for the answer, fewer than max_tokens 5000"),
        ({"extra_body": {"guided_json": {}}}, "guided_json", "use structured_outputs"),
        (
            {"extra_body": {"top_k": -2}},
            "top_k",
            "top_k must be at least 1, or 0 or -1 for all tokens, got -2",
        ),
        (
            {"extra_body": {"repetition_penalty": 1.5}},
            "repetition_penalty",
            r"repetition_penalty is 1\.5, which is not supported",
        ),
        ({"extra_body": {"foo": 5}}, "foo", "foo is unknown here"),
        ({"functions": [{"name": "f"}]}, "functions", "functions is not supported: use tools"),
        (
            {"messages": [{"role": "x"}]},
            "messages",
            r"messages\[0\].role must be one of .*, got 'x'",
        ),
        (
            {"extra_body": {"structured_outputs": {"choice": ["a word" * 9]}}, "max_tokens": 2},
            "max_tokens",
            "max_tokens is 2: .* tokens",
        ),
        (
            {"extra_body": {"structured_outputs": {"regex": "(?=a)b"}}},
            None,  # the field is not known any more
            "regex",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_error_of_the_body_is_a_400_before_a_stream_begins(tiny, fields, param, message, stream):
    with pytest.raises(openai.BadRequestError, match=message) as raised:
        tiny.client.chat.completions.create(**HI | fields, stream=stream)
    body = error_of(raised.value)
    assert (body["type"], body["param"]) == ("BadRequestError", param)


@pytest.mark.parametrize(
    ("path", "body", "param", "message"),
    [
        (CHAT, {}, "messages", "messages is missing; it must be a list of"),
        (CHAT, HI | {"\ud800": 1}, "\\ud800", "\\ud800 is unknown here"),
        *(
            (
                CHAT,
                TURN | {field: 9999},
                field,
                "This model's maximum context length is 2048 tokens: 14 prompt tokens leave 2016 "
                f"for the answer, fewer than {field} 9999",
            )
            for field in ("max_tokens", "max_completion_tokens")
        ),
        (
            COMPLETION,
            {"prompt": " "},
            "prompt",
            "prompt must be text that is not blank, or token ids, got ' '",
        ),
        (
            COMPLETION,
            {"prompt": [10**9]},
            "prompt",
            "prompt: a token must be 0 to 1535, got 1000000000",
        ),
        (COMPLETION, {"prompt": "a", "echo": True}, "echo", "echo is true, which is not"),
        ("/detokenize", {"tokens": [-1]}, "tokens", "tokens[0] must be 0 to 1535, got -1"),
        ("/detokenize", {"tokens": [99999]}, "tokens", "tokens[0] must be 0 to 1535, got 99999"),
        ("/detokenize", {"tokens": ["a"]}, "tokens", "tokens[0] must be a token id, got 'a'"),
        ("/tokenize", {}, "prompt", "prompt is missing"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt", "prompt is unknown here"),
        (
            "/tokenize",
            {"prompt": "a", "add_special_tokens": False},
            "add_special_tokens",
            "add_special_tokens is false",
        ),
        ("/tokenize", TURN | {"tools": [5]}, "tools", "tools[0] must be an object, got 5"),
        (
            "/tokenize",
            TURN | {"tools": [{"type": "function"}]},
            "tools",
            "tools[0].function is missing; it must be an object",
        ),
        (
            "/tokenize",
            TURN | {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools",
            "tools: tools at /tools/0/function/name: a name must have 1 to 64 letters",
        ),
    ],
)
def test_a_400_names_the_field_as_the_client_does(tiny, path, body, param, message):
    answer = tiny.http.post(path, content=json.dumps(body))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert error["message"].startswith(message)


@pytest.mark.parametrize("field", ["stop", "stop_token_ids", "seed", "max_tokens", "messages"])
def test_a_field_nested_as_deep_as_json_can_be_read_is_a_400(tiny, field):
    body = json.dumps(HI | {field: "NESTED"}).replace('"NESTED"', "[" * 985 + "]" * 985)
    answer = tiny.http.post("/v1/chat/completions", content=body)
    assert answer.status_code == 400
    assert field in answer.json()["error"]["message"]


def test_a_model_that_is_not_there_is_a_404(tiny):
    with pytest.raises(openai.NotFoundError, match="'gpt' does not exist here") as raised:
        tiny.client.chat.completions.create(**HI | {"model": "gpt"})
    body = error_of(raised.value)
    assert (body["type"], body["param"]) == ("NotFoundError", "model")
    assert tiny.http.post("/tokenize", json={"prompt": "a", "model": "gpt"}).status_code == 404


@pytest.mark.parametrize("raw", [b"", b"{", b"[" * 100_000, b'{"a": NaN}', b"\xff", b"[]", b"3"])
def test_a_body_that_is_no_json_object_is_a_400(tiny, raw):
    for path in PATHS:
        answer = tiny.http.post(path, content=raw)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith(
            ("the body is not JSON", "the body must be an object")
        )


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
def test_a_body_whose_type_any_web_page_can_send_is_a_415(tiny, given, problem):
    for path in PATHS:
        headers = {"Content-Type": given.encode()}
        answer = tiny.http.post(path, content=b'{"prompt": "hi"}', headers=headers)
        assert answer.status_code == 415
        error = answer.json()["error"]
        assert error["type"] == "UnsupportedMediaTypeError"
        assert error["message"].startswith(problem)
        assert len(error["message"]) < 200
    origin = {"Origin": "https://a.page", "Access-Control-Request-Method": "POST"}
    preflight = tiny.http.options(COMPLETION, headers=origin)  # of a type that pages may not send
    assert "access-control-allow-origin" not in preflight.headers


def test_the_type_of_a_body_may_have_a_charset_and_any_case(tiny):
    headers = {"Content-Type": "Application/JSON ; charset=UTF-8"}
    body = b'{"prompt": "hi", "max_tokens": 4}'
    answer = tiny.http.post("/v1/completions", content=body, headers=headers)
    assert answer.status_code == 200


@pytest.mark.parametrize("path", ["/", "/health", "/metrics", "/version", "/v1/models"])
def test_a_route_that_can_be_read_answers_head_requests(tiny, path):
    head, whole = tiny.http.head(path), tiny.http.get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers.get("content-type") == whole.headers.get("content-type")


def test_routes_that_cost_something_need_a_key(serve_random):
    with serve_random(api_keys=("first", "second")) as served:
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
        for path in ("/health", "/version", "/metrics"):
            assert served.http.get(path).status_code == 200


def test_a_body_that_is_too_large_is_a_413(serve_random):
    with serve_random(max_body_bytes=1000) as served:
        long = [{"role": "user", "content": "a" * 1000}]
        with pytest.raises(openai.APIStatusError, match="more than 1000 bytes") as raised:
            served.client.chat.completions.create(**HI | {"messages": long})
        assert error_of(raised.value)["code"] == 413

        def parts():
            for _ in range(100):
                yield b" " * 100

        assert served.http.post("/tokenize", content=parts()).status_code == 413


def test_an_answer_that_could_not_be_made_valid_is_a_422(engine_of, tokens_of, serve):
    """The schema has a keyword that is only checked, and the model never satisfies it."""
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


@pytest.mark.parametrize(
    ("path", "fields", "param", "message"),
    [
        (CHAT, HI | {"n": 3}, "n", "n must be 1 to 2, got 3"),
        (COMPLETION, {"prompt": "a", "n": 3}, "n", "n must be 1 to 2, got 3"),
        (
            COMPLETION,
            {"prompt": ["a", "b", "c"]},
            "prompt",
            "prompt must have 1 to 2 answers together, got 3 prompts of 1 answers each",
        ),
    ],
)
def test_more_answers_than_ever_fit_are_a_400_though_nothing_runs(
    engine_of, serve, path, fields, param, message
):
    with serve(engine_of(Random(V, seed=1), slots=1), slots=1, max_queue=1) as served:
        answer = served.http.post(path, json=fields)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["message"]) == (400, param, message)


def test_a_failed_engine_is_a_503_and_not_healthy(engine_of, serve):
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


def test_an_error_is_the_last_event_of_a_stream_that_has_begun(
    engine_of, tokens_of, serve, monkeypatch
):
    engine = engine_of(Gated(tokens_of("word " * 40)), slots=1)
    engine.model.open.set()
    commit, calls = engine._decoder.commit, []

    def failing(sequence, outcome, events):
        calls.append(1)
        if sequence.tokens:
            raise OSError("/a/path of the machine")
        commit(sequence, outcome, events)

    monkeypatch.setattr(engine._decoder, "commit", failing)
    body = HI | {"stream": True, "max_tokens": 64}
    with serve(engine) as served:
        answer = served.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200
        lines = [line for line in answer.text.split("\n\n") if line]
        assert lines[-1] == "data: [DONE]"
        error = json.loads(lines[-2].removeprefix("data: "))["error"]
        assert (error["code"], error["type"]) == (500, "InternalServerError")
        assert "path" not in answer.text
        assert "word" in answer.text
        with pytest.raises(openai.APIError, match="by no fault of its own"):
            list(served.client.chat.completions.create(**body))
        with pytest.raises(openai.InternalServerError):
            served.client.chat.completions.create(**HI | {"max_tokens": 64})


def test_an_unforeseen_error_keeps_the_headers_of_its_origin_and_id(serve_random, caplog):
    origin = "https://a.example"
    settings = {"allowed_origins": (origin,), "request_ids": True}
    with serve_random(**settings) as served:
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
def test_the_status_of_an_error_follows_from_its_cause(error, status):
    assert status_of(error) == status
    assert describe_error(error)["error"]["code"] == status
    assert "/a/path" not in describe_error(error)["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (RESPONSE, {"input": "x", "text": {"format": {"type": "json_schema", "name": "a"}}}),
        (RESPONSE, {"input": "x", "text": {"format": {"type": "json_schema", "schema": None}}}),
    ],
)
def test_a_missing_field_has_the_client_s_name(tiny, path, body):
    error = tiny.http.post(path, json=body).json()["error"]
    assert error["message"].startswith("text.format.schema is missing; it must be ")
