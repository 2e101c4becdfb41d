"""Hooks into vLLM: the functions that requests and answers pass.

`install` puts wrappers in their places. They run for every model that this vLLM serves, so each of
them looks first whether the object that it serves has a front end of the plugin, or the config of
one of the plugin's models (`own`). Otherwise it calls vLLM's own function with the arguments as
they are.
"""

# pyright: reportMissingImports=false

import functools
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from dlm.errors import DlmError, RequestError, failure
from dlm.grammar import CrashError, GrammarError
from dlm.integrations.vllm.calls import MessageClasses, reads_calls, reads_deltas, says_length
from dlm.integrations.vllm.front_end import FrontEnd
from dlm.integrations.vllm.own import TASK, OwnModel, own_model
from dlm.integrations.vllm.payload import (
    FIELD,
    KEY,
    RESPONSES,
    THINKING,
    TOOLS,
    Admitted,
    ToolsText,
    check_names,
)
from dlm.integrations.vllm.requested import has_constraint
from dlm.integrations.vllm.scheduler import ends_by_budget, refuses_failed

_LOG = logging.getLogger("vllm.dlm")
_FRONT_END = "_dlm_front_end"  # attribute of an InputProcessor
_OWN = "_dlm_own"  # attribute of a parser: the plugin's model whose answer it reads, if it is one
_THINKS = "_dlm_thinks"  # attribute of a parser: whether the client asks the template for reasoning
_MARK = "wrapped_by_dlm"  # attribute of a function that the plugin has put in its place

# Fields of bodies that constrain an answer.
_FORMATS = ("structured_outputs", "response_format", "text")

Function = Callable[..., Any]


class Hooks:
    """Functions of vLLM that were replaced, so that all can be put back."""

    def __init__(self) -> None:
        self._replaced: list[tuple[type, str, Any]] = []

    def wrap(self, owner: type, name: str, make: Callable[[Function], Function]) -> None:
        """Replace the method `name` of `owner` by what `make` makes of it; only the first time."""
        original = getattr(owner, name)
        if hasattr(original, _MARK):
            return
        wrapper = functools.wraps(original)(make(original))
        setattr(wrapper, _MARK, True)
        self._replaced.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, wrapper)

    def undo(self) -> None:
        """Put vLLM's own functions back."""
        while self._replaced:
            owner, name, own = self._replaced.pop()
            if own is None:
                delattr(owner, name)  # it was inherited
            else:
                setattr(owner, name, own)


def install() -> Hooks:
    """Wrap the methods of this process's vLLM through which requests and answers pass. Calling it
    again changes nothing. If one cannot be wrapped, none is."""
    hooks = Hooks()
    try:
        _install(hooks)
    except BaseException:
        hooks.undo()
        raise
    return hooks


def _install(hooks: Hooks) -> None:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    from vllm.parser.abstract_parser import DelegatingParser
    from vllm.sampling_params import SamplingParams
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.structured_output import StructuredOutputManager

    hooks.wrap(InputProcessor, "__init__", _makes_front_end)
    process = functools.partial(_admits, SamplingParams)
    hooks.wrap(InputProcessor, "process_inputs", process)
    hooks.wrap(AsyncLLM, "add_request", functools.partial(_admits_later, SamplingParams))
    for request in (ChatCompletionRequest, CompletionRequest, ResponsesRequest):
        hooks.wrap(request, "extract_structured_outputs", _names_field)
    hooks.wrap(DelegatingParser, "__init__", _notes_model)
    adjust = functools.partial(_passes_tools, ChatCompletionRequest, ResponsesRequest)
    hooks.wrap(DelegatingParser, "adjust_request", adjust)
    classes = MessageClasses.of_vllm()
    hooks.wrap(DelegatingParser, "parse", functools.partial(reads_calls, classes))
    hooks.wrap(DelegatingParser, "parse_delta", functools.partial(reads_deltas, classes))
    hooks.wrap(OpenAIServingChat, "chat_completion_full_generator", says_length)
    hooks.wrap(StructuredOutputManager, "accept_tokens", refuses_failed)
    hooks.wrap(Scheduler, "_update_request_with_output", ends_by_budget)


_FRONT_ENDS: WeakSet[FrontEnd] = WeakSet()  # of this process's engines


def _makes_front_end(original: Function) -> Function:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        config = getattr(self, "model_config", None)
        if (model := own_model(config)) is None:
            return
        try:
            front_end = FrontEnd(self.vllm_config, self.tokenizer, model)
        except Exception:
            _LOG.exception("dlm: constraints are not served")
            return
        setattr(self, _FRONT_END, front_end)
        _FRONT_ENDS.add(front_end)
        _LOG.info("dlm: constraints are served with %s", getattr(config, "model", "this model"))

    return init


def _admits(sampling: type, original: Function) -> Function:
    def process_inputs(self: Any, *args: Any, **kwargs: Any) -> Any:
        front_end = getattr(self, _FRONT_END, None)
        if front_end is None:
            return original(self, *args, **kwargs)
        return _processed(front_end, sampling, original, self, *args, **kwargs)

    return process_inputs


def _processed(
    front_end: FrontEnd,
    sampling: type,
    original: Function,
    processor: Any,
    request_id: str,
    prompt: Any,
    params: Any,
    supported_tasks: Any = (),
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Do vLLM's work for a request of an own model, with its constraint if it has one."""
    process = functools.partial(original, processor, request_id, prompt)
    if not isinstance(params, sampling):
        return process(params, supported_tasks, *args, **kwargs)
    with _vllm_errors():
        constrained = has_constraint(params)
    if not constrained:
        return process(params, supported_tasks, *args, **kwargs)
    admitted = (params.extra_args or {}).get(KEY)
    request = process(_stripped(params), supported_tasks, *args, **kwargs)
    if admitted is None:
        with _vllm_errors():
            served = TASK in supported_tasks
            admitted = front_end.admit(params, request.prompt_token_ids, served)
    return _constrained(request, admitted, front_end.model)


def _admits_later(sampling: type, original: Function) -> Function:
    async def add_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        front_end = getattr(getattr(self, "input_processor", None), _FRONT_END, None)
        if front_end is None:
            return await original(self, *args, **kwargs)
        return await _added(front_end, sampling, original, self, *args, **kwargs)

    return add_request


async def _added(
    front_end: FrontEnd,
    sampling: type,
    original: Function,
    engine: Any,
    request_id: str,
    prompt: Any,
    params: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Add a request of an own model, after its constraint was admitted."""
    # vLLM tokenizes raw prompts in a thread of its own, where `process_inputs` admits them.
    rendered = isinstance(prompt, dict) and "type" in prompt
    tokens = prompt.get("prompt_token_ids") if rendered else None
    if tokens is not None and isinstance(params, sampling):
        with _vllm_errors():
            if has_constraint(params):
                served = TASK in await engine.get_supported_tasks()
                admitted = await front_end.admit_later(params, tokens, served)
                params = _stripped(params)
                if admitted is not None:
                    params.extra_args = {**(params.extra_args or {}), KEY: admitted}
    return await original(engine, request_id, prompt, params, *args, **kwargs)


def _names_field(original: Function) -> Function:
    """Note from which field of a body vLLM takes a constraint, for errors about it."""

    def extract_structured_outputs(self: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = original(self, *args, **kwargs)
        if _FRONT_ENDS and outputs is not None and outputs is not self.structured_outputs:
            field = "text.format" if hasattr(self, "text") else "response_format"
            setattr(outputs, FIELD, field)
        return outputs

    return extract_structured_outputs


def _notes_model(original: Function) -> Function:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if (model := own_model(kwargs.get("model_config"))) is not None:
            setattr(self, _OWN, model)
            switches = kwargs.get("chat_template_kwargs") or {}
            setattr(self, _THINKS, switches.get("enable_thinking"))

    return init


def _passes_tools(chat: type, responses: type, original: Function) -> Function:
    """Add the tools to the request, instead of a constraint that vLLM's parser makes of them."""

    def adjust_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        model: OwnModel | None = getattr(self, _OWN, None)
        if model is None or not isinstance(request, (chat, responses)):
            return original(self, request, *args, **kwargs)
        with _vllm_errors():
            check_names(request.vllm_xargs)
        offered = bool(request.tools) and request.tool_choice != "none"
        called = offered and _tools_are_on()
        formats = {name: getattr(request, name) for name in _FORMATS if hasattr(request, name)}
        request = original(self, request, *args, **kwargs)
        if called:
            for name, value in formats.items():
                setattr(request, name, value)
        only_format = not offered and request.extract_structured_outputs() is not None
        if called or (model.masked and only_format):
            _pass_tools(request, called, isinstance(request, responses), getattr(self, _THINKS))
        return request

    return adjust_request


def _pass_tools(request: Any, called: bool, responses: bool, thinks: Any) -> None:
    fields = {"tools", "tool_choice", "parallel_tool_calls"} if called else set()
    body = request.model_dump(mode="json", include=fields, exclude_none=True)
    body[RESPONSES] = responses
    if isinstance(thinks, bool):
        body[THINKING] = thinks
    request.vllm_xargs = {**(request.vllm_xargs or {}), TOOLS: ToolsText(json.dumps(body))}


def _tools_are_on() -> bool:
    return os.environ.get("DLM_VLLM_TOOLS", "1") not in ("0", "")


def _stripped(params: Any) -> Any:
    """Return a copy of `params` without the constraint, so that vLLM neither refuses nor compiles
    it, and without `seed`, which vLLM refuses for this model."""
    params = params.clone()
    if params.seed is not None:
        params.seed = None
        _warn_of_seed()
    kept = {k: v for k, v in (params.extra_args or {}).items() if k not in (KEY, TOOLS)}
    params.extra_args, params.structured_outputs = kept or None, None
    return params


@functools.cache
def _warn_of_seed() -> None:
    _LOG.warning("dlm: seed is ignored beside a constraint; vLLM has no seeds for this model")


def _constrained(request: Any, admitted: Admitted | None, model: OwnModel) -> Any:
    """Return `request` with what `admitted` adds; None adds nothing.

    Top-k and top-p move to the payload, since they apply after the constraint's masks. A canvas of
    masks takes the guess, which is the likeliest token: a draw would have to be masked again.
    """
    if admitted is not None:
        request.prompt_token_ids = [*request.prompt_token_ids, *admitted.suffix]
        params = request.sampling_params
        params.extra_args = {**(params.extra_args or {}), KEY: admitted.payload.data()}
        params.top_k, params.top_p = 0, 1.0
        if model.masked:
            params.temperature = 0.0
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
