"""Front end of vLLM: constrained requests are checked, compiled, and passed to the worker.

`spec_of` reads the spec of an answer from vLLM's sampling parameters. `FrontEndAdmission` checks
that it can be served, and `FrontEnd` does that for vLLM: a request is compiled in another process
before the event loop passes it on, and the loop serves other requests meanwhile. A `Payload` goes
to the worker in `extra_args`. `install` wraps the functions of vLLM that requests pass, and the one
by which the scheduler ends those that failed in the worker. Prompts are known as tokens, parameters
of vLLM by a few attributes.
"""

# pyright: reportMissingImports=false

import asyncio
import copy
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from threading import Lock
from typing import Any, Self, TypeVar

from dlm.chat import Chat
from dlm.errors import DlmError, RequestError, failure
from dlm.grammar import (
    Compiled,
    Compiler,
    CrashError,
    Frontier,
    GrammarError,
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

T = TypeVar("T")

KEY = "dlm"  # of the payload in `extra_args`; refused from clients
TOOLS = "dlm_tools"  # of the tools that the tool parser puts in `vllm_xargs`; refused from clients
_ATTRIBUTE = "_dlm_front_end"  # attribute of an InputProcessor


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """Additions to an admitted request."""

    payload: Payload
    suffix: list[int]  # tokens appended to its prompt, an empty thought channel


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
    """Whether `params` have tools or a constraint. Raises `RequestError` for the plugin's keys from
    a client, and for options that are refused beside a constraint."""
    extra = params.extra_args or {}
    if KEY in extra:
        if not isinstance(extra[KEY], Admitted):
            raise RequestError(f"{KEY} among extra_args is not a client's to send")
        return True
    tools = extra.get(TOOLS)
    if tools is not None and not isinstance(tools, ToolsText):
        raise _forged_tools()
    if tools is None and params.structured_outputs is None:
        return False
    _check_options(params)
    return True


def _forged_tools() -> RequestError:
    """Return the error for a client that sends the plugin's key for tools."""
    return RequestError(f"vllm_xargs.{TOOLS} is not a client's to send: use tools")


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


class FrontEnd:
    """Admission for one InputProcessor, built in the background while the model loads."""

    def __init__(self, vllm_config: Any, tokenizer: Any):
        self._vllm_config, self._model_config = vllm_config, vllm_config.model_config
        self._threads = ThreadPoolExecutor(2, "dlm-admission")
        # A call changes vLLM's own tokenizer, so other threads need a copy.
        own = copy.deepcopy(tokenizer)
        self._admission: Future[FrontEndAdmission] = self._threads.submit(self._build, own)

    def _build(self, tokenizer: Any) -> FrontEndAdmission:
        parallel = self._vllm_config.parallel_config
        if getattr(parallel, "enable_batch_sharded_sampling", False):
            raise RequestError("constraints are not served with batch-sharded sampling")
        if tokenizer is None:
            raise RequestError("constraints are not served without a tokenizer")
        policy = Policy.server(allow_client_grammars=True, flags=False)
        return FrontEndAdmission(vocabulary_of(self._model_config, tokenizer), tokenizer, policy)

    def admit(self, params: Any, prompt: Sequence[int] | None) -> Admitted | None:
        """Compile and check the constraint, and wait for that; None if the text is free."""
        if prompt is None:
            raise RequestError("a constraint beside prompt_embeds is not supported")
        admission = self._admission.result()
        spec = admission.spec(params)
        if spec is None:
            return None
        compiled = admission.compile(spec).result()
        return admission.admit(compiled, params, prompt, self._model_config.max_model_len)

    async def admit_later(self, params: Any, prompt: Sequence[int]) -> Admitted | None:
        """Admit as `admit` does, without blocking the event loop."""
        run = functools.partial(asyncio.get_running_loop().run_in_executor, self._threads)
        admission = await _shielded(self._admission)
        spec = await run(admission.spec, params)
        if spec is None:
            return None
        compiled = await _waited(admission.compile(spec))
        most = self._model_config.max_model_len
        return await run(admission.admit, compiled, params, prompt, most)


async def _waited(task: Task) -> Any:
    """Return the result of `task`. If this waiter is cancelled, the task goes on for others."""
    try:
        return await _shielded(task)
    except asyncio.CancelledError:
        task.leave()
        raise


def _shielded(future: Future[T]) -> asyncio.Future[T]:
    """Return an awaitable of `future` that does not cancel it. Its error is read by a callback,
    since asyncio would log it if no waiter remained."""
    inner = asyncio.wrap_future(future)
    inner.add_done_callback(lambda done: done.cancelled() or done.exception())
    return asyncio.shield(inner)


_MARK = "wrapped_by_dlm"  # attribute of a function that the plugin has put in its place

Function = Callable[..., Any]


def wrap(owner: type, name: str, make: Callable[[Function], Function]) -> None:
    """Put what `make` makes of the method `name` of `owner` in its place, once, however often it is
    called."""
    original = getattr(owner, name)
    if not hasattr(original, _MARK):
        wrapper = functools.wraps(original)(make(original))
        setattr(wrapper, _MARK, True)
        setattr(owner, name, wrapper)


def install() -> None:
    """Wrap the methods of this process's vLLM through which requests enter, and the one that reads
    what the worker emits. Calling it again changes nothing."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    from vllm.sampling_params import SamplingParams
    from vllm.tool_parsers.gemma4_engine_tool_parser import Gemma4EngineToolParser
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.structured_output import StructuredOutputManager

    wrap(InputProcessor, "__init__", _wrap_init)
    wrap(InputProcessor, "process_inputs", functools.partial(_wrap_process_inputs, SamplingParams))
    wrap(AsyncLLM, "add_request", functools.partial(_wrap_add_request, SamplingParams))
    adjust = functools.partial(_wrap_adjust_request, ChatCompletionRequest, ResponsesRequest)
    wrap(Gemma4EngineToolParser, "adjust_request", adjust)
    wrap(StructuredOutputManager, "accept_tokens", _wrap_accept_tokens)


def _wrap_init(original: Function) -> Function:
    def init(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        original(self, vllm_config, *args, **kwargs)
        if self.model_config.is_diffusion:
            setattr(self, _ATTRIBUTE, FrontEnd(vllm_config, self.tokenizer))

    return init


def _wrap_process_inputs(sampling: type, original: Function) -> Function:
    def process_inputs(
        self: Any, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any
    ) -> Any:
        front_end = getattr(self, _ATTRIBUTE, None)
        if not isinstance(params, sampling):
            return original(self, request_id, prompt, params, *args, **kwargs)
        if front_end is None:
            return original(self, request_id, prompt, _without_tools(params), *args, **kwargs)
        with _vllm_errors():
            constrained = has_constraint(params)
        if not constrained:
            return original(self, request_id, prompt, params, *args, **kwargs)
        admitted = (params.extra_args or {}).get(KEY)
        request = original(self, request_id, prompt, _stripped(params), *args, **kwargs)
        if admitted is None:
            with _vllm_errors():
                admitted = front_end.admit(params, request.prompt_token_ids)
        return _constrained(request, admitted)

    return process_inputs


def _wrap_add_request(sampling: type, original: Function) -> Function:
    async def add_request(
        self: Any, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any
    ) -> Any:
        front_end = getattr(self.input_processor, _ATTRIBUTE, None)
        # vLLM tokenizes raw prompts in a thread of its own, where `process_inputs` admits them.
        rendered = isinstance(prompt, dict) and "type" in prompt
        tokens = prompt.get("prompt_token_ids") if rendered else None
        if front_end is not None and tokens is not None and isinstance(params, sampling):
            with _vllm_errors():
                constrained = has_constraint(params)
                admitted = await front_end.admit_later(params, tokens) if constrained else None
            if admitted is not None:
                params = _stripped(params)
                params.extra_args = {**(params.extra_args or {}), KEY: admitted}
        return await original(self, request_id, prompt, params, *args, **kwargs)

    return add_request


def _wrap_adjust_request(chat: type, responses: type, original: Function) -> Function:
    """Add the tools to the request: vLLM's parser of Gemma's calls adds no constraint itself."""

    def adjust_request(self: Any, request: Any) -> Any:
        request = original(self, request)
        if (
            isinstance(request, (chat, responses))
            and request.tools
            and request.tool_choice != "none"
        ):
            fields = {"tools", "tool_choice", "parallel_tool_calls"}
            body = request.model_dump(mode="json", include=fields, exclude_none=True)
            body[RESPONSES] = isinstance(request, responses)
            extra: dict[str, Any] = dict(request.vllm_xargs or {})
            with _vllm_errors():
                if TOOLS in extra:
                    raise _forged_tools()
            request.vllm_xargs = {**extra, TOOLS: ToolsText(json.dumps(body))}
        return request

    return adjust_request


def _wrap_accept_tokens(original: Function) -> Function:
    """Refuse canvases of failed requests. The worker can only emit tokens, so it emits a canvas of
    a token that no answer begins with, and the scheduler asks here whether a grammar takes it."""

    def accept_tokens(self: Any, request: Any, new_token_ids: list[int]) -> bool:
        return not has_failed(request, new_token_ids) and original(self, request, new_token_ids)

    return accept_tokens


def has_failed(request: Any, tokens: list[int]) -> bool:
    """Whether the worker says with `tokens` that it cannot go on with `request`."""
    payload = Payload.of(getattr(request.sampling_params, "extra_args", None))
    return payload is not None and tokens[:1] == [payload.failed]


def _without_tools(params: Any) -> Any:
    """Return `params` without the plugin's tools, for a model that is no diffusion model."""
    if not isinstance((params.extra_args or {}).get(TOOLS), ToolsText):
        return params
    return _without_extra(params, (TOOLS,))


def _stripped(params: Any) -> Any:
    """Return `params` without the constraint, so that vLLM neither refuses nor compiles it."""
    params = _without_extra(params, (KEY, TOOLS))
    params.structured_outputs = None
    return params


def _without_extra(params: Any, keys: Sequence[str]) -> Any:
    """Return a copy of `params` without `keys` among its `extra_args`."""
    params = params.clone()
    params.extra_args = {
        k: v for k, v in (params.extra_args or {}).items() if k not in keys
    } or None
    return params


def _constrained(request: Any, admitted: Admitted | None) -> Any:
    """Return `request` with what `admitted` adds; None adds nothing.

    Top-k and top-p move to the payload, since they apply after the constraint's masks.
    """
    if admitted is not None:
        request.prompt_token_ids = [*request.prompt_token_ids, *admitted.suffix]
        params = request.sampling_params
        params.extra_args = {**(params.extra_args or {}), KEY: admitted.payload.data()}
        params.top_k, params.top_p = 0, 1.0
    return request


@contextmanager
def _vllm_errors() -> Iterator[None]:
    """Turn a client's errors into vLLM's 400; log a bug of the plugin, which becomes its 500."""
    from vllm.exceptions import VLLMValidationError

    try:
        yield
    except CrashError as error:
        raise failure(error) from error
    except (RequestError, GrammarError) as error:
        raise VLLMValidationError(str(error)) from error
    except DlmError as error:
        raise VLLMValidationError(f"constraints are not served here: {error}") from error
