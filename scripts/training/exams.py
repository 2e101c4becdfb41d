"""Exams of a trained model: a set of samples for each ability, which the training never draws."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from training.conversations import after_result, made_up_call, short_answer
from training.extraction import bare, extract
from training.lessons import choice, copied, long_sample, numbers, tool_call
from training.samples import Sample, dumps, object_schema

OUTSIDERS = Path(__file__).parent / "outsiders.jsonl"
LONGEST_EXAM = 1800  # tokens of the texts of an exam: the built-in model reads 2,048 in all
LENGTHS = (2, 4, 8, 12, 16)  # of random strings to copy, in letters
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number"}


def exams(count: int, seed: int) -> dict[str, list[Sample]]:
    """Return `count` samples for each set, or all of the outsiders' sentences if they are fewer."""

    def drawn(name: str, make: Callable[[Random], Sample], share: int = 1) -> list[Sample]:
        random = Random(f"evaluate/{seed}/{name}")
        return [make(random) for _ in range(max(1, count // share))]

    sets = {
        "same patterns": drawn("same", lambda r: extract(r, "heldout")),
        "held-out patterns": drawn("unseen", lambda r: extract(r, "unseen")),
        "distractors": drawn("distractors", lambda r: having({"distractor"}, r), 2),
        "lists, nesting": drawn("nested", lambda r: having({"list", "rows", "nested"}, r), 2),
        "something missing": drawn("missing", lambda r: having({"missing"}, r), 4),
        "keys unasked": drawn("unasked", lambda r: having({"unasked"}, r, 1.0), 2),
    }
    for n in LENGTHS:
        sets[f"copy {n} letters"] = drawn(f"copy {n}", lambda r, n=n: copied(r, "heldout", n), 5)
    return {
        **sets,
        "tools": drawn("tools", lambda r: tool_call(r, "heldout"), 2),
        "choices": drawn("choices", lambda r: choice(r, "heldout"), 2),
        "schema alone": drawn("alone", lambda r: bare(r, "unseen")),
        "made-up tools": drawn("made up", lambda r: made_up_call(r, "heldout")),
        "after a result": drawn("result", lambda r: after_result(r, "heldout")),
        "digits": drawn("digits", lambda r: numbers(r, "heldout"), 2),
        "long texts": drawn("long", lambda r: long_sample(r, "heldout", LONGEST_EXAM), 4),
        "plain requests": drawn("plain", lambda r: short_answer(r, "heldout"), 2),
        "outsiders": outsiders()[:count],
    }


def having(traits: set[str], random: Random, unasked: float = 0.0) -> Sample:
    """Draw a sample of trained patterns and held-out values that has one of the traits."""
    while True:
        item = extract(random, "heldout", unasked)
        if item.traits & traits:
            return item


def outsiders() -> list[Sample]:
    """Read sentences by other authors, with their answers; training does not use them."""
    lines = OUTSIDERS.read_text(encoding="utf-8").splitlines()
    return [_outsider(json.loads(line)) for line in lines]


def _outsider(line: dict[str, Any]) -> Sample:
    value = line["answer"]
    return Sample(
        task="extract",
        prompt=f"Extract {', '.join(value)} as JSON. {line['text']}",
        answer=dumps(value),
        value=value,
        schema=schema_of(value),
        traits=frozenset({"outsider"}),
    )


def schema_of(value: Any) -> dict[str, Any]:
    """Return the schema that a value suggests."""
    if isinstance(value, dict):
        return object_schema({key: schema_of(part) for key, part in value.items()})
    if isinstance(value, list):
        return {"type": "array", "items": schema_of(value[0])}
    return {"type": _TYPES[type(value)]}
