"""Hooks into vLLM: the functions that requests pass, and the one that reads what workers emit.

`install` wraps the functions of vLLM that requests pass, and the one by which the scheduler ends
those that failed in the worker.
"""

# pyright: reportMissingImports=false

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dlm.errors import DlmError, RequestError, failure
from dlm.grammar import CrashError, GrammarError
from dlm.integrations.vllm.admission import has_constraint
from dlm.integrations.vllm.calls import reads_calls, reads_deltas
from dlm.integrations.vllm.front_end import FrontEnd
from dlm.integrations.vllm.payload import (
    KEY,
    RESPONSES,
    TOOLS,
    Admitted,
    Payload,
    ToolsText,
    forged_tools,
)

_ATTRIBUTE = "_dlm_front_end"  # attribute of an InputProcessor
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
    from vllm.parser.abstract_parser import DelegatingParser
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
    wrap(DelegatingParser, "parse", reads_calls)
    wrap(DelegatingParser, "parse_delta", reads_deltas)
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
                    raise forged_tools()
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
