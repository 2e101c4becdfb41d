"""Many requests from a file, in the form of OpenAI's batches, without a server.

A line is `{"custom_id", "method": "POST", "url", "body"}`; what comes back is a line of the same
`custom_id` with a response or an error. Lines are answered in the order in which they end.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

from dlm.engine import Engine
from dlm.errors import DlmError, RequestError
from dlm.events import Event, Failed, Finished
from dlm.openai.answers import Answers, ChatAnswers, TextAnswers
from dlm.openai.body import object_at, only, text_at, wrong
from dlm.openai.errors import status_of, told
from dlm.openai.fields import Generation, chat_of, completion_of
from dlm.policy import Policy
from dlm.request import Result

_FIELDS = ("custom_id", "method", "url", "body")
_ROUTES: dict[str, tuple[Callable[[Any, Policy], Generation], type[Answers]]] = {
    "/v1/chat/completions": (chat_of, ChatAnswers),
    "/v1/completions": (completion_of, TextAnswers),
}


@dataclass(slots=True)
class _Line:
    """One that is being answered."""

    id: str
    answers: Answers
    numbers: list[int]  # of the engine's requests, by choice
    results: dict[int, Result] = field(default_factory=dict)  # by those numbers


class Batch:
    """Answers lines on an engine that nobody else steps."""

    def __init__(self, engine: Engine, model: str, ahead: int = 64):
        """`model` is the name that answers tell. So many requests are read `ahead`, so that their
        grammars compile while others run."""
        self._engine, self._model, self._ahead = engine, model, ahead
        self._lines: dict[int, _Line] = {}  # by request

    def run(self, lines: Iterable[str]) -> Iterator[dict[str, Any]]:
        """One answer for each line that is not empty; what is wrong with a line is its answer."""
        left = (line for line in lines if line.strip())
        ended: deque[dict[str, Any]] = deque()
        more = True
        while more or self._lines:
            while more and len(self._lines) < self._ahead:
                line = next(left, None)
                more = line is not None
                if line is not None:
                    ended += self._begin(line)
            for event in self._engine.step() if self._lines else ():
                ended += self._take(event)
            while ended:
                yield ended.popleft()

    def _begin(self, line: str) -> Iterator[dict[str, Any]]:
        id, numbers = None, list[int]()
        try:
            asked = _parsed(line)
            id = text_at("custom_id", asked.get("custom_id"), "a text that names the line")
            read, form = _route(asked)
            generation = read(asked.get("body"), self._engine.policy)
            if generation.stream:
                raise RequestError("stream is true: a batch has whole answers")
            answers = form(generation, self._model, self._engine.vocabulary)
            for request in generation.requests:
                numbers.append(self._engine.add(request))
        except DlmError as error:
            for number in numbers:
                self._engine.cancel(number)
            yield _answered(id, status_of(error), told(error))
            return
        self._lines |= dict.fromkeys(numbers, _Line(id, answers, numbers))

    def _take(self, event: Event) -> Iterator[dict[str, Any]]:
        line = self._lines.get(event.request)
        if line is None:
            return
        if isinstance(event, Failed):
            self._end(line)
            yield _answered(line.id, status_of(event.error), told(event.error))
        elif isinstance(event, Finished):
            line.results[event.request] = event.result
            if len(line.results) == len(line.numbers):
                self._end(line)
                results = [line.results[number] for number in line.numbers]
                yield _answered(line.id, 200, line.answers.whole(results))

    def _end(self, line: _Line) -> None:
        for number in line.numbers:
            del self._lines[number]
            if number not in line.results:
                self._engine.cancel(number)


def custom_ids(lines: Iterable[str]) -> set[str]:
    """Of the lines that an earlier run has answered; a last one that was cut off does not count."""
    found = set()
    for line in lines:
        try:
            found.add(json.loads(line)["custom_id"])
        except (ValueError, TypeError, KeyError):
            continue
    return found


def _parsed(line: str) -> dict[str, Any]:
    try:
        asked = object_at("the line", json.loads(line))
    except (ValueError, RecursionError) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"the line is not JSON: {str(error)[:200]}") from error
    only("the line", asked, _FIELDS)
    return asked


def _route(
    asked: Mapping[str, Any],
) -> tuple[Callable[[Any, Policy], Generation], type[Answers]]:
    if asked.get("method") not in (None, "POST"):
        raise wrong("method", asked["method"], "POST")
    url = asked.get("url")
    if not isinstance(url, str) or url not in _ROUTES:
        raise wrong("url", url, " or ".join(_ROUTES))
    return _ROUTES[url]


def _answered(id: str | None, status: int, body: dict[str, Any]) -> dict[str, Any]:
    """A line of the answers; `error` repeats what the body says where there is none."""
    response = {"status_code": status, "request_id": token_hex(16), "body": body}
    error = None if status == 200 else body["error"]
    return {
        "id": f"batch_req_{token_hex(12)}",
        "custom_id": id,
        "response": response,
        "error": error,
    }
