"""Front end of vLLM that checks and compiles constrained requests, and passes them to the worker.

A request is compiled in another process before vLLM's event loop passes it on; the loop serves
other requests meanwhile.
"""

# pyright: reportMissingImports=false

import asyncio
import copy
import functools
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from dlm.errors import DlmError, RequestError, failure
from dlm.grammar import CrashError, GrammarError, Task
from dlm.integrations.vllm.admission import (
    KEY,
    RESPONSES,
    TOOLS,
    Admitted,
    FrontEndAdmission,
    ToolsText,
    check_options,
    forged_tools,
    has_constraint,
    vocabulary_of,
)
from dlm.integrations.vllm.needs import Function, wrap
from dlm.policy import Policy

_ATTRIBUTE = "_dlm_front_end"  # attribute of an InputProcessor

T = TypeVar("T")


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

    def has_constraint(self, params: Any) -> bool:
        """Whether `params` have a constraint. Raises `RequestError` for options that are refused
        beside it."""
        extra = params.extra_args or {}
        if KEY in extra and not isinstance(extra[KEY], Admitted):
            raise RequestError(f"{KEY} among extra_args is not a client's to send")
        if KEY in extra:
            return True
        if not has_constraint(params):
            return False
        check_options(params)
        return True

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


def install() -> None:
    """Wrap the methods through which requests enter this process's vLLM. Calling it again changes
    nothing."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    from vllm.sampling_params import SamplingParams
    from vllm.tool_parsers.gemma4_engine_tool_parser import Gemma4EngineToolParser
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.input_processor import InputProcessor

    wrap(InputProcessor, "__init__", _wrap_init)
    wrap(InputProcessor, "process_inputs", functools.partial(_wrap_process_inputs, SamplingParams))
    wrap(AsyncLLM, "add_request", functools.partial(_wrap_add_request, SamplingParams))
    adjust = functools.partial(_wrap_adjust_request, ChatCompletionRequest, ResponsesRequest)
    wrap(Gemma4EngineToolParser, "adjust_request", adjust)


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
            constrained = front_end.has_constraint(params)
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
                constrained = front_end.has_constraint(params)
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
                    raise forged_tools()
            request.vllm_xargs = {**extra, TOOLS: ToolsText(json.dumps(body))}
        return request

    return adjust_request


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
