"""Requests that one caller runs together until all have ended: their numbers, ends and errors."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from dlm.admission import Prepared
from dlm.decisions.questions import Decision
from dlm.errors import DlmError
from dlm.events import End, Event, Failed
from dlm.grammar import GrammarError
from dlm.models import ModelError
from dlm.request import Request

Progress = Callable[[int, int], None]
"""Function that is called with the number of finished parts or requests, and the number of all."""


class Runner(Protocol):
    """The part of an engine that runs requests."""

    @property
    def busy(self) -> bool: ...

    def prepare(self, request: Request | Decision, like: Prepared | None = None) -> Prepared: ...

    def start(self, prepared: Prepared) -> None: ...

    def await_constraint(self, number: int) -> None: ...

    def cancel(self, number: int) -> None: ...

    def step(self) -> list[Event]: ...


class Together:
    """Requests of one call, in order."""

    def __init__(
        self,
        requests: Sequence[Request | Decision],
        return_exceptions: bool,
        progress: Progress | None,
    ):
        """With `return_exceptions`, errors are ends, and stop no other request."""
        self._requests, self._return_exceptions = requests, return_exceptions
        self._progress, self._ends = progress, dict[int, End]()
        self._numbers: list[int] = []  # of the engine; a request that was refused has a negative

    def run(self, engine: Runner) -> list[End]:
        """Run the requests until all have ended; returns the end of each. Raises the first error
        unless errors are returned. After any other exception none of them runs on."""
        try:
            self._add(engine)
            while engine.busy:
                self._note(engine.step())
        except BaseException:
            for number in self._numbers:
                engine.cancel(number)
            raise
        ends = [self._ends[number] for number in self._numbers]
        for end in ends:
            if isinstance(end, Failed) and not self._return_exceptions:
                raise end.error
        return ends

    def _add(self, engine: Runner) -> None:
        """Admit all requests, and compile their grammars at once unless errors are returned."""
        at, prepared = 0, None
        try:
            for at, request in enumerate(self._requests):
                try:
                    prepared = engine.prepare(request, prepared)
                    self._numbers.append(prepared.number)
                    engine.start(prepared)
                except DlmError as error:
                    if not self._return_exceptions:
                        raise
                    number, prepared = -1 - at, None
                    self._numbers[at:] = [number]
                    self._ends[number] = Failed(request=number, error=error)
            for at, number in enumerate(() if self._return_exceptions else self._numbers):  # noqa: B007
                engine.await_constraint(number)
        except DlmError as error:
            if len(self._requests) == 1 or isinstance(error, GrammarError | ModelError):
                raise
            raise type(error)(f"request {at}: {error}") from error
        self._report()

    def _note(self, events: Iterable[Event]) -> None:
        """Keep the ends among the events of a step."""
        before = len(self._ends)
        self._ends |= {event.request: event for event in events if isinstance(event, End)}
        if len(self._ends) > before:
            self._report()

    def _report(self) -> None:
        if self._progress is not None:
            self._progress(len(self._ends), len(self._requests))
