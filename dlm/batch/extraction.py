"""Rows to prompts, all under one constraint, and results to lines of values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dlm.batch.batch import Answer, Job
from dlm.batch.rows import Row
from dlm.batch.template import Template
from dlm.errors import DlmError, RequestError
from dlm.grammar import Spec, Tools
from dlm.request import Request, Result

if TYPE_CHECKING:
    from dlm.engine import Engine

_SEEDS = 2**63


def asked(system: str | None, prompt: str) -> dict[str, Any]:
    """The arguments of a `Request` for a prompt, with a `system` message before it or without."""
    if system is None or not prompt.strip():  # an empty prompt is refused by its name
        return {"prompt": prompt}
    first = {"role": "system", "content": system}
    return {"messages": [first, {"role": "user", "content": prompt}]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    """The `Form` of rows that are texts. Each has the seed of its number, so that its answer does
    not depend on when it runs."""

    template: Template
    constraint: Spec | None = None  # None: free text
    max_tokens: int = 256
    seed: int = 0  # of the first row
    system: str | None = None  # a message before each prompt
    temperature: float = 1.0
    cuts: Mapping[str, Any] = field(default_factory=dict)  # top_k, top_p, min_p
    id: str | None = None  # the column of the rows' own names

    def __post_init__(self) -> None:
        """Raises `RequestError` for what no row could be answered with."""
        self._request("a prompt", 0)

    def job(self, row: Row, engine: "Engine") -> Job:
        request = self._request(self.template.fill(row.fields), row.number)
        return Job(requests=[request], answer=lambda results: self._answer(row, results))

    def refusal(self, row: Row, error: DlmError) -> Answer:
        said = {"value": None, "text": None, "finish_reason": None, "tokens": None}
        return self._named(row) | said | {"error": str(error)}

    def row_of(self, answer: Answer) -> int:
        return int(answer["row"])

    def _request(self, prompt: str, number: int) -> Request:
        return Request(
            **asked(self.system, prompt),
            constraint=self.constraint,
            tools=getattr(self.constraint, "tools", ()),
            max_tokens=self.max_tokens,
            seed=(self.seed + number) % _SEEDS,
            temperature=self.temperature,
            **self.cuts,
        )

    def _answer(self, row: Row, results: Sequence[Result]) -> Answer:
        (result,) = results
        value = result.parsed
        if isinstance(self.constraint, Tools):  # the calls: what else was said is the text
            calls = result.tool_calls
            value = [{"name": call.name, "arguments": call.arguments} for call in calls] or None
        return self._named(row) | {
            "value": value,
            "text": result.text,
            "finish_reason": result.finish_reason,
            "tokens": result.stats.tokens,
            "error": None,
        }

    def _named(self, row: Row) -> Answer:
        if self.id is None:
            return {"row": row.number}
        try:
            id = row.fields.get(self.id)
        except RequestError:
            id = None
        return {"row": row.number, "id": id}
