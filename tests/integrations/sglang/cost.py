"""Measure the processor time that constraints add to a step of SGLang's algorithms, for each block.

    PYTHONPATH=.:scripts:tests/support python tests/integrations/sglang/cost.py [TOKENIZER]

Needs no SGLang: the algorithms are doubles, and logits are made up by an oracle that knows the
text. What is measured is a step with constraints without the double's own step: the guide, the
rewritten rows, and the check of what was taken. TOKENIZER is a tokenizer's file, by default that of
the built-in model; `.xz` may be compressed.
"""

import json
import sys
from pathlib import Path
from random import Random
from statistics import median
from time import thread_time
from typing import Any

import torch
from blocks import Request, answer
from measure.schemas import tokenizer_of
from sglang_doubles import Gemma4Renoise, LowConfidence
from weightless import Knowing

from dlm.grammar import Compiler, JsonSchema, Vocabulary
from dlm.integrations.sglang.grammar import RequestGrammar
from dlm.integrations.sglang.masked import Masked
from dlm.integrations.sglang.noise import Renoised
from dlm.integrations.sglang.settings import PluginSettings
from dlm.integrations.unmasking import Order
from dlm.policy import Policy

ANSWERS = 4
SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
        "customer": {"type": "string", "maxLength": 30},
        "total": {"type": "number"},
        "paid": {"type": "boolean"},
        "lines": {"type": "array", "maxItems": 3, "items": {"type": "string", "maxLength": 9}},
    },
    "required": ["id", "customer", "total", "paid", "lines"],
    "additionalProperties": False,
}


def text(vocabulary: Vocabulary, key: int) -> list[int]:
    dice = Random(key)
    value = {
        "id": f"AB-{dice.randrange(10000):04}",
        "customer": dice.choice(["Silver Robotics", "Old Mill", "Blue Ocean Foods"]),
        "total": dice.randrange(99999) / 100,
        "paid": dice.random() < 0.5,
        "lines": dice.sample(["paper", "lamp", "cable"], 2),
    }
    return [*vocabulary.encode(json.dumps(value)), vocabulary.stops[0]]


def measured(base: type, kind: Any, block: int, order: Order, model: Any, compiled: Any) -> None:
    spent: list[float] = []

    class Timed(base):
        def step(self, forward_batch: Any, full_logits: Any, states: Any) -> Any:
            begun = thread_time()
            done = super().step(forward_batch, full_logits, states)
            spent[-1] += thread_time() - begun
            return done

    class Whole(kind):
        def step(self, *args: Any) -> Any:
            spent.append(0.0)
            begun = thread_time()
            done = super().step(*args)
            spent[-1] = thread_time() - begun - spent[-1]
            return done

    mask = -1 if base.requires_separate_context_encoding else 4
    algorithm = Whole.of(Timed, PluginSettings(order))(block, mask, fdfo=True)
    for key in range(ANSWERS):
        grammar = RequestGrammar(compiled, Policy(), None)
        request = Request(key=key, grammar=grammar, prompt=9, budget=150)
        answer(algorithm, [request], model, compiled.vocabulary.stops)
        JsonSchema(SCHEMA).value(compiled.vocabulary.text(request.output))
    times = sorted(1e3 * seconds for seconds in spent[len(spent) // ANSWERS :])  # warm
    print(
        f"{base.__name__}, block {block}, {order}: median {median(times):.2f} ms, "
        f"mean {sum(times) / len(times):.2f}, worst {times[-1]:.1f}, {len(spent) / ANSWERS:.1f} "
        "steps an answer"
    )


def main(path: str | None = None) -> None:
    torch.set_num_threads(1)
    built_in = Path(__file__).parents[3] / "models" / "tiny" / "tokenizer.json"
    tokenizer = tokenizer_of(Path(path) if path else built_in)
    vocabulary = Vocabulary.from_tokenizer(tokenizer, len(tokenizer), [1], 0, control=[4])
    compiled = Compiler(vocabulary).compile(JsonSchema(SCHEMA))
    model = Knowing(compiled, {key: text(vocabulary, key) for key in range(ANSWERS)})
    print(f"{len(tokenizer):,} tokens")
    for block in (4, 32):
        for order in ("joint", "prefix"):
            measured(LowConfidence, Masked, block, order, model, compiled)
    measured(Gemma4Renoise, Renoised, 32, "joint", model, compiled)


if __name__ == "__main__":
    main(*sys.argv[1:])
