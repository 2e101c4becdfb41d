"""Scheduler of vLLM: it ends requests that failed in the worker, and answers that were cut short.

A worker can only emit tokens. It says that a request failed by a canvas of a token that no answer
begins with. It says that a budget cut an answer short by another token in place of the stop, which
no answer holds; the request then ends there with the reason "length". Both are read for the
plugin's models alone. An exception would end the engine: it is logged, and vLLM goes on alone.
"""

import logging
from collections.abc import Callable
from typing import Any

from dlm.integrations.vllm.own import own_model
from dlm.integrations.vllm.payload import Payload

_LOG = logging.getLogger("vllm.dlm")

Function = Callable[..., Any]


def _serves_own(owner: Any) -> bool:
    config = getattr(getattr(owner, "vllm_config", None), "model_config", None)
    return own_model(config) is not None


def refuses_failed(original: Function) -> Function:
    """Wrap the method that asks whether a grammar takes the tokens of a request."""

    def accept_tokens(self: Any, *args: Any, **kwargs: Any) -> bool:
        if _serves_own(self) and _logged(has_failed, *args, **kwargs):
            return False
        return original(self, *args, **kwargs)

    return accept_tokens


def ends_by_budget(original: Function) -> Function:
    """Wrap the method that adds new tokens to a request, and ends it at a stop."""

    def update(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _serves_own(self) or not _logged(restore_stop, *args, **kwargs):
            return original(self, *args, **kwargs)
        tokens, stopped = original(self, *args, **kwargs)
        _logged(note_length, *args, **kwargs)
        return tokens, stopped

    return update


def _logged(
    reader: Function, request: Any = None, new_token_ids: Any = (), *_: Any, **kwargs: Any
) -> Any:
    """Return what `reader` returns; False after an error, which is logged."""
    try:
        return reader(request, new_token_ids)
    except Exception:
        _LOG.exception("dlm: an answer of a worker could not be read")
        return False


def has_failed(request: Any, tokens: list[int]) -> bool:
    """Whether the worker says with `tokens` that it cannot go on with `request`."""
    payload = _payload_of(request)
    return payload is not None and list(tokens[:1]) == [payload.failed]


def restore_stop(request: Any, tokens: list[int]) -> bool:
    """Put the stop in `tokens` back, in place of the token that says that the answer was cut short;
    return whether there was one."""
    payload = _payload_of(request)
    if payload is None:
        return False
    for position, token in enumerate(tokens):
        if token in payload.squeezed:
            tokens[position] = payload.stops[payload.squeezed.index(token)]
            return True
    return False


def note_length(request: Any, tokens: list[int]) -> None:
    """Have a stopped request say that it was cut short. Its stop is left out of `tokens`, which
    vLLM has cut off after it: only with the reason "stop" it would leave the stop out of the text.
    """
    reasons = type(request.status)
    if request.status == reasons.FINISHED_STOPPED:
        request.status, request.stop_reason = reasons.FINISHED_LENGTH_CAPPED, None
        del tokens[-1:]


def _payload_of(request: Any) -> Payload | None:
    return Payload.of(getattr(request.sampling_params, "extra_args", None))
