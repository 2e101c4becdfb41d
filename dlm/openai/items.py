"""Items of an answer: its reasoning, its text and its calls, in the order of their generation.

OpenAI's Responses and Anthropic's Messages have an answer as a list of such items, and stream each
of them from its opening to its close. `ItemReader` makes both from the engine's events: a whole
answer is what its changes add up to. This module knows neither of the two forms.
"""

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from dlm.events import Committed
from dlm.grammar import InvalidValueError, Tools
from dlm.grammar.calls import CallDelta
from dlm.grammar.json_scanner import CHARACTERS, STRING, JsonScanner
from dlm.logprobs import TokenLogprob
from dlm.request import Request, Result
from dlm.stream import Stream, begun_at_end

if TYPE_CHECKING:
    from dlm.grammar import Vocabulary  # with torch, which errors and settings do without

Kind = Literal["reasoning", "text", "call", "input"]


@dataclass(slots=True)
class AnswerItem:
    """One item, as far as it has been generated."""

    kind: Kind  # input: a call of a custom tool
    number: int  # index in the answer
    name: str = ""  # of the called tool
    text: str = ""  # of a call the JSON text of its arguments, of an input the input itself
    logprobs: list[TokenLogprob] = field(default_factory=list)  # of a text's tokens, if requested


@dataclass(frozen=True, slots=True)
class Opened:
    """Beginning of an item, whose `text` is still empty."""

    item: AnswerItem


@dataclass(frozen=True, slots=True)
class Added:
    """Text that an item has got. It is empty if only log-probabilities have come."""

    item: AnswerItem
    text: str
    logprobs: Sequence[TokenLogprob] = ()  # of the next tokens of a text


@dataclass(frozen=True, slots=True)
class Closed:
    """End of an item."""

    item: AnswerItem


Change = Opened | Added | Closed


def custom_tools(request: Request) -> Collection[str]:
    """Return the names of the custom tools that a request's answer may call."""
    constraint = request.constraint
    return constraint.custom.keys() if isinstance(constraint, Tools) else ()


def _tools(request: Request, vocabulary: "Vocabulary") -> Tools | None:
    """Return a request's tools in the form of the model's calls; None if it can call none."""
    if request.constraint is None or vocabulary.calls is None:
        return None
    constraint = request.constraint.in_form(vocabulary.calls)
    return constraint if isinstance(constraint, Tools) else None


class ItemReader:
    """Reader of the events of one request."""

    def __init__(self, request: Request, vocabulary: "Vocabulary"):
        tools = _tools(request, vocabulary)
        self._calls = tools.reader(vocabulary) if tools else None
        self._custom = custom_tools(request)
        self._input = _Input()
        self._text_logprobs = _TextLogprobs(tools, vocabulary)
        self.items: list[AnswerItem] = []  # all that have been opened
        self._open = False  # whether the last of them may still get text

    def feed(self, event: Committed) -> list[Change]:
        """Return the changes by an event."""
        changes = [*self._written("reasoning", event.reasoning)]
        self._text_logprobs.feed(event.logprobs)
        changes += self._written("text", event.text)
        for delta in self._calls.feed(event.answer) if self._calls else ():
            changes += self._called(delta)
        return changes

    def close(self) -> list[Change]:
        """Return the changes at the answer's end. A call that it cuts gets no more."""
        changes: list[Change] = []
        if self._calls:
            with suppress(InvalidValueError):
                for delta in self._calls.end():
                    changes += self._called(delta)
        return changes + self._close()

    def _close(self) -> list[Change]:
        """Return the changes at the end of the last item."""
        if not self._open:
            return []
        self._open, item = False, self.items[-1]
        logprobs = self._text_logprobs.end(item.text) if item.kind == "text" else []
        return [*([self._added("", logprobs)] if logprobs else []), Closed(item)]

    def read(self, result: Result) -> list[AnswerItem]:
        """Return the items of a whole answer, which must be all that this reader reads."""
        tokens, thought = result.token_ids, result.reasoning or ""
        answer = tokens[result.reasoning_tokens :]
        self.feed(
            Committed(
                request=0,
                tokens=tokens,
                answer=answer,
                text=result.text,
                reasoning=thought,
                logprobs=[*(result.logprobs or ())],
            )
        )
        self.close()
        return self.items

    def _written(self, kind: Kind, text: str) -> Iterator[Change]:
        if text and not self._opened(kind):
            yield from self._begin(kind)
        takes_logprobs = kind == "text" and self._opened(kind)
        logprobs = self._text_logprobs.take() if takes_logprobs else []
        if text or logprobs:
            yield self._added(text, logprobs)

    def _opened(self, kind: Kind) -> bool:
        return self._open and self.items[-1].kind == kind

    def _called(self, delta: CallDelta) -> Iterator[Change]:
        if delta.name is not None:
            custom = delta.name in self._custom
            yield from self._begin("input" if custom else "call", delta.name)
            self._input = _Input()
        custom = self.items[-1].kind == "input"
        text = self._input.feed(delta.arguments) if custom else delta.arguments
        if text:
            yield self._added(text)

    def _begin(self, kind: Kind, name: str = "") -> list[Change]:
        changes = self._close()
        self.items.append(AnswerItem(kind, len(self.items), name))
        self._open = True
        return [*changes, Opened(self.items[-1])]

    def _added(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> Added:
        item = self.items[-1]
        item.text += text
        item.logprobs += logprobs
        return Added(item, text, logprobs)


class _TextLogprobs:
    """Log-probabilities of an answer's text: those of the tokens before its first call. They come
    with the tokens that may still begin a call, which wait until that is known."""

    def __init__(self, tools: Tools | None, vocabulary: "Vocabulary"):
        self._stream = Stream(
            vocabulary=vocabulary,
            reasoning=None,
            calls=tools is not None,
            opening=tools.opening if tools else "",
            free=tools is None or tools.opens_free,
        )
        self._waiting: list[TokenLogprob] = []  # not returned yet

    def feed(self, logprobs: Sequence[TokenLogprob]) -> None:
        """Add those of the answer's next tokens."""
        self._waiting += logprobs

    def take(self) -> list[TokenLogprob]:
        """Return those of the text that have not been returned."""
        return self._next(ended=False)

    def end(self, text: str) -> list[TokenLogprob]:
        """Return those of the text that are left at the end of `text`. What may begin a call is
        text after all if it stands there; otherwise the answer ends before it."""
        return self._next(ended=True) if begun_at_end(text, self._stream.opening) else []

    def _next(self, ended: bool) -> list[TokenLogprob]:
        waiting, stream = self._waiting, self._stream
        tokens = [entry.token for entry in waiting]
        count = stream.text_tokens(tokens, ended)
        self._waiting = waiting[count:]
        pieces = stream.vocabulary.pieces
        if not stream.free and any(pieces[token].strip() for token in tokens[:count]):
            stream.calls = False  # a call would have begun the answer
        return waiting[:count]


class _Input:
    """Reader of the one string among a custom tool's arguments, `{"input": "..."}`."""

    def __init__(self) -> None:
        self._scanner, self._strings = JsonScanner(), 0
        self._unread = b""

    def feed(self, arguments: str) -> str:
        """Return the characters of the string that a piece of the arguments has, which divides no
        escape."""
        for kind, lexeme, _ in self._scanner.feed(arguments.encode()):
            self._strings += kind is STRING
            if kind is CHARACTERS and self._strings == 2:  # the first is the key
                self._unread += lexeme
        end = len(self._unread) - self._scanner.escaped
        characters, self._unread = self._unread[:end], self._unread[end:]
        return json.loads(b'"%s"' % characters)
