"""Tokens of prompts over HTTP, counted and listed, and prompts that could never fit."""

import threading

import pytest
from asks import turn
from waiting import PATIENCE

MANY = 1_000_000
LONG = {"emojis": "\U0001f600" * MANY, "words": "word " * MANY, "zeros": "0" * MANY * 3}
COUNTS = {
    "/tokenize": lambda text: {"prompt": text},
    "/v1/messages/count_tokens": lambda text: {"model": "tiny", "messages": turn(text)},
    "/v1/responses/input_tokens": lambda text: {"input": text},
    "/v1/decisions": lambda text: {
        "input": text,
        "questions": [{"type": "predicate", "instructions": "Is it?"}],
    },
}


@pytest.mark.parametrize("text", LONG.values(), ids=[*LONG])
@pytest.mark.parametrize("path", COUNTS)
def test_a_text_that_could_never_fit_is_refused_before_it_is_tokenized(
    tiny, path, text, monkeypatch
):
    def refuse(*args):
        raise AssertionError("it has been tokenized")

    monkeypatch.setattr(type(tiny.engine.chat), "_encode", refuse)
    answer = tiny.http.post(path, json=COUNTS[path](text))
    assert answer.status_code == 400
    assert "characters" in answer.text
    assert "ever fit" in answer.text


def test_a_conversation_that_could_never_fit_is_refused_by_tokenize(tiny):
    answer = tiny.http.post("/tokenize", json={"messages": turn("word " * MANY)})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages"


def test_a_prompt_above_the_context_is_still_counted(tiny):
    """Clients count a conversation to learn by how much it is too long."""
    most = tiny.engine.model.max_positions
    answer = tiny.http.post("/tokenize", json={"prompt": "0" * 3 * most})
    assert answer.json()["count"] > answer.json()["max_model_len"] == most


def test_more_tokens_than_the_context_has_are_not_made_a_text(tiny):
    most = tiny.engine.model.max_positions
    assert tiny.http.post("/detokenize", json={"tokens": [9] * most}).status_code == 200
    answer = tiny.http.post("/detokenize", json={"tokens": [9] * (most + 1)})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(f"tokens must have at most {most} tokens")


def test_tokens_are_listed_in_a_thread_and_others_are_answered_meanwhile(tiny, monkeypatch):
    tokens, begun, resumed = tiny.engine.tokens, threading.Event(), threading.Event()

    def slow(request):
        begun.set()
        assert resumed.wait(PATIENCE)
        return tokens(request)

    monkeypatch.setattr(tiny.engine, "tokens", slow)
    answers = []
    asking = threading.Thread(
        target=lambda: answers.append(tiny.http.post("/tokenize", json={"prompt": "hi"}))
    )
    asking.start()
    assert begun.wait(PATIENCE)
    assert tiny.http.get("/health").status_code == 200
    resumed.set()
    asking.join(PATIENCE)
    assert answers[0].json()["count"] == len(answers[0].json()["tokens"])
