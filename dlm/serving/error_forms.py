"""Forms of errors: Anthropic's for its routes, OpenAI's for all others."""

from typing import Any

from starlette.datastructures import Headers
from starlette.types import Scope

from dlm.anthropic.errors import anthropic_body, anthropic_error
from dlm.openai.errors import describe_error, error_body

VERSION_HEADER = "anthropic-version"  # sent by clients of Anthropic's API


def is_anthropic(scope: Scope) -> bool:
    """Whether a request is one of Anthropic's API: its route is, or it asks for models, whose
    routes both APIs have, with the header of Anthropic's clients."""
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    if path.startswith("/v1/models"):
        return VERSION_HEADER in Headers(scope=scope)
    return path.startswith("/v1/messages")


def status_body(scope: Scope, status: int, message: str) -> dict[str, Any]:
    """Return the body of an answer with the status of an error."""
    form = anthropic_body if is_anthropic(scope) else error_body
    return form(status, message)


def exception_body(scope: Scope, error: Exception) -> dict[str, Any]:
    """Return the body of the answer to a request that failed with `error`."""
    form = anthropic_error if is_anthropic(scope) else describe_error
    return form(error)
