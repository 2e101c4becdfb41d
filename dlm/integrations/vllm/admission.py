"""Whether a constrained request can be served, and what the worker needs for it.

Knows prompts as tokens, and vLLM's parameters by the names of a few attributes; no vLLM.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from dlm.chat import Chat
from dlm.errors import RequestError
from dlm.grammar import (
    Compiled,
    Compiler,
    Frontier,
    LimitError,
    Reasoning,
    Spec,
    Task,
    Unfinished,
    Vocabulary,
)
from dlm.integrations.vllm.asked import spec_of
from dlm.integrations.vllm.payload import Payload
from dlm.policy import Policy

_THINK = "<|think|>"  # in a prompt whose answer may begin with reasoning
_LOOKS = 100  # steps' work that may be done to know whether an answer fits its budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """Additions to a request that is admitted."""

    payload: Payload
    suffix: list[int]  # tokens that its prompt ends with, so that the answer begins behind it


class Admission:
    """For any number of threads. Grammars are compiled in processes of their own."""

    def __init__(self, vocabulary: Vocabulary, tokenizer: Any, policy: Policy):
        self._vocabulary, self._policy = vocabulary, policy
        self._chat = Chat(tokenizer)
        self._think = tokenizer.get_vocab().get(_THINK)
        self._compiler = Compiler(vocabulary, seconds=policy.compile_seconds)
        self._looking = Lock()  # a compiled grammar is not for several threads at once

    def spec(self, params: Any) -> Spec | None:
        """The spec that `params` ask for. Raises `RequestError`."""
        return spec_of(params, self._policy)

    def compile(self, spec: Spec) -> Task:
        return self._compiler.submit(spec)

    def admit(
        self, compiled: Compiled, params: Any, prompt: Sequence[int], max_model_len: int
    ) -> Admitted:
        """Check that the answer fits. Raises `RequestError` and `GrammarError`."""
        if compiled.checked:
            raise RequestError(
                "this constraint asks for more than a grammar can say: only a check of the "
                "finished answer would tell, and vLLM has streamed it by then"
            )
        thinking = self._think is not None and self._think in prompt
        suffix = [] if thinking else self._chat.no_thought_after(prompt)
        room = max_model_len - len(prompt) - len(suffix)
        if room < 1:
            raise RequestError(
                f"{len(prompt)} tokens of prompt leave no room for an answer in {max_model_len}"
            )
        budget = room if params.max_tokens is None else min(params.max_tokens, room)
        thoughts = params.thinking_token_budget if thinking else None
        self._check_budget(compiled, budget, thinking, thoughts)
        payload = Payload(
            rules=compiled.packed,
            thinking=thinking,
            thinking_budget=thoughts,
            top_k=max(0, params.top_k),
            top_p=params.top_p,
            failed=self._vocabulary.pad,
        )
        return Admitted(payload=payload, suffix=suffix)

    def close(self) -> None:
        """End the processes that compile."""
        self._compiler.close()

    def _check_budget(
        self, compiled: Compiled, budget: int, thinking: bool, thoughts: int | None
    ) -> None:
        reasoning = Reasoning.of(self._vocabulary, thoughts) if thinking else None
        work = self._policy.step_work * _LOOKS
        with self._looking:
            try:
                Frontier(compiled, budget, reasoning, work)
            except Unfinished as error:
                raise LimitError(
                    f"it takes too long to know whether an answer fits {budget} tokens: "
                    "max_tokens may be too small"
                ) from error
