"""Bodies of decisions: their questions, and the fields that are refused by name."""

import pytest

from dlm import ChoiceQuestion, Label, PredicateQuestion, RequestError, ScoreQuestion
from dlm.decisions.questions import ChoiceAnswer, PredicateAnswer, ScoreAnswer
from dlm.events import Decided
from dlm.openai.decisions import decision_answer, decision_body_of
from dlm.request import Stats

BODY = {
    "model": "tiny",
    "input": "Anna is 30.",
    "questions": [
        {"type": "predicate", "name": "adult", "instructions": "Is she an adult?"},
        {"type": "choice", "instructions": "Which?", "choices": [{"value": True}, {"value": "b"}]},
        {"type": "score", "instructions": "How old?", "levels": [{"label": "x"}, {"label": "y"}]},
    ],
}
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,aGk="}


def test_a_body_becomes_a_decision():
    body = decision_body_of(BODY | {"seed": 3, "safety_identifier": "me", "prompt_cache_key": "k"})
    assert body.model == "tiny"
    assert (body.decision.request.prompt, body.decision.request.seed) == ("Anna is 30.", 3)
    assert body.decision.questions == [
        PredicateQuestion(name="adult", instructions="Is she an adult?"),
        ChoiceQuestion(instructions="Which?", choices=[Label("true"), Label("b")]),
        ScoreQuestion(instructions="How old?", levels=[Label("x"), Label("y")]),
    ]


def test_null_counts_as_left_out():
    question = {"type": "choice", "name": None, "instructions": None, "levels": None}
    question["choices"] = [{"value": "a", "description": None}]
    body = decision_body_of({"input": "i", "questions": [question], "seed": None, "stream": None})
    assert body.decision.questions == [ChoiceQuestion(choices=[Label("a")])]
    assert body.decision.request.seed == 0


def test_input_may_be_a_conversation_of_parts():
    turns = [
        {"type": "message", "role": "developer", "content": "Be strict."},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "A row:", "prompt_cache_breakpoint": None},
                {"type": "input_json", "data": {"age": 30, "né": [None]}},
            ],
        },
        {"role": "assistant", "phase": None, "content": [{"type": "output_text", "text": "Yes."}]},
    ]
    body = decision_body_of(BODY | {"input": turns})
    assert body.decision.request.messages == [
        {"role": "system", "content": "Be strict."},
        {"role": "user", "content": 'A row:\n{"age": 30, "né": [null]}'},
        {"role": "assistant", "content": "Yes."},
    ]


def test_images_are_parts_of_an_input():
    parts = [
        {"type": "input_text", "text": "A row:"},
        IMAGE,
        {"type": "input_json", "data": {"age": 30}},
    ]
    body = BODY | {"input": [{"role": "user", "content": parts}]}
    (message,) = decision_body_of(body).decision.request.messages
    before, image, after = message["content"]
    assert [before, after] == [
        {"type": "text", "text": "A row:"},
        {"type": "text", "text": '{"age": 30}'},
    ]
    assert image["image"].data == b"hi"
    assert image["image"].place == "input[0].content[1].image_url"


def test_instructions_may_come_in_parts():
    question = {"type": "predicate", "instructions": [{"type": "input_text", "text": "Is it?"}]}
    (read,) = decision_body_of(BODY | {"questions": [question]}).decision.questions
    assert read == PredicateQuestion(instructions="Is it?")


def deep():
    value = {}
    for _ in range(100_000):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"stream": True}, "stream is unknown here"),
        ({"temperature": 0.5}, "temperature is unknown here"),
        ({"input": None}, "input is missing; it must be text or a list of messages"),
        ({"input": " "}, "input must be text or a list of messages, got ' '"),
        ({"input": []}, "input must be a list that is not empty, got an empty list"),
        ({"input": [3]}, r"input\[0\] must be an object, got 3"),
        (
            {"input": [{"role": "user", "content": [{"type": {}}]}]},
            r"content\[0\].type must be input_text, input_json or.*, got an empty object",
        ),
        (
            {"input": [{"type": "function_call"}]},
            r"input\[0\].type must be message.*, got 'function_call'",
        ),
        (
            {"input": [{"role": "x", "content": "a"}]},
            r"input\[0\].role must be one of system.*, got 'x'",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            r"input\[0\].content\[0\].image_url is missing",
        ),
        (
            {"input": [{"role": "system", "content": [IMAGE]}]},
            r"input\[0\].content\[0\].type must be text .*, got 'input_image'",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_audio"}]}]},
            r"content\[0\].type must be input_text, input_json or input_image.*, got 'input_audio'",
        ),
        (
            {"questions": [{"type": "predicate", "instructions": [IMAGE]}]},
            r"instructions\[0\].type must be input_text or input_json, got 'input_image'",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": 3}]}]},
            r"input\[0\].content\[0\].text must be text that is not blank, got 3",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_json", "data": 3}]}]},
            r"input\[0\].content\[0\].data must be an object or a list of objects, got 3",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_json", "data": deep()}]}]},
            "nests too deep",
        ),
        ({"questions": None}, "questions is missing"),
        ({"questions": BODY["questions"] * 67}, "questions must have 1 to 200 entries, got 201"),
        ({"questions": [3]}, r"questions\[0\]: a question must be an object, got 3"),
        (
            {"questions": [{"type": "rank"}]},
            r"questions\[0\]: a question's type must be predicate.*, got 'rank'",
        ),
        (
            {"questions": [BODY["questions"][0] | {"wieght": 2}]},
            r"questions\[0\]: a question of type predicate has no 'wieght'",
        ),
        (
            {"questions": [{"type": "choice", "choices": [{"value": True}, {"value": "true"}]}]},
            r"choices\[1\] must differ from those before it, got 'true'",
        ),
        (
            {"questions": [{"type": "choice", "choices": [{"value": str(i)} for i in range(256)]}]},
            "choices must have 1 to 255 entries, got 256",
        ),
        (
            {"questions": [{"type": "score", "levels": [{"label": str(i)} for i in range(11)]}]},
            "levels must have 1 to 10 entries, got 11",
        ),
        (
            {"questions": [{"type": "choice", "choices": [{"value": "a", "weight": 3}]}]},
            r"choices\[0\] has no 'weight'",
        ),
        ({"seed": True}, "seed must be a whole number, got true"),
        ({"seed": 0.5}, "seed must be a whole number, got 0.5"),
    ],
)
def test_a_wrong_field_is_refused_by_name(fields, reason):
    with pytest.raises(RequestError, match=reason):
        decision_body_of(BODY | fields)


def test_answers_have_the_form_of_their_questions():
    common = {"name": "", "mass": 0.9, "prompt_tokens": 10}
    answers = [
        PredicateAnswer(probability=0.25, **common | {"name": "adult"}),
        ChoiceAnswer(
            choice="true", probabilities={"true": 0.75, "b": 0.25}, confidence=0.75, **common
        ),
        ScoreAnswer(score=0.5, probabilities={"x": 0.5, "y": 0.5}, confidence=0.5, **common),
    ]
    decided = Decided(request=0, answers=answers, stats=Stats(cached=16))
    body = decision_answer(decision_body_of(BODY), decided, "tiny")
    assert body["answers"] == [
        {"type": "predicate", "name": "adult", "probability": 0.25},
        {
            "type": "choice",
            "name": None,
            "choice": True,
            "probabilities": [
                {"value": True, "probability": 0.75},
                {"value": "b", "probability": 0.25},
            ],
            "confidence": 0.75,
        },
        {
            "type": "score",
            "name": None,
            "score": 0.5,
            "probabilities": [
                {"label": "x", "value": 0, "probability": 0.5},
                {"label": "y", "value": 1, "probability": 0.5},
            ],
            "confidence": 0.5,
        },
    ]
    usage = body["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (30, 0, 30)
    assert usage["input_tokens_details"] == {"cached_tokens": 16, "cache_write_tokens": 14}
