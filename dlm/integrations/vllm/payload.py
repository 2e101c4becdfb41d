"""Data that the plugin adds to a request of vLLM: a compiled constraint, and tools before that.

Both travel in `extra_args`, where clients may put values of their own (`vllm_xargs`). The plugin's
names are refused from clients. Where a request is read again, its data is known by types that no
JSON has: a class of this process, and `bytes` after the request was sent to another one.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from dlm.errors import RequestError
from dlm.grammar import Reasoning, Spec, Vocabulary
from dlm.models.family import ChatMarkup

KEY = "dlm"  # of the payload in `extra_args`
TOOLS = "dlm_tools"  # of the tools that the tool parser puts in `vllm_xargs`


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """A compiled constraint, as plain data that is sent to another process."""

    rules: bytes  # `Compiled.packed`
    thinking: bool  # reasoning may come first
    thinking_budget: int | None  # most tokens of reasoning; None: no bound of its own
    opened: bool  # the prompt has opened the reasoning
    top_k: int  # 0: all tokens
    top_p: float
    failed: int  # token that begins no answer: a canvas of it means that the worker failed
    stops: list[int]  # tokens that end an answer
    squeezed: list[int]  # tokens that stand for the stops of an answer cut short by its budget

    def data(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, extra_args: Any) -> Self | None:
        """Return the payload among a request's `extra_args`; None if there is none.

        Raises nothing: a value of another form is a client's, and no payload. JSON has no `bytes`.
        """
        data = extra_args.get(KEY) if isinstance(extra_args, Mapping) else None
        if type(data) is not dict or data.keys() != _TYPES.keys():
            return None
        if not all(type(data[name]) in types for name, types in _TYPES.items()):
            return None
        return cls(**data)


_TYPES: dict[str, tuple[type, ...]] = {
    "rules": (bytes,),
    "thinking": (bool,),
    "thinking_budget": (int, type(None)),
    "opened": (bool,),
    "top_k": (int,),
    "top_p": (float, int),
    "failed": (int,),
    "stops": (list,),
    "squeezed": (list,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """Additions to an admitted request."""

    payload: Payload
    suffix: list[int]  # tokens appended to its prompt, an empty thought channel


RESPONSES = "responses"  # a field of `ToolsText`: whether the tools have the form of Responses
THINKING = "thinking"  # a field of `ToolsText`: whether the client asks the template for reasoning


@dataclass(frozen=True, slots=True)
class Reading:
    """Record of what the front end needs to read the answer of a constrained request."""

    vocabulary: Vocabulary
    spec: Spec  # in the form of the model's calls
    reasoning: Reasoning | None  # None: no reasoning comes first
    markup: ChatMarkup


class ToolsText(str):
    """Fields of a body about tools and reasoning, as JSON. Its type tells it from a client's text,
    which is a plain `str`. Admission sets `reading` if the plugin reads the answer."""

    reading: Reading | None = None


FIELD = "_dlm_field"  # attribute of vLLM's constraint: the field that a client sent it in
_OWN = {KEY: Admitted, TOOLS: ToolsText}


def check_names(extra_args: Mapping[str, Any] | None) -> None:
    """Raise `RequestError` for a name of the plugin's whose value is a client's."""
    for name, value in (extra_args or {}).items():
        own = isinstance(name, str) and (name == KEY or name.startswith(f"{KEY}_"))
        if own and type(value) is not _OWN.get(name):
            hint = ": use tools" if name == TOOLS else ""
            raise RequestError(
                f"{name[:40]} among extra_args (vllm_xargs) is not a client's to send{hint}"
            )
