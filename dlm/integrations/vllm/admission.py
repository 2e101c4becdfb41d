"""Admission of constrained requests in vLLM's front end.

`spec_of` reads the spec of an answer from vLLM's sampling parameters, `FrontEndAdmission` checks
that it can be served, and a `Payload` goes to the worker in `extra_args`. This module knows prompts
as tokens and parameters of vLLM by a few attributes; it does not import vLLM.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from threading import Lock
from typing import Any, Self

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
from dlm.openai.constraint import constraint_of
from dlm.openai.responses import response_constraint_of
from dlm.policy import Policy

KEY = "dlm"  # of the payload in `extra_args`; refused from clients
TOOLS = "dlm_tools"  # of the tools that the tool parser puts in `vllm_xargs`; refused from clients


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """A compiled constraint, as plain data that is sent to another process."""

    rules: bytes  # `Compiled.packed`
    thinking: bool  # reasoning may come first
    thinking_budget: int | None  # most tokens of reasoning; None: no bound of its own
    top_k: int  # 0: all tokens
    top_p: float
    failed: int  # token that begins no answer: a canvas of it means that the worker failed

    def data(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, extra_args: Mapping[str, Any] | None) -> Self | None:
        """Return the payload among a request's `extra_args`; None if there is none."""
        found = (extra_args or {}).get(KEY)
        return None if found is None else cls(**found)


RESPONSES = "responses"  # a field of `ToolsText`: whether the tools have the form of Responses


class ToolsText(str):
    """Fields of a body about tools, as JSON. Its type tells it from a client's text, which is a
    plain `str`."""

    __slots__ = ()


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
    """Whether `params` have tools or a constraint. Raises `RequestError` for tools that a client
    sends under the plugin's key."""
    tools = (params.extra_args or {}).get(TOOLS)
    if tools is not None and not isinstance(tools, ToolsText):
        raise forged_tools()
    return tools is not None or params.structured_outputs is not None


def forged_tools() -> RequestError:
    """Return the error for a client that sends the plugin's key for tools."""
    return RequestError(f"vllm_xargs.{TOOLS} is not a client's to send: use tools")


def check_options(params: Any) -> None:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """Additions to an admitted request."""

    payload: Payload
    suffix: list[int]  # tokens appended to its prompt, an empty thought channel


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
