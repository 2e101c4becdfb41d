"""Measure what grammars and the host cost, with a denoiser without weights as the device.

    python scripts/load.py throughput --schemas FILE.jsonl[.xz] --tokenizer tokenizer.json[.xz]
    python scripts/load.py host

`throughput` is the share of a device's time that grammars leave. A denoiser without weights takes 9
ms for a pass, or `--pass-ms`, vocabulary included. As with a GPU, the host goes on meanwhile, until
it needs a result: then it waits, and leaves the interpreter to other threads. The denoiser writes
valid instances of real schemas, again and again, and finds a canvas's tokens in 12 passes, from
left to right. Where it has not found them yet, it ranks 32 tokens of the canvas, and the right one
comes second. Canvases a second under these schemas are compared with canvases a second without a
constraint, in turns.

`host` is the host's milliseconds of a pass over canvases that never settle, without constraints, at
262,144 tokens. What a GPU would compute takes no time there: the model, its vocabulary pass, and
its expected embeddings.
"""

import itertools
import json
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from measure.options import MeasureParser
from measure.schemas import GEMMA, L, array_of, read_schemas, tokenizer_of
from measure.weightless import TokenChat, Weightless, fill_
from torch import Tensor

import dlm
from dlm.chat import Chat
from dlm.cli.command_line import numbers
from dlm.engine import BUILT_IN
from dlm.events import Committed, Finished
from dlm.grammar import Compiler, GrammarError, Matcher
from dlm.kernels.vocab_rows import VocabPass
from dlm.loading import tune_process
from dlm.logits.canvas_logits import CANDIDATES, DeviceCopies

_PASS = 9  # milliseconds
_PASSES = 12  # until all tokens of a canvas are known
_SOFTCAP = 30.0  # DiffusionGemma's
_UNSURE = 32  # tokens that it ranks at a position whose token is not known
_ROUNDS, _STEPS = 5, 120  # rounds of each engine, in turns, and steps in each
_WARM = 160  # steps before the first round, in which most masks are made
_ANSWER = 3 * L  # tokens at most
_HOST_STEPS, _HOST_WARM = 60, 10
_TOKEN = 100_000  # an ordinary token


def _unsure(right: Tensor, known: Tensor, rng: torch.Generator) -> VocabPass:
    """Return rows that are sure of the right token, or rank it second among its canvas's tokens."""
    result = VocabPass.certain(right, CANDIDATES)
    rows = (~known).nonzero()[:, 0]
    others = torch.randint(L, (len(rows), _UNSURE), generator=rng)
    tokens = right[rows[:, None] // L * L + others]
    tokens[:, 1] = right[rows]
    result.argmax[rows], result.above[rows] = tokens[:, 0], _UNSURE
    share = 1 / torch.arange(1, _UNSURE + 1)
    share /= share.sum()
    result.entropy[rows] = torch.special.entr(share).sum()
    tokens, rank = tokens.sort(dim=1)
    logits = _SOFTCAP * (share.log() / _SOFTCAP).atanh()
    result.ids[rows, :_UNSURE], result.logits[rows, :_UNSURE] = tokens.int(), logits[rank]
    return result


class Clock(Weightless):
    """A denoiser that takes `seconds` for a pass and writes one of `scripts`.

    A prompt is a single token, the number of its script.
    """

    softcap = _SOFTCAP

    def __init__(self, vocab_size: int, scripts: Sequence[Tensor], seconds: float):
        super().__init__(vocab_size, L)
        self._scripts, self._seconds = scripts, seconds
        self._prompts: dict[int, int] = {}  # by slot
        self._begun: dict[int, tuple[int, int]] = {}  # by slot: where its canvas begins, passes
        self._ends = 0.0  # when the pass does
        self._rng = torch.Generator().manual_seed(0)
        self._row = 2.5 * torch.randn(vocab_size, generator=self._rng) - 22  # of all other tokens
        self._packed = torch.empty(0, dtype=torch.int32)  # the last pass's results
        self._reread = self._packed  # results of rows that are read again

    def encode(self, tokens: Any, cache: Any, slots: Any) -> Tensor:
        for row, slot in zip(tokens, slots, strict=True):
            if not self.length(slot):
                self._prompts[slot] = row[0]
        return super().encode(tokens, cache, slots)

    def denoise(
        self, canvas: Any, soft_embedding: Any, cache: Any, slots: Any, encode: Any
    ) -> Tensor:
        self._ends = time.perf_counter() + self._seconds
        self.encode(list(encode.values()), cache, list(encode))
        each = [self._tokens(slot) for slot in slots]
        right, known = (torch.cat(columns) for columns in zip(*each, strict=True))
        self._packed = _unsure(right, known, self._rng).packed()
        if len(self._reread) < len(self._packed):
            reread = VocabPass.certain(torch.zeros_like(right), CANDIDATES)
            reread.above[:] = CANDIDATES + 1  # a list would have to be right
            self._reread = reread.packed()
        return self._row.expand(len(slots), L, self.vocab_size)

    def wait(self) -> None:
        """Wait for the end of the pass, as a copy to the host does."""
        time.sleep(max(0.0, self._ends - time.perf_counter()))

    def _tokens(self, slot: int) -> tuple[Tensor, Tensor]:
        """Return the tokens of a slot's canvas, and whether they are known in this pass."""
        at = self.length(slot) - 1
        begun, passes = self._begun.get(slot, (-1, 0))
        passes = passes + 1 if begun == at else 1
        self._begun[slot] = at, passes
        known = torch.arange(L) < L * passes // _PASSES
        return self._scripts[self._prompts[slot]][at : at + L], known

    def vocab_pass(self, logits: Tensor, *args: Any, **more: Any) -> SimpleNamespace:
        """Replace the device's vocabulary pass. Its results were made during the pass, since they
        take the host no time.

        Rows that are read under masks have arbitrary results without a list: only the canvas uses
        them, and this denoiser ignores the canvas.
        """
        rows = args[3]
        packed = self._packed if rows is None else self._reread[: len(rows)]
        return SimpleNamespace(packed=lambda: packed)


def main(command: str) -> None:
    torch.set_num_threads(1)
    if command == "host":
        parser = MeasureParser(__doc__)
        purpose = "The numbers of slots that are timed, one after the other. Default: 1,4,16."
        parser.add_argument("--slots", type=numbers, metavar="N,N,...", help=purpose)
        parser.set_defaults(slots=[1, 4, 16])
        times = {f"host, {n} slots": round(host_milliseconds(n), 3) for n in parser.parsed().slots}
        print(json.dumps(times))
        return
    files = "schemas", "tokenizer"
    parser = MeasureParser(__doc__, *files, "seed", required=files)
    parser.add_count("--slots", 16, "The requests that run at once.")
    parser.add_count("--pass-ms", _PASS, f"Milliseconds of a pass. Default: {_PASS}.")
    args = parser.parsed()
    seconds = args.pass_ms / 1e3
    print(json.dumps(throughput(args.schemas, args.tokenizer, args.slots, seconds, args.seed)))


def throughput(
    schemas: Path, tokenizer: Path, slots: int, seconds: float, seed: int
) -> dict[str, float]:
    """Return canvases a second, constrained and free, and their ratio, as medians of rounds."""
    chat = TokenChat(tokenizer_of(tokenizer))
    size = min(GEMMA, len(chat.tokenizer))
    scripts: list[Tensor] = []
    engines = [dlm.Engine(Clock(size, scripts, seconds), chat, slots=slots) for _ in range(2)]
    entries = read_schemas(schemas)
    random.Random(seed).shuffle(entries)
    specs: list[dlm.JsonSchema] = []
    for spec, script in itertools.islice(_wanted(entries, engines[0]), slots):
        specs.append(spec)
        scripts.append(script)
    running = [_begun(engines[0], specs), _begun(engines[1], [None] * slots)]
    for engine, requests in zip(engines, running, strict=True):
        _canvases(engine, requests, _WARM)
    tune_process()
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
    """Yield schemas, each with the tokens of a valid answer, its stop and padding included."""
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


def _begun(engine: dlm.Engine, specs: Sequence[dlm.JsonSchema | None]) -> dict[int, dlm.Request]:
    """Return a request for each script, by its number in the engine, with compiled grammars."""
    requests = [
        dlm.Request(token_ids=[i], constraint=spec, max_tokens=2 * _ANSWER)
        for i, spec in enumerate(specs)
    ]
    numbers = {engine.add(request): request for request in requests}
    for number in numbers:
        engine.await_constraint(number)
    return numbers


def _canvases(engine: dlm.Engine, requests: dict[int, dlm.Request], steps: int) -> float:
    """Return the canvases that are committed a second. A finished request is added again."""
    device: Any = engine.model
    to_host = DeviceCopies.to_host

    def waiting(copies: DeviceCopies, tensor: Tensor, computed: bool = False) -> Tensor:
        device.wait()
        return to_host(copies, tensor, computed)

    with (
        patch("dlm.logits.distributions.vocab_pass", device.vocab_pass),
        patch.object(DeviceCopies, "to_host", waiting),
    ):
        begun, count = time.perf_counter(), 0
        for _ in range(steps):
            for event in engine.step():
                count += isinstance(event, Committed)
                if isinstance(event, Finished):
                    request = requests.pop(event.request)
                    requests[engine.add(request)] = request
        return count / (time.perf_counter() - begun)


class Instant(Weightless):
    """A denoiser that returns the same logits for every canvas at once, so that none settles."""

    def __init__(self) -> None:
        super().__init__(GEMMA, L)
        self._logits = torch.zeros(1).expand(GEMMA)

    def denoise(
        self, canvas: Tensor, soft_embedding: Any, cache: Any, slots: Sequence[int], encode: Any
    ) -> Tensor:
        self.encode(list(encode.values()), cache, list(encode))
        return self._logits.expand(len(slots), L, GEMMA)


def half_sure(rows: int) -> VocabPass:
    """Return the result of a vocabulary pass in which every other row is sure of its token."""
    result = VocabPass.certain(torch.full((rows,), _TOKEN), CANDIDATES)
    result.above[::2], result.entropy[::2] = _UNSURE, 1.0
    result.ids[::2, :_UNSURE] = torch.arange(_UNSURE, dtype=torch.int32)
    result.logits[::2, :_UNSURE] = 1.0
    result.lse[::2] = 1.0 + torch.tensor(float(_UNSURE)).log()
    return result


def host_milliseconds(slots: int) -> float:
    """Return the median time of a pass over `slots` canvases without constraints."""
    packed = half_sure(slots * L).packed()
    tokenizer = Chat.load(BUILT_IN).tokenizer
    fill_(tokenizer, GEMMA)
    engine = dlm.Engine(Instant(), TokenChat(tokenizer), slots=slots)
    for i in range(slots):
        engine.add(dlm.Request(token_ids=[1], max_tokens=4096, seed=i))
    times = []
    result = SimpleNamespace(packed=lambda: packed)
    with patch("dlm.logits.distributions.vocab_pass", lambda *_, **__: result):
        for _ in range(_HOST_WARM + _HOST_STEPS):
            begun = time.perf_counter()
            events = engine.step()
            times.append(1e3 * (time.perf_counter() - begun))
            if any(isinstance(event, Finished) for event in events):
                raise RuntimeError("an answer ended, so that a pass had fewer canvases than slots")
    engine.close()
    return statistics.median(times[_HOST_WARM:])
