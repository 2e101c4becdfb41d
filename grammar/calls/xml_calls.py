"""Reader of calls as Qwen's coding models write them: functions and parameters in tags.

Strings are bare, and other values are JSON: the tool's schema decides between them. A call is read
when all of it has arrived. The reader raises `InvalidValueError` for a malformed call.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from json import JSONDecodeError, dumps
from typing import Any

from dlm.grammar.calls.answer import Answer, CallDelta, ToolCall
from dlm.grammar.calls.token_text import TokenText, after_space, malformed, shown
from dlm.grammar.schema.elements import PARAMETER_END
from dlm.grammar.schema.evaluate import decoded
from dlm.grammar.vocabulary.pieces import TokenPieces

OPENING = "<tool_call>\n<function="
Accepts = Callable[[str, str, Any, str], bool]
"""Decides by tool and argument whether a text is the JSON value that is in it: (tool, argument,
value, text)."""
_FUNCTION = re.compile(r"([^>\s]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\s]+)>")
_END = re.compile(r"\s*</function>\s*</tool_call>")
_LONGEST_WORD = 12  # characters of JSON that may be incomplete at the end of a text: -Infinity


@dataclass(slots=True)
class _OpenCall:
    """A call whose end has not been read yet."""

    opened: int  # where its opening begins
    at: int  # index of the first character that has not been read
    name: str = ""  # empty: it has not been read
    arguments: dict[str, Any] = field(default_factory=dict)
    parameter: str = ""  # whose value begins at `at`; empty: none
    searched: int = 0  # the value's end tag does not begin before

    def read(self, text: str, accepts: Accepts) -> str:
        """Read on to the call's end; return what is missing, "" for a whole call."""
        if not self.name:
            if not (named := _FUNCTION.match(text, self.at)):
                return "a function's name is missing"
            self.name, self.at = named[1], named.end()
        call = self
        while call._opens(text):
            if (value := call._value(text, accepts)) is None:
                return f"{PARAMETER_END} is missing"
            if not value.sure and call is self:  # it is read again with the next characters
                call = replace(self, arguments={**self.arguments})
            call.arguments[call.parameter] = value.value
            call.parameter, call.at = "", value.end
        if not (ended := _END.match(text, call.at)):
            return "</function> and </tool_call> are missing"
        self.arguments, self.at = call.arguments, ended.end()
        return ""

    def _opens(self, text: str) -> bool:
        """Return whether a parameter is open, or begins here."""
        if not self.parameter and (opened := _PARAMETER.match(text, self.at)):
            self.parameter, self.at = opened[1], opened.end()
            self.searched = self.at
        return bool(self.parameter)

    def _value(self, text: str, accepts: Accepts) -> "_Value | None":
        """Return the value of the open parameter; None if it has no end tag.

        Strings are bare, other values are JSON: `accepts` decides between them. Strings within JSON
        may contain the end tag.
        """
        end = text.find(PARAMETER_END, self.searched)
        if end < 0:
            self.searched = max(self.at, len(text) - len(PARAMETER_END) + 1)
            return None
        self.searched = end
        bare = text[self.at : end].removeprefix("\n").removesuffix("\n")
        sure, begin = True, after_space(text, self.at)
        try:
            value, after = ("", 0) if text[begin] == '"' else decoded(text, begin)
        except JSONDecodeError as error:
            is_cut = error.pos >= len(text) - _LONGEST_WORD or "Unterminated" in error.msg
            value, sure = "", not is_cut
        except (ValueError, RecursionError):
            value = ""
        else:
            after = after_space(text, after)
            if isinstance(value, str):
                pass
            elif not text.startswith(PARAMETER_END, after):
                sure = not PARAMETER_END.startswith(text[after:])
            elif accepts(self.name, self.parameter, value, bare):
                return _Value(value, after + len(PARAMETER_END))
        return _Value(bare, end + len(PARAMETER_END), sure)


@dataclass(slots=True)
class _Value:
    """Value of a parameter."""

    value: Any
    end: int  # index after its end tag
    sure: bool = True  # whether the next characters cannot make it JSON


class XmlReader:
    """Incremental reader of an answer; of a call, nothing is passed on before its end."""

    def __init__(self, vocabulary: TokenPieces | None, accepts: Accepts, anywhere: bool):
        """Unless calls may begin `anywhere`, one begins the answer, or all of it is text."""
        self._written, self._accepts, self._anywhere = TokenText(vocabulary, {}), accepts, anywhere
        self._at = 0  # index of the first character after the calls so far
        self._searched = 0  # no call begins between the last one and this character
        self._open: _OpenCall | None = None
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
        while (call := self._open or self._begun()) is not None:
            self._open = call
            if missing := call.read(text, self._accepts):
                if final:
                    raise malformed(call.at, missing)
                break
            self._content = (self._content + text[self._at : call.opened]).rstrip()
            self._at = self._searched = call.at
            self._open = None
            deltas.append(CallDelta(len(self._calls), call.name, ""))
            arguments = dumps(call.arguments, ensure_ascii=False)
            deltas.append(CallDelta(len(self._calls), None, arguments))
            self._calls.append(ToolCall(call.name, call.arguments))
        return deltas

    def _begun(self) -> _OpenCall | None:
        """Return the next call that has begun."""
        text = self._written.text
        opened = text.find(OPENING, self._searched)
        if opened < 0:
            self._searched = max(self._searched, len(text) - len(OPENING) + 1)
            return None
        anywhere = self._anywhere or self._calls or not text[:opened].strip()
        return _OpenCall(opened, opened + len(OPENING)) if anywhere else None
