"""Answers of SGLang's algorithms, as its worker and scheduler drive them, from made-up logits."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from weightless import Weightless

from dlm.integrations.sglang.grammar import RequestGrammar

_PASSES = 8  # for each position of a block: more are a loop without end


@dataclass(kw_only=True)
class Request:
    """A request, and what has become of it."""

    key: int
    grammar: RequestGrammar | None  # None: it is free
    prompt: int  # tokens
    budget: int
    output: list[int] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)  # of each block
    ended: bool = False
    ids: list[int] = field(default_factory=list)  # of a block under way
    state: Any = None

    def tokens(self) -> list[int]:
        return self.output


class Runner:
    """SGLang's runner of a model, which counts passes."""

    def __init__(self, model: Weightless, requests: Sequence[Request], block: int, mask: int):
        self._model, self._requests, self._block, self._mask = model, requests, block, mask
        self.passes = 0

    def forward(self, batch: Any, pp_proxy_tensors: Any = None) -> Any:
        self.passes += 1
        rows = []
        for request, ids in zip(
            self._requests, batch.input_ids.view(-1, self._block).tolist(), strict=True
        ):
            rows += self._rows(request, ids)
        logits = torch.from_numpy(np.stack(rows)).float()
        return SimpleNamespace(
            logits_output=SimpleNamespace(full_logits=logits), can_run_graph=False
        )

    def _rows(self, request: Request, ids: Sequence[int]) -> list[np.ndarray]:
        first = _first(request, self._block) - request.prompt
        written, holes, rows = list(request.output), 0, []
        for position, token in enumerate(ids, first):
            rows.append(self._model.row(request.key, position, holes, written))
            holes += token == self._mask
            if not holes and position >= len(request.output):
                written.append(token)
        return rows


def _first(request: Request, block: int) -> int:
    """Return where the request's next block begins."""
    return (request.prompt + len(request.output)) // block * block


def answer(
    algorithm: Any, requests: Sequence[Request], model: Weightless, stops: Sequence[int]
) -> None:
    """Write the answers of `requests` in batches, as far as their budgets."""
    for request in requests:
        if request.grammar is not None:
            request.grammar.bind(request.prompt, request.tokens, request.budget)
    while running := [request for request in requests if not request.ended]:
        for request in running:
            if not request.ids:
                begin = _first(request, algorithm.block_size)
                before = [request.key + 300] * request.prompt + request.output
                tail = before[begin:]
                request.ids = tail + [algorithm.mask_id] * (algorithm.block_size - len(tail))
                request.passes.append(0)
        _round(algorithm, running, model, stops)


def _round(algorithm: Any, running: Sequence[Request], model: Weightless, stops: Any) -> None:
    block = algorithm.block_size
    runner = Runner(model, running, block, algorithm.mask_id)
    batch = SimpleNamespace(
        batch_size=len(running),
        input_ids=torch.tensor([token for request in running for token in request.ids]),
        dllm_prompt_mask=None,
        rids=[str(request.key) for request in running],
        extend_prefix_lens_cpu=[_first(request, block) for request in running],
        sampling_info=SimpleNamespace(grammars=[request.grammar for request in running]),
    )
    if algorithm.fdfo:
        states = [request.state for request in running]
        _, ids, accepted, states, _ = algorithm.run(runner, batch, states)
    else:
        algorithm.run(runner, batch)
        ids, states = batch.input_ids.view(len(running), -1).tolist(), [None] * len(running)
        accepted = [block] * len(running)
    for request, tokens, done, state in zip(running, ids, accepted, states, strict=True):
        request.ids, request.state = tokens, state
        request.passes[-1] += runner.passes
        assert request.passes[-1] <= _PASSES * block + 32
        if done:
            _take(request, block, stops)


def _take(request: Request, block: int, stops: Any) -> None:
    """Take a finished block, as SGLang's scheduler does."""
    request.output += request.ids[request.prompt + len(request.output) - _first(request, block) :]
    request.ids = []
    failed = request.grammar is not None and request.grammar.check() is not None
    stop = next((i for i, token in enumerate(request.output) if token in stops), None)
    request.ended = failed or stop is not None or len(request.output) >= request.budget
    if request.ended:
        request.output = request.output[: request.budget if stop is None else stop]
