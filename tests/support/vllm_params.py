"""vLLM's sampling parameters as far as the plugin reads them, and the payload that it adds."""

import copy
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from dlm.grammar import Compiled
from dlm.integrations.vllm.payload import TOOLS, Payload, ToolsText

TOOL = {"type": "function", "function": {"name": "book", "parameters": {"type": "object"}}}


@dataclass
class Outputs:
    json: object = None
    regex: str | None = None
    choice: list | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: object = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False


@dataclass
class Params:
    structured_outputs: Outputs | None = None
    extra_args: dict | None = None
    max_tokens: int | None = 64
    top_k: int = 0
    top_p: float = 1.0
    stop: tuple = ()
    stop_token_ids: tuple = ()
    ignore_eos: bool = False
    prompt_logprobs: int | None = None
    seed: int | None = None
    thinking_token_budget: int | None = None
    temperature: float = 1.0

    def clone(self):
        return copy.copy(self)


def tools_text(**more):
    return {TOOLS: ToolsText(json.dumps({"tools": [TOOL]} | more))}


def payload_of(compiled: Compiled, failed: int, stops: Iterable[int], **changes: Any) -> Payload:
    """Return the payload of a request without reasoning and cuts, but for `changes`."""
    payload = Payload(
        rules=compiled.packed,
        thinking=False,
        thinking_budget=None,
        opened=False,
        top_k=0,
        top_p=1.0,
        failed=failed,
        stops=[*stops],
        squeezed=[],
    )
    return replace(payload, **changes)
