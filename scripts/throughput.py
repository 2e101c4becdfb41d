"""How much of a device's time grammars cost, with a device that is a clock.

    python scripts/throughput.py --schemas FILE.jsonl[.xz] --tokenizer tokenizer.json[.xz]

A denoiser without weights takes 9 ms for a pass, vocabulary included, in which it leaves the
interpreter to others, as a GPU does. What it wants are valid instances of real schemas, again and
again, and it takes 12 passes to find a canvas's tokens, from the left: further right it has 32
tokens of the canvas in mind for each position, and the right one comes second. Canvases a second
under these schemas are set against canvases a second without a constraint, in turns.
"""

import argparse
import itertools
import json
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from stress import L, read_schemas, tokenizer_of
from torch import Tensor
from transformers import PreTrainedTokenizerFast
from weightless import Weightless

import dlm
from dlm.chat import Chat
from dlm.collector import tune_garbage_collector
from dlm.events import Committed, Finished
from dlm.grammar import Compiler, GrammarError, Matcher
from dlm.kernels.vocab_rows import VocabPass
from dlm.logits.canvas_logits import CANDIDATES

PASS = 0.009  # seconds
_PASSES = 12  # until all of a canvas is known
_UNSURE = 32  # tokens that it has in mind where it does not know
_ROUNDS, _STEPS = 5, 120  # of each engine in turns; steps in each
_WARM = 160  # steps before: masks that nobody has used yet are made in them
_ANSWER = 3 * L  # tokens at most


def _unsure(right: Tensor, known: Tensor, rng: torch.Generator) -> VocabPass:
    """Rows that are sure of the right token, or have it among others of its canvas."""
    found = VocabPass.certain(right, CANDIDATES)
    rows = (~known).nonzero()[:, 0]
    others = torch.randint(L, (len(rows), _UNSURE), generator=rng)
    tokens = right[rows[:, None] // L * L + others]
    tokens[:, 1] = right[rows]
    found.argmax[rows], found.above[rows] = tokens[:, 0], _UNSURE
    share = 1 / torch.arange(1, _UNSURE + 1)
    share /= share.sum()
    found.entropy[rows] = torch.special.entr(share).sum()
    tokens, rank = tokens.sort(dim=1)
    found.ids[rows, :_UNSURE], found.logits[rows, :_UNSURE] = tokens.int(), share.log()[rank]
    return found


class Numbers(Chat):
    """Prompts are numbers of scripts."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        self.tokenizer = tokenizer

    def prompt(self, request: dlm.Request) -> list[int]:
        return list(request.token_ids or ())


class Clock(Weightless):
    """A denoiser: after `PASS` seconds it says something of the canvas that `scripts` has behind a
    prompt, which is one token, the script's number."""

    def __init__(self, vocab_size: int, scripts: Sequence[Tensor]):
        super().__init__(vocab_size, L)
        self._scripts = scripts
        self._prompts: dict[int, int] = {}  # by slot
        self._begun: dict[int, tuple[int, int]] = {}  # by slot: where its canvas begins, passes
        self._rng = torch.Generator().manual_seed(0)
        self._row = 2.5 * torch.randn(vocab_size, generator=self._rng) - 22  # of all other tokens
        self._said = VocabPass.certain(torch.empty(0, dtype=torch.long), CANDIDATES)

    def encode(self, tokens: Any, cache: Any, slots: Any) -> Tensor:
        for row, slot in zip(tokens, slots, strict=True):
            if not self.length(slot):
                self._prompts[slot] = row[0]
        return super().encode(tokens, cache, slots)

    def denoise(
        self, canvas: Any, soft_embedding: Any, cache: Any, slots: Any, encode: Any
    ) -> Tensor:
        end = time.perf_counter() + PASS
        self.encode(list(encode.values()), cache, list(encode))
        each = [self._tokens(slot) for slot in slots]
        right, known = (torch.cat(columns) for columns in zip(*each, strict=True))
        self._said = _unsure(right, known, self._rng)
        time.sleep(max(0.0, end - time.perf_counter()))
        return self._row.expand(len(slots), L, self.vocab_size)

    def _tokens(self, slot: int) -> tuple[Tensor, Tensor]:
        """Of a slot's canvas, and whether they are known in this pass."""
        at = self.length(slot) - 1
        begun, passes = self._begun.get(slot, (-1, 0))
        passes = passes + 1 if begun == at else 1
        self._begun[slot] = at, passes
        known = torch.arange(L) < L * passes // _PASSES
        return self._scripts[self._prompts[slot]][at : at + L], known

    def vocab_pass(self, logits: Tensor, *args: Any, k: int, **more: Any) -> VocabPass:
        """In the place of the device's. Rows that are read again, under masks, say anything: only
        the canvas hears of it, which nobody looks at here."""
        rows = args[3]
        return self._said if rows is None else VocabPass.certain(torch.zeros_like(rows), k)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--schemas", required=True, metavar="FILE")
    parser.add_argument("--tokenizer", required=True, metavar="FILE")
    parser.add_argument("--slots", type=int, default=16, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps(throughput(Path(args.schemas), Path(args.tokenizer), args.slots, args.seed)))


def throughput(schemas: Path, tokenizer: Path, slots: int, seed: int) -> dict[str, float]:
    """Canvases a second, constrained and free, and the share of the former in the latter: the
    median of some rounds."""
    chat = Numbers(tokenizer_of(tokenizer))
    size = min(262_144, len(chat.tokenizer))
    scripts: list[Tensor] = []
    engines = [dlm.Engine(Clock(size, scripts), chat, slots=slots) for _ in range(2)]
    entries = read_schemas(schemas)
    random.Random(seed).shuffle(entries)
    specs: list[dlm.JsonSchema] = []
    for spec, script in itertools.islice(_wanted(entries, engines[0]), slots):
        specs.append(spec)
        scripts.append(script)
    running = [_begun(engines[0], specs), _begun(engines[1], [None] * slots)]
    for engine, requests in zip(engines, running, strict=True):
        _canvases(engine, requests, _WARM)
    tune_garbage_collector()
    rates = [
        [_canvases(*one, _STEPS) for one in zip(engines, running, strict=True)]
        for _ in range(_ROUNDS)
    ]
    for engine in engines:
        engine.close()
    constrained, free = (statistics.median(rate) for rate in zip(*rates, strict=True))
    share = statistics.median(one / other for one, other in rates)
    return {"constrained": constrained, "free": free, "share": share}


def _wanted(
    entries: Sequence[dict[str, Any]], engine: dlm.Engine
) -> Iterator[tuple[dlm.JsonSchema, Tensor]]:
    """Schemas, and tokens of an answer that each allows, its stop and padding included."""
    compiler, vocabulary = Compiler(engine.vocabulary), engine.vocabulary
    for entry in entries:
        example = array_of(entry)
        if example is None:
            continue
        spec, text = example
        item = json.dumps(next(test["data"] for test in entry["tests"] if test["valid"]))
        count = _ANSWER // (len(vocabulary.encode(item + ", ")) + 1)
        text = "[" + ", ".join([item] * count) + "]"
        tokens = [*vocabulary.encode(text), vocabulary.stops[0]]
        try:
            compiled = compiler.compile(spec)
        except GrammarError:
            continue
        if L < len(tokens) <= _ANSWER and Matcher(compiled).accept_all(tokens) == len(tokens):
            yield spec, torch.tensor(tokens + [vocabulary.pad] * (_ANSWER + L - len(tokens)))


def array_of(entry: dict[str, Any]) -> tuple[dlm.JsonSchema, str] | None:
    """An array of a schema's first valid instance, longer than a canvas, and its own schema."""
    schema = entry["schema"]
    valid = [test["data"] for test in entry["tests"] if test["valid"]]
    if not valid or not isinstance(schema, dict) or "$ref" in json.dumps(schema):
        return None  # a reference would lead elsewhere within another schema
    item = json.dumps(valid[0], ensure_ascii=False)
    count = 16 * L // len(item) + 2
    try:
        return dlm.JsonSchema({"type": "array", "items": schema}), f"[{', '.join([item] * count)}]"
    except GrammarError:
        return None


def _begun(engine: dlm.Engine, specs: Sequence[dlm.JsonSchema | None]) -> dict[int, dlm.Request]:
    """Requests, by their numbers: one for each script, with their grammars compiled."""
    requests = [
        dlm.Request(token_ids=[i], constraint=spec, max_tokens=2 * _ANSWER)
        for i, spec in enumerate(specs)
    ]
    numbers = {engine.add(request): request for request in requests}
    for number in numbers:
        engine._scheduler.prepare(number)
    return numbers


def _canvases(engine: dlm.Engine, requests: dict[int, dlm.Request], steps: int) -> float:
    """Committed a second. Who has an answer asks again."""
    device: Any = engine.model
    with patch("dlm.logits.distributions.vocab_pass", device.vocab_pass):
        begun, count = time.perf_counter(), 0
        for _ in range(steps):
            for event in engine.step():
                count += isinstance(event, Committed)
                if isinstance(event, Finished):
                    request = requests.pop(event.request)
                    requests[engine.add(request)] = request
        return count / (time.perf_counter() - begun)


if __name__ == "__main__":
    main()
