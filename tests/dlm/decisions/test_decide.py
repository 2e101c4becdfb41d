"""Decisions: their probabilities against the definition, and refusals before any work."""

from random import Random as Draws

import calling
import numpy as np
import pytest
import torch
from chained import STOPS, one_by_one
from doubles import Double, Fixed
from spellings import probability
from values import PROMPT, V

from dlm import (
    Autoregressive,
    Choice,
    ChoiceQuestion,
    DlmError,
    Label,
    Policy,
    PredicateQuestion,
    Request,
    RequestError,
    ScoreQuestion,
)
from dlm.chat import Chat

INPUT = Request(token_ids=PROMPT)


class Broken(Double):
    """A model whose passes fail."""

    def wish(self, *_):
        raise AssertionError("a pass ran")


def probabilities(model: Fixed) -> np.ndarray:
    """Return the probabilities at a temperature of 1."""
    return model.logits.double().softmax(-1).numpy()


def selection(*values: str) -> ChoiceQuestion:
    return ChoiceQuestion(choices=[Label(value) for value in values])


@pytest.mark.parametrize(
    ("values", "differ"),
    [(["mage", "mage two", "mark", "warrior"], False), (["red", "blue", "green and blue"], True)],
)
def test_labels_have_their_exact_posterior(engine_of, values, differ):
    """Labels whose first tokens differ are compared by these alone."""
    model = Fixed(V, 3)
    engine = engine_of(model)
    first = [engine.vocabulary.encode(value)[0] for value in values]
    assert (len(set(first)) == len(first)) is differ
    (answer,) = engine.decide(INPUT, [selection(*values)])
    if differ:
        expected = probabilities(model)[0, first]
    else:
        pieces, p = engine.vocabulary.pieces, probabilities(model)
        expected = np.array([probability(v.encode(), pieces, p, STOPS) for v in values])
    assert answer.mass == pytest.approx(expected.sum(), rel=1e-4)
    found = np.array([*answer.probabilities.values()])
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-4)
    assert answer.choice == values[int(expected.argmax())]
    assert answer.confidence == found.max()


def test_255_labels_of_several_tokens_are_decided_in_one_call(built_in):
    random = Draws(0)
    values = [f"{i} {random.choice(['red', 'blue'])} {random.randint(10, 99)}" for i in range(255)]
    for by in ("canvas", "causal"):
        (answer,) = built_in.decide(Request(prompt="Which?"), [selection(*values)], by)
        assert list(answer.probabilities) == values
        assert sum(answer.probabilities.values()) == pytest.approx(1)
        assert all(p >= 0 for p in answer.probabilities.values())


def test_questions_do_not_change_each_others_answers(built_in):
    """There are more of them than slots; some share a prompt, some only its beginning."""
    request = Request(prompt="Anna lives in Paris, and is aged 30. " * 2, seed=4)
    questions = [
        PredicateQuestion(name="one"),
        PredicateQuestion(instructions="Does Anna live in Paris?"),
        ScoreQuestion(instructions="How old?", levels=[Label("young"), Label("old", "over 60")]),
        *[selection("Paris", f"Rome {i}", "Oslo") for i in range(6)],
    ]
    for by in ("canvas", "causal"):
        together = built_in.decide(request, questions, by)
        alone = [built_in.decide(request, [one], by)[0] for one in questions]
        assert together[0].name == "one"
        for one, other in zip(together, alone, strict=True):
            assert type(one) is type(other)
            assert one.mass == pytest.approx(other.mass, rel=1e-4)
            assert one.prompt_tokens == other.prompt_tokens
    assert not built_in.busy


def test_left_to_right_the_probabilities_are_those_of_the_chain_rule(built_in):
    request, values = Request(prompt="Answer with one word of red, blue."), ["red", "dark red"]
    (answer,) = built_in.decide(request, [selection(*values)], "causal")
    prompt = built_in.chat.prompt(request)
    encode = built_in.vocabulary.encode
    logs = np.array([one_by_one(built_in.model, prompt, encode(value)) for value in values])
    assert answer.mass == pytest.approx(np.exp(logs).sum(), rel=1e-2)
    odds = np.exp(logs[1] - logs[0])
    assert answer.probabilities["red"] == pytest.approx(1 / (1 + odds), rel=1e-3)


def test_instructions_and_labels_follow_the_input(built_in):
    question = ChoiceQuestion(instructions="Which?", choices=[Label("red"), Label("blue")])
    plain = selection("red", "blue")
    whole = Request(prompt="A red car.\n\nWhich?\nAnswer with one of red, blue.")
    turns = [{"role": "user", "content": "A red car."}]
    (expected,) = built_in.decide(whole, [plain])
    assert built_in.decide(Request(prompt="A red car."), [question]) == [expected]
    assert built_in.decide(Request(messages=turns), [question]) == [expected]
    turns.append({"role": "assistant", "content": "Yes."})
    (longer,) = built_in.decide(Request(messages=turns), [question])
    turns.append({"role": "user", "content": "Which?\nAnswer with one of red, blue."})
    assert built_in.decide(Request(messages=turns), [plain]) == [longer]


def test_a_label_that_reads_like_a_control_token_is_text(engine_of):
    model = Fixed(V, 3)
    (answer,) = engine_of(model).decide(INPUT, [selection("<turn|>", "x")])
    assert answer.probabilities["<turn|>"] < 1
    stops = probabilities(model)[0, STOPS].sum()
    assert answer.mass != pytest.approx(stops, rel=0.01)


@pytest.mark.parametrize(
    ("request_", "questions", "by", "reason"),
    [
        (INPUT, [], "canvas", "questions must have 1 to 200 entries, got 0"),
        (
            INPUT,
            [PredicateQuestion()] * 201,
            "canvas",
            "questions must have 1 to 200 entries, got 201",
        ),
        (
            INPUT,
            [PredicateQuestion(), {"type": "rank"}],
            "canvas",
            r"questions\[1\]: a question's type must be",
        ),
        (
            INPUT,
            [PredicateQuestion(instructions="Is it?")],
            "canvas",
            "after token_ids: give a prompt",
        ),
        (INPUT, [selection("x" * 10_000)], "canvas", "is longer than any canvas"),
        (INPUT, [selection("one two three " * 6)], "canvas", r"tokens with its stop, more than"),
        (INPUT, [PredicateQuestion()], "oracle", "by must be canvas or causal, got 'oracle'"),
        (
            Request(token_ids=[V]),
            [PredicateQuestion()],
            "canvas",
            "a token must be 0 to 1535, got 1536",
        ),
        (
            Request(token_ids=PROMPT, constraint=Choice(["a"])),
            [PredicateQuestion()],
            "canvas",
            "neither a constraint",
        ),
    ],
)
def test_bad_questions_are_refused_before_any_work(engine_of, request_, questions, by, reason):
    with pytest.raises(RequestError, match=reason):
        engine_of(Broken(V)).decide(request_, questions, by)


def test_a_model_that_predicts_no_tokens_cannot_decide_left_to_right(engine_of):
    class Denoising(Broken):
        predict = None

    with pytest.raises(RequestError, match="this model's encoder predicts no tokens"):
        engine_of(Denoising(V)).decide(INPUT, [PredicateQuestion()], "causal")


def test_a_label_that_the_tokenizer_cannot_spell_is_refused_by_name(engine_of, monkeypatch):
    engine = engine_of(Broken(V))
    monkeypatch.setattr(engine.vocabulary, "fewest", lambda text: None)
    with pytest.raises(
        RequestError, match=r"questions\[0\]: the label '<turn.>' cannot be spelled"
    ):
        engine.decide(INPUT, [selection("<turn|>")])


@pytest.mark.parametrize(
    ("by", "reason"),
    [
        ("canvas", "swallow the events of requests"),
        ("causal", "slots of requests that are running"),
    ],
)
def test_a_call_that_waits_for_decisions_is_refused_while_requests_run(engine_of, by, reason):
    engine = engine_of(Fixed(V, 0))
    engine.add(Request(token_ids=PROMPT))
    with pytest.raises(DlmError, match=reason):
        engine.decide(INPUT, [PredicateQuestion()], by)


def test_a_pass_that_fails_leaves_the_slots_empty(engine_of):
    engine = engine_of(Broken(V))
    with pytest.raises(AssertionError, match="a pass ran"):
        engine.decide(INPUT, [PredicateQuestion()] * 20)
    assert not engine.busy
    assert sorted(engine._scheduler._free) == list(range(8))
    assert all(engine._cache.length(slot) == 0 for slot in range(8))


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_source_bytes": 20}, "too large: 22 bytes of labels, and up to 20"),
        ({"max_label_bytes": 40}, r"questions\[1\]: too large: 44 bytes of labels together"),
        ({"max_decision_tokens": 7}, r"questions\[1\]: too large: 8 tokens of prompts together"),
        ({"step_work": 1}, r"its 3 labels are too long.*more than the 1 units of work"),
    ],
)
def test_a_decision_over_a_limit_of_the_policy_is_refused(engine_of, limits, reason):
    words = ["mark a", "mark be", "mark cold"]
    longer = [f"mark {'abcd' * 60} {i}" for i in range(3)]
    questions = [selection(*words), selection(*reversed(words))]
    if "step_work" in limits:
        questions = [selection(*longer)]
    engine = engine_of(Broken(V, canvas_length=256), policy=Policy(**limits))
    with pytest.raises(RequestError, match=reason):
        engine.decide(INPUT, questions)


def test_equal_labels_of_many_questions_count_once(engine_of):
    words = ["mark a", "mark be", "mark cold"]
    engine = engine_of(Fixed(V, 1), policy=Policy(max_label_bytes=22))
    assert len(engine.decide(INPUT, [selection(*words)] * 3)) == 3


def test_an_engine_without_canvases_decides_left_to_right_only(engine_of):
    engine = engine_of(Fixed(V, 2), decoding=Autoregressive())
    with pytest.raises(RequestError, match="it decides by 'causal' alone"):
        engine.decide(INPUT, [PredicateQuestion()])
    (answer,) = engine.decide(INPUT, [PredicateQuestion()], "causal")
    assert 0 < answer.probability < 1


def test_labels_may_have_more_bytes_than_a_canvas_has_positions(engine_of):
    values = ["mage", "mage two", "mark", "warrior"]
    model = Fixed(V, 3, canvas_length=8)
    engine = engine_of(model)
    (answer,) = engine.decide(INPUT, [selection(*values)])
    pieces, p = engine.vocabulary.pieces, probabilities(model)
    expected = np.array([probability(v.encode(), pieces, p, STOPS) for v in values])
    found = np.array([*answer.probabilities.values()])
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-4)


class AfterReasoning(Double):
    """A model that answers yes after reasoning, and nowhere else."""

    def __init__(self, chat):
        super().__init__(V)
        self._yes, self._no, self._end = (
            chat.tokenizer.encode(text, add_special_tokens=False)[0]
            for text in ("yes", "no", "</think>")
        )

    def wish(self, committed, *_):
        logits = torch.zeros(self.canvas_length, V)
        logits[:, self._yes if self._end in committed else self._no] = 50.0
        return logits


@pytest.mark.parametrize("by", ["canvas", "causal"])
def test_reasoning_that_the_template_opens_is_closed_before_a_label(engine_of, tmp_path, by):
    """A prompt of the caller's own stays as it is."""
    directory = calling.write(tmp_path / "model", "nemotron")
    template = directory / "chat_template.jinja"
    opening = "{%- if add_generation_prompt %}{{ '<think>\\n' }}{% endif %}"
    template.write_text(f"{template.read_text()}\n{opening}")
    chat = Chat.load(directory)
    engine = engine_of(AfterReasoning(chat), chat=chat, thought=("<think>", "</think>"))
    (answer,) = engine.decide(Request(prompt="Is it?"), [PredicateQuestion()], by)
    rendered = engine.chat.prompt(Request(prompt="Is it?"))
    assert answer.probability > 0.99
    assert answer.prompt_tokens == len(rendered) + 1
    raw = Request(token_ids=rendered)
    (answer,) = engine.decide(raw, [PredicateQuestion()], by)
    assert answer.probability < 0.01
