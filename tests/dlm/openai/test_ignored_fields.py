"""Fields without a meaning here, which an operator may let be ignored."""

import pytest

from dlm import Policy, RequestError
from dlm.anthropic.messages import message_of
from dlm.openai.requests import chat_of, completion_of, request_of
from dlm.openai.response_items import ResponseStore
from dlm.openai.responses import response_of

CHAT = {"messages": [{"role": "user", "content": "hi"}], "seed": 1}
IGNORED = {
    "frequency_penalty": 0.5,
    "presence_penalty": "high",
    "repetition_penalty": 1.2,
    "logit_bias": {"50": -100},
    "use_beam_search": True,
    "best_of": 4,
    "min_tokens": 3,
    "ignore_eos": True,
    "service_tier": "none",
}


def answer_of(body, policy):
    return response_of(body, policy, ResponseStore(0).of(""))


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (chat_of, CHAT),
        (completion_of, {"prompt": "hi", "seed": 1}),
        (request_of, CHAT),
        (message_of, CHAT | {"max_tokens": 8}),
        (answer_of, {"input": "hi", "seed": 1}),
    ],
)
def test_they_change_nothing_if_the_operator_lets_them_be_ignored(read, body):
    lenient = Policy(ignore_unsupported=True)
    ignoring, plain = read(body | IGNORED, lenient), read(body, lenient)
    assert getattr(ignoring, "requests", ignoring) == getattr(plain, "requests", plain)
    with pytest.raises(RequestError, match=r"logit_bias is .*-unsupported` ignores it"):
        read(body | {"logit_bias": {"50": -100}}, Policy())


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (chat_of, CHAT),
        (message_of, CHAT | {"max_tokens": 8}),
        (answer_of, {"input": "hi", "seed": 1}),
    ],
)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("frequency_penalty", 0.5),
        ("repeat_penalty", 1.5),
        ("mirostat", 2),
        ("tfs_z", 0.5),
        ("typical_p", 0.5),
        ("min_tokens", 3),
    ],
)
def test_every_route_refuses_what_would_change_the_draws(read, body, name, value):
    with pytest.raises(RequestError, match=f"^{name} is {value}, which is not supported"):
        read(body | {name: value}, Policy())


@pytest.mark.parametrize("name", IGNORED)
def test_each_is_refused_by_default_with_the_flag_that_would_ignore_it(name):
    problem = f"^{name} is .*, which is not supported: .* `--ignore-unsupported` ignores it"
    with pytest.raises(RequestError, match=problem):
        chat_of(CHAT | {name: IGNORED[name]}, Policy())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("allowed_token_ids", [3]),
        ("bad_words", ["no"]),
        ("suffix", "b"),
        ("guided_json", {}),
        ("penalty", 1),
        ("truncate_prompt_tokens", 5),
    ],
)
def test_what_a_client_would_miss_is_refused_all_the_same(name, value):
    with pytest.raises(RequestError, match=name):
        chat_of(CHAT | {name: value}, Policy(ignore_unsupported=True))


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (chat_of, CHAT),
        (message_of, CHAT | {"max_tokens": 8}),
        (answer_of, {"input": "hi", "seed": 1}),
    ],
)
def test_a_field_that_asks_for_no_thinking_changes_nothing(read, body):
    plain = read(body, Policy())
    assert read(body | {"think": False}, Policy()).requests == plain.requests
