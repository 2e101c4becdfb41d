"""What an answer with tool calls says, whatever form a model writes it in."""

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool."""

    name: str
    arguments: dict[str, Any]

    def to_openai(self, id: str) -> dict[str, Any]:
        """As OpenAI's chat API has it: the arguments are JSON text."""
        arguments = json.dumps(self.arguments, ensure_ascii=False)
        function = {"name": self.name, "arguments": arguments}
        return {"id": id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer: its text outside of calls, None where there is none, and its calls."""

    content: str | None
    tool_calls: tuple[ToolCall, ...]
