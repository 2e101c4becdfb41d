"""Requests that are prepared in threads, for a client that may leave meanwhile."""

from concurrent.futures import CancelledError
from threading import Lock
from types import TracebackType

from dlm.admission import Prepared
from dlm.decision import Decision
from dlm.engine import Engine
from dlm.request import Request


class Opening:
    """Around their preparation: where that ends with an error, all of them are discarded, those too
    that a thread comes to, or ends, later."""

    def __init__(self, engine: Engine):
        self._engine, self._left, self._change = engine, False, Lock()
        self.prepared: list[Prepared] = []

    def prepare(self, request: Request | Decision) -> None:
        """In any thread."""
        if self._left:
            raise CancelledError
        one = self._engine.prepare(request, self.prepared[-1] if self.prepared else None)
        with self._change:
            if not self._left:
                self.prepared.append(one)
                return
        one.discard()

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            return
        with self._change:
            self._left = True
        for one in self.prepared:
            one.discard()
