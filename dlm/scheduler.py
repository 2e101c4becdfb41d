"""Who runs: requests wait for their grammars, then for slots. Knows no model and no canvas."""

from collections import deque
from collections.abc import Callable, Iterable
from concurrent import futures
from dataclasses import dataclass

from dlm.errors import DlmError, RequestError, failure
from dlm.events import Failed
from dlm.grammar import BudgetError, Compiled, CrashError, GrammarError, Task, Unfinished
from dlm.sequence import Sequence

Build = Callable[[Sequence, Compiled | None], None]
_NAP = 0.02  # seconds to wait for a compiler when there is nothing else to do


@dataclass(slots=True)
class _Waiting:
    """A request, or a decision, whose questions take slots one by one."""

    number: int
    sequences: deque[Sequence]  # those without slots
    compiling: Task | None  # None: without a constraint
    decides: bool
    built: bool = False  # it has its constraint

    @property
    def ready(self) -> bool:
        return self.compiling is None or self.compiling.done()


class Scheduler:
    """First come, first served, of those whose grammars are compiled; but decisions, which may have
    hundreds of questions, leave slots to requests."""

    def __init__(
        self,
        slots: int,
        build: Build,
        fits: Callable[[Sequence], bool],
        begin: Callable[[int, Sequence], None],
    ):
        """`build` gives a sequence its constraint, or raises `Unfinished` to be asked again; where
        there is memory and it `fits`, it gets a slot, in which it will `begin`."""
        self.running: dict[int, Sequence] = {}  # by slot
        self._free, self._half = list(range(slots)), -(-slots // 2)
        self._waiting: list[_Waiting] = []
        self._build, self._fits, self._begin = build, fits, begin

    def __len__(self) -> int:
        return len(self.running) + self.waiting

    @property
    def waiting(self) -> int:
        """Requests without a slot, and decisions some of whose questions have none."""
        return len(self._waiting)

    def add(self, sequences: Iterable[Sequence], compiling: Task | None) -> None:
        """Of one request, or the questions of one decision."""
        queue = deque(sequences)
        decides = queue[0].asked is not None
        self._waiting.append(_Waiting(queue[0].number, queue, compiling, decides))

    def cancel(self, number: int) -> list[int]:
        """The slots in which a request runs; it is forgotten where it waits, and what it waits for
        is left."""
        for one in self._waiting:
            if one.number == number and one.compiling is not None:
                one.compiling.leave()
        self._waiting = [one for one in self._waiting if one.number != number]
        return [slot for slot, s in self.running.items() if s.number == number]

    def prepare(self, number: int) -> None:
        """Wait until a request can run. Raises `DlmError` if it never can."""
        for one in self._waiting:
            if one.number == number:
                self._prepare(one)

    def admit(self) -> list[Failed]:
        """Requests that can run take the free slots; tells of those that never can.

        One that memory is missing for is not overtaken: it would wait for ever. Decisions have half
        of the slots together while requests wait that can run, and are overtaken by these.
        """
        failed: list[Failed] = []
        shared = any(one.ready and not one.decides for one in self._waiting)
        full = False
        try:
            for one in self._waiting:
                try:
                    while one.sequences and one.ready and not full:
                        if one.decides and shared and self._deciding >= self._half:
                            break
                        full = not self._free or not self._fits(one.sequences[0])
                        if not full:
                            self._start(one)
                except Unfinished:
                    continue  # its constraint takes more than this step: it goes on waiting
                except DlmError as error:
                    failed.append(Failed(request=one.number, error=failure(error)))
                    one.sequences.clear()
        finally:
            self._waiting = [one for one in self._waiting if one.sequences]
        return failed

    @property
    def _deciding(self) -> int:
        """Slots that questions have."""
        return sum(sequence.asked is not None for sequence in self.running.values())

    def _start(self, one: _Waiting) -> None:
        """Give a free slot to what is next of a request."""
        self._prepare(one)
        slot, sequence = self._free[-1], one.sequences[0]
        self._begin(slot, sequence)
        self._free.pop()
        self.running[slot] = one.sequences.popleft()

    def leave(self, slot: int) -> Sequence:
        self._free.append(slot)
        return self.running.pop(slot)

    def nap(self) -> None:
        """Wait a moment for something that is compiled or checked."""
        pending = [one.compiling for one in self._waiting] + [
            sequence.checking for sequence in self.running.values()
        ]
        undone = [one for one in pending if one is not None and not one.done()]
        futures.wait(undone, _NAP, futures.FIRST_COMPLETED)

    def _prepare(self, one: _Waiting) -> None:
        if one.built:
            return
        try:
            compiled = None if one.compiling is None else one.compiling.result()
            for sequence in one.sequences:
                self._build(sequence, compiled)
            one.built = True
        except Unfinished:
            raise
        except BudgetError as error:
            max_tokens = one.sequences[0].request.max_tokens
            raise RequestError(f"max_tokens is {max_tokens}: {error}") from error
        except CrashError as error:
            raise failure(error) from error
        except GrammarError as error:
            raise RequestError(str(error)) from error
        except Exception as error:
            raise failure(error) from error
