"""Rows in the form of OpenAI's batches, and their answers.

A row is `{"custom_id", "method": "POST", "url", "body"}`. Its answer has the same `custom_id`, a
response or an error, and an `id` that holds the row's number.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Annotated, Any, Literal

from dlm.batch.batch import AnswerRow, Job
from dlm.batch.rows import InputRow, Rows
from dlm.engine import Engine
from dlm.errors import DlmError, RequestError
from dlm.openai.answers import ChatAnswers, MakeAnswers, TextAnswers, describe_error, status_of
from dlm.openai.body import REQUIRED, ClosedModel, Takes, Words, validated
from dlm.openai.requests import Generation, chat_of, completion_of, known_name
from dlm.openai.response_answers import ResponseAnswers
from dlm.openai.response_items import ResponseStore
from dlm.openai.responses import response_of
from dlm.policy import Policy
from dlm.request import Result

Route = tuple[Callable[[Any, Policy], Generation], MakeAnswers]  # reads a body, forms its answer


def _response(body: Any, policy: Policy) -> Generation:
    return response_of(body, policy, ResponseStore(0).of(""))  # a batch stores none


Url = Literal["/v1/chat/completions", "/v1/completions", "/v1/responses"]
_ROUTES: dict[Url, Route] = {
    "/v1/chat/completions": (chat_of, ChatAnswers),
    "/v1/completions": (completion_of, TextAnswers),
    "/v1/responses": (_response, ResponseAnswers),
}
_ID_PREFIX = "batch_req_"
_EXPIRED = "the request did not run before its batch expired"


class BatchLine(ClosedModel):
    """Row in the form of OpenAI's batches."""

    custom_id: Annotated[Words, Takes("a text that names the line")] = REQUIRED
    method: Literal["POST"] = "POST"
    url: Url = REQUIRED
    body: Any = None


def are_lines(rows: Rows) -> bool:
    """Whether the first of `rows` has the fields of such a row."""
    return not rows.fixed and {"custom_id", "body"} <= set(rows.columns)


@dataclass(frozen=True, slots=True)
class BatchLines:
    """`AnswerForm` of these rows."""

    names: tuple[str, ...]  # names of the model that a body may have

    def check(self, rows: Iterable[InputRow]) -> None:
        """Raise `RequestError` if two rows have one `custom_id`, and so would their answers."""
        seen: dict[str, int] = {}
        for row in rows:
            id = _custom_id(row)
            if id is not None and (earlier := seen.setdefault(id, row.number)) != row.number:
                named = f"custom_id {id!r:.60} of row {row.number}"
                raise RequestError(f"{named} must be unique, and row {earlier} has it too")

    def job(self, row: InputRow, engine: Engine) -> Job:
        if row.problem is not None:
            raise RequestError(row.problem)
        line = validated(BatchLine.model_validate, row.value, what="the line")
        make_generation, form = _ROUTES[line.url]
        generation = make_generation(line.body, engine.policy)
        if generation.stream:
            raise RequestError("stream is true: a batch has whole answers")
        name = known_name(generation.model, self.names)
        answers = form(generation, name, engine.vocabulary)

        def answer(results: Sequence[Result]) -> AnswerRow:
            return _answer_row(row.number, line.custom_id, 200, answers.whole(results))

        return Job(requests=generation.requests, answer=answer)

    def refusal(self, row: InputRow, error: DlmError) -> AnswerRow:
        status, body = status_of(error), describe_error(error)
        return _answer_row(row.number, _custom_id(row), status, body)

    def expired(self, row: InputRow) -> AnswerRow:
        """Make the line of a row that did not run before its batch expired."""
        error = {"code": "batch_expired", "message": _EXPIRED}
        return _bare_row(row.number, _custom_id(row)) | {"error": error}

    def row_of(self, answer: AnswerRow) -> int:
        return int(str(answer["id"]).removeprefix(_ID_PREFIX))


def _custom_id(row: InputRow) -> str | None:
    id = row.value.get("custom_id") if isinstance(row.value, dict) else None
    return id if isinstance(id, str) else None


def _answer_row(number: int, id: str | None, status: int, body: dict[str, Any]) -> AnswerRow:
    """Make a line of the answers; `error` repeats the body's error unless `status` is 200."""
    return _bare_row(number, id) | {
        "response": {"status_code": status, "request_id": token_hex(16), "body": body},
        "error": None if status == 200 else body["error"],
    }


def _bare_row(number: int, id: str | None) -> AnswerRow:
    """Make a line without a response and without an error."""
    return {
        "id": f"{_ID_PREFIX}{number:012}",
        "custom_id": id,
        "response": None,
        "error": None,
    }
