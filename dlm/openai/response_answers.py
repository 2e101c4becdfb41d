"""Answers of `/v1/responses`: a response object, or the events that build it.

Both come from one reader of items, so that a stream ends with the object that an answer without a
stream has. Events are numbered, and each item goes from `output_item.added` to `output_item.done`.
"""

import json
import time
from collections import defaultdict
from collections.abc import Sequence
from secrets import token_hex
from typing import Any

from dlm.errors import ContextLengthError
from dlm.events import Committed, Draft
from dlm.grammar import Vocabulary
from dlm.logprobs import TokenLogprob
from dlm.openai.answers import CONTEXT_LENGTH, Answers, public_message
from dlm.openai.body import Body, json_in_pieces
from dlm.openai.items import Added, AnswerItem, Change, Closed, ItemReader, Opened
from dlm.openai.logprobs import response_logprobs
from dlm.openai.response_items import StoredResponse
from dlm.openai.responses import REPEATED, ResponseGeneration
from dlm.request import Result

_PREFIXES = {"reasoning": "rs", "text": "msg", "call": "fc", "input": "ctc"}


class ResponseAnswers(Answers):
    """The answer to one body, whose generation has one request."""

    event_names = True

    def __init__(self, generation: ResponseGeneration, model: str, vocabulary: Vocabulary):
        """`model` is the model's name in the answer."""
        self._generation, self._model, self._vocabulary = generation, model, vocabulary
        self._reader = ItemReader(generation.requests[0], vocabulary)
        self.id = f"resp_{token_hex(24)}"
        self._created = int(time.time())
        self._ids: list[tuple[str, str]] = []  # of each item and, if it is a call, of the call
        self._entries = defaultdict[int, list[Body]](list)  # of log-probabilities, by item
        self._events = 0

    def whole(self, results: Sequence[Result]) -> Body:
        for item in self._reader.read(results[0]):
            self._add_entries(item, item.logprobs)
        return self._finished(results[0])

    def first(self) -> list[Body]:
        response = self._response("in_progress", [])
        return [self._event(name, response=response) for name in ("created", "in_progress")]

    def progress(self, index: int, event: Committed | Draft) -> list[Body]:
        if isinstance(event, Draft):
            return []
        changes = self._reader.feed(event)
        return [body for change in changes for body in self._change(change, "completed")]

    def end(self, index: int, result: Result) -> list[Body]:
        status = _status(result)
        ends = [body for change in self._reader.close() for body in self._change(change, status)]
        return [*ends, self._event(status, response=self._finished(result))]

    def failure(self, error: Exception) -> list[Body]:
        code = CONTEXT_LENGTH if isinstance(error, ContextLengthError) else "server_error"
        problem = {"code": code, "message": public_message(error)}
        response = self._response("failed", self._output("incomplete")) | {"error": problem}
        return [self._event("failed", response=response)]

    def _finished(self, result: Result) -> Body:
        """Return the finished response, after it is stored."""
        status = _status(result)
        response = self._response(status, self._output(status))
        if status == "incomplete":
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            response["completed_at"] = int(time.time())
        response["usage"] = _usage(result)
        self._store(response)
        return response

    def _store(self, response: Body) -> None:
        generation = self._generation
        if generation.responses is None:
            return
        names = generation.repeated_names
        own = {name: value for name, value in response.items() if name not in names}
        generation.responses.put(
            StoredResponse(
                id=self.id,
                response=_json(own),
                output=_json([_without_logprobs(item) for item in response["output"]]),
                repeated=generation.repeated,
                items=generation.items,
                previous=generation.previous,
            )
        )

    def _response(self, status: str, output: list[Body]) -> Body:
        reasoning = self._generation.reasoning_options
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "completed_at": None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": self._model,
            "output": output,
            "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary},
            "service_tier": "default",
            "store": self._generation.responses is not None,
            "usage": None,
            **REPEATED,
            **json.loads(self._generation.repeated),
        }

    def _output(self, status: str) -> list[Body]:
        """Return all items; `status` is that of the last."""
        items = self._reader.items
        return [
            self._item(item, "completed" if item is not items[-1] else status) for item in items
        ]

    def _item(self, item: AnswerItem, status: str) -> Body:
        while len(self._ids) <= item.number:
            kind = self._reader.items[len(self._ids)].kind
            self._ids.append((f"{_PREFIXES[kind]}_{token_hex(24)}", f"call_{token_hex(12)}"))
        id, call_id = self._ids[item.number]
        in_progress = status == "in_progress"
        if item.kind == "reasoning":
            part = self._part(item)
            summary = self._generation.summarized
            return {
                "id": id,
                "type": "reasoning",
                "summary": [part] if summary and not in_progress else [],
                "content": [part] if not summary and not in_progress else [],
                "encrypted_content": None,
                "status": status,
            }
        if item.kind == "text":
            content = [] if in_progress else [self._part(item)]
            return {
                "id": id,
                "type": "message",
                "role": "assistant",
                "content": content,
                "status": status,
            }
        namespace, name = self._generation.namespaces.get(item.name, (None, item.name))
        call = {"id": id, "call_id": call_id, "name": name}
        if namespace is not None:
            call["namespace"] = namespace
        text = "" if in_progress else item.text  # clients append what is sent after the beginning
        if item.kind == "input":
            return {"type": "custom_tool_call", **call, "input": text}
        return {"type": "function_call", **call, "arguments": text, "status": status}

    def _part_type(self, item: AnswerItem) -> str:
        if item.kind == "text":
            return "output_text"
        return "summary_text" if self._generation.summarized else "reasoning_text"

    def _change(self, change: Change, status: str) -> list[Body]:
        """Return the events of a change. An item that it closes has that `status`."""
        item = change.item
        match change:
            case Opened():
                shown = self._item(item, "in_progress")
                added = self._event("output_item.added", output_index=item.number, item=shown)
                return [added, *self._part_events(item, "added", _part(self._part_type(item)))]
            case Added():
                return [self._delta(change)]
            case Closed():
                done = [self._done(item), *self._part_events(item, "done", self._part(item))]
                shown = self._item(item, status)
                ended = self._event("output_item.done", output_index=item.number, item=shown)
                return [*done, ended]

    def _part(self, item: AnswerItem) -> Body:
        """Return the one part of a text, as far as it has been generated."""
        return _part(self._part_type(item), item.text, self._entries[item.number])

    def _add_entries(self, item: AnswerItem, logprobs: Sequence[TokenLogprob]) -> list[Body]:
        """Make the entries of the next tokens of a text, and return them."""
        entries = response_logprobs(logprobs, self._vocabulary)
        self._entries[item.number] += entries
        return entries

    def _part_events(self, item: AnswerItem, step: str, part: Body) -> list[Body]:
        """Return the event at the beginning or the end of the one part of a text."""
        if item.kind in ("call", "input"):
            return []
        summary = part["type"] == "summary_text"
        name = "reasoning_summary_part" if summary else "content_part"
        return [self._event(f"{name}.{step}", **self._place(item), part=part)]

    def _place(self, item: AnswerItem) -> Body:
        """Return the fields that tell to which item, and to which part of it, an event belongs."""
        place = {"item_id": self._ids[item.number][0], "output_index": item.number}
        if item.kind in ("call", "input"):
            return place
        index = "summary_index" if self._part_type(item) == "summary_text" else "content_index"
        return {**place, index: 0}

    def _stem(self, item: AnswerItem) -> str:
        """Return the name of an item's events of text."""
        match item.kind:
            case "call":
                return "function_call_arguments"
            case "input":
                return "custom_tool_call_input"
        type_ = self._part_type(item)
        return "reasoning_summary_text" if type_ == "summary_text" else type_

    def _delta(self, change: Added) -> Body:
        item, details = change.item, Body()
        if item.kind == "text":
            details["logprobs"] = self._add_entries(item, change.logprobs)
        return self._event(
            f"{self._stem(item)}.delta", **self._place(item), delta=change.text, **details
        )

    def _done(self, item: AnswerItem) -> Body:
        match item.kind:
            case "call":
                details: Body = {"arguments": item.text, "name": self._item(item, "")["name"]}
            case "input":
                details = {"input": item.text}
            case "text":
                details = {"text": item.text, "logprobs": self._entries[item.number]}
            case _:
                details = {"text": item.text}
        return self._event(f"{self._stem(item)}.done", **self._place(item), **details)

    def _event(self, name: str, /, **fields: Any) -> Body:
        number = self._events
        self._events += 1
        return {"type": f"response.{name}", "sequence_number": number, **fields}


def _json(value: Any) -> bytes:
    return "".join(json_in_pieces(value)).encode()


def _without_logprobs(item: Body) -> Body:
    """Return an item of the output as the model may be shown it later."""
    if item["type"] != "message":
        return item
    return {**item, "content": [{**part, "logprobs": []} for part in item["content"]]}


def _status(result: Result) -> str:
    return "incomplete" if result.finish_reason == "length" else "completed"


def _part(type_: str, text: str = "", logprobs: Sequence[Body] = ()) -> Body:
    details: Body = {"annotations": [], "logprobs": [*logprobs]} if type_ == "output_text" else {}
    return {"type": type_, "text": text, **details}


def _usage(result: Result) -> Body:
    input_tokens, output_tokens = result.prompt_tokens, result.stats.tokens
    cached = result.stats.cached
    return {
        "input_tokens": input_tokens,
        "input_tokens_details": {
            "cached_tokens": cached,
            "cache_write_tokens": input_tokens - cached,
        },
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": result.reasoning_tokens},
        "total_tokens": input_tokens + output_tokens,
    }
