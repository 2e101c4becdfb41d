"""Requests to paths that are not served: the answer names the right one."""

import pytest


@pytest.mark.parametrize(
    ("path", "right"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("//v1//chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions/chat/completions", "/v1/chat/completions"),
        ("/v1/completions/chat/completions", "/v1/chat/completions"),
        ("/V1/Chat/Completions", "/v1/chat/completions"),
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/openai/deployments/x/chat/completions", "/v1/chat/completions"),
        ("/api/chat", "/v1/chat/completions"),
        ("/v1/api/chat", "/v1/chat/completions"),
        ("/api/generate", "/v1/completions"),
        ("/api/tags", "/v1/models"),
        ("/v1beta/models/gemini:generateContent", "/v1/chat/completions"),
        ("/completions", "/v1/completions"),
        ("/responses", "/v1/responses"),
        ("/v1/v1/responses/input_tokens", "/v1/responses/input_tokens"),
        ("/v1/v1/messages", "/v1/messages"),
        ("/messages", "/v1/messages"),
        ("/v1/v1/messages/count_tokens", "/v1/messages/count_tokens"),
        ("/v1/tokenize", "/tokenize"),
        ("/tokenise", "/tokenize"),
    ],
)
def test_a_wrong_path_names_the_right_one(tiny, path, right):
    answer = tiny.http.post(tiny.url + path, json={})
    assert answer.status_code == 404
    body = answer.json()
    assert (body.get("type") == "error") is right.startswith("/v1/messages")
    message = body["error"]["message"]
    verb = "GET" if right == "/v1/models" else "POST"
    assert message.startswith(f"POST {path} is not served; use {verb} {right}")
    based = right.startswith("/v1/") and "messages" not in right
    assert ("ends in /v1, once" in message) is based


@pytest.mark.parametrize("path", ["/v1/embeddings", "/nowhere", "/v1", "/" + "v1/" * 3000])
def test_a_path_that_is_like_no_other_lists_those_that_are_served(tiny, path):
    message = tiny.http.post(path, json={}).json()["error"]["message"]
    assert "is not served; the paths are /v1/chat/completions, /v1/completions, " in message
    assert len(message) < 1000


def test_a_wrong_method_names_the_right_one(tiny):
    answer = tiny.http.get("/v1/chat/completions")
    assert answer.status_code == 405
    assert "GET /v1/chat/completions is not served; use POST" in answer.text


@pytest.mark.parametrize("path", ["/v1/models/", "/v1/models//"])
def test_a_slash_after_models_is_named(tiny, path):
    answer = tiny.http.get(tiny.url + path)
    assert answer.status_code == 404
    message = answer.json()["error"]["message"]
    assert message.startswith(f"GET {path} is not served; use GET /v1/models; the base URL")


def test_a_wrong_path_below_a_prefix_names_the_right_one_below_it(serve_random):
    with serve_random(root_path="/llm") as served:
        answer = served.http.post("/llm/chat/completions", json={})
        assert "use POST /llm/v1/chat/completions" in answer.json()["error"]["message"]


def test_an_unknown_route_is_an_error_of_the_same_form(tiny):
    assert tiny.http.get("/v1/nothing").json()["error"]["code"] == 404
    assert tiny.http.get("/v1/chat/completions").json()["error"]["code"] == 405
    for path in ("/v1/chat/completions/", "/tokenize/"):  # never a redirect, which a proxy breaks
        assert tiny.http.post(path, json={}).status_code == 404
