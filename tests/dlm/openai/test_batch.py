"""Lines of OpenAI's batches: each gets one answer, or an error that affects no other line."""

import json

import pytest
from doubles import Random
from gated import Gated
from values import V

from dlm.batch.batch import Batch, answers
from dlm.batch.rows import InputRow, json_row
from dlm.errors import RequestError
from dlm.openai.batch import BatchLines

CHAT = "/v1/chat/completions"


def line(id, url=CHAT, **more):
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 16} | more
    return json.dumps({"custom_id": id, "method": "POST", "url": url, "body": body})


def answered(engine, lines, ahead=64):
    rows = (json_row(number, text.encode()) for number, text in enumerate(lines))
    return (answer for _, answer in answers(rows, Batch(engine, BatchLines(("tiny",)), ahead)))


def answers_of(engine, lines, **more):
    return {answer["custom_id"]: answer for answer in answered(engine, lines, **more)}


@pytest.fixture
def engine(engine_of, tokens_of):
    model = Gated(tokens_of("hi there<turn|>"))
    model.open.set()
    return engine_of(model, slots=2)


@pytest.mark.parametrize("ahead", [1, 3, 64])
def test_every_line_has_one_answer_however_many_are_read_ahead(engine, ahead):
    lines = [line(f"a{i}", n=1 + i % 3) for i in range(7)]
    found = answers_of(engine, lines, ahead=ahead)
    assert set(found) == {f"a{i}" for i in range(7)}
    for i in range(7):
        response = found[f"a{i}"]["response"]
        assert (response["status_code"], found[f"a{i}"]["error"]) == (200, None)
        texts = [choice["message"]["content"] for choice in response["body"]["choices"]]
        assert texts == ["hi there"] * (1 + i % 3)
        assert response["body"]["usage"]["completion_tokens"] > 0


def test_lines_are_read_as_they_are_needed(engine):
    read = []

    def lines():
        for i in range(50):
            read.append(i)
            yield line(str(i))

    next(answered(engine, lines(), ahead=3))
    assert len(read) < 10


@pytest.mark.parametrize(
    ("text", "id", "problem"),
    [
        ("{", None, "the line is not JSON"),
        ("[]", None, "the line must be an object, got an empty list"),
        ("[" * 100_000, None, "the line is not JSON"),
        (json.dumps({"url": CHAT}), None, "custom_id is missing"),
        (json.dumps({"custom_id": "a", "url": "/v1/other"}), "a", "url must be"),
        (
            json.dumps({"custom_id": "a", "method": "GET", "url": CHAT}),
            "a",
            "method must be POST, got 'GET'",
        ),
        (json.dumps({"custom_id": "a", "url": CHAT}), "a", "the body is missing"),
        (
            json.dumps({"custom_id": "a", "x": 1}),
            "a",
            "x is unknown here; the fields are custom_id, method",
        ),
        (line("a", stream=True), "a", "stream is true: a batch has whole answers"),
        (line("a", temperature=9), "a", "temperature must be 0 to 2, got 9"),
        (line("a", max_tokens=120_000, n=2), "a", "fewer than max_tokens"),
        (line("a", structured_outputs={"regex": "(?=a)b"}), "a", "regex"),
    ],
)
def test_a_wrong_line_gets_an_error_without_affecting_others(engine, text, id, problem):
    found = answers_of(engine, [line("before"), text, line("after")])
    assert found["before"]["response"]["status_code"] == 200
    assert found["after"]["response"]["status_code"] == 200
    assert found[id]["response"]["status_code"] == 400
    assert problem in found[id]["error"]["message"]
    assert found[id]["response"]["body"]["error"] == found[id]["error"]
    assert not engine.busy


def test_a_line_for_another_model_gets_a_404_without_affecting_others(engine):
    lines = [line("before", model="tiny"), line("a", model="gpt-9"), line("after")]
    found = answers_of(engine, lines)
    assert [found[id]["response"]["status_code"] for id in ("before", "a", "after")] == [
        200,
        404,
        200,
    ]
    problem = "The model 'gpt-9' does not exist here; the models are tiny"
    assert (found["a"]["error"]["message"], found["a"]["error"]["param"]) == (problem, "model")
    assert found["before"]["response"]["body"]["model"] == "tiny"


def test_all_answers_of_a_line_end_when_one_fails(engine_of):
    engine = engine_of(Random(V, seed=1), slots=1)
    doomed = line("a", n=3, structured_outputs={"choice": ["a word" * 9]}, max_tokens=2)
    (answer,) = answered(engine, [doomed])
    assert answer["response"]["status_code"] == 400
    assert not engine.busy


def test_two_lines_with_one_id_are_refused_before_any_is_answered():
    rows = [InputRow(i, json.loads(text)) for i, text in enumerate([line("a"), "3", line("b")])]
    lines = BatchLines(("tiny",))
    lines.check(rows)
    with pytest.raises(
        RequestError, match="custom_id 'a' of row 3 must be unique, and row 0 has it too"
    ):
        lines.check([*rows, InputRow(3, {"custom_id": "a"})])


def test_lines_may_be_completions(engine):
    body = {"prompt": "<|channel>thought\n<channel|>", "max_tokens": 8}
    text = json.dumps({"custom_id": "a", "url": "/v1/completions", "body": body})
    answer = answers_of(engine, [text])["a"]["response"]["body"]
    assert answer["choices"][0]["text"] == "hi there"


def test_an_answer_names_its_row_even_if_the_row_has_no_id(engine):
    found = list(answered(engine, [line("a"), "{", line("a", temperature=9)]))
    assert sorted(map(BatchLines(("tiny",)).row_of, found)) == [0, 1, 2]
