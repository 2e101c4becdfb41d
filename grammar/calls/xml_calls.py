"""Reader of calls in tags, as Qwen's coding models and GLM write them: a name, then elements.

Strings are bare, and other values are JSON: the tool's schema decides between them. A call is read
when all of it has arrived. The reader raises `InvalidValueError` for a malformed call.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from json import JSONDecodeError, dumps
from typing import Any

from dlm.grammar.calls.answer import Answer, CallDelta, ToolCall
from dlm.grammar.calls.token_text import TokenText, after_space, malformed, shown
from dlm.grammar.schema.elements import GLM, QWEN, ElementSyntax
from dlm.grammar.schema.evaluate import decoded
from dlm.grammar.vocabulary.pieces import TokenPieces

Accepts = Callable[[str, str, Any, str], bool]
"""Decides by tool and argument whether a text is the JSON value that is in it: (tool, argument,
value, text)."""
_SHARE = 8  # what is read again has grown by 1/8
_LONGEST_WORD = 12  # characters of JSON that may be incomplete at the end of a text: -Infinity


@dataclass(frozen=True, kw_only=True)
class CallSyntax:
    """Syntax of a call: `opening`, the name, `named`, elements, and `ends`, with white space
    between what comes after the name."""

    opening: str
    named: str  # after the name; empty: white space, or the next tag
    elements: ElementSyntax
    ends: tuple[str, ...]

    @cached_property
    def name(self) -> re.Pattern[str]:
        """Pattern of a name and what ends it."""
        after = re.escape(self.named) if self.named else r"\s*(?=<)"
        return re.compile(rf"([^{(self.named or '<')[0]}\s]+){after}")

    @cached_property
    def parameter(self) -> re.Pattern[str]:
        """Pattern of what comes before a value, from the end of the element before."""
        syntax = self.elements
        key, after, value = map(re.escape, (syntax.key, syntax.after_key, syntax.value))
        name = rf"([^{syntax.after_key[0]}\s]+)"
        return re.compile(rf"\s*{key}{name}{after}" + (rf"\s*{value}" if value else ""))

    @cached_property
    def end(self) -> re.Pattern[str]:
        """Pattern of what comes after the last element."""
        return re.compile("".join(rf"\s*{re.escape(tag)}" for tag in self.ends))

    @property
    def tags(self) -> tuple[str, ...]:
        """The texts of a call that are the same in all calls."""
        elements = self.elements
        marks = elements.key, elements.after_key, elements.value, elements.end
        return self.opening, *marks, *self.ends


QWEN_CALL = CallSyntax(
    opening="<tool_call>\n<function=",
    named=">",
    elements=QWEN,
    ends=("</function>", "</tool_call>"),
)
GLM_CALL = CallSyntax(opening="<tool_call>", named="", elements=GLM, ends=("</tool_call>",))


@dataclass(slots=True)
class _OpenCall:
    """A call whose end has not been read yet.

    Nothing of it is passed on before, so it is read when a text that may be its end arrives. If
    that ends nothing, what is read again has to grow by a share first: all readings together take
    time in proportion to the call's length.
    """

    syntax: CallSyntax
    opened: int  # where its opening begins
    at: int  # index of the first character that has not been read
    name: str = ""  # empty: it has not been read
    arguments: dict[str, Any] = field(default_factory=dict)
    parameter: str = ""  # whose value begins at `at`; empty: none
    searched: int = 0  # the value's end tag does not begin before
    end_searched: int = 0  # the call's last tag does not begin before, but for those that were read
    postponed: int = 0  # length of the text from which on it is read again

    def read(self, text: str, accepts: Accepts, final: bool) -> str:
        """Read on to the call's end; return what is missing, "" for a whole call. If the text is
        `final`, the next characters cannot make a value JSON."""
        last = self.syntax.ends[-1]
        if not final:
            self.end_searched = max(self.end_searched, self.at)
            end = text.find(last, self.end_searched)
            if end < 0:
                self.end_searched = max(self.end_searched, len(text) - len(last) + 1)
            if end < 0 or len(text) < self.postponed:
                return f"{last} is missing"
            self.end_searched = len(text) - len(last) + 1
        if missing := self._read(text, accepts, final):
            begin = max(self.at, self.searched)  # of what is read again
            self.postponed = len(text) + (len(text) - begin) // _SHARE
        return missing

    def _read(self, text: str, accepts: Accepts, final: bool) -> str:
        if not self.name:
            if not (named := self.syntax.name.match(text, self.at)):
                return "a function's name is missing"
            self.name, self.at = named[1], named.end()
        while self._opens(text):
            value = self._value(text, accepts)
            if value is None or not (value.sure or final):
                return f"{self.syntax.elements.end} is missing"
            self.arguments[self.parameter] = value.value
            self.parameter, self.at = "", value.end
        if not (ended := self.syntax.end.match(text, self.at)):
            *others, last = self.syntax.ends
            return f"{others[0]} and {last} are missing" if others else f"{last} is missing"
        self.at = ended.end()
        return ""

    def _opens(self, text: str) -> bool:
        """Return whether a parameter is open, or begins here."""
        if not self.parameter and (opened := self.syntax.parameter.match(text, self.at)):
            self.parameter, self.at = opened[1], opened.end()
            self.searched = self.at
        return bool(self.parameter)

    def _value(self, text: str, accepts: Accepts) -> "_Value | None":
        """Return the value of the open parameter; None if it has no end tag.

        Strings are bare, other values are JSON: `accepts` decides between them. Strings within JSON
        may contain the end tag.
        """
        tag = self.syntax.elements.end
        end = text.find(tag, self.searched)
        if end < 0:
            self.searched = max(self.at, len(text) - len(tag) + 1)
            return None
        self.searched = self.at  # an unsure value is read again from there
        bare = text[self.at : end]
        if self.syntax.elements.lines:
            bare = bare.removeprefix("\n").removesuffix("\n")
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
            elif not text.startswith(tag, after):
                sure = not tag.startswith(text[after:])
            elif accepts(self.name, self.parameter, value, bare):
                return _Value(value, after + len(tag))
        return _Value(bare, end + len(tag), sure)


@dataclass(slots=True)
class _Value:
    """Value of a parameter."""

    value: Any
    end: int  # index after its end tag
    sure: bool = True  # whether the next characters cannot make it JSON


class XmlReader:
    """Incremental reader of an answer with calls of one syntax; of a call, nothing is passed on
    before its end."""

    def __init__(
        self,
        syntax: CallSyntax,
        vocabulary: TokenPieces | None,
        accepts: Accepts,
        anywhere: bool,
    ):
        """Unless calls may begin `anywhere`, one begins the answer, or all of it is text."""
        self._syntax = syntax
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

    def end(self) -> list[CallDelta]:
        self._written.end()
        return self._read(final=True)

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
            if missing := call.read(text, self._accepts, final):
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
        text, opening = self._written.text, self._syntax.opening
        opened = text.find(opening, self._searched)
        if opened < 0:
            self._searched = max(self._searched, len(text) - len(opening) + 1)
            return None
        anywhere = self._anywhere or self._calls or not text[:opened].strip()
        return _OpenCall(self._syntax, opened, opened + len(opening)) if anywhere else None
