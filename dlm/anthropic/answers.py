"""Answers in Anthropic's form: messages, models and errors.

A message and the events that build it come from one reader of items, so that a stream ends with the
message that an answer without a stream is. The number of a prompt's tokens is known at the end: a
stream's first event has zero, and its `message_delta` the number.
"""

import json
from collections.abc import Sequence
from secrets import token_hex
from typing import TYPE_CHECKING

from dlm.anthropic.messages import UnknownThreadError
from dlm.errors import ContextLengthError
from dlm.events import Committed, Draft
from dlm.openai.answers import Answers, public_message, status_of
from dlm.openai.body import Body
from dlm.openai.items import Added, AnswerItem, Change, Closed, ItemReader, Opened
from dlm.openai.requests import Generation
from dlm.request import Result

if TYPE_CHECKING:
    from dlm.grammar import Vocabulary  # with torch, which errors and settings do without


class MessageAnswers(Answers):
    """The answer to one body, whose generation has one request."""

    event_names = True

    def __init__(self, generation: Generation, model: str, vocabulary: "Vocabulary"):
        """`model` is the model's name in the answer."""
        self._request, self._model = generation.requests[0], model
        self._vocabulary = vocabulary
        self._reader = ItemReader(self._request, vocabulary)
        self.id = f"msg_{token_hex(12)}"

    def whole(self, results: Sequence[Result]) -> Body:
        (result,) = results
        content = [_block(item) for item in self._reader.read(result)]
        return self._message(content, _usage(result)) | self._stop(result)

    def first(self) -> list[Body]:
        empty = {"input_tokens": 0, "output_tokens": 0}
        return [{"type": "message_start", "message": self._message([], empty)}]

    def progress(self, index: int, event: Committed | Draft) -> list[Body]:
        if isinstance(event, Draft):
            return []
        return [body for change in self._reader.feed(event) for body in _events(change)]

    def end(self, index: int, result: Result) -> list[Body]:
        ends = [body for change in self._reader.close() for body in _events(change)]
        delta = {"type": "message_delta", "delta": self._stop(result), "usage": _usage(result)}
        return [*ends, delta, {"type": "message_stop"}]

    def failure(self, error: Exception) -> list[Body]:
        return [anthropic_error(error)]

    def _message(self, content: list[Body], usage: Body) -> Body:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }

    def _stop(self, result: Result) -> Body:
        """Return why the answer ended."""
        if result.finish_reason == "length":
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        if result.tool_calls:
            return {"stop_reason": "tool_use", "stop_sequence": None}
        stop = self._stop_sequence(result)
        return {
            "stop_reason": "end_turn" if stop is None else "stop_sequence",
            "stop_sequence": stop,
        }

    def _stop_sequence(self, result: Result) -> str | None:
        """Return the text of `stop` that ended the answer; None if none did. The answer's tokens
        include it, and its text does not."""
        if not self._request.stop:
            return None
        whole = self._vocabulary.text(result.token_ids[result.reasoning_tokens :])
        after = whole.removeprefix(result.text)
        stops = [text for text in self._request.stop if after.startswith(text)]
        return max(stops, key=len, default=None)


def _block(item: AnswerItem) -> Body:
    match item.kind:
        case "reasoning":
            return {"type": "thinking", "thinking": item.text, "signature": ""}
        case "text":
            return {"type": "text", "text": item.text, "citations": None}
    arguments = json.loads(item.text or "{}")
    return {
        "type": "tool_use",
        "id": f"toolu_{token_hex(12)}",
        "name": item.name,
        "input": arguments,
    }


def _events(change: Change) -> list[Body]:
    item = change.item
    at = {"index": item.number}
    match change:
        case Opened():
            empty = AnswerItem(item.kind, item.number, item.name)
            return [{"type": "content_block_start", **at, "content_block": _block(empty)}]
        case Added(text=text):
            return [{"type": "content_block_delta", **at, "delta": _delta(item, text)}]
        case Closed():
            return [{"type": "content_block_stop", **at}]


def _delta(item: AnswerItem, text: str) -> Body:
    match item.kind:
        case "reasoning":
            return {"type": "thinking_delta", "thinking": text}
        case "text":
            return {"type": "text_delta", "text": text}
    return {"type": "input_json_delta", "partial_json": text}


def _usage(result: Result) -> Body:
    """Count tokens. Those of the prompt that were cached count apart from the others."""
    cached = result.stats.cached
    return {
        "input_tokens": result.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": result.stats.tokens,
    }


_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def anthropic_body(status: int, message: str) -> Body:
    """Return the body of an error with an HTTP status."""
    type_ = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": type_, "message": message}}


def _too_long(error: ContextLengthError) -> str:
    """Return Anthropic's words, by which clients shorten a conversation."""
    least = "" if error.counted else "at least "
    most = error.longest_prompt
    return f"prompt is too long: {least}{error.prompt} tokens > {most} maximum"


def anthropic_error(error: Exception) -> Body:
    """Return the body for an error."""
    message = public_message(error)
    if isinstance(error, ContextLengthError):
        message = f"{_too_long(error)} ({message})"
    body = anthropic_body(status_of(error), message)
    if isinstance(error, UnknownThreadError):
        body["error"]["details"] = {"error_code": "thread_not_found"}
    return body


_CREATED = "1970-01-01T00:00:00Z"  # Anthropic's value for an unknown date


def model_info(name: str, most_input: int, most_output: int) -> Body:
    """Return a model that reads up to `most_input` tokens and writes up to `most_output`."""
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": _CREATED,
        "lifecycle": "active",
        "max_input_tokens": most_input,
        "max_tokens": most_output,
    }


def model_page(models: Sequence[Body]) -> Body:
    """Return all models, of which there is at least one, as the only page of their list."""
    return {
        "data": list(models),
        "has_more": False,
        "first_id": models[0]["id"],
        "last_id": models[-1]["id"],
    }
