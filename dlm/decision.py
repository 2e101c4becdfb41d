"""What a caller asks to have decided: typed questions about the input of a request.

Knows no model and no tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from dlm.errors import RequestError
from dlm.questions import MOST_QUESTIONS, Question, question_of
from dlm.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Questions, each of which is put behind the input of `request`; one without instructions is
    what the input itself asks. They may be the protocol's JSON.

    Raises `RequestError` for what no model could decide.
    """

    request: Request
    questions: Sequence[Question | Mapping[str, Any]]

    def __post_init__(self) -> None:
        if not 1 <= len(self.questions) <= MOST_QUESTIONS:
            count = len(self.questions)
            raise RequestError(f"questions holds {count}: it takes 1 to {MOST_QUESTIONS}")
        if self.request.constraint is not None or self.request.thinking:
            raise RequestError("a decision takes a request without a constraint and thinking")

    def asked(self) -> Iterator[tuple[int, Question, Request]]:
        """Each question, its place among them, and the request with all that it asks.

        Raises `RequestError` for one that cannot be asked.
        """
        for place, one in enumerate(self.questions):
            with at(place):
                question = one if isinstance(one, Question) else question_of(one)
                request = _with_question(self.request, question)
            yield place, question, request


@contextmanager
def at(place: int) -> Iterator[None]:
    """Errors say which question they are about."""
    try:
        yield
    except RequestError as error:
        raise RequestError(f"questions[{place}]: {error}") from error


def _with_question(request: Request, question: Question) -> Request:
    """The request, with what the question asks behind its input."""
    if not question.instructions:
        return request
    if request.prompt is not None:
        return replace(request, prompt=f"{request.prompt}\n\n{question.text}")
    if request.messages is None:
        raise RequestError("instructions cannot be put behind token_ids: give a prompt or messages")
    *before, last = request.messages
    if last["role"] == "user" and isinstance(last["content"], str):
        said = {**last, "content": f"{last['content']}\n\n{question.text}"}
        return replace(request, messages=[*before, said])
    return replace(
        request, messages=[*request.messages, {"role": "user", "content": question.text}]
    )
