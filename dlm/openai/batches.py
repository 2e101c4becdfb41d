"""Bodies of `/v1/batches`, and batches as their clients see them."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from secrets import token_hex
from typing import Annotated, Any, Literal

from pydantic import TypeAdapter

from dlm.errors import RequestError
from dlm.openai.batch import Url
from dlm.openai.body import REQUIRED, Body, ClosedModel, Object, Takes, Words, json_text

_MOST_METADATA = 16_384  # bytes: 16 keys of 64 and values of 512 characters, as OpenAI has it


class BatchBody(ClosedModel):
    """Body that begins a batch."""

    input_file_id: Annotated[Words, Takes("the id of a file")] = REQUIRED
    endpoint: Url = REQUIRED
    completion_window: Literal["24h"] = "24h"
    metadata: Object | None = None

    def check(self) -> None:
        """Raise `RequestError` for metadata that are too large."""
        size = len(json_text("metadata", self.metadata or {}))
        if size > _MOST_METADATA:
            raise RequestError(f"metadata must have at most {_MOST_METADATA} bytes, got {size}")


Status = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]
_TIMES = (
    "in_progress",
    "finalizing",
    "completed",
    "failed",
    "expired",
    "cancelling",
    "cancelled",
)
_ENDS = ("completed", "failed", "expired", "cancelled")


@dataclass(slots=True, kw_only=True, eq=False)
class BatchState:
    """Batch of one client, and how far it is."""

    client: str
    body: BatchBody
    seconds: int  # after which it expires
    id: str = field(default_factory=lambda: f"batch_{token_hex(12)}")
    status: Status = "validating"
    created: int = field(default_factory=lambda: int(time.time()))
    times: dict[Status, int] = field(default_factory=dict)  # at which it got its statuses
    total: int = 0  # rows
    completed: int = 0
    failed: int = 0
    error: str | None = None  # of the batch as a whole
    output_file: str | None = None  # ids of files
    error_file: str | None = None

    @property
    def ended(self) -> bool:
        return self.status in _ENDS

    def become(self, status: Status) -> None:
        self.status = status
        self.times[status] = int(time.time())

    def record(self) -> dict[str, Any]:
        """Return all of it, for `of_record`. May be called by any thread."""
        state = {field.name: getattr(self, field.name) for field in fields(self)}
        return state | {"times": {**self.times}, "body": self.body.model_dump()}

    @staticmethod
    def of_record(record: Mapping[str, Any]) -> "BatchState":
        """Return a batch of an earlier server. Raises `LookupError`, and `ValueError` for a value
        of another type."""
        return _STATE.validate_python(
            {field.name: record[field.name] for field in fields(BatchState)}
        )

    def answer(self) -> Body:
        """Return the batch in OpenAI's form."""
        errors = None
        if self.error is not None:
            problem = {"code": "invalid_batch", "message": self.error, "line": None, "param": None}
            errors = {"object": "list", "data": [problem]}
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.body.endpoint,
            "errors": errors,
            "input_file_id": self.body.input_file_id,
            "completion_window": self.body.completion_window,
            "status": self.status,
            "output_file_id": self.output_file if self.ended else None,
            "error_file_id": self.error_file if self.ended else None,
            "created_at": self.created,
            "expires_at": self.created + self.seconds,
            **{f"{status}_at": self.times.get(status) for status in _TIMES},
            "request_counts": {
                "total": self.total,
                "completed": self.completed,
                "failed": self.failed,
            },
            "metadata": self.body.metadata,
        }


_STATE = TypeAdapter(BatchState)
