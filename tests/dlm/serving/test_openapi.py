"""The routes in OpenAPI's form, and their page."""

import re

import jsonschema
import pytest

from dlm import RequestError
from dlm.openai.requests import ChatBody, chat_of, completion_of
from dlm.policy import Policy
from dlm.serving.openapi import docs_page, document

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def validator(name):
    described = document()
    schema = {"$ref": f"#/components/schemas/{name}", "components": described["components"]}
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize(
    ("name", "read", "body"),
    [
        ("ChatBody", chat_of, CHAT),
        ("ChatBody", chat_of, CHAT | {"n": 2, "logprobs": True, "user": "a", "stop": None}),
        ("ChatBody", chat_of, CHAT | {"frequency_penalty": 0, "logit_bias": {}}),
        ("ChatBody", chat_of, CHAT | {"response_format": {"type": "json_object"}}),
        ("ChatBody", chat_of, {}),
        ("ChatBody", chat_of, CHAT | {"n": "2"}),
        ("ChatBody", chat_of, CHAT | {"frequency_penalty": 0.5}),
        ("ChatBody", chat_of, {"messages": [{"role": "clown", "content": "hi"}]}),
        ("CompletionBody", completion_of, {"prompt": ["a", [1, 2]]}),
        ("CompletionBody", completion_of, {"prompt": 3}),
        ("CompletionBody", completion_of, {"prompt": "a", "logprobs": 2, "max_tokens": 3}),
    ],
)
def test_a_schema_takes_what_the_server_takes(name, read, body):
    try:
        read(body, Policy())
        served = True
    except RequestError:
        served = False
    assert validator(name).is_valid(body) == served


def test_the_page_has_every_field_and_loads_nothing(tiny):
    answer = tiny.http.get("/docs")
    assert all(f"<code>{name}</code>" in answer.text for name in ChatBody.names())
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert not re.findall(r"<script|src=|url\(|https?:", answer.text)
    assert answer.text == docs_page(tiny.http.get("/openapi.json").json())


def test_the_document_has_the_prefix_of_a_proxy_and_needs_no_key(serve_random):
    with serve_random(root_path="/llm", api_keys=("a",)) as served:
        described = served.http.get("/llm/openapi.json", headers={"authorization": ""}).json()
    assert described["servers"] == [{"url": "/llm"}]
    chat = described["paths"]["/v1/chat/completions"]["post"]
    assert chat["security"] == [{"key": []}]
    jsonschema.Draft202012Validator.check_schema(described["components"]["schemas"]["ChatBody"])
