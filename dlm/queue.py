"""Requests that are admitted and do not run yet: they wait for their grammars, then for slots."""

from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass
from time import perf_counter

from dlm.errors import RequestError
from dlm.events import Failed
from dlm.grammar import BudgetError, Compiled, Constraint, GrammarError
from dlm.request import Request
from dlm.slot import Slot

Build = Callable[[Request, Compiled | None], Constraint]
_NAP = 0.02  # seconds to wait for a compiler when there is nothing else to do


@dataclass(slots=True)
class _Place:
    slot: Slot
    compiling: "futures.Future[Compiled] | None"  # None: without a constraint
    since: float  # when it came
    ready: bool = False  # its slot has its constraint


class Queue:
    """First come, first served, of those whose grammars are compiled."""

    def __init__(self, build: Build, seconds: float):
        """`build` makes a request's constraint; a grammar gets so many `seconds` to compile."""
        self._build, self._seconds = build, seconds
        self._places: list[_Place] = []

    def __len__(self) -> int:
        return len(self._places)

    def add(self, slot: Slot, compiling: "futures.Future[Compiled] | None") -> None:
        """Raises `RequestError` if it is known by now that the request cannot be served."""
        place = _Place(slot, compiling, perf_counter())
        if compiling is None or compiling.done():
            self._prepare(place)
        self._places.append(place)

    def cancel(self, number: int) -> None:
        self._places = [place for place in self._places if place.slot.number != number]

    def prepare(self, number: int) -> None:
        """Wait until a request can run. Raises `RequestError` if it never can."""
        for place in self._places:
            if place.slot.number == number:
                self._prepare(place)

    def take(self, free: int) -> tuple[list[Slot], list[Failed]]:
        """At most `free` requests that can run, and those that never can."""
        ready: list[Slot] = []
        failed: list[Failed] = []
        waiting: list[_Place] = []
        for place in self._places:
            late = perf_counter() - place.since > self._seconds
            if len(ready) == free or not (
                place.compiling is None or place.compiling.done() or late
            ):
                waiting.append(place)
                continue
            try:
                self._prepare(place)
                ready.append(place.slot)
            except RequestError as error:
                failed.append(Failed(request=place.slot.number, error=error))
        self._places = waiting
        return ready, failed

    def nap(self) -> None:
        """Wait a moment for some compiler to be done."""
        compiling = [place.compiling for place in self._places if place.compiling is not None]
        futures.wait(compiling, _NAP, futures.FIRST_COMPLETED)

    def _prepare(self, place: _Place) -> None:
        if place.ready:
            return
        slot, left = place.slot, place.since + self._seconds - perf_counter()
        try:
            compiled = None if place.compiling is None else place.compiling.result(max(0.0, left))
            slot.constraint = self._build(slot.request, compiled)
            place.ready = True
        except BudgetError as error:
            raise RequestError(f"max_tokens is {slot.request.max_tokens}: {error}") from error
        except GrammarError as error:
            raise RequestError(str(error)) from error
        except futures.TimeoutError as error:
            raise RequestError(f"the grammar takes over {self._seconds} s to compile") from error
