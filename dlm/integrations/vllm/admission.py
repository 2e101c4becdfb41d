"""Admission of constrained requests: their specs are read, compiled, and checked.

`spec_of` reads the spec of an answer from vLLM's sampling parameters, and `FrontEndAdmission`
checks that it can be served. Prompts are known as tokens, parameters of vLLM by a few attributes.
"""

import json
from collections.abc import Sequence
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
    Unfinished,
    Vocabulary,
)
from dlm.integrations.vllm.needs import OUTPUTS
from dlm.integrations.vllm.payload import (
    KEY,
    RESPONSES,
    TOOLS,
    Admitted,
    Payload,
    Reading,
    ToolsText,
    forged_tools,
)
from dlm.openai.constraint import constraint_of
from dlm.openai.responses import response_constraint_of
from dlm.policy import Policy

_FIELDS = (*OUTPUTS, "whitespace_pattern")
_FLAGS = "disable_any_whitespace disable_additional_properties".split()
_SUPPORTED = frozenset(("diffusion_max_steps",))  # vLLM's `diffusion_` options with constraints


def spec_of(params: Any, policy: Policy) -> Spec | None:
    """Return the spec in `params`; None for free text. Raises `RequestError`."""
    outputs, tools = params.structured_outputs, (params.extra_args or {}).get(TOOLS)
    body: dict[str, Any] = {} if tools is None else json.loads(tools)
    read = response_constraint_of if body.pop(RESPONSES, False) else constraint_of
    if outputs is not None:
        values = {name: getattr(outputs, name, None) for name in _FIELDS}
        flags = {name: True for name in _FLAGS if getattr(outputs, name, False)}
        given = {name: value for name, value in values.items() if value is not None}
        body["structured_outputs"] = given | flags
    return read(body, policy) if body else None


def has_constraint(params: Any) -> bool:
    """Whether `params` have tools or a constraint. Raises `RequestError` for the plugin's keys from
    a client, and for options that are refused beside a constraint."""
    extra = params.extra_args or {}
    if KEY in extra:
        if not isinstance(extra[KEY], Admitted):
            raise RequestError(f"{KEY} among extra_args is not a client's to send")
        return True
    tools = extra.get(TOOLS)
    if tools is not None and not isinstance(tools, ToolsText):
        raise forged_tools()
    if tools is None and params.structured_outputs is None:
        return False
    _check_options(params)
    return True


def _check_options(params: Any) -> None:
    """Raise `RequestError` for options that would end an answer early, or let it go on."""
    for name, reason in (
        ("ignore_eos", "the answer ends where its constraint does"),
        ("stop", "a text that stops the answer would leave it incomplete"),
        ("stop_token_ids", "a token that stops the answer would leave it incomplete"),
        ("repetition_detection", "it would leave the answer incomplete"),
        ("trace_decode_token_ids", "the answer is generated"),
    ):
        if getattr(params, name, None):
            raise RequestError(f"{name} beside a constraint is not supported: {reason}")
    for name, value in (params.extra_args or {}).items():
        if name.startswith("diffusion_") and name not in _SUPPORTED and value:
            raise RequestError(f"{name} beside a constraint is not supported")


_THINK = "<|think|>"  # token of a prompt whose answer may begin with reasoning
_STEPS = 100  # as many steps' work may be spent on finding whether an answer fits its budget


class FrontEndAdmission:
    """Admission that compiles grammars in processes of its own; used from several threads."""

    def __init__(self, vocabulary: Vocabulary, tokenizer: Any, policy: Policy):
        self._vocabulary, self._policy = vocabulary, policy
        self._chat = Chat(tokenizer)
        self._think = tokenizer.get_vocab().get(_THINK)
        self._compiler = Compiler(vocabulary, seconds=policy.compile_seconds)
        self._lock = Lock()  # a compiled grammar must not be used by several threads at once

    def spec(self, params: Any) -> Spec | None:
        """Return the spec in `params`; None for free text. Raises `RequestError`."""
        return spec_of(params, self._policy)

    def compile(self, spec: Spec) -> Task:
        return self._compiler.submit(spec)

    def admit(
        self, compiled: Compiled, params: Any, prompt: Sequence[int], max_model_len: int
    ) -> Admitted:
        """Check that the answer fits. Raises `RequestError` and `GrammarError`."""
        if compiled.checked:
            raise RequestError(
                "this constraint requires more than a grammar can enforce: only the finished "
                "answer could be checked, and vLLM has streamed it by then"
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
        reasoning = Reasoning.of(self._vocabulary, thinking_budget) if thinking else None
        work = self._policy.step_work * _STEPS
        with self._lock:
            try:
                Frontier(compiled, budget, reasoning, work)
            except Unfinished as error:
                raise LimitError(
                    f"it takes too long to find out whether an answer fits {budget} tokens: "
                    "max_tokens may be too small"
                ) from error


def vocabulary_of(model_config: Any, tokenizer: Any) -> Vocabulary:
    """Return the vocabulary of a model that vLLM serves, with the stop tokens of its generation
    config, at which vLLM ends answers. Raises `DlmError` without a stop token or a pad token."""
    settings = model_config.try_get_generation_config() or {}
    stops = settings.get("eos_token_id", getattr(tokenizer, "eos_token_id", None))
    if stops is None:
        raise DlmError("the model's generation config has no eos_token_id: no text could end")
    stops = (stops,) if isinstance(stops, int) else tuple(stops)
    pad = getattr(tokenizer, "pad_token_id", None)
    if pad is None or pad in stops:
        raise DlmError(f"the tokenizer's pad token is {pad}: it takes one that is no stop token")
    return Vocabulary.from_tokenizer(tokenizer, model_config.get_vocab_size(), stops, pad)
