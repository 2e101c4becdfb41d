"""Whether a constrained request can be served, and what the worker needs for it.

Knows prompts as tokens, and vLLM's parameters by the names of a few attributes; no vLLM.

The spec of a request's answer, read from vLLM's sampling parameters.

Data of a constrained request, passed from the front end to the worker in `extra_args`.

The vocabulary of a model that vLLM serves, as grammars see it.
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
from dlm.policy import Policy

KEY = "dlm"  # in `extra_args`; a client's own is refused
TOOLS = "dlm_tools"  # in `vllm_xargs`, on the way from the tool parser; likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """A compiled constraint. All of it is plain data: it travels between processes."""

    rules: bytes  # `Compiled.packed`
    thinking: bool  # reasoning may come first
    thinking_budget: int | None  # tokens of reasoning; None: as many as leave room for the answer
    top_k: int  # 0: all tokens
    top_p: float
    failed: int  # a token that no answer begins with: a canvas of it says that the worker failed

    def data(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, extra_args: Mapping[str, Any] | None) -> Self | None:
        """The payload among a request's `extra_args`, if there is one."""
        found = (extra_args or {}).get(KEY)
        return None if found is None else cls(**found)


class ToolsText(str):
    """The tools of a body as JSON. A client's text is a `str`, and no `ToolsText`."""

    __slots__ = ()


_FIELDS = (*OUTPUTS, "whitespace_pattern")
_FLAGS = "disable_any_whitespace disable_additional_properties".split()
_UNDERSTOOD = frozenset(("diffusion_max_steps",))  # of vLLM's own `diffusion_` options


def spec_of(params: Any, policy: Policy) -> Spec | None:
    """The spec that `params` ask for; None: the text is free. Raises `RequestError`."""
    outputs, tools = params.structured_outputs, (params.extra_args or {}).get(TOOLS)
    body: dict[str, Any] = {} if tools is None else json.loads(tools)
    if outputs is not None:
        values = {name: getattr(outputs, name, None) for name in _FIELDS}
        flags = {name: True for name in _FLAGS if getattr(outputs, name, False)}
        given = {name: value for name, value in values.items() if value is not None}
        body["structured_outputs"] = given | flags
    return constraint_of(body, policy) if body else None


def has_constraint(params: Any) -> bool:
    """Whether `params` ask for anything. Raises `RequestError` for tools that a client forged."""
    tools = (params.extra_args or {}).get(TOOLS)
    if tools is not None and not isinstance(tools, ToolsText):
        raise forged_tools()
    return tools is not None or params.structured_outputs is not None


def forged_tools() -> RequestError:
    """Return what to raise where a client sends the key that the plugin has tools under."""
    return RequestError(f"vllm_xargs.{TOOLS} is not a client's to send: use tools")


def check_options(params: Any) -> None:
    """Raises `RequestError` for options that would cut an answer off, or have it go on."""
    for name, why in (
        ("ignore_eos", "the answer ends where its constraint does"),
        ("stop", "a text that stops the answer would leave it incomplete"),
        ("stop_token_ids", "a token that stops the answer would leave it incomplete"),
        ("repetition_detection", "it would leave the answer incomplete"),
        ("trace_decode_token_ids", "the answer is generated"),
    ):
        if getattr(params, name, None):
            raise RequestError(f"{name} beside a constraint is not supported: {why}")
    for name, value in (params.extra_args or {}).items():
        if name.startswith("diffusion_") and name not in _UNDERSTOOD and value:
            raise RequestError(f"{name} beside a constraint is not supported")


_THINK = "<|think|>"  # in a prompt whose answer may begin with reasoning
_LOOKS = 100  # steps' work that may be done to know whether an answer fits its budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """Additions to a request that is admitted."""

    payload: Payload
    suffix: list[int]  # tokens that its prompt ends with, so that the answer begins behind it


class FrontEndAdmission:
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


def vocabulary_of(model_config: Any, tokenizer: Any) -> Vocabulary:
    """Stop tokens are those of the model's generation config, as vLLM ends answers.

    Raises `DlmError` for a model that says too little.
    """
    settings = model_config.try_get_generation_config() or {}
    stops = settings.get("eos_token_id", getattr(tokenizer, "eos_token_id", None))
    if stops is None:
        raise DlmError("the model's generation config has no eos_token_id: no text could end")
    stops = (stops,) if isinstance(stops, int) else tuple(stops)
    pad = getattr(tokenizer, "pad_token_id", None)
    if pad is None or pad in stops:
        raise DlmError(f"the tokenizer's pad token is {pad}: it takes one that is no stop token")
    return Vocabulary.from_tokenizer(tokenizer, model_config.get_vocab_size(), stops, pad)
