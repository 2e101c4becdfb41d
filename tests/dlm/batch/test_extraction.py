"""Rows under one constraint: values, seeds by row, and errors that are the row's alone."""

import json

import pytest
from asks import ASK
from doubles import Dreamer, Random
from gated import Gated
from values import V

from dlm import Choice, JsonSchema, Regex, Tools
from dlm.batch.batch import Batch, Extraction, answers
from dlm.batch.rows import InputRow, Template

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


def extraction(**more):
    return Extraction(template=Template.column("text"), max_tokens=64, **more)


def answered(engine, form, values, ahead=8):
    rows = [InputRow(number, value) for number, value in enumerate(values)]
    found = dict(answers(rows, Batch(engine, form, ahead)))
    assert len(found) == len(rows)
    assert not engine.busy
    return found


def test_an_answer_has_the_parsed_value_of_its_text(built_in):
    found = answered(built_in, extraction(constraint=JsonSchema(PERSON)), [ASK] * 2)
    for number in range(2):
        answer = found[number]
        assert answer["value"] == {"name": "Olga Lopez", "age": 61} == json.loads(answer["text"])
        assert (answer["row"], answer["finish_reason"], answer["error"]) == (number, "stop", None)
        assert answer["tokens"] > 5


def test_each_row_has_the_seed_of_its_number_whatever_runs_beside_it(engine_of):
    engine = engine_of(Dreamer(V, seed=1), slots=3)
    values, digits = ["Tell me something."] * 3, Regex("[0-9]{6}")
    together = answered(engine, extraction(seed=7, constraint=digits), values)
    assert answered(engine, extraction(seed=7, constraint=digits), values, ahead=1) == together
    assert len({answer["text"] for answer in together.values()}) > 1
    later = answered(engine, extraction(seed=8, constraint=digits), values)
    assert [later[i]["text"] for i in range(2)] == [together[i + 1]["text"] for i in range(2)]


def test_a_bad_row_gets_an_error_without_affecting_others(engine_of):
    engine = engine_of(Random(V, seed=1), slots=2)
    values = ["hi", {"words": "hi"}, 3, " ", "half a pair \ud800", "hi"]
    found = answered(engine, extraction(constraint=Choice(["a", "b"])), values)
    assert {found[0]["value"], found[5]["value"]} <= {"a", "b"}
    assert found[1]["error"] == "the row has no field 'text': it has words"
    assert found[2]["error"] == "the line must be an object or a text, got a JSON int"
    assert found[3]["error"] == "prompt must not be empty: there is nothing to answer"
    assert "surrogate" in found[4]["error"]
    for number in (1, 2, 3, 4):
        assert found[number]["row"] == number
        assert found[number]["value"] is found[number]["text"] is None


def test_answers_have_the_ids_of_their_rows(engine_of):
    engine = engine_of(Random(V, seed=1), slots=2)
    keys = ["k", 4, 1.5, True, {"a": [1]}]
    values = [{"text": "hi", "key": key} for key in keys] + [{"text": "hi"}, {"key": "x"}]
    form = extraction(constraint=Choice(["a"]), id="key")
    found = answered(engine, form, values)
    assert [found[i]["id"] for i in range(7)] == [*keys, None, "x"]
    assert [found[i]["error"] is None for i in range(7)] == [*[True] * 6, False]


def test_tool_calls_are_values(built_in):
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "ping", "parameters": nothing}}
    form = extraction(constraint=Tools([tool], "required", parallel=False))
    assert answered(built_in, form, ["ping"])[0]["value"] == [{"name": "ping", "arguments": {}}]


def test_an_answer_without_a_call_is_a_text_without_a_value(engine_of, tokens_of):
    tool = {"type": "function", "function": {"name": "ping"}}
    model = Gated(tokens_of("hi there<turn|>"))
    model.open.set()
    answer = answered(engine_of(model), extraction(constraint=Tools([tool])), ["hi"])[0]
    assert json.loads(json.dumps(answer)) == answer
    assert (answer["value"], answer["error"]) == (None, None)
    assert answer["text"] == "hi there"


def test_an_answer_that_cannot_be_read_is_the_error_of_its_row(engine_of, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(Extraction, "_answer", broken)
    engine = engine_of(Random(V, seed=1), slots=2)
    found = answered(engine, extraction(constraint=Choice(["a"])), ["one", "two"])
    assert [found[i]["error"] is None for i in range(2)] == [False, False]
    assert not engine.busy


@pytest.mark.parametrize("slots", [1, 3])
def test_no_more_rows_are_read_than_may_be_under_way(engine_of, slots):
    engine, read = engine_of(Random(V, seed=1), slots=slots), []

    def rows():
        for number in range(30):
            read.append(number)
            yield InputRow(number, "hi" if number % 2 else 3)  # every other one is refused at once

    form = extraction(constraint=Choice(["a"]))
    next(answers(rows(), Batch(engine, form, 4)))
    assert len(read) <= 5
