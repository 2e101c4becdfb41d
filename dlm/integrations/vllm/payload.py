"""Data that the plugin adds to a request of vLLM: a compiled constraint, and tools before that.

Both travel in `extra_args`, where clients may put values of their own, so each is known by a type
that no client can send.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from dlm.errors import RequestError
from dlm.grammar import Reasoning, Vocabulary

KEY = "dlm"  # of the payload in `extra_args`; refused from clients
TOOLS = "dlm_tools"  # of the tools that the tool parser puts in `vllm_xargs`; refused from clients


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """A compiled constraint, as plain data that is sent to another process."""

    rules: bytes  # `Compiled.packed`
    thinking: bool  # reasoning may come first
    thinking_budget: int | None  # most tokens of reasoning; None: no bound of its own
    top_k: int  # 0: all tokens
    top_p: float
    failed: int  # token that begins no answer: a canvas of it means that the worker failed

    def data(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, extra_args: Mapping[str, Any] | None) -> Self | None:
        """Return the payload among a request's `extra_args`; None if there is none."""
        found = (extra_args or {}).get(KEY)
        return None if found is None else cls(**found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """Additions to an admitted request."""

    payload: Payload
    suffix: list[int]  # tokens appended to its prompt, an empty thought channel


RESPONSES = "responses"  # a field of `ToolsText`: whether the tools have the form of Responses


@dataclass(frozen=True, slots=True)
class Reading:
    """The vocabulary and the reasoning of a request whose grammar writes the tool calls."""

    vocabulary: Vocabulary
    reasoning: Reasoning | None  # None: no reasoning comes first


class ToolsText(str):
    """Fields of a body about tools, as JSON. Its type tells it from a client's text, which is a
    plain `str`. Admission sets `reading` if the grammar writes the calls."""

    reading: Reading | None = None


def forged_tools() -> RequestError:
    """Return the error for a client that sends the plugin's key for tools."""
    return RequestError(f"vllm_xargs.{TOOLS} is not a client's to send: use tools")
