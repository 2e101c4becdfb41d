"""The spec of a request's answer, read from vLLM's sampling parameters."""

import json
from typing import Any

from dlm.errors import RequestError
from dlm.grammar import Spec
from dlm.integrations.vllm.needs import OUTPUTS
from dlm.integrations.vllm.payload import TOOLS, ToolsText
from dlm.openai.constraint import constraint_of
from dlm.policy import Policy

_FIELDS = (*OUTPUTS, "whitespace_pattern")
_FLAGS = "disable_any_whitespace disable_additional_properties".split()
_UNDERSTOOD = frozenset(("diffusion_max_steps",))  # of vLLM's own `diffusion_` options


def spec_of(params: Any, policy: Policy) -> Spec | None:
    """The spec that `params` ask for; None: the text is free. Raises `RequestError`."""
    outputs, tools = params.structured_outputs, (params.extra_args or {}).get(TOOLS)
    body: dict[str, Any] = {} if tools is None else json.loads(tools)
    if outputs is not None:
        values = {name: getattr(outputs, name, None) for name in _FIELDS}
        flags = {name: True for name in _FLAGS if getattr(outputs, name, False)}
        given = {name: value for name, value in values.items() if value is not None}
        body["structured_outputs"] = given | flags
    return constraint_of(body, policy) if body else None


def is_asked(params: Any) -> bool:
    """Whether `params` ask for anything. Raises `RequestError` for tools that a client forged."""
    tools = (params.extra_args or {}).get(TOOLS)
    if tools is not None and not isinstance(tools, ToolsText):
        raise forged_tools()
    return tools is not None or params.structured_outputs is not None


def forged_tools() -> RequestError:
    """Return what to raise where a client sends the key that the plugin has tools under."""
    return RequestError(f"vllm_xargs.{TOOLS} is not a client's to send: use tools")


def check_options(params: Any) -> None:
    """Raises `RequestError` for options that would cut an answer off, or have it go on."""
    for name, why in (
        ("ignore_eos", "the answer ends where its constraint does"),
        ("stop", "a text that stops the answer would leave it incomplete"),
        ("stop_token_ids", "a token that stops the answer would leave it incomplete"),
        ("repetition_detection", "it would leave the answer incomplete"),
        ("trace_decode_token_ids", "the answer is generated"),
    ):
        if getattr(params, name, None):
            raise RequestError(f"{name} beside a constraint is not supported: {why}")
    for name, value in (params.extra_args or {}).items():
        if name.startswith("diffusion_") and name not in _UNDERSTOOD and value:
            raise RequestError(f"{name} beside a constraint is not supported")
