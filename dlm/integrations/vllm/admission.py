"""Admission of constrained requests: their specs are compiled and checked against their budgets.

Prompts are known as tokens, parameters of vLLM by a few attributes.
"""

from collections.abc import Collection, Sequence
from dataclasses import astuple, replace
from threading import Lock
from typing import Any

from dlm.chat import Chat
from dlm.errors import DlmError, RequestError
from dlm.grammar import (
    Compiled,
    Compiler,
    Frontier,
    LimitError,
    Reasoning,
    Spec,
    Task,
    Tools,
    Unfinished,
    Vocabulary,
)
from dlm.grammar.vocabulary import Marker
from dlm.integrations.vllm.own import GEMMA, OwnModel
from dlm.integrations.vllm.payload import TOOLS, Admitted, Payload, Reading, ToolsText
from dlm.integrations.vllm.requested import UnenforcedError
from dlm.policy import Policy

_THINK = "<|think|>"  # token of a prompt whose answer may begin with reasoning
_STEPS = 100  # as many steps' work may be spent on finding whether an answer fits its budget


class FrontEndAdmission:
    """Admission that compiles grammars in processes of its own; used from several threads."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        tokenizer: Any,
        policy: Policy,
        model: OwnModel = GEMMA,
        mask: int | None = None,
    ):
        """`mask` is the token of masked positions, if the model has any."""
        self._vocabulary, self.policy = vocabulary, policy
        self._chat = Chat(tokenizer, markup=model.markup)
        self._think = tokenizer.get_vocab().get(_THINK)
        self._opening = None  # of reasoning, if the model's may not come before an answer
        if model.masked and model.markup.thought is not None:
            self._opening = Marker(vocabulary.encode(model.markup.thought[0]), vocabulary)
        self._squeezed = spare_tokens(vocabulary, () if mask is None else (mask,))
        self._compiler = Compiler(vocabulary, seconds=policy.compile_seconds)
        self._lock = Lock()  # a compiled grammar must not be used by several threads at once

    def compile(self, spec: Spec) -> Task:
        return self._compiler.submit(spec)

    def admit(
        self,
        compiled: Compiled,
        spec: Spec,
        params: Any,
        prompt: Sequence[int],
        max_model_len: int,
    ) -> Admitted:
        """Check that the answer fits. Raises `RequestError` and `GrammarError`."""
        if compiled.checked:
            _check_enforced(spec)
        if self._opening is not None and self._opening.ends(prompt):
            raise RequestError(
                "a prompt that opens a reasoning beside a constraint is not supported for this "
                "model: its template must not ask for reasoning"
            )
        thinking = self._think is not None and self._think in prompt
        suffix = [] if thinking else self._chat.no_thought_after(prompt)
        budget = max_model_len - len(prompt) - len(suffix)
        if budget < 1:
            raise RequestError(
                f"{len(prompt)} tokens of prompt leave no room for an answer in {max_model_len}"
            )
        if params.max_tokens is not None:
            budget = min(params.max_tokens, budget)
        thinking_budget = params.thinking_token_budget if thinking else None
        self._check_budget(compiled, budget, thinking, thinking_budget)
        payload = Payload(
            rules=compiled.packed,
            thinking=thinking,
            thinking_budget=thinking_budget,
            top_k=max(0, params.top_k),
            top_p=params.top_p,
            failed=self._vocabulary.pad,
            stops=list(self._vocabulary.stops),
            squeezed=self._squeezed,
        )
        return Admitted(payload=payload, suffix=suffix)

    def expect_calls(self, spec: Spec, params: Any, admitted: Admitted) -> None:
        """Note in the request's tools how to read its answer, if the grammar writes the calls."""
        tools = (params.extra_args or {}).get(TOOLS)
        if spec.calls and isinstance(tools, ToolsText):
            thinking = admitted.payload.thinking
            reasoning = Reasoning.of(self._vocabulary) if thinking else None
            tools.reading = Reading(self._vocabulary, reasoning)

    def close(self) -> None:
        """End the processes that compile."""
        self._compiler.close()

    def _check_budget(
        self, compiled: Compiled, budget: int, thinking: bool, thinking_budget: int | None
    ) -> None:
        reasoning = None
        if thinking:
            reasoning = reasoning_of(self._vocabulary, self.policy, budget, thinking_budget)
        work = self.policy.step_work * _STEPS
        with self._lock:
            try:
                Frontier(compiled, budget, reasoning, work)
            except Unfinished as error:
                raise LimitError(
                    f"finding out whether an answer fits {budget} tokens takes too long: "
                    "max_tokens may be too small"
                ) from error


def _check_enforced(spec: Spec) -> None:
    """Raise `RequestError` for a spec whose grammar allows more than the spec does. The arguments
    of a tool that is not strict may, if no call of it is required."""
    late = "only the finished answer could be checked, and vLLM has streamed it by then"
    if not isinstance(spec, Tools):
        raise RequestError(f"this constraint requires more than a grammar can enforce: {late}")
    if spec.content is None and spec.named is None and spec.choice == "auto":
        return
    raise UnenforcedError(f"tools require more than a grammar can enforce: {late}")


def reasoning_of(
    vocabulary: Vocabulary, policy: Policy, budget: int, thinking_budget: int | None
) -> Reasoning | None:
    """Return the reasoning before an answer of `budget` tokens in all; None without markers."""
    made = Reasoning.of(vocabulary, thinking_budget)
    return None if made is None else replace(made, reserve=policy.reserve(budget))


def spare_tokens(vocabulary: Vocabulary, reserved: Collection[int] = ()) -> list[int]:
    """Return one token for each stop token that occurs in no answer: a control token that is no
    stop, no padding, no marker, and none of `reserved`. Raises `DlmError` if there are too few."""
    used = {vocabulary.pad, *vocabulary.stops, *reserved}
    if vocabulary.thought is not None:
        used |= {*vocabulary.thought.open, *vocabulary.thought.close}
    if vocabulary.call is not None:
        used |= {*astuple(vocabulary.call)}
    spare = sorted(vocabulary.control - used)[: len(vocabulary.stops)]
    if len(spare) < len(vocabulary.stops):
        raise DlmError(
            "the tokenizer must have a control token without a meaning in answers for each of "
            f"{len(vocabulary.stops)} stop tokens, got {len(spare)}"
        )
    return spare


def vocabulary_of(model_config: Any, tokenizer: Any, model: OwnModel = GEMMA) -> Vocabulary:
    """Return the vocabulary of a `model` that vLLM serves, with the stop tokens of its generation
    config, at which vLLM ends answers. Raises `DlmError` without a stop token or a pad token."""
    settings = model_config.try_get_generation_config() or {}
    stops = settings.get("eos_token_id", getattr(tokenizer, "eos_token_id", None))
    if stops is None:
        raise DlmError("the model's generation config has no eos_token_id: no text could end")
    stops = (stops,) if isinstance(stops, int) else tuple(stops)
    pad = getattr(tokenizer, "pad_token_id", None) if model.pad is None else model.pad
    if pad is None or pad in stops:
        raise DlmError(f"the tokenizer's pad token must not be a stop token, got {pad}")
    mask = model.mask(model_config)
    control = () if mask is None else (mask,)
    return Vocabulary.from_tokenizer(
        tokenizer, model_config.get_vocab_size(), stops, pad, control=control
    )
