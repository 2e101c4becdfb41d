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
    """SGLang's runner of a model, and that model, which counts passes."""

    embed_scale = 1.0

    def __init__(self, model: Weightless, requests: Sequence[Request], algorithm: Any):
        self._model, self._requests, self._algorithm = model, requests, algorithm
        self._block, self._mask = algorithm.block_size, algorithm.mask_id
        size = model.size
        self.weight = torch.zeros(size, 1)  # of the embeddings
        config = SimpleNamespace(text_config=SimpleNamespace(vocab_size=size))
        self.model, self.model_config = self, SimpleNamespace(hf_config=config)
        self.passes = 0

    def get_input_embeddings(self) -> "Runner":
        return self

    def prepare_dllm_input_embeds(self, input_ids: torch.Tensor, signal: Any) -> None:
        """Make no embeddings: logits are drawn."""

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
        first = _first(request, self._algorithm) - request.prompt
        written, holes, rows = list(request.output), 0, []
        for position, token in enumerate(ids, first):
            rows.append(self._model.row(request.key, position, holes, written))
            holes += token == self._mask
            if not holes and position >= len(request.output):
                written.append(token)
        return rows


def _first(request: Request, algorithm: Any) -> int:
    """Return where the request's next block begins: a canvas of noise after all that is written."""
    written = request.prompt + len(request.output)
    if algorithm.requires_separate_context_encoding:
        return written
    return written // algorithm.block_size * algorithm.block_size


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
                begin = _first(request, algorithm)
                before = [request.key + 300] * request.prompt + request.output
                tail = before[begin:]
                request.ids = tail + [algorithm.mask_id] * (algorithm.block_size - len(tail))
                request.passes.append(0)
        _round(algorithm, running, model, stops)


def _round(algorithm: Any, running: Sequence[Request], model: Weightless, stops: Any) -> None:
    block = algorithm.block_size
    runner = Runner(model, running, algorithm)
    batch = SimpleNamespace(
        batch_size=len(running),
        input_ids=torch.tensor([token for request in running for token in request.ids]),
        forward_mode=SimpleNamespace(is_dllm_extend=lambda: True),
        dllm_prompt_mask=None,
        dllm_input_preparation_state=None,
        rids=[str(request.key) for request in running],
        extend_prefix_lens_cpu=[_first(request, algorithm) for request in running],
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
        assert request.passes[-1] <= _PASSES * block + 96
        if done:
            _take(request, algorithm, stops)


def _take(request: Request, algorithm: Any, stops: Any) -> None:
    """Take a finished block, as SGLang's scheduler does."""
    written = request.prompt + len(request.output) - _first(request, algorithm)
    request.output += request.ids[written:]
    request.ids = []
    failed = request.grammar is not None and request.grammar.check() is not None
    stop = next((i for i, token in enumerate(request.output) if token in stops), None)
    request.ended = failed or stop is not None or len(request.output) >= request.budget
    if request.ended:
        request.output = request.output[: request.budget if stop is None else stop]
