"""Bodies of answers in OpenAI's form, whole or in chunks, and of errors.

They are made from results and events. `Answers` is what all forms of requests have in common, and
`Choices` are chats and completions. `describe_error` and `status_of` turn an error into a body and
a status. Knows no HTTP.
"""

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from secrets import token_hex
from typing import TYPE_CHECKING, Any, ClassVar

from dlm.errors import (
    ContextLengthError,
    DlmError,
    QueueFullError,
    RequestError,
    UnavailableError,
)
from dlm.events import Committed, Draft
from dlm.grammar import CrashError, GrammarError, ToolCall
from dlm.grammar.specs.tool_forms import INPUT
from dlm.logprobs import TokenLogprob
from dlm.models import ModelError
from dlm.openai.body import Body, sendable
from dlm.openai.decisions import DecisionFields
from dlm.openai.items import Added, AnswerItem, Change, ItemReader, Kind, Opened, custom_tools
from dlm.openai.logprobs import TextLogprobs, chat_logprobs
from dlm.openai.requests import ChatBody, CompletionBody, Generation, UnknownModelError
from dlm.openai.response_items import UnknownResponseError
from dlm.openai.responses import ResponsesBody
from dlm.openai.tokenizing import DetokenizeBody, TokenizeBody, TokenizeChatBody
from dlm.request import Result

if TYPE_CHECKING:
    from dlm.grammar import Vocabulary  # with torch, which errors and settings do without


class Answers(ABC):
    """Answers to one body: one for each of its requests, whole or as the events of a stream."""

    event_names: ClassVar[bool] = False  # whether a stream names each event after its `type`
    end_mark: ClassVar[str] = ""  # text after the last event of a stream

    @abstractmethod
    def whole(self, results: Sequence[Result]) -> Body:
        """Return the body of an answer that does not stream."""

    @abstractmethod
    def first(self) -> list[Body]:
        """Return the events that come before all others."""

    @abstractmethod
    def progress(self, index: int, event: Committed | Draft) -> list[Body]:
        """Return the events for what has been generated for request number `index`."""

    @abstractmethod
    def end(self, index: int, result: Result) -> list[Body]:
        """Return the events at the end of request number `index`."""

    def last(self) -> list[Body]:
        """Return the events after the ends of all requests."""
        return []

    @abstractmethod
    def failure(self, error: Exception) -> list[Body]:
        """Return the events for an error that ends the stream."""


MakeAnswers = Callable[[Any, str, "Vocabulary"], Answers]  # of a generation, and the model's name


class Choices(Answers):
    """Answers in the form of a list of choices."""

    name: ClassVar[str]  # `object` of a whole answer
    chunk_name: ClassVar[str]  # `object` of a chunk
    prefix: ClassVar[str]  # prefix of ids
    end_mark = "data: [DONE]\n\n"

    def __init__(self, generation: Generation, model: str, vocabulary: "Vocabulary"):
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
    def ending(self, index: int, reason: str) -> list[Body]:
        """Return the choices of the chunks at an answer's end."""

    def whole(self, results: Sequence[Result]) -> Body:
        choices = [self.choice(i, result) for i, result in enumerate(results)]
        return self._body(self.name, choices) | {"usage": self._usage(results)}

    def first(self) -> list[Body]:
        count = len(self._generation.requests)
        return [self._chunk([choice]) for index in range(count) for choice in self.begin(index)]

    def progress(self, index: int, event: Committed | Draft) -> list[Body]:
        if isinstance(event, Draft):
            return [self._chunk([]) | {"draft": self._draft(index, event)}]
        return [self._chunk([choice]) for choice in self.pieces(index, event)]

    def end(self, index: int, result: Result) -> list[Body]:
        self._results[index] = result
        ending = self.ending(index, self.finish_reason(result))
        return [self._chunk([choice]) for choice in ending]

    def last(self) -> list[Body]:
        if not self._generation.usage:
            return []
        results = [result for _, result in sorted(self._results.items())]
        return [self._chunk([]) | {"usage": self._usage(results)}]

    def failure(self, error: Exception) -> list[Body]:
        return [describe_error(error)]

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
        prompt_tokens = sum(r.prompt_tokens for r in prompts)
        completion_tokens = sum(r.stats.tokens for r in results)
        cached = sum(r.stats.cached for r in prompts)
        reasoning = sum(r.reasoning_tokens for r in results)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        }

    def _draft(self, index: int, draft: Draft) -> Body:
        pieces = self._vocabulary.pieces
        return {
            "index": index,
            "step": draft.step,
            "committed": draft.committed,
            "entropy": round(draft.entropy, 6),
            "tokens": [pieces[token].decode("utf-8", "replace") for token in draft.tokens],
            "accepted": draft.accepted,
            "masked": draft.masked,
            "pinned": draft.pinned,
            "suspect": draft.suspect,
            "passes": draft.passes,
            "repairs": draft.repairs,
        }


class ChatAnswers(Choices):
    """Answers of `/v1/chat/completions`."""

    name, chunk_name, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl-"

    def __init__(self, generation: Generation, model: str, vocabulary: "Vocabulary"):
        super().__init__(generation, model, vocabulary)
        self._items = [ItemReader(request, vocabulary) for request in generation.requests]
        self._call_counts = [0] * len(self._items)

    def choice(self, index: int, result: Result) -> Body:
        message: Body = {"role": "assistant", "content": result.text, "refusal": None}
        if self._generation.reasoning:
            message["reasoning"] = result.reasoning
        if result.tool_calls:
            message["content"] = result.text or None
            custom = custom_tools(self._generation.requests[index])
            message["tool_calls"] = [_call(call, custom) for call in result.tool_calls]
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(result.logprobs),
            "finish_reason": self.finish_reason(result),
        }

    def begin(self, index: int) -> list[Body]:
        return [_delta(index, {"role": "assistant", "content": ""})]

    def pieces(self, index: int, event: Committed) -> list[Body]:
        deltas = self._deltas(index, self._items[index].feed(event))
        if event.logprobs:  # they come with the last of the chunks, or alone
            last = deltas.pop() if deltas else _delta(index, {})
            deltas.append(last | {"logprobs": self._logprobs(event.logprobs)})
        return deltas

    def _deltas(self, index: int, changes: Sequence[Change]) -> list[Body]:
        pieces = (self._piece(index, change) for change in changes)
        return [_delta(index, piece) for piece in pieces if piece is not None]

    def _logprobs(self, logprobs: Sequence[TokenLogprob] | None) -> Body | None:
        return None if logprobs is None else chat_logprobs(logprobs, self._vocabulary)

    def _piece(self, index: int, change: Change) -> Body | None:
        match change:
            case Added(AnswerItem("reasoning"), text) if self._generation.reasoning:
                return {"reasoning": text}
            case Added(AnswerItem("text"), text) if text:
                return {"content": text}
            case Opened(AnswerItem("call" | "input" as kind, name=name)):
                number = self._call_counts[index]
                self._call_counts[index] += 1
                return {"tool_calls": [{"index": number} | _call_body(kind, name, "")]}
            case Added(AnswerItem("call"), text):
                piece = {"function": {"arguments": text}}
            case Added(AnswerItem("input"), text):
                piece = {"custom": {"input": text}}
            case _:
                return None
        return {"tool_calls": [{"index": self._call_counts[index] - 1} | piece]}

    def ending(self, index: int, reason: str) -> list[Body]:
        changes = self._items[index].close()
        return [*self._deltas(index, changes), _delta(index, {}, reason)]


class TextAnswers(Choices):
    """Answers of `/v1/completions`."""

    name, chunk_name, prefix = "text_completion", "text_completion", "cmpl-"

    def __init__(self, generation: Generation, model: str, vocabulary: "Vocabulary"):
        super().__init__(generation, model, vocabulary)
        self._columns = [TextLogprobs(vocabulary) for _ in generation.requests]

    def choice(self, index: int, result: Result) -> Body:
        answer = _text(index, result.text, self.finish_reason(result))
        return answer | {"logprobs": self._logprobs(index, result.logprobs)}

    def begin(self, index: int) -> list[Body]:
        return []

    def pieces(self, index: int, event: Committed) -> list[Body]:
        if not (event.text or event.logprobs):
            return []
        logprobs = self._logprobs(index, event.logprobs or None)
        return [_text(index, event.text) | {"logprobs": logprobs}]

    def _logprobs(self, index: int, logprobs: Sequence[TokenLogprob] | None) -> Body | None:
        return None if logprobs is None else self._columns[index].next(logprobs)

    def ending(self, index: int, reason: str) -> list[Body]:
        return [_text(index, "", reason)]


def _delta(index: int, delta: Body, reason: str | None = None) -> Body:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}


def _text(index: int, text: str, reason: str | None = None) -> Body:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}


def _call(call: ToolCall, custom: Collection[str]) -> Body:
    """Return a finished call in the form of chat completions."""
    if call.name in custom:
        return _call_body("input", call.name, call.arguments[INPUT])
    return call.to_openai(_call_id())


def _call_id() -> str:
    return f"call_{token_hex(12)}"


def _call_body(kind: Kind, name: str, text: str) -> Body:
    """Return a call, or its beginning; `text` is JSON arguments, or a custom tool's input."""
    id = _call_id()
    if kind == "input":
        return {"id": id, "type": "custom", "custom": {"name": name, "input": text}}
    return {"id": id, "type": "function", "function": {"name": name, "arguments": text}}


_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "RequestTooLargeError",
    415: "UnsupportedMediaTypeError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
    431: "RequestTooLargeError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}
_FIELD = re.compile(r"[a-z_]+")
_BODIES = (
    ChatBody,
    CompletionBody,
    ResponsesBody,
    DecisionFields,
    TokenizeBody,
    TokenizeChatBody,
    DetokenizeBody,
)
_FIELDS = frozenset(name for body in _BODIES for name in body.names())


def error_body(status: int, message: str, param: str | None = None) -> Body:
    """Return the body of an error. `param` is the request's field that it is about, if known."""
    message, param = sendable(message), None if param is None else sendable(param)
    type_ = _TYPES.get(status, "BadRequestError" if status < 500 else "InternalServerError")
    return {"error": {"message": message, "type": type_, "param": param, "code": status}}


def status_of(error: Exception) -> int:
    """Return the HTTP status of an error: 400 for a body that cannot be served, 404 for an unknown
    model, 422 for an answer that could not be made, 429 and 503 for what may succeed later."""
    match error:
        case UnknownModelError() | UnknownResponseError():
            return 404
        case RequestError():
            return 400
        case QueueFullError():
            return 429
        case UnavailableError():
            return 503
        case ModelError() | CrashError():
            return 500
        case DlmError(__cause__=None):
            return 422
        case DlmError(__cause__=GrammarError() as cause) if not isinstance(cause, CrashError):
            return 422
    return 500


def public_message(error: Exception) -> str:
    """Return the text about an error that a client gets: no details if the status is 500."""
    failed = status_of(error) == 500
    return "the request failed, by no fault of its own" if failed else sendable(str(error))


CONTEXT_LENGTH = "context_length_exceeded"  # OpenAI's code, by which clients shorten a conversation


def describe_error(error: Exception) -> Body:
    """Return the body for an error."""
    status = status_of(error)
    body = error_body(status, public_message(error), None if status == 500 else _field_of(error))
    if isinstance(error, ContextLengthError):
        body["error"]["code"] = CONTEXT_LENGTH
    return body


def _field_of(error: Exception) -> str | None:
    """Return the field an error is about: its `field`, or a known field that its text begins
    with."""
    if isinstance(error, RequestError) and error.field is not None:
        return error.field
    named = _FIELD.match(str(error))
    return named[0] if named and named[0] in _FIELDS else None
