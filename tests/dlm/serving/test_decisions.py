"""`/v1/decisions` through the real client."""

import openai
import pytest
import torch
from doubles import Double, Random
from values import V

from dlm import Autoregressive

TEXT = "This is Olga Lopez, 61 years old, a warrior of Oslo."
QUESTIONS = [
    {"type": "predicate", "name": "old", "instructions": "Is she over 60?"},
    {
        "type": "choice",
        "name": "role",
        "instructions": "What is she?",
        "choices": [{"value": "mage"}, {"value": "warrior", "description": "fights"}],
    },
    {
        "type": "score",
        "instructions": "How old is she?",
        "levels": [{"label": "young"}, {"label": "middle-aged"}, {"label": "old"}],
    },
    {
        "type": "choice",
        "instructions": "Is it so?",
        "choices": [{"value": True}, {"value": False}, {"value": "truth"}],
    },
]
BODY = {"model": "tiny", "input": TEXT, "questions": QUESTIONS}


def test_answers_have_the_form_that_the_client_reads(tiny):
    answer = tiny.client.decisions.create(**BODY)
    alone = tiny.http.post("/v1/decisions", json=BODY).json()
    assert alone["answers"] == answer.to_dict()["answers"]
    old, role, age, so = answer.answers
    assert (old.type, role.type, age.type, so.type) == ("predicate", "choice", "score", "choice")
    assert (old.name, role.name, age.name) == ("old", "role", None)
    assert 0 < old.probability < 1
    assert role.choice in ("mage", "warrior")
    assert sum(one.probability for one in role.probabilities) == pytest.approx(1)
    assert [(one.label, one.value) for one in age.probabilities] == [
        ("young", 0),
        ("middle-aged", 1),
        ("old", 2),
    ]
    expected = age.probabilities[1].probability + 2 * age.probabilities[2].probability
    assert age.score == pytest.approx(expected)
    assert [one.value for one in so.probabilities] == [True, False, "truth"]
    assert answer.model == "tiny"


def test_usage_counts_the_prompts_and_their_cached_tokens(tiny):
    usage = tiny.client.decisions.create(**BODY | {"input": TEXT * 9}).usage
    again = tiny.client.decisions.create(**BODY | {"input": TEXT * 9}).usage
    assert usage.input_tokens == again.input_tokens == usage.total_tokens
    assert usage.output_tokens == 0
    details = usage.input_tokens_details
    assert details.cached_tokens + details.cache_write_tokens == usage.input_tokens
    assert details.cached_tokens > usage.input_tokens / 2
    assert again.input_tokens_details.cached_tokens > details.cached_tokens


def test_a_conversation_of_one_text_is_decided_as_the_text(tiny):
    parts = [{"type": "input_text", "text": TEXT}]
    turns = [{"type": "message", "role": "user", "content": parts}]
    answers = tiny.client.decisions.create(**BODY).answers
    assert tiny.client.decisions.create(**BODY | {"input": turns}).answers == answers


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"questions": []}, "questions", "questions must be a list that is not empty"),
        (
            {"questions": QUESTIONS * 51},
            "questions",
            "questions must have 1 to 200 entries, got 204",
        ),
        (
            {"questions": [QUESTIONS[0], QUESTIONS[1] | {"choices": [{"value": "a " * 99}]}]},
            "questions",
            r"questions\[1\]: the label 'a a .* tokens with its stop, more than a canvas",
        ),
        (
            {"input": "word " * 5000},
            "input",
            r"questions\[0\]: .* context .*: a prompt must .* got \d+",
        ),
        ({"input": 3}, "input", "input must be text or a list of messages, got 3"),
        ({"extra_body": {"top_p": 0.5}}, "top_p", "top_p is 0.5, which is not supported"),
        ({"extra_body": {"stream": True}}, "stream", "stream is unknown here"),
        ({"extra_body": {"seed": "x"}}, "seed", "seed must be a whole number, got 'x'"),
    ],
)
def test_an_error_of_the_body_is_a_400_that_names_its_field(tiny, fields, param, message):
    with pytest.raises(openai.BadRequestError, match=message) as raised:
        tiny.client.decisions.create(**BODY | fields)
    body = raised.value.response.json()["error"]
    assert (body["type"], body["param"]) == ("BadRequestError", param)
    assert body["code"] == ("context_length_exceeded" if "context" in message else 400)


def test_a_model_that_is_not_there_is_a_404(tiny):
    with pytest.raises(openai.NotFoundError, match="'gpt' does not exist"):
        tiny.client.decisions.create(**BODY | {"model": "gpt"})


def test_labels_without_probability_are_a_422(engine_of, serve):
    class Shut(Double):
        def wish(self, *_):
            return torch.full((16, V), -torch.inf).index_fill_(1, torch.tensor([300]), 0.0)

    with (
        serve(engine_of(Shut(V))) as served,
        pytest.raises(
            openai.UnprocessableEntityError, match=r"questions\[0\]: the model gives"
        ) as e,
    ):
        served.client.decisions.create(**BODY)
    assert e.value.response.json()["error"]["param"] == "questions"


def test_an_engine_that_writes_left_to_right_refuses_decisions(engine_of, serve):
    with (
        serve(engine_of(Random(V, seed=1), decoding=Autoregressive())) as served,
        pytest.raises(openai.BadRequestError, match="this engine writes left to right"),
    ):
        served.client.decisions.create(**BODY)


def test_a_decision_needs_a_key(serve_random):
    with serve_random(api_keys=("k",)) as served:
        assert served.http.post("/v1/decisions", json=BODY).status_code == 401
        assert served.client.decisions.create(**BODY).answers
