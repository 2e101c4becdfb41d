"""The end of a request that failed in the worker: an error, and no answer.

The worker can only emit tokens. So it emits a canvas of a token that no answer begins with, and
vLLM's scheduler, which asks whether a grammar takes what was emitted, hears that none does.
"""

# pyright: reportMissingImports=false

from typing import Any

from dlm.integrations.vllm.admission import Payload
from dlm.integrations.vllm.needs import Function, wrap


def install() -> None:
    """Have the structured output manager of this process refuse canvases of failed requests."""
    from vllm.v1.structured_output import StructuredOutputManager

    def make(original: Function) -> Function:
        def accept_tokens(self: Any, request: Any, new_token_ids: list[int]) -> bool:
            return not has_failed(request, new_token_ids) and original(self, request, new_token_ids)

        return accept_tokens

    wrap(StructuredOutputManager, "accept_tokens", make)


def has_failed(request: Any, tokens: list[int]) -> bool:
    """Whether the worker says with `tokens` that it cannot go on with `request`."""
    payload = Payload.of(getattr(request.sampling_params, "extra_args", None))
    return payload is not None and tokens[:1] == [payload.failed]
