"""`/v1/messages` through Anthropic's client, against the built-in model."""

import json

import anthropic
import asks
import jsonschema
import pytest
from asks import PERSON, turn

from dlm import Engine

ASK = turn(asks.ASK)


@pytest.fixture(scope="module")
def client(tiny):
    with anthropic.Anthropic(base_url=tiny.url, api_key="none", max_retries=0) as made:
        yield made


def ask(client, messages=ASK, **more):
    return client.messages.create(
        **{"model": "tiny", "messages": messages, "max_tokens": 96} | more
    )


def test_whole_and_streamed_answers_obey_a_schema(client):
    config = {"format": {"type": "json_schema", "schema": PERSON}}
    whole = ask(client, output_config=config)
    jsonschema.validate(json.loads(whole.content[0].text), PERSON)
    assert whole.stop_reason == "end_turn"
    body = {"model": "tiny", "messages": ASK, "max_tokens": 96, "output_config": config}
    with client.messages.stream(**body) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert final.content[0].text == text
    jsonschema.validate(json.loads(text), PERSON)
    usage = final.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == (
        whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    )


def test_a_stop_sequence_is_named(client):
    cold = {"extra_body": {"temperature": 0.0}}
    whole = ask(client, **cold)
    stop = whole.content[0].text[3:5]
    cut = ask(client, stop_sequences=["nowhere", stop], **cold)
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)
    assert stop not in cut.content[0].text


def test_models_have_anthropic_s_form_for_its_clients(tiny, client):
    page = client.models.list()
    (model,) = list(page)
    assert (page.has_more, page.first_id, page.last_id) == (False, "tiny", "tiny")
    assert (model.type, model.id, model.display_name) == ("model", "tiny", "tiny")
    assert (model.created_at.timestamp(), model.lifecycle) == (0, "active")
    assert (model.max_input_tokens, model.max_tokens) == (2048, 2048)
    assert client.models.retrieve("tiny") == model
    with pytest.raises(anthropic.NotFoundError) as refused:
        client.models.retrieve("other")
    assert refused.value.body["error"]["type"] == "not_found_error"
    assert tiny.http.get("/v1/models").json()["object"] == "list"
    assert tiny.client.models.retrieve("tiny").object == "model"
    assert tiny.http.get("/v1/models/other").json()["error"]["type"] == "NotFoundError"


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        ({"messages": []}, anthropic.BadRequestError, "messages must be a list that is not empty"),
        (
            {"max_tokens": 0},
            anthropic.BadRequestError,
            "max_tokens must be a whole number of 64 bits, 1 or more tokens, got 0",
        ),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, anthropic.BadRequestError, "/tools/0/n"),
        ({"model": "other"}, anthropic.NotFoundError, "does not exist here"),
    ],
)
def test_a_refused_body_raises_the_client_s_own_exception(client, body, kind, message):
    with pytest.raises(kind) as refused:
        ask(client, **body)
    found = refused.value.body
    assert found["type"] == "error"
    assert message in found["error"]["message"]


def test_other_problems_have_anthropic_s_form_too(tiny):
    answer = tiny.http.post("/v1/messages", content=b"{", headers={"Content-Type": "text/plain"})
    assert (answer.status_code, answer.json()["type"]) == (415, "error")
    answer = tiny.http.post("/v1/messages", content=b"{")
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert tiny.http.head("/").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/v1/messages", 405, "invalid_request_error"),
        ("DELETE", "/v1/messages/count_tokens", 405, "invalid_request_error"),
        ("POST", "/v1/messages/", 404, "not_found_error"),
        ("POST", "/v1/messages/batches", 404, "not_found_error"),
        ("GET", "/v1/messages/batches/x/results", 404, "not_found_error"),
        ("POST", "/v1/messages%0a", 404, "not_found_error"),
    ],
)
def test_an_error_before_a_route_has_the_form_of_the_api(tiny, method, path, status, kind):
    answer = tiny.http.request(method, path)
    assert answer.status_code == status
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == kind
    other = tiny.http.request(method, path.replace("messages", "chat/completions"))
    assert other.json()["error"].keys() == {"message", "type", "param", "code"}


def test_an_error_under_a_root_path_has_the_form_of_the_api(serve_random):
    settings = {"root_path": "/llm", "api_keys": ("secret",), "max_body_bytes": 1000}
    key = {"x-api-key": "secret"}
    with serve_random(**settings) as served:
        for prefix in ("/llm", ""):
            path = f"{prefix}/v1/messages"
            for answer, status, kind in (
                (served.http.post(path, json={}), 401, "authentication_error"),
                (served.http.get(path), 405, "invalid_request_error"),
                (served.http.post(f"{path}/x", json={}), 404, "not_found_error"),
                (
                    served.http.post(path, content=b" " * 2000, headers=key),
                    413,
                    "request_too_large",
                ),
            ):
                assert (answer.status_code, answer.json()["type"]) == (status, "error")
                assert answer.json()["error"]["type"] == kind
            other = served.http.post(f"{prefix}/v1/responses", json={})
            assert other.json()["error"]["code"] == 401


def test_a_key_may_come_as_anthropic_s_clients_send_it(serve):
    counted = "/v1/messages/count_tokens"
    body = {"messages": ASK}
    with serve(Engine.load(device="cpu", slots=1), api_keys=("secret",)) as served:
        for headers, right in (
            ({"x-api-key": "secret"}, True),
            ({"x-api-key": "secret", "Authorization": "Basic abc"}, True),
            ({"Authorization": "Bearer secret", "x-api-key": "other"}, True),
            ({"Authorization": "Bearer other", "x-api-key": "secret"}, False),
            ({"x-api-key": "other"}, False),
            ({}, False),
        ):
            answer = served.http.post(counted, json=body, headers=headers)
            assert answer.status_code == (200 if right else 401)
        own = anthropic.Anthropic(base_url=served.url, api_key="other", max_retries=0)
        with pytest.raises(anthropic.AuthenticationError):
            own.messages.count_tokens(model="tiny", messages=ASK)
