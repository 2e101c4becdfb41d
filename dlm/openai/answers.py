"""From results to the bodies of answers: whole, or in chunks. No HTTP."""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from secrets import token_hex
from typing import Any, ClassVar

from dlm.events import Committed, Draft
from dlm.grammar import Vocabulary
from dlm.openai.call_stream import CallStream
from dlm.openai.fields import Generation
from dlm.request import Result

Body = dict[str, Any]


class Answers(ABC):
    """All answers to one body: one for each of its requests."""

    name: ClassVar[str]  # of the object that an answer is
    chunk_name: ClassVar[str]
    prefix: ClassVar[str]  # of ids

    def __init__(self, generation: Generation, model: str, vocabulary: Vocabulary):
        """`model` is the name that the client knows it by."""
        self._generation, self._model, self._vocabulary = generation, model, vocabulary
        self.id = self.prefix + (generation.id or token_hex(16))
        self._created = int(time.time())
        self._results: dict[int, Result] = {}

    @abstractmethod
    def choice(self, index: int, result: Result) -> Body:
        """An answer."""

    @abstractmethod
    def begin(self, index: int) -> list[Body]:
        """Choices of the chunks that come before all others."""

    @abstractmethod
    def pieces(self, index: int, event: Committed) -> list[Body]:
        """Choices of the chunks that say what has become final."""

    @abstractmethod
    def last(self, index: int, reason: str) -> Body:
        """The choice of the chunk that ends an answer."""

    def whole(self, results: Sequence[Result]) -> Body:
        """The body of an answer that does not stream."""
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
        """What follows the last chunks of all answers, where it is wanted."""
        results = [result for _, result in sorted(self._results.items())]
        return self._chunk([]) | {"usage": self._usage(results)}

    def finish_reason(self, result: Result) -> str:
        """A call that was asked for by name is no decision of the model's to call."""
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
        """A prompt of several answers counts once."""
        prompts = results[:: len(self._generation.requests) // self._generation.prompts]
        read, written = sum(r.prompt_tokens for r in prompts), sum(r.stats.tokens for r in results)
        cached, reasoned = (
            sum(r.stats.cached for r in prompts),
            sum(r.reasoning_tokens for r in results),
        )
        return {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": reasoned},
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
    """To `/v1/chat/completions`."""

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
        for call in calls.tell(event.tokens) if calls else ():
            said: Body = {"index": call.index, "function": {"arguments": call.arguments}}
            if call.name is not None:
                said |= {"id": _call_id(), "type": "function"}
                said["function"]["name"] = call.name
            deltas.append({"tool_calls": [said]})
        return [_delta(index, delta) for delta in deltas]

    def last(self, index: int, reason: str) -> Body:
        return _delta(index, {}, reason)


class TextAnswers(Answers):
    """To `/v1/completions`."""

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
