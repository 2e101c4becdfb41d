"""Forms of errors: Anthropic's for its routes, OpenAI's for all others."""

import json
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Scope

from dlm.anthropic.answers import anthropic_body, anthropic_error
from dlm.openai.answers import describe_error, error_body, public_message

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


def last_events(path: str, error: Exception, number: int) -> str:
    """Return the server-sent events that end a stream of the route at `path` with an error, after
    `number` events of a response."""
    body, mark = describe_error(error), "data: [DONE]\n\n"
    if path.startswith("/v1/messages"):
        body, mark = anthropic_error(error), ""
    elif path == "/v1/responses":
        problem = {"code": "server_error", "message": public_message(error), "param": None}
        body, mark = {"type": "error", **problem, "sequence_number": number}, ""
    name = "" if mark else "event: error\n"
    return f"{name}data: {json.dumps(body)}\n\n{mark}"


def exception_body(scope: Scope, error: Exception) -> dict[str, Any]:
    """Return the body of the answer to a request that failed with `error`."""
    form = anthropic_error if is_anthropic(scope) else describe_error
    return form(error)
