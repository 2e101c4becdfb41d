"""Data of a constrained request, passed from the front end to the worker in `extra_args`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

KEY = "dlm"  # in `extra_args`; a client's own is refused
TOOLS = "dlm_tools"  # in `vllm_xargs`, on the way from the tool parser; likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """A compiled constraint. All of it is plain data: it travels between processes."""

    rules: bytes  # `Compiled.packed`
    thinking: bool  # reasoning may come first
    thinking_budget: int | None  # tokens of reasoning; None: as many as leave room for the answer
    top_k: int  # 0: all tokens
    top_p: float
    failed: int  # a token that no answer begins with: a canvas of it says that the worker failed

    def data(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, extra_args: Mapping[str, Any] | None) -> Self | None:
        """The payload among a request's `extra_args`, if there is one."""
        found = (extra_args or {}).get(KEY)
        return None if found is None else cls(**found)


class ToolsText(str):
    """The tools of a body as JSON. A client's text is a `str`, and no `ToolsText`."""

    __slots__ = ()
