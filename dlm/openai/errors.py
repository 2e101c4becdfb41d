"""Errors in OpenAI's form: a status and a body."""

import re
from typing import Any

from dlm.errors import DlmError, QueueFullError, RequestError, UnavailableError
from dlm.grammar import CrashError, GrammarError
from dlm.models import ModelError
from dlm.openai.body import sendable
from dlm.openai.decisions import DecisionFields
from dlm.openai.requests import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    TokenizeBody,
    TokenizeChatBody,
    UnknownModelError,
)
from dlm.openai.response_store import UnknownResponseError
from dlm.openai.responses import ResponsesBody

_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "RequestTooLargeError",
    415: "UnsupportedMediaTypeError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
    431: "RequestTooLargeError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}
_FIELD = re.compile(r"[a-z_]+")
_BODIES = (
    ChatBody,
    CompletionBody,
    ResponsesBody,
    DecisionFields,
    TokenizeBody,
    TokenizeChatBody,
    DetokenizeBody,
)
_FIELDS = frozenset(name for body in _BODIES for name in body.names())


def error_body(status: int, message: str, param: str | None = None) -> dict[str, Any]:
    """Return the body of an error. `param` is the request's field that it is about, if known."""
    message, param = sendable(message), None if param is None else sendable(param)
    type_ = _TYPES.get(status, "BadRequestError" if status < 500 else "InternalServerError")
    return {"error": {"message": message, "type": type_, "param": param, "code": status}}


def status_of(error: Exception) -> int:
    """Return the HTTP status of an error: 400 for a body that cannot be served, 404 for an unknown
    model, 422 for an answer that could not be made, 429 and 503 for what may succeed later."""
    match error:
        case UnknownModelError() | UnknownResponseError():
            return 404
        case RequestError():
            return 400
        case QueueFullError():
            return 429
        case UnavailableError():
            return 503
        case ModelError() | CrashError():
            return 500
        case DlmError(__cause__=None):
            return 422
        case DlmError(__cause__=GrammarError() as cause) if not isinstance(cause, CrashError):
            return 422
    return 500


def public_message(error: Exception) -> str:
    """Return the text about an error that a client gets: no details if the status is 500."""
    failed = status_of(error) == 500
    return "the request failed, by no fault of its own" if failed else sendable(str(error))


def describe_error(error: Exception) -> dict[str, Any]:
    """Return the body for an error."""
    status = status_of(error)
    return error_body(status, public_message(error), None if status == 500 else _field_of(error))


def _field_of(error: Exception) -> str | None:
    """Return the field an error is about: its `field`, or a known field that its text begins
    with."""
    if isinstance(error, RequestError) and error.field is not None:
        return error.field
    named = _FIELD.match(str(error))
    return named[0] if named and named[0] in _FIELDS else None
