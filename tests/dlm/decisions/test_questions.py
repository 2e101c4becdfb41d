"""Questions in the protocol's JSON, and their refusals."""

import pytest

from dlm import ChoiceQuestion, Label, PredicateQuestion, RequestError, ScoreQuestion, question_of


def test_a_question_in_the_protocols_json_is_the_same_question():
    labels = [{"value": "a", "description": "the first"}, {"value": "b"}]
    choices = [Label("a", "the first"), Label("b")]
    common = {"name": "n", "instructions": "Which?"}
    assert question_of({"type": "choice", "choices": labels} | common) == ChoiceQuestion(
        choices=choices, **common
    )
    levels = [{"label": "a", "description": "the first"}, {"label": "b"}]
    assert question_of({"type": "score", "levels": levels} | common) == ScoreQuestion(
        levels=choices, **common
    )
    assert question_of({"type": "predicate", **common}) == PredicateQuestion(**common)
    assert question_of({"type": "choice", "choices": ["a"]}) == ChoiceQuestion(choices=[Label("a")])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("choice", "a question must be an object, got 'choice'"),
        ({}, "type must be predicate, choice or score, got None"),
        ({"type": "rank"}, "type must be predicate, choice or score, got 'rank'"),
        ({"type": "choice"}, "choices must have 1 to 255 entries, got 0"),
        ({"type": "choice", "choices": []}, "choices must have 1 to 255 entries, got 0"),
        ({"type": "choice", "choices": "ab"}, "choices must be a list, got 'ab'"),
        (
            {"type": "choice", "choices": [str(i) for i in range(256)]},
            "choices must have 1 to 255 entries, got 256",
        ),
        (
            {"type": "choice", "choices": ["a", "b", "a"]},
            r"choices\[2\] must differ from those before it, got 'a'",
        ),
        ({"type": "choice", "choices": ["a", " "]}, r"choices\[1\] must be text.*, got ' '"),
        ({"type": "choice", "choices": ["a", 3]}, r"choices\[1\] must be text.*, got 3"),
        (
            {"type": "choice", "choices": ["\ud800"]},
            r"choices\[0\] must be text that is not blank, without lone surrogates",
        ),
        ({"type": "choice", "choices": [{"label": "a"}]}, r"choices\[0\] has no 'label'"),
        (
            {"type": "choice", "choices": [{"value": "a", "description": 3}]},
            "description must be text, got 3",
        ),
        ({"type": "choice", "levels": ["a"], "choices": ["a"]}, "choice has no 'levels'"),
        (
            {"type": "score", "levels": [{"label": str(i)} for i in range(11)]},
            "levels must have 1 to 10 entries, got 11",
        ),
        ({"type": "predicate", "choices": ["a"]}, "predicate has no 'choices'"),
        ({"type": "predicate", "name": 3}, "name must be text.*, got 3"),
        ({"type": "predicate", "name": "\ud800"}, "name must be text without lone surrogates"),
    ],
)
def test_data_that_is_no_question_is_refused_with_what_would_be_right(data, reason):
    with pytest.raises(RequestError, match=reason):
        question_of(data)


def test_the_text_after_the_input_has_the_labels_and_their_descriptions():
    question = ChoiceQuestion(instructions="Which?", choices=[Label("a", "the first"), Label("b")])
    assert question.text == "Which?\n- a: the first\nAnswer with one of a, b."


def test_answers_have_the_score_and_the_choice_of_their_probabilities():
    rest = {"mass": 0.5, "prompt_tokens": 7}
    assert PredicateQuestion(name="n").answer({"yes": 0.7, "no": 0.3}, **rest).probability == 0.7
    levels = ScoreQuestion(levels=[Label("low"), Label("mid"), Label("high")])
    rated = levels.answer({"low": 0.25, "mid": 0.25, "high": 0.5}, **rest)
    assert (rated.type, rated.confidence) == ("score", 0.5)
    assert rated.score == pytest.approx(1.25)
    chosen = ChoiceQuestion(choices=[Label("a"), Label("b")]).answer({"a": 0.4, "b": 0.6}, **rest)
    assert (chosen.choice, chosen.confidence, chosen.mass) == ("b", 0.6, 0.5)
    tied = ChoiceQuestion(choices=[Label("a"), Label("b")]).answer({"a": 0.5, "b": 0.5}, **rest)
    assert tied.choice == "a"


@pytest.mark.parametrize(
    "choices",
    [
        ["a", "b"],
        ("a", Label("b")),
        [{"value": "a"}, "b"],
        [Label("a"), {"value": "b", "description": ""}],
    ],
)
def test_choices_are_labels_texts_or_the_protocol_s_objects(choices):
    labels = [Label("a"), Label("b")]
    assert ChoiceQuestion(choices=choices) == ChoiceQuestion(choices=labels)
    levels = [{"label": one["value"]} if isinstance(one, dict) else one for one in choices]
    assert ScoreQuestion(levels=levels) == ScoreQuestion(levels=labels)
    assert ChoiceQuestion(choices=choices).text.endswith("Answer with one of a, b.")


@pytest.mark.parametrize(
    ("choices", "problem"),
    [
        ("ab", r"choices must be a list, got 'ab'"),
        (None, r"choices must be a list, got None"),
        ([3], r"choices\[0\] must be text.*, got 3"),
        ([None], r"choices\[0\] must be text.*, got None"),
        ([{"label": "a"}], r"choices\[0\] has no 'label'"),
        ([["a"]], r"choices\[0\] must be text.*, got \['a'\]"),
        ([], r"choices must have 1 to 255 entries, got 0"),
    ],
)
def test_other_choices_are_refused_with_their_place(choices, problem):
    with pytest.raises(RequestError, match=problem):
        ChoiceQuestion(choices=choices)
