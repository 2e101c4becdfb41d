"""Invoices as SGLang's algorithms write them: their schema, vocabulary, requests and texts."""

import json
from collections.abc import Collection, Iterable, Sequence
from random import Random
from typing import Any

import jsonschema
from blocks import Request
from sglang.srt.dllm.algorithm import algo_name_to_cls
from sglang.srt.dllm.config import DllmConfig

from dlm.grammar import Compiled, Matcher, Vocabulary
from dlm.integrations.sglang.grammar import RequestGrammar
from dlm.integrations.sglang.hooks import ALGORITHMS
from dlm.integrations.sglang.settings import PluginSettings
from dlm.policy import Policy

MASK, DELETE, SPLIT = 4, 5, 6
_DEFAULTS = PluginSettings()
INVOICE = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
        "customer": {"type": "string", "maxLength": 30},
        "total": {"type": "number"},
        "paid": {"type": "boolean"},
        "items": {
            "type": "array",
            "maxItems": 3,
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 12},
                    "n": {"type": "integer"},
                },
                "required": ["name", "n"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["id", "customer", "total", "paid", "items"],
    "additionalProperties": False,
}


def text(vocabulary: Vocabulary, key: int) -> list[int]:
    """Return the tokens of the invoice `key`, with the stop."""
    dice = Random(f"invoice {key}")
    items = [
        {"name": dice.choice(["paper", "coffee", "lamps", "cables"]), "n": dice.randrange(99)}
        for _ in range(dice.randrange(3))
    ]
    value = {
        "id": f"{dice.choice('ABK')}{dice.choice('LMN')}-{dice.randrange(10000):04}",
        "customer": dice.choice(["Silver Robotics", "Old Mill", "Blue Ocean Foods"]),
        "total": dice.randrange(99999) / 100,
        "paid": dice.random() < 0.5,
        "items": items,
    }
    return [*vocabulary.encode(json.dumps(value)), vocabulary.stops[0]]


def algorithm(
    name: str,
    block: int,
    fdfo: bool = False,
    settings: PluginSettings | None = _DEFAULTS,
    **config: Any,
) -> Any:
    """Return an algorithm of SGLang's with constraints, or as it is if there are no settings."""
    cls = algo_name_to_cls[name]
    return made(
        cls if settings is None else ALGORITHMS[name].of(cls, settings), block, fdfo, **config
    )


def made(cls: Any, block: int, fdfo: bool = False, **config: Any) -> Any:
    return cls(
        DllmConfig(
            algorithm=cls.__name__,
            algorithm_config=config,
            block_size=block,
            mask_id=-1 if cls.requires_separate_context_encoding else MASK,
            max_running_requests=4,
            first_done_first_out_mode=fdfo,
            delete_token_id=DELETE,
            split_token_id=SPLIT,
        )
    )


def requests_for(
    compiled: Compiled, keys: Iterable[int], budget: int = 150, free: Collection[int] = ()
) -> list[Request]:
    return [
        Request(
            key=key,
            grammar=None if key in free else RequestGrammar(compiled, Policy(), None),
            prompt=5 + 7 * key % 40,
            budget=budget,
        )
        for key in keys
    ]


def check(requests: Sequence[Request], vocabulary: Vocabulary) -> None:
    """Check that all answers are invoices, and that nothing was masked again."""
    for request in requests:
        assert request.grammar is not None
        assert request.grammar.error is None, request.grammar.error
        assert request.grammar.corrections.passes == 0
        assert not {MASK, DELETE, SPLIT} & set(request.output)
        jsonschema.validate(json.loads(vocabulary.text(request.output)), INVOICE)


def shortest(compiled: Compiled) -> int:
    """Return the tokens of the shortest answer, its stop included."""
    return len(Matcher(compiled).shortest_completion()) + 1


def is_valid(text: str) -> bool:
    try:
        jsonschema.validate(json.loads(text), INVOICE)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True
