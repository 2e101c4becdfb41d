"""Recorded bodies of real clients, with their texts replaced: all are served. Those of Open WebUI
are rebuilt from its source, and those of LibreChat made by its client library with its settings.

Each line of `recorded_bodies.jsonl` is one request: client, method, path, names of headers, body.
The models are doubles that stop as soon as they may.
"""

import copy
import json
import random
from pathlib import Path

import pytest
from doubles import Obsessed
from exhaustive import share
from json_paths import paths
from values import V

from dlm import Policy

LINES = (Path(__file__).with_name("recorded_bodies.jsonl")).read_text().splitlines()
RECORDED = [json.loads(line) for line in LINES]
FORMS = {
    "/v1/chat/completions": ("object", "chat.completion"),
    "/v1/responses": ("object", "response"),
    "/v1/messages": ("type", "message"),
}
STRANGE = (
    None,
    True,
    0,
    -1,
    1.5,
    10**400,
    "",
    "x",
    "\ud800",
    [],
    {},
    [[]],
    [None],
    {"type": "x"},
    {"": {}},
    ["x"] * 50,
    {"$ref": "#"},
    [[[[[[{}]]]]]],
)
MUTATIONS = share(150)  # of each form


class Hasty(Obsessed):
    """Model that wants to end its answer, or else the string that it is in."""

    def __init__(self, quote):
        super().__init__(V, [106])
        self._quote = quote

    def wish(self, committed, canvas, soft_embedding):
        logits = super().wish(committed, canvas, soft_embedding)
        logits[:, self._quote] = 50.0
        return logits


@pytest.fixture(scope="module")
def stopping(engine_of, serve, tokens_of):
    model = Hasty(tokens_of('"'))
    model.max_positions = 40_000
    with serve(engine_of(model, policy=Policy(answer_tokens=64), slots=4)) as served:
        yield served


@pytest.mark.parametrize("number", range(len(RECORDED)))
def test_a_recorded_body_is_served(stopping, number):
    sent = RECORDED[number]
    answer = stopping.http.post(sent["path"], json=sent["body"])
    assert answer.status_code == 200, answer.text[:400]
    path = sent["path"].partition("?")[0]
    if not sent["body"].get("stream"):
        field, value = FORMS[path]
        assert answer.json()[field] == value
        return
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    last = events[-1] if path == "/v1/chat/completions" else json.loads(events[-1])["type"]
    ends = {"/v1/responses": "response.completed", "/v1/messages": "message_stop"}
    assert last == ends.get(path, "[DONE]")


def mutated(body, rng):
    """Return a copy with one to three values replaced or removed."""
    body = copy.deepcopy(body)
    for _ in range(rng.randint(1, 3)):
        *above, last = rng.choice([*paths(body)])
        inside = body
        for step in above:
            inside = inside[step]
        if rng.random() < 0.2:
            del inside[last]
        else:
            inside[last] = copy.deepcopy(rng.choice(STRANGE))
    return body


@pytest.mark.parametrize("path", FORMS)
def test_mutated_bodies_are_served_or_refused(stopping, path):
    rng = random.Random(path)
    bodies = [one["body"] for one in RECORDED if one["path"].partition("?")[0] == path]
    for _ in range(MUTATIONS):
        body = mutated(rng.choice(bodies), rng)
        answer = stopping.http.post(path, content=json.dumps(body).encode())
        assert answer.status_code == 200 or 400 <= answer.status_code < 500, (
            answer.text[:300],
            json.dumps(body)[:2000],
        )
