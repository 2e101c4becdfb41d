"""Who runs: requests wait for their grammars, then for slots. Knows no model and no canvas."""

from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass

from dlm.errors import DlmError, RequestError, failure
from dlm.events import Failed
from dlm.grammar import BudgetError, Compiled, CrashError, GrammarError
from dlm.sequence import Sequence

Build = Callable[[Sequence, Compiled | None], None]
_NAP = 0.02  # seconds to wait for a compiler when there is nothing else to do


@dataclass(slots=True)
class _Waiting:
    sequence: Sequence
    compiling: "futures.Future[Compiled] | None"  # None: without a constraint
    built: bool = False  # it has its constraint


class Scheduler:
    """First come, first served, of those whose grammars are compiled."""

    def __init__(
        self,
        slots: int,
        build: Build,
        fits: Callable[[Sequence], bool],
        begin: Callable[[int, Sequence], None],
    ):
        """`build` gives a sequence its constraint; where there is memory and it `fits`, it gets a
        slot, in which it will `begin`."""
        self.running: dict[int, Sequence] = {}  # by slot
        self._free = list(range(slots))
        self._waiting: list[_Waiting] = []
        self._build, self._fits, self._begin = build, fits, begin

    def __len__(self) -> int:
        return len(self.running) + self.waiting

    @property
    def waiting(self) -> int:
        """Requests without a slot."""
        return len(self._waiting)

    def add(self, sequence: Sequence, compiling: "futures.Future[Compiled] | None") -> None:
        self._waiting.append(_Waiting(sequence, compiling))

    def cancel(self, number: int) -> int | None:
        """The slot in which a request runs; it is forgotten where it waits."""
        self._waiting = [one for one in self._waiting if one.sequence.number != number]
        return next((slot for slot, s in self.running.items() if s.number == number), None)

    def prepare(self, number: int) -> None:
        """Wait until a request can run. Raises `DlmError` if it never can."""
        for one in self._waiting:
            if one.sequence.number == number:
                self._prepare(one)

    def admit(self) -> list[Failed]:
        """Requests that can run take the free slots; tells of those that never can.

        One that memory is missing for is not overtaken: it would wait for ever.
        """
        failed: list[Failed] = []
        waiting: list[_Waiting] = []
        full = False
        for one in self._waiting:
            ready = one.compiling is None or one.compiling.done()
            full = full or not self._free or (ready and not self._fits(one.sequence))
            if full or not ready:
                waiting.append(one)
                continue
            try:
                self._prepare(one)
                self._begin(self._free[-1], one.sequence)
                self.running[self._free.pop()] = one.sequence
            except DlmError as error:
                failed.append(Failed(request=one.sequence.number, error=error))
        self._waiting = waiting
        return failed

    def leave(self, slot: int) -> Sequence:
        self._free.append(slot)
        return self.running.pop(slot)

    def nap(self) -> None:
        """Wait a moment for something that is compiled or checked."""
        pending = [one.compiling for one in self._waiting] + [
            sequence.checking for sequence in self.running.values()
        ]
        futures.wait([p for p in pending if p is not None], _NAP, futures.FIRST_COMPLETED)

    def _prepare(self, one: _Waiting) -> None:
        if one.built:
            return
        try:
            compiled = None if one.compiling is None else one.compiling.result()
            self._build(one.sequence, compiled)
            one.built = True
        except BudgetError as error:
            max_tokens = one.sequence.request.max_tokens
            raise RequestError(f"max_tokens is {max_tokens}: {error}") from error
        except CrashError as error:
            raise failure(error) from error
        except GrammarError as error:
            raise RequestError(str(error)) from error
        except Exception as error:
            raise failure(error) from error
