"""Advice for requests to paths that are not served: most come from a wrong base URL."""

import re
from difflib import get_close_matches

POSTED = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/responses/input_tokens",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/decisions",
    "/v1/files",
    "/v1/batches",
    "/tokenize",
    "/detokenize",
)
READ = ("/v1/models", "/health", "/metrics", "/version", "/openapi.json", "/docs")
_BY_LENGTH = sorted(POSTED + READ, key=lambda path: -path.count("/"))
_OTHERS = {  # routes of other servers, and what serves the same here
    "/api/chat": "/v1/chat/completions",
    "/api/generate": "/v1/completions",
    "/generate": "/v1/completions",
    "/api/tags": "/v1/models",
    "/api/show": "/v1/models",
    "/v1/complete": "/v1/messages",
    "/generatecontent": "/v1/chat/completions",
}
_SIMILAR = 0.8  # of a misspelled path
_LONGEST = 200  # characters of a path that is compared


def right_path(path: str) -> str | None:
    """Return the served path that a client probably meant by `path`; None if there is none.

    The path may lack `/v1`, have it twice, begin with the path of another server, repeat its end,
    end with a slash, or be misspelled.
    """
    parts = [part for part in path[:_LONGEST].lower().replace(":", "/").split("/") if part]
    cleaned = "/" + "/".join(parts)
    for other, right in _OTHERS.items():
        if cleaned.endswith(other):
            return right
    for served in _BY_LENGTH:
        if f"{served.removeprefix('/v1')}/" in f"{cleaned}/":
            return served
    ends = {served.removeprefix("/v1"): served for served in _BY_LENGTH}
    bare = re.sub(r"^(/v1)+(?=/)", "", cleaned)
    close = get_close_matches(bare, ends, 1, _SIMILAR)
    return ends[close[0]] if close else None


def advice(method: str, path: str, prefix: str = "") -> tuple[str, str | None]:
    """Return the message of the answer to a `path` that is not served, and the path that is meant.
    Paths are served below `prefix` too."""
    path = path.removeprefix(prefix)
    right = right_path(path)
    shown = f"{method} {path[:_LONGEST]}"
    if right is None:
        return f"{shown} is not served; the paths are {', '.join(POSTED + READ)}", None
    verb = "GET" if right in READ else "POST"
    base = ""
    if right.startswith("/v1/messages"):
        base = "; the base URL of Anthropic's clients ends without /v1"
    elif right.startswith("/v1/"):
        base = "; the base URL of OpenAI's clients ends in /v1, once and without a slash after it"
    return f"{shown} is not served; use {verb} {prefix}{right}{base}", right
