"""The end of a request that failed in the worker: an error, and no answer.

The worker can only emit tokens. So it emits a canvas of a token that no answer begins with, and
vLLM's scheduler, which asks whether a grammar takes what was emitted, hears that none does.
"""

import functools
from typing import Any

from dlm.integrations.vllm.payload import Payload


def install() -> None:
    """Have the structured output manager of this process refuse canvases of failed requests."""
    from vllm.v1.structured_output import StructuredOutputManager

    original = StructuredOutputManager.accept_tokens
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def accept_tokens(self: Any, request: Any, new_token_ids: list[int]) -> bool:
        return not has_failed(request, new_token_ids) and original(self, request, new_token_ids)

    StructuredOutputManager.accept_tokens = accept_tokens


def has_failed(request: Any, tokens: list[int]) -> bool:
    """Whether the worker says with `tokens` that it cannot go on with `request`."""
    payload = Payload.of(getattr(request.sampling_params, "extra_args", None))
    return payload is not None and tokens[:1] == [payload.failed]
