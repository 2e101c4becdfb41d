"""Errors in Anthropic's form."""

from typing import Any

from dlm.openai.errors import public_message, status_of
from dlm.openai.response_store import UnknownResponseError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class UnknownThreadError(UnknownResponseError):
    """Error for a conversation that a client continues and the server does not hold. Its clients
    then send the whole conversation."""


def anthropic_body(status: int, message: str) -> dict[str, Any]:
    """Return the body of an error with an HTTP status."""
    type_ = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": type_, "message": message}}


def anthropic_error(error: Exception) -> dict[str, Any]:
    """Return the body for an error."""
    body = anthropic_body(status_of(error), public_message(error))
    if isinstance(error, UnknownThreadError):
        body["error"]["details"] = {"error_code": "thread_not_found"}
    return body
