"""Admission of constrained requests: their specs are compiled and checked against their budgets.

Prompts are known as tokens, parameters of vLLM by a few attributes.
"""

from collections.abc import Collection, Sequence
from dataclasses import astuple, replace
from threading import Lock
from typing import Any

from dlm.call_form import call_form
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
from dlm.grammar.calls import MARKUPS
from dlm.integrations.vllm.own import GEMMA, OwnModel
from dlm.integrations.vllm.payload import TOOLS, Admitted, Payload, Reading, ToolsText
from dlm.integrations.vllm.requested import UnenforcedError
from dlm.policy import Policy

_THINK = "<|think|>"  # token of a prompt whose answer may begin with reasoning
_WITHOUT_QUOTES = (  # of texts: why a reader may take other arguments than were written
    "this model writes texts without quotes: no argument may be either a text or an array or "
    "object, and what one argument may be must not depend on another (anyOf, oneOf, not, if or "
    "dependentSchemas of all arguments)"
)
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
        self._model, self._markers = model, Reasoning.of(vocabulary)
        self._squeezed = spare_tokens(vocabulary, () if mask is None else (mask,))
        self._compiler = Compiler(vocabulary, seconds=policy.compile_seconds)
        self._lock = Lock()  # a compiled grammar must not be used by several threads at once

    @property
    def form(self) -> str | None:
        """The form of the model's calls; None: none that is known."""
        return self._vocabulary.calls

    def compile(self, spec: Spec) -> Task:
        return self._compiler.submit(spec)

    def admit(
        self,
        compiled: Compiled,
        spec: Spec,
        params: Any,
        prompt: Sequence[int],
        max_model_len: int,
        thinking: bool | None,
    ) -> Admitted:
        """Check that the answer fits. `thinking`: whether the client asks for reasoning; None: it
        does not say. Raises `RequestError` and `GrammarError`."""
        if not compiled.enforced:
            raise _unenforced(spec)
        reasoning = self._reasoning(params, prompt, thinking)
        suffix = [] if reasoning is not None else self._chat.no_thought_after(prompt)
        budget = max_model_len - len(prompt) - len(suffix)
        if budget < 1:
            raise RequestError(
                f"{len(prompt)} tokens of prompt leave no room for an answer in {max_model_len}"
            )
        if params.max_tokens is not None:
            budget = min(params.max_tokens, budget)
        self._check_budget(compiled, budget, reasoning)
        payload = Payload(
            rules=compiled.packed,
            thinking=reasoning is not None,
            thinking_budget=None if reasoning is None else reasoning.budget,
            opened=reasoning is not None and reasoning.opened,
            top_k=max(0, params.top_k),
            top_p=params.top_p,
            failed=self._vocabulary.pad,
            stops=list(self._vocabulary.stops),
            squeezed=self._squeezed,
        )
        return Admitted(payload=payload, suffix=suffix)

    def _reasoning(
        self, params: Any, prompt: Sequence[int], thinking: bool | None
    ) -> Reasoning | None:
        """Return the reasoning that may come before the answer; None: there is none.

        A model of noise reasons if its prompt says so by a token. A model of masks does if the
        prompt has opened the reasoning, unless the client asks for none: then it is closed at once.
        If the client asks for it, the model may open it itself.
        """
        markers = self._markers
        if markers is None:
            return None
        markers = replace(markers, budget=params.thinking_token_budget)
        if not self._model.masked:
            return markers if self._think is not None and self._think in prompt else None
        markers = markers.after(prompt)
        return markers.constrained(markers.opened if thinking is None else thinking)

    def expect_answer(self, spec: Spec, params: Any, admitted: Admitted) -> None:
        """Note in the request's tools how its answer is read, unless vLLM reads it."""
        tools = (params.extra_args or {}).get(TOOLS)
        if isinstance(tools, ToolsText) and (spec.calls or self._model.masked):
            payload, reasoning = admitted.payload, None
            if payload.thinking and self._markers is not None:
                reasoning = replace(self._markers, opened=payload.opened)
            tools.reading = Reading(self._vocabulary, spec, reasoning, self._model.markup)

    def close(self) -> None:
        """End the processes that compile."""
        self._compiler.close()

    def _check_budget(self, compiled: Compiled, budget: int, reasoning: Reasoning | None) -> None:
        if reasoning is not None:
            reasoning = replace(reasoning, reserve=self.policy.reserve(budget))
        work = self.policy.step_work * _STEPS
        with self._lock:
            try:
                Frontier(compiled, budget, reasoning, work)
            except Unfinished as error:
                raise LimitError(
                    f"finding out whether an answer fits {budget} tokens takes too long: "
                    "max_tokens may be too small"
                ) from error


def _unenforced(spec: Spec) -> RequestError:
    """Return the error for a spec whose grammar allows more than the spec does."""
    late = "only the finished answer could be checked, and vLLM has streamed it by then"
    if not isinstance(spec, Tools):
        return RequestError(f"this constraint requires more than a grammar can enforce: {late}")
    exact = spec.format is None or MARKUPS[spec.format].exact
    return UnenforcedError(
        f"tools require more than a grammar can enforce: {late}", "" if exact else _WITHOUT_QUOTES
    )


def reasoning_of(
    vocabulary: Vocabulary, policy: Policy, budget: int, payload: Payload
) -> Reasoning | None:
    """Return the reasoning before an answer of `budget` tokens in all; None: there is none."""
    markers = Reasoning.of(vocabulary, payload.thinking_budget) if payload.thinking else None
    if markers is None:
        return None
    return replace(markers, opened=payload.opened, reserve=policy.reserve(budget))


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
    config, at which vLLM ends answers. If the model's markup has no tokens of calls, their form is
    that of the tokenizer's chat template. Raises `DlmError` without a stop token or a pad token."""
    settings = model_config.try_get_generation_config() or {}
    stops = settings.get("eos_token_id", getattr(tokenizer, "eos_token_id", None))
    if stops is None:
        raise DlmError("the model's generation config has no eos_token_id: no text could end")
    stops = (stops,) if isinstance(stops, int) else tuple(stops)
    pad = getattr(tokenizer, "pad_token_id", None) if model.pad is None else model.pad
    if pad is None or pad in stops:
        raise DlmError(f"the tokenizer's pad token must not be a stop token, got {pad}")
    mask = model.mask(model_config)
    size, markup = model_config.get_vocab_size(), model.markup
    if mask is None:
        return Vocabulary.from_tokenizer(tokenizer, size, stops, pad)
    return Vocabulary.from_tokenizer(
        tokenizer,
        size,
        stops,
        pad,
        thought=markup.thought,
        call=markup.call,
        control=(mask,),
        calls=call_form(Chat(tokenizer, markup=markup)),
    )
