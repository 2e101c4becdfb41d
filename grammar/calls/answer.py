"""Answers with calls of tools: whole, and piece by piece. Knows no form of calls."""

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool."""

    name: str
    arguments: dict[str, Any]

    def to_openai(self, id: str) -> dict[str, Any]:
        """Return the call in the form of OpenAI's chat API, its arguments as JSON text."""
        arguments = json.dumps(self.arguments, ensure_ascii=False)
        function = {"name": self.name, "arguments": arguments}
        return {"id": id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer: its text outside of calls, None if it is empty, and its calls."""

    content: str | None
    tool_calls: tuple[ToolCall, ...]


@dataclass(slots=True)
class CallDelta:
    """A piece of a call: either its name, without arguments, or some JSON text of its arguments."""

    index: int  # number of the call in its answer, from 0
    name: str | None
    arguments: str
