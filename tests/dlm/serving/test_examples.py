"""Every example runs with the built-in model and prints what it is for."""

import runpy
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from fastapi.testclient import TestClient

import dlm

EXAMPLES = Path(__file__).parents[3] / "examples"
PARTS = {
    "extract": ["AK-4071: Silver Robotics owes "],
    "stream": ["pass 1: ", "final: ", " tokens"],
    "tools": ["get_weather({'city': ", "sunny, 21 degrees", " messages"],
    "decide": [
        "job: nurse",
        "% sure",
        "norway: ",
        "closeness: ",
        " of 2",
        " tokens read, 0 written",
    ],
    "choose": ["Oslo. -> nurse", "years. -> driver"],
    "reason": ["reasoning: The text is about", "'age': 61", " tokens of reasoning"],
}


@pytest.mark.parametrize("name", PARTS)
def test_an_example_runs(tiny, capsys, name):
    runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](tiny.client)
    printed = capsys.readouterr().out
    assert all(part in printed for part in PARTS[name])


WITHOUT_A_SERVER = {
    "classify": ["Oslo. -> Job.NURSE, taken (", "years. -> Job.DRIVER, taken ("],
    "functions": ["get_weather({'city': 'Oslo'}) -> Oslo: sunny, 21 degrees", "said: ", "messages"],
}


@pytest.mark.parametrize("name", WITHOUT_A_SERVER)
def test_an_example_without_a_server_runs(built_in, capsys, name):
    runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](built_in)
    printed = capsys.readouterr().out
    assert all(part in printed for part in WITHOUT_A_SERVER[name])


def test_the_application_with_an_engine_answers_whole_and_in_pieces(built_in):
    names = runpy.run_path(str(EXAMPLES / "app.py"))
    app = names["app"]
    kept = SimpleNamespace(load=lambda slots: built_in)  # closed by none of the tests
    with (
        patch.object(dlm, "Engine", kept),
        patch.object(built_in, "close"),
        TestClient(app) as client,
    ):
        body = {"text": "Our neighbour Olga Lopez is 61."}
        assert client.post("/people", json=body).json() == {"name": "Olga Lopez", "age": 61}
        assert client.post("/people/stream", json=body).json() == {"name": "Olga Lopez", "age": 61}
        for path in "/people", "/people/stream":
            refused = client.post(path, json={"text": "too long " * 100_000})
            assert refused.status_code == 400
            assert "maximum context length" in refused.json()["detail"]
        for path, route in ("/people", "extract"), ("/people/stream", "stream"):
            with patch.dict(names[route].__globals__, SECONDS=0):
                late = client.post(path, json=body)
            assert late.status_code == 504
            assert late.json()["detail"] == "no answer within 0 seconds"


def test_no_example_is_left_out():
    examples = {path.stem for path in EXAMPLES.glob("*.py")}
    assert examples == {*PARTS, *WITHOUT_A_SERVER, "app"}
