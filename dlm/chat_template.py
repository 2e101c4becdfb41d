"""Chat template of a checkpoint: compiled when it is loaded, and rendered within a bounded effort.

Whose fault a failure is decides its error. The template's own refusal of messages
(`raise_exception`) and a failure that a plain conversation does not have are the caller's; all
others are the checkpoint's, and name the file and the line.
"""

import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError

from dlm.errors import RequestError, TemplateError
from dlm.template_effort import Effort, EffortError
from dlm.template_environment import EFFORT, MeteredEnvironment, Refusal

_STEPS = 2_000_000  # of any rendering: at most a few seconds of CPU time
_STEPS_PER_INPUT = 64  # more for each step of reading the messages and tools once
_LONGEST = 1_000_000  # characters of a template
_PLAIN = ({"role": "user", "content": "Hello"},)
_PLAIN_TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    },
}
_OF_TEMPLATES = (EffortError, SecurityError, ArithmeticError, jinja2.TemplateSyntaxError)
_REASONING = ("reasoning_content", "thinking", "reasoning")  # names of the same field, the first


class ChatTemplate:
    """A compiled chat template. Any number of threads may render it at once."""

    def __init__(self, source: str, file: str, variables: Mapping[str, Any]):
        """`file` is named in errors. `variables` are the same for all renderings: the texts of the
        tokenizer's special tokens. Raises `TemplateError` for a template that cannot be
        compiled."""
        self._file, self._variables = file, variables
        if len(source) > _LONGEST:
            raise TemplateError(
                f"{file}: the chat template has {len(source):,} characters; at most {_LONGEST:,} "
                "are read"
            )
        try:
            self._template = MeteredEnvironment().compiled(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"{file}, line {error.lineno}: {error.message}") from error
        except (SyntaxError, RecursionError, MemoryError, ValueError, OverflowError) as error:
            raise TemplateError(
                f"{file}: the chat template is nested too deeply, or holds what Python cannot "
                f"compile: {str(error)[:200]}"
            ) from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        thinking: bool,
    ) -> str:
        """Return the text of a conversation up to the model's next turn. Raises `RequestError` for
        messages and tools that the template refuses or cannot read, and `TemplateError` if the
        template itself is wrong."""
        what = "messages and tools" if tools else "messages"
        field = None if tools else "messages"
        try:
            return self._rendered(messages, tools, thinking)
        except Refusal as error:
            reason, cause = str(error), error
        except Exception as error:
            if isinstance(error, _OF_TEMPLATES) or not self._renders_plain(bool(tools), thinking):
                raise TemplateError(f"{self._file}{_line(error)}: {_reason(error)}") from error
            reason, cause = "they must have the form of OpenAI's API", error
        raise RequestError(
            f"the chat template cannot render {what}: {reason}", field=field
        ) from cause

    def _renders_plain(self, with_tools: bool, thinking: bool) -> bool:
        """Return whether a plain conversation can be rendered, or is refused by the template."""
        try:
            self._rendered(_PLAIN, [_PLAIN_TOOL] if with_tools else [], thinking)
        except Refusal:
            pass
        except Exception:
            return False
        return True

    def _rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        thinking: bool,
    ) -> str:
        effort = Effort()
        variables = {
            **self._variables,
            "messages": [_aliased(_plain(message)) for message in messages],
            "tools": [_plain(tool) for tool in tools] or None,
            "documents": None,
            "enable_thinking": thinking,
            "add_generation_prompt": True,
        }
        inputs = effort.weight(variables["messages"]) + effort.weight(variables["tools"])
        effort.limit(_STEPS + _STEPS_PER_INPUT * inputs)
        return self._template.render({**variables, EFFORT: effort})


def _plain(value: Any) -> Any:
    """Return a copy of JSON data, of Python's own types alone."""
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    for kind in (str, bool, int, float):
        if isinstance(value, kind):
            return kind(value) if type(value) is not kind else value
    return None if value is None else f"<{type(value).__name__}>"


def _aliased(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as templates expect it: without nulls, and with its reasoning under the
    names that templates read."""
    message = {name: value for name, value in message.items() if value is not None}
    reasoning = next((message[name] for name in _REASONING if name in message), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _line(error: BaseException) -> str:
    """Return the line of the template at which `error` was raised, if it is known."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == "<template>"]
    return f", line {lines[-1]}" if lines else ""


def _reason(error: BaseException) -> str:
    name = "" if isinstance(error, jinja2.TemplateError) else f"{type(error).__name__}: "
    return f"the chat template cannot be rendered: {name}{str(error)[:300]}"
