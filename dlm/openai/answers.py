"""Bodies of answers in OpenAI's form, whole or in chunks, made from results and events.

`CallStream` turns tool calls from Gemma's own form, token by token, into JSON arguments while they
are being generated; `dlm.grammar.calls.gemma` reads finished answers. It takes what the grammar of
tools allows, and checks nothing. This module knows no HTTP.
"""

import codecs
import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from typing import ClassVar

from dlm.events import Committed, Draft
from dlm.grammar import Vocabulary
from dlm.grammar.schema.dialect import BARE_VALUE
from dlm.openai.body import Body
from dlm.openai.requests import Generation
from dlm.request import Result

_WORDS = "|".join(
    word[:end] for word in ("true", "false", "null") for end in range(1, len(word) + 1)
)
# The beginning of a number or of a word of JSON.
_BEGUN_VALUE = re.compile(rf"(?:-?[0-9]*(?:\.[0-9]*)?(?:[eE][+-]?[0-9]*)?|{_WORDS})")


@dataclass(slots=True)
class CallDelta:
    """A piece of a call: either its name, without arguments, or some JSON text of its arguments."""

    index: int  # number of the call in its answer, from 0
    name: str | None
    arguments: str


@dataclass(slots=True)
class _Call:
    """A call that is being read."""

    name: str | None = None  # None until it is complete
    text: str = ""  # the part of the name, or of a key, that has been read
    open_brackets: list[str] = field(default_factory=list)  # "{" and "["
    in_key: bool = False  # a key is being read, or comes next
    after_colon: str | None = None  # text after a colon that may end the key; None: no such colon
    quoted: bool = False  # within a string


class CallStream:
    """Reader of the calls of one answer."""

    def __init__(self, vocabulary: Vocabulary):
        if vocabulary.call is None:
            raise ValueError("this vocabulary has no tokens of tool calls")
        self._markers, self._pieces = vocabulary.call, vocabulary.pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._call: _Call | None = None
        self._index = -1

    def feed(self, tokens: Sequence[int]) -> list[CallDelta]:
        """Read the next final `tokens`; return for each call its name and one piece of arguments,
        as far as these tokens have them."""
        deltas: list[CallDelta] = []
        for token in tokens:
            for delta in self._read(token):
                last = deltas[-1] if deltas else None
                if last and delta.name is None and (last.index, last.name) == (delta.index, None):
                    last.arguments += delta.arguments
                else:
                    deltas.append(delta)
        return deltas

    def _read(self, token: int) -> Iterator[CallDelta]:
        markers, call = self._markers, self._call
        if token == markers.open:
            self._call, self._index = _Call(), self._index + 1
        elif call is None:
            return
        elif token == markers.close:
            self._call = None
        elif token == markers.quote:
            if call.after_colon == "":
                yield self._end_key(call)
            call.quoted = not call.quoted
            yield self._piece('"')
        else:
            for character in self._decoder.decode(self._pieces[token]):
                yield from self._take(call, character)

    def _piece(self, arguments: str) -> CallDelta:
        return CallDelta(self._index, None, arguments)

    def _take(self, call: _Call, character: str) -> Iterator[CallDelta]:
        if call.quoted:
            yield self._piece(json.dumps(character, ensure_ascii=False)[1:-1])
        elif call.name is None and character != "{":
            call.text += character
        elif call.after_colon is not None:
            yield from self._after_colon(call, call.after_colon + character)
        elif call.in_key and character == ":":
            call.after_colon = ""
        elif call.in_key and (character != "}" or call.text):
            call.text += character
        else:
            if call.name is None:
                call.name, call.text = call.text.removeprefix("call:"), ""
                yield CallDelta(self._index, call.name, "")
            yield self._piece(self._value(call, character))

    def _after_colon(self, call: _Call, after: str) -> Iterator[CallDelta]:
        """Decide by the text `after` a colon whether the colon ends the key (`dialect.is_bare`)."""
        if BARE_VALUE.match(after):
            yield self._end_key(call)
            for character in after:
                yield self._piece(self._value(call, character))
        elif _BEGUN_VALUE.fullmatch(after):
            call.after_colon = after
        else:
            call.text, call.after_colon = f"{call.text}:{after[:-1]}", None
            yield from self._take(call, after[-1])

    def _end_key(self, call: _Call) -> CallDelta:
        key = json.dumps(call.text, ensure_ascii=False)
        call.text, call.in_key, call.after_colon = "", False, None
        return self._piece(f"{key}: ")

    def _value(self, call: _Call, character: str) -> str:
        """Return the JSON text for a character of a value, or between values."""
        if character in "{[":
            call.open_brackets.append(character)
        elif character in "}]":
            call.open_brackets.pop()
        call.in_key = character in "{," and call.open_brackets[-1:] == ["{"]
        return ", " if character == "," else character


class Answers(ABC):
    """Answers to one body: one for each of its requests."""

    name: ClassVar[str]  # `object` of a whole answer
    chunk_name: ClassVar[str]  # `object` of a chunk
    prefix: ClassVar[str]  # prefix of ids

    def __init__(self, generation: Generation, model: str, vocabulary: Vocabulary):
        """`model` is the model's name in the answers."""
        self._generation, self._model, self._vocabulary = generation, model, vocabulary
        self.id = self.prefix + (generation.id or token_hex(16))
        self._created = int(time.time())
        self._results: dict[int, Result] = {}

    @abstractmethod
    def choice(self, index: int, result: Result) -> Body:
        """Return the whole answer to a request, as a choice."""

    @abstractmethod
    def begin(self, index: int) -> list[Body]:
        """Return the choices of the chunks that come before all others."""

    @abstractmethod
    def pieces(self, index: int, event: Committed) -> list[Body]:
        """Return the choices of the chunks for text and calls that have become final."""

    @abstractmethod
    def last(self, index: int, reason: str) -> Body:
        """Return the choice of the chunk that ends an answer."""

    def whole(self, results: Sequence[Result]) -> Body:
        """Return the body of an answer that does not stream."""
        choices = [self.choice(i, result) for i, result in enumerate(results)]
        return self._body(self.name, choices) | {"usage": self._usage(results)}

    def first_chunks(self) -> list[Body]:
        count = len(self._generation.requests)
        return [self._chunk([choice]) for index in range(count) for choice in self.begin(index)]

    def chunks(self, index: int, event: Committed | Draft) -> list[Body]:
        if isinstance(event, Draft):
            return [self._chunk([]) | {"draft": self._draft(index, event)}]
        return [self._chunk([choice]) for choice in self.pieces(index, event)]

    def last_chunk(self, index: int, result: Result) -> Body:
        self._results[index] = result
        return self._chunk([self.last(index, self.finish_reason(result))])

    def usage_chunk(self) -> Body:
        """Return the chunk with the usage of all answers, to be sent after their last chunks."""
        results = [result for _, result in sorted(self._results.items())]
        return self._chunk([]) | {"usage": self._usage(results)}

    def finish_reason(self, result: Result) -> str:
        """Return why an answer ended: "tool_calls" only if the model itself chose to call."""
        called = bool(result.tool_calls) and not self._generation.named
        return "tool_calls" if called and result.finish_reason == "stop" else result.finish_reason

    def _body(self, name: str, choices: list[Body]) -> Body:
        return {
            "id": self.id,
            "object": name,
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }

    def _chunk(self, choices: list[Body]) -> Body:
        chunk = self._body(self.chunk_name, choices)
        return chunk | {"usage": None} if self._generation.usage else chunk

    def _usage(self, results: Sequence[Result]) -> Body:
        """Count tokens; a prompt with several answers counts once."""
        prompts = results[:: len(self._generation.requests) // self._generation.prompts]
        read, written = sum(r.prompt_tokens for r in prompts), sum(r.stats.tokens for r in results)
        cached = sum(r.stats.cached for r in prompts)
        reasoning = sum(r.reasoning_tokens for r in results)
        return {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        }

    def _draft(self, index: int, draft: Draft) -> Body:
        pieces = self._vocabulary.pieces
        return {
            "index": index,
            "step": draft.step,
            "entropy": round(draft.entropy, 6),
            "tokens": [pieces[token].decode("utf-8", "replace") for token in draft.tokens],
            "accepted": draft.accepted,
            "pinned": draft.pinned,
            "suspect": draft.suspect,
            "passes": draft.passes,
            "repairs": draft.repairs,
        }


class ChatAnswers(Answers):
    """Answers of `/v1/chat/completions`."""

    name, chunk_name, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl-"

    def __init__(self, generation: Generation, model: str, vocabulary: Vocabulary):
        super().__init__(generation, model, vocabulary)
        self._calls = {
            index: CallStream(vocabulary)
            for index, request in enumerate(generation.requests)
            if request.constraint is not None and request.constraint.calls
        }

    def choice(self, index: int, result: Result) -> Body:
        message: Body = {"role": "assistant", "content": result.text, "refusal": None}
        if self._generation.reasoning:
            message["reasoning"] = result.reasoning
        if result.tool_calls:
            message["content"] = result.text or None
            message["tool_calls"] = [call.to_openai(_call_id()) for call in result.tool_calls]
        return {
            "index": index,
            "message": message,
            "logprobs": None,
            "finish_reason": self.finish_reason(result),
        }

    def begin(self, index: int) -> list[Body]:
        return [_delta(index, {"role": "assistant", "content": ""})]

    def pieces(self, index: int, event: Committed) -> list[Body]:
        deltas: list[Body] = []
        if event.reasoning and self._generation.reasoning:
            deltas.append({"reasoning": event.reasoning})
        if event.text:
            deltas.append({"content": event.text})
        calls = self._calls.get(index)
        for call in calls.feed(event.tokens) if calls else ():
            delta: Body = {"index": call.index, "function": {"arguments": call.arguments}}
            if call.name is not None:
                delta |= {"id": _call_id(), "type": "function"}
                delta["function"]["name"] = call.name
            deltas.append({"tool_calls": [delta]})
        return [_delta(index, delta) for delta in deltas]

    def last(self, index: int, reason: str) -> Body:
        return _delta(index, {}, reason)


class TextAnswers(Answers):
    """Answers of `/v1/completions`."""

    name, chunk_name, prefix = "text_completion", "text_completion", "cmpl-"

    def choice(self, index: int, result: Result) -> Body:
        return _text(index, result.text, self.finish_reason(result))

    def begin(self, index: int) -> list[Body]:
        return []

    def pieces(self, index: int, event: Committed) -> list[Body]:
        return [_text(index, event.text)] if event.text else []

    def last(self, index: int, reason: str) -> Body:
        return _text(index, "", reason)


def _delta(index: int, delta: Body, reason: str | None = None) -> Body:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}


def _text(index: int, text: str, reason: str | None = None) -> Body:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}


def _call_id() -> str:
    return f"call_{token_hex(12)}"
