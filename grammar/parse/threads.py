"""Threads read bytes: the step of an Earley parser that scans, and the next states of a state.

The extension does the same where it is built (`grammar/_threads.c`). A test holds both equal. The
module knows terminals by their scanners, and no rules.
"""

from collections.abc import Sequence

from dlm.grammar.limits import LazyDict
from dlm.grammar.parse.scanner import LiteralScanner, Scanner
from dlm.grammar.parse.states import UNREAD_BYTES, Item, State, Thread

_made = tuple.__new__  # of a named tuple, in two thirds of the time


# Members after a run of bytes; the first and the last byte that lead to the same in place of the
# run's last one; the run's length; and the bytes read by all threads.
Reading = tuple[list[Thread | Item], int, int, int, int]


class Threads:
    """The steps of one grammar's threads."""

    def __init__(self, scanners: LazyDict[Scanner | LiteralScanner]):
        """`scanners` holds those of the terminals."""
        self._scanners = scanners
        self.starts = LazyDict(lambda number: scanners[number].start)  # first states, by terminal
        self.tables = LazyDict(lambda number: _table(scanners[number]))  # terminals for C

    def read(self, threads: Sequence[Thread], piece: bytes) -> Reading:
        """Return the members after a run of bytes that `piece` begins with.

        A run ends where a terminal may end, or after a byte in place of which another one leads to
        the same members.
        """
        members: list[Thread | Item] = []
        begin, end, length, read = 0, 255, 0, 0
        for byte in piece:
            length += 1
            read += len(threads)
            members, begin, end, may_end = self._read(threads, byte)
            if may_end or begin < end or not members:
                break
            threads = [member for member in members if isinstance(member, Thread)]
        return members, begin, end, length, read

    def _read(
        self, threads: Sequence[Thread], byte: int
    ) -> tuple[list[Thread | Item], int, int, bool]:
        """Return the members after a byte, with the first and the last byte for which they are the
        same, and whether a terminal may end there."""
        members: list[Thread | Item] = []
        begin, end, may_end, scanners = 0, 255, False, self._scanners
        for thread in threads:
            terminal, at, _, least, most, onward = thread
            scanner = scanners[terminal]
            for low, high, to in scanner.moves(at):
                if high < byte:
                    if high >= begin:
                        begin = high + 1
                    continue
                if low > byte:
                    if low <= end:
                        end = low - 1
                    break
                if low > begin:
                    begin = low
                if high < end:
                    end = high
                if least or most is not None:
                    moved = self.moved(thread, to)
                else:
                    moved = _made(Thread, (terminal, to, 0, 0, None, onward))
                if moved is not None:
                    final = scanner.final[to]
                    ended = final and not scanner.moves(to)
                    members.append(onward if ended else moved)
                    may_end = may_end or ended or (final and moved.read >= least)
                break
        return members, begin, end, may_end

    def moved(self, thread: Thread, to: int) -> Thread | None:
        """Return the thread moved to scanner state `to`; None if its bounds can not be kept."""
        terminal, at, count, low, high, onward = thread
        if low == 0 and high is None:
            return _made(Thread, (terminal, to, 0, 0, None, onward))
        scanner = self._scanners[terminal]
        count += scanner.counts(at, to)
        if high is None:
            count = min(count, low)
        if scanner.cost(to, low - count, None if high is None else high - count) is None:
            return None
        return Thread(terminal, to, count, low, high, onward)

    def ended(self, thread: Thread) -> bool:
        """Whether the text read so far is a complete text of the terminal."""
        return self._scanners[thread.terminal].final[thread.at] and thread.read >= thread.low

    def next_states(
        self, threads: Sequence[Thread], begin: int, end: int, onward: State | None
    ) -> list[State | None]:
        """Return the next states by byte: `onward` from `begin` to `end`, `UNREAD` for other bytes
        that the threads take, and none for all others."""
        states: list[State | None] = [None] * 256
        for thread in threads:
            for low, high, _ in self._scanners[thread.terminal].moves(thread.at):
                states[low : high + 1] = UNREAD_BYTES[low : high + 1]
        states[begin : end + 1] = [onward] * (end + 1 - begin)
        return states


def _table(scanner: Scanner | LiteralScanner) -> bytes | tuple[object, ...]:
    """Return a terminal as the extension reads it: the text of a literal; or the moves that are
    known and the ends, by state, and the function that makes moves."""
    if isinstance(scanner, LiteralScanner):
        return scanner.raw
    return scanner.known_moves, scanner.final, scanner.moves
