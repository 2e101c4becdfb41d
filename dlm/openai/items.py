"""Items of an answer: its reasoning, its text and its calls, in the order of their generation.

OpenAI's Responses and Anthropic's Messages have an answer as a list of such items, and stream each
of them from its opening to its close. `ItemReader` makes both from the engine's events: a whole
answer is what its changes add up to. This module knows neither of the two forms.
"""

import json
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from dlm.events import Committed
from dlm.grammar import Tools
from dlm.grammar.calls import CallDelta, CallReader
from dlm.grammar.json_scanner import CHARACTERS, STRING, JsonScanner
from dlm.logprobs import TokenLogprob
from dlm.request import Request, Result

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
    """Text that an item has got. It is empty if tokens of earlier text are judged only now."""

    item: AnswerItem
    text: str
    logprobs: Sequence[TokenLogprob] = ()  # of the tokens of a text that it completes


@dataclass(frozen=True, slots=True)
class Closed:
    """End of an item."""

    item: AnswerItem


Change = Opened | Added | Closed


def custom_tools(request: Request) -> Collection[str]:
    """Return the names of the custom tools that a request's answer may call."""
    constraint = request.constraint
    return constraint.custom.keys() if isinstance(constraint, Tools) else ()


def call_reader(request: Request, vocabulary: "Vocabulary") -> CallReader | None:
    """Return a reader of the calls in a request's answer; None if it has none."""
    if request.constraint is None or vocabulary.calls is None:
        return None
    constraint = request.constraint.in_form(vocabulary.calls)
    return constraint.reader(vocabulary) if isinstance(constraint, Tools) else None


class ItemReader:
    """Reader of the events of one request."""

    def __init__(self, request: Request, vocabulary: "Vocabulary"):
        self._calls = call_reader(request, vocabulary)
        self._custom = custom_tools(request)
        self._input = _Input()
        self._text_tokens = _TextTokens(vocabulary)
        self.items: list[AnswerItem] = []  # all that have been opened
        self._open = False  # whether the last of them may still get text

    def feed(self, event: Committed) -> list[Change]:
        """Return the changes by an event."""
        changes = [*self._written("reasoning", event.reasoning)]
        judged = self._text_tokens.feed(event.text, event.logprobs)
        changes += self._written("text", event.text, judged)
        for delta in self._calls.feed(event.answer) if self._calls else ():
            changes += self._called(delta)
        return changes

    def close(self) -> list[Change]:
        """Return the changes at the answer's end."""
        if not self._open:
            return []
        self._open = False
        return [Closed(self.items[-1])]

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

    def _written(
        self, kind: Kind, text: str, judged: Sequence[TokenLogprob] = ()
    ) -> Iterator[Change]:
        if text:
            if not self._open or self.items[-1].kind != kind:
                yield from self._begin(kind)
            yield self._added(text, judged)
        elif judged:  # of earlier text
            item = next(item for item in reversed(self.items) if item.kind == kind)
            item.logprobs += judged
            if self._open and item is self.items[-1]:
                yield Added(item, "", judged)

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
        changes = self.close()
        self.items.append(AnswerItem(kind, len(self.items), name))
        self._open = True
        return [*changes, Opened(self.items[-1])]

    def _added(self, text: str, judged: Sequence[TokenLogprob] = ()) -> Added:
        item = self.items[-1]
        item.text += text
        item.logprobs += judged
        return Added(item, text, judged)


class _TextTokens:
    """Judged tokens of an answer, which are matched with its text by their bytes: those of calls
    come after them. Tokens may be judged before their text has come, or later."""

    def __init__(self, vocabulary: "Vocabulary"):
        self._pieces = vocabulary.pieces
        self._waiting = deque[TokenLogprob]()
        self._unmatched = 0  # bytes of text

    def feed(self, text: str, judged: Sequence[TokenLogprob]) -> list[TokenLogprob]:
        """Return the tokens that end within the text so far, and have not been returned."""
        self._unmatched += len(text.encode(errors="surrogatepass"))
        self._waiting += judged
        matched = []
        while self._waiting and self._unmatched:
            size = len(self._pieces[self._waiting[0].token])
            if size > self._unmatched:
                break
            self._unmatched -= size
            matched.append(self._waiting.popleft())
        return matched


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
