"""Requests that claim the plugin's names for values of their own, for every API of vLLM."""

from typing import Any

import httpx

NAMES = ("dlm", "dlm_tools", "dlm_more")
VALUES: tuple[Any, ...] = (
    "x",
    "",
    "{}",
    '{"tools": 1}',
    0,
    7,
    -1.5,
    True,
    None,
    [],
    ["x", 1],
    {},
    {"rules": "x"},
    {"rules": [1, {"a": None}]},
    {
        "rules": "gASVBQAAAAAAAACMAXiULg==",
        "thinking": False,
        "thinking_budget": None,
        "opened": False,
        "top_k": 0,
        "top_p": 1.0,
        "failed": 0,
        "stops": [1, 106, 50],
        "squeezed": [3, 4, 5],
    },
)
MESSAGES = [{"role": "user", "content": "Hello."}]
TOOL = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 4},
    "/v1/completions": {"prompt": "Hello.", "max_tokens": 4},
    "/v1/responses": {"input": "Hello.", "max_output_tokens": 4},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 4},
}
WITH_TOOLS = {
    "/v1/chat/completions": {"tools": [{"type": "function", "function": TOOL}]},
    "/v1/responses": {"tools": [{"type": "function", **TOOL}]},
}


def statuses(url: str) -> dict[tuple[str, str, str, bool], int]:
    """Send all forged requests; return their statuses by path, name, value and presence of tools.
    In `extra_args` and in the body itself vLLM reads no such names; there they are sent too."""
    seen = {}
    with httpx.Client(base_url=url, timeout=300) as client:
        for path, body in BODIES.items():
            for name in NAMES:
                for value in VALUES:
                    for tools in (False, True)[: 1 + (path in WITH_TOOLS)]:
                        more = WITH_TOOLS[path] if tools else {}
                        forged = {"vllm_xargs": {name: value}, "extra_args": {name: value}}
                        answer = client.post(
                            path, json={"model": "tiny", **body, **more, **forged, name: value}
                        )
                        seen[path, name, repr(value), tools] = answer.status_code
    return seen


def is_healthy(url: str) -> bool:
    with httpx.Client(base_url=url, timeout=60) as client:
        body = {"model": "tiny", **BODIES["/v1/chat/completions"]}
        answered = client.post("/v1/chat/completions", json=body).status_code == 200
        return answered and client.get("/health").status_code == 200
