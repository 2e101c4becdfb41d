"""Bodies of answers in OpenAI's form, whole or in chunks, made from results and events.

Knows no HTTP.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from secrets import token_hex
from typing import ClassVar

from dlm.events import Committed, Draft
from dlm.grammar import Vocabulary
from dlm.grammar.calls.gemma import CallReader
from dlm.openai.body import Body
from dlm.openai.requests import Generation
from dlm.request import Result


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
            index: CallReader(vocabulary)
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
