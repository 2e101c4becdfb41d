"""Batches of a gated model, in the event loop of a test."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from batch_lines import CHAT, line, lines
from gated import Gated

from dlm import Engine, Policy
from dlm.openai.batches import BatchBody, BatchState
from dlm.serving.async_engine import AsyncEngine
from dlm.serving.batches import Batches
from dlm.serving.file_store import FileStore
from dlm.serving.records import StoredRecords


class Work:
    """An engine of a gated model, its batches, and the files they read, which are in a directory.
    At its end the gate is opened."""

    def __init__(
        self,
        engine_of: Callable[..., Engine],
        gate: Gated,
        directory: Path,
        seconds: int = 3600,
        slots: int = 2,
        room: int = 4 << 20,
    ):
        engine = engine_of(gate, slots=slots, policy=Policy())
        self._gate = gate
        self.engine = AsyncEngine(engine, max_queue=8)
        self.files = FileStore(directory, room)
        records = StoredRecords(directory, "batch_")
        self.batches = Batches(self.engine, self.files, records, ("tiny",), seconds)

    def begin(self, count: int, client: str = "a", **body: Any) -> BatchState:
        content = lines(*(line(str(i), **body) for i in range(count)))
        file = self.files.add(client, "rows", "batch", content)
        return self.batches.create(client, BatchBody(input_file_id=file.id, endpoint=CHAT))

    def error_lines(self, batch: BatchState) -> list[str]:
        """Ids of the rows in a batch's file of errors, which all have to be `batch_expired`."""
        assert batch.error_file is not None
        errors = self.files.get(batch.client, batch.error_file).path.read_text().splitlines()
        shown = [
            (e["custom_id"], e["response"], e["error"]["code"]) for e in map(json.loads, errors)
        ]
        assert [line[1:] for line in shown] == [(None, "batch_expired")] * len(shown)
        return [id for id, _, _ in shown]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._gate.open.set()
        await self.batches.close()
        await self.engine.close()
