"""Reader of calls as Qwen's coding models write them: functions and parameters in tags.

Strings are bare, and other values are JSON: the tool's schema decides between them. A call is read
when all of it has arrived. The reader raises `InvalidValueError` for a malformed call.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from json import dumps
from typing import Any

from dlm.grammar.calls.answer import Answer, CallDelta, ToolCall
from dlm.grammar.calls.token_text import TokenText, shown
from dlm.grammar.errors import InvalidValueError
from dlm.grammar.schema.evaluate import decoded
from dlm.grammar.schema.writer import PARAMETER_END
from dlm.grammar.vocabulary.pieces import TokenPieces

OPENING = "<tool_call>\n<function="
Accepts = Callable[[str, str, Any], bool]  # (tool, argument, value): whether the value fits
_FUNCTION = re.compile(r"([^>\s]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\s]+)>")
_END = re.compile(r"\s*</function>\s*</tool_call>")
_SPACE = re.compile(r"\s*")


class XmlReader:
    """Incremental reader of an answer; of a call, nothing is passed on before its end."""

    def __init__(self, vocabulary: TokenPieces | None, accepts: Accepts, anywhere: bool):
        """Unless calls may begin `anywhere`, one begins the answer, or all of it is text."""
        self._written, self._accepts, self._anywhere = TokenText(vocabulary, {}), accepts, anywhere
        self._at = 0  # index of the first character after the calls so far
        self._content = ""
        self._calls: list[ToolCall] = []
        self.span: tuple[int, int] | None = None  # places in a call are not looked for

    def feed(self, tokens: Sequence[int]) -> list[CallDelta]:
        self._written.add(tokens)
        return self._read(final=False)

    def feed_text(self, text: str) -> list[CallDelta]:
        """Read the next characters, as `feed` does."""
        self._written.text += text
        return self._read(final=False)

    @property
    def count(self) -> int:
        return len(self._calls)

    def end(self) -> None:
        self._written.end()
        self._read(final=True)

    def answer(self) -> Answer:
        self.end()
        after = self._written.text[self._at :]
        content = self._content if self._calls and not after.strip() else self._content + after
        return Answer(shown(content) or None, tuple(self._calls))

    def _read(self, final: bool) -> list[CallDelta]:
        """Read the calls that are whole. Raises `InvalidValueError` for one that is not if the
        text is `final`."""
        text, deltas = self._written.text, list[CallDelta]()
        while (opened := text.find(OPENING, self._at)) >= 0:
            if not (self._anywhere or self._calls) and text[:opened].strip():
                break
            try:
                call, end = _call(text, opened + len(OPENING), self._accepts)
            except InvalidValueError:
                if final:
                    raise
                break
            self._content = (self._content + text[self._at : opened]).rstrip()
            self._at = end
            deltas.append(CallDelta(len(self._calls), call.name, ""))
            arguments = dumps(call.arguments, ensure_ascii=False)
            deltas.append(CallDelta(len(self._calls), None, arguments))
            self._calls.append(call)
        return deltas


def _call(text: str, at: int, accepts: Accepts) -> tuple[ToolCall, int]:
    """Return the call after an opening, and the index of its end."""
    if not (named := _FUNCTION.match(text, at)):
        raise _error(at, "a function's name is missing")
    name, at = named[1], named.end()
    arguments = {}
    while opened := _PARAMETER.match(text, at):
        accepted = partial(accepts, name, opened[1])
        arguments[opened[1]], at = _value(text, opened.end(), accepted)
    if not (ended := _END.match(text, at)):
        raise _error(at, "</function> and </tool_call> are missing")
    return ToolCall(name, arguments), ended.end()


def _value(text: str, at: int, accepts: Callable[[Any], bool]) -> tuple[Any, int]:
    """Return the value of a parameter, and the index after its end tag.

    Strings are bare, other values are JSON: `accepts` decides between them. Strings within JSON may
    contain the end tag.
    """
    try:
        value, end = decoded(text, _skip(text, at))
    except (ValueError, RecursionError):
        value, end = "", at
    end = _skip(text, end)
    if isinstance(value, str) or not text.startswith(PARAMETER_END, end) or not accepts(value):
        if (end := text.find(PARAMETER_END, at)) < 0:
            raise _error(at, f"{PARAMETER_END} is missing")
        value = text[at:end].removeprefix("\n").removesuffix("\n")
    return value, end + len(PARAMETER_END)


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at


def _error(at: int, reason: str) -> InvalidValueError:
    return InvalidValueError(f"a tool call is malformed at character {at}: {reason}")
