"""Check of a constrained algorithm when a scheduler starts: one small constraint, made-up logits.

SGLang's algorithm is driven as its worker drives it, for two requests: the passes to the end of an
answer, and one in which a constrained block is held. Knows no class of SGLang's.
"""

from types import SimpleNamespace
from typing import Any

import torch

from dlm.errors import DlmError
from dlm.grammar import Choice, Compiled, Unfinished
from dlm.integrations.sglang.algorithms import Constrained
from dlm.integrations.sglang.grammar import RequestGrammar
from dlm.policy import Policy

WORDS = Choice(["yes", "no"])
_ROWS = 2  # requests: the second one is free
_BUDGET = 32  # tokens of the answer, its stop included
_PASSES = 16  # for each position of a block, with those that edit it


class _HoldingGuide:
    """Guide whose grammars all need another step."""

    def guide_(self, logits: torch.Tensor, canvases: list[Any]) -> list[Exception]:
        return [Unfinished("a check") for _ in canvases]


class _FlatModel:
    """A model and its runner, whose logits are all zeros."""

    embed_scale = 1.0

    def __init__(self, vocab_size: int, device: str):
        self._vocab_size = vocab_size
        self.weight = torch.zeros(vocab_size, 1, device=device)  # of the embeddings
        config = SimpleNamespace(text_config=SimpleNamespace(vocab_size=vocab_size))
        self.model, self.model_config = self, SimpleNamespace(hf_config=config)

    def get_input_embeddings(self) -> "_FlatModel":
        return self

    def prepare_dllm_input_embeds(self, input_ids: torch.Tensor, signal: Any) -> None:
        """Make no embeddings: logits do not depend on them."""

    def forward(self, batch: Any, pp_proxy_tensors: Any = None) -> Any:
        ids = batch.input_ids
        logits = torch.zeros(len(ids), self._vocab_size, device=ids.device)
        return SimpleNamespace(
            logits_output=SimpleNamespace(full_logits=logits), can_run_graph=False
        )


def check_algorithm(algorithm: Any, compiled: Compiled, vocab_size: int, device: str) -> None:
    """Raise `DlmError`, or any error of the algorithm, if `algorithm` does not unmask a text of
    `WORDS`, whose grammar is `compiled`."""
    if not isinstance(algorithm, Constrained):
        raise DlmError(f"{type(algorithm).__name__} has no constraints")
    output: list[int] = []
    grammar = _bound(compiled, output)
    runner, stops = _FlatModel(vocab_size, device), compiled.vocabulary.stops
    while not set(stops).intersection(output) and len(output) < _BUDGET:
        output += _block(algorithm, _batch(algorithm, grammar, len(output), device), runner)[0]
        if (error := grammar.check()) is not None:
            raise error
    end = next((i for i, token in enumerate(output) if token in stops), len(output))
    WORDS.value(compiled.vocabulary.text(output[:end]))
    _check_held(algorithm, _batch(algorithm, _bound(compiled, []), 0, device), runner)


def _bound(compiled: Compiled, output: list[int]) -> RequestGrammar:
    """Return the constraint of a request that has written `output`."""
    grammar = RequestGrammar(compiled, Policy(), None)
    grammar.bind(0, lambda: output, _BUDGET)
    return grammar


def _batch(algorithm: Any, grammar: RequestGrammar, prefix: int, device: str) -> Any:
    count = _ROWS * algorithm.block_size
    return SimpleNamespace(
        batch_size=_ROWS,
        input_ids=torch.full((count,), algorithm.mask_id, device=device),
        forward_mode=SimpleNamespace(is_dllm_extend=lambda: True),
        dllm_prompt_mask=None,
        dllm_input_preparation_state=None,
        rids=["constrained", "free"],
        extend_prefix_lens_cpu=[prefix] * _ROWS,
        sampling_info=SimpleNamespace(grammars=[grammar, None]),
    )


def _check_held(algorithm: Any, batch: Any, runner: _FlatModel) -> None:
    """Check that a block stays as it is while its grammar needs another step."""
    states, guide = algorithm.init_step_state(batch), algorithm._guide
    algorithm.prepare_inputs(runner, batch, states)
    before = batch.input_ids.clone()
    algorithm._guide = _HoldingGuide()
    try:
        done = algorithm.step(batch, runner.forward(batch).logits_output.full_logits, states)
    finally:
        algorithm._guide = guide
    block = slice(0, algorithm.block_size)
    if done[0] or not batch.input_ids[block].equal(before[block]):
        raise DlmError("a held block is changed")


def _block(algorithm: Any, batch: Any, runner: _FlatModel) -> list[list[int]]:
    """Return the finished blocks of a batch."""
    if not algorithm.fdfo:
        algorithm.run(runner, batch)
        return batch.input_ids.view(_ROWS, -1).tolist()
    states, most = None, _PASSES * algorithm.block_size
    finished: dict[int, list[int]] = {}  # of each request, the first block
    for _ in range(most):
        _, blocks, accepted, states, _ = algorithm.run(runner, batch, states)
        finished = {i: blocks[i] for i in range(_ROWS) if accepted[i]} | finished
        if len(finished) == _ROWS:
            return [finished[i] for i in range(_ROWS)]
    raise DlmError(f"a block is not finished after {most} passes")
