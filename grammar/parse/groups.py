"""Parts in any order: which of them may follow, and the shortest text of those that must.

A `Group` belongs to one place of a network. Its situation is the set of parts already read, with
their number if that is bounded. There are as many situations as sets of parts, so a network makes a
state for a situation when a text reaches it, and the state's number tells the situation. Nothing is
built in advance, and nothing has to be kept.
"""

from bisect import insort
from dataclasses import dataclass, field
from itertools import compress
from typing import NamedTuple

from dlm.grammar.immutable import immutable
from dlm.grammar.regex.characters import bits

_REMEMBERED = 4096  # shortest texts of a group
_VALUES = bytes.maketrans(b"01", b"\0\1")  # of binary digits
AT, AFTER, WITHIN = 0, 1, 2  # phases: before a part, after one; `WITHIN + i`: after the key of `i`


TerminalBounds = tuple[int, int, int | None]  # a terminal's number, and its bounds of length


class Situation(NamedTuple):
    """The part of a group that has been read."""

    phase: int  # `AT`, `AFTER`, or `WITHIN` plus the part's index
    used: int = 0  # bits of the parts that can not follow, or not count, any more
    number: int = 0  # parts read, as far as it matters


class Shortest(NamedTuple):
    """The shortest text of the parts that a situation still needs."""

    cost: int  # bytes, without separators
    first: int  # the index of the part that it begins with; -1: there are no parts
    number: int  # of parts, repetitions included


@immutable()
class GroupPart:
    """A part of a group: a terminal, if it begins with one, and a rule."""

    terminal: TerminalBounds | None
    rule: int  # what follows the terminal, or the whole part
    required: bool
    ordered: bool
    last: bool
    repeats: bool
    again: bool = False


@dataclass(slots=True)
class Group:
    """Parts in any order, with a separator between them: see `AnyOrder`."""

    parts: tuple[GroupPart, ...]
    separator: TerminalBounds | int | None  # a terminal, a rule, or no text
    low: int
    high: int | None
    onward: int = 0  # the network's state after the group
    separator_cost: int | None = None  # bytes; None: not known, or without an end
    costs: list[int | None] = field(default_factory=list)  # of each part, likewise
    again: int = 0  # bits of the parts that may come again
    adds: tuple[int, ...] = ()  # bits that each part adds to `used`
    _by_cost: list[tuple[int, int]] = field(default_factory=list)  # parts that are not required
    _unknown: int = 0  # bits of the parts without a known cost
    _all: int = 0  # bits of all parts
    _needed: int = 0  # bits of the required parts
    _once: int = 0  # bits of the parts that do not repeat
    _ordered: int = 0  # bits of the parts that are ordered
    _last: int = 0  # bits of the parts that are last
    _repeats: bool = False  # a part repeats
    _shortest_texts: dict[tuple[int, int], "Shortest | None"] = field(default_factory=dict)
    counts: int = 1  # the number of values that `Situation.number` may have

    def __post_init__(self) -> None:
        self._all = (1 << len(self.parts)) - 1
        for i, part in enumerate(self.parts):
            self._once |= (not part.repeats) << i
            self._ordered |= part.ordered << i
            self._last |= part.last << i
            self.again |= part.again << i
            self._needed |= part.required << i
            self._repeats |= part.repeats
        self.adds = tuple(
            (not part.repeats) << i
            | (self._ordered & ((1 << i) - 1) if part.ordered else self._ordered * part.last)
            for i, part in enumerate(self.parts)
        )
        self.forget()
        self.counts = 1 + max(self.low, self.high or 0)

    def forget(self) -> None:
        """Forget all costs."""
        self.separator_cost = None
        self.costs = [None] * len(self.parts)
        self._by_cost.clear()
        self._shortest_texts.clear()
        self._unknown = self._all

    def learn(self, index: int, cost: int) -> None:
        """Set the cost of a part, once."""
        self._shortest_texts.clear()
        self.costs[index] = cost
        self._unknown &= ~(1 << index)
        if not self.parts[index].required:
            insort(self._by_cost, (cost, index))

    @property
    def cost(self) -> int | None:
        """The cost of the whole group by the costs known so far; None if too few are known."""
        if self._needed & self._unknown:
            return None
        if not self._needed and self.low <= 1:  # one part is enough
            return self._by_cost[0][0] if self._by_cost else None
        shortest = self.shortest(0, 0, 1)
        return None if shortest is None else self.with_separators(shortest, shortest.number - 1)

    def with_separators(self, shortest: "Shortest", number: int) -> int | None:
        """Return the cost of a text with `number` separators."""
        if not number:
            return shortest.cost
        return None if self.separator_cost is None else shortest.cost + number * self.separator_cost

    def after(self, index: int, used: int, count: int) -> tuple[int, int]:
        """Return `used` and `number` of the situation once part `index` is read."""
        if self.again & used & 1 << index:
            return used, count
        return used | self.adds[index], self.counted(count)

    def counted(self, count: int) -> int:
        """Return `number` of the situation once another part is read."""
        return self.low if self.high is None and count >= self.low else count + 1

    def ends(self, used: int, count: int) -> bool:
        """Whether no part is needed any more."""
        return count >= self.low and not self._needed & ~used

    def following(self, used: int, count: int) -> int:
        """Return the bits of the parts that may follow."""
        needed = self._needed & ~used
        parts = self._all & ~used | self.again
        if self.high is not None:
            if count >= self.high:
                return 0
            if self.high - count <= needed.bit_count():
                parts &= self._needed
        ordered = needed & self._ordered
        if ordered:  # all up to the next part that is needed, and those that have no order
            parts &= ~self._last & (~self._ordered | (ordered & -ordered) * 2 - 1)
        if count + 1 < self.low and not self._repeats:
            for i in bits(parts):
                if not self._leaves_enough(*self.after(i, used, count)):
                    parts ^= 1 << i
        return parts

    def _leaves_enough(self, used: int, count: int) -> bool:
        """Whether enough parts are left, without those that are skipped for the sake of order."""
        return count + (self._once & ~used).bit_count() >= self.low

    def shortest(self, used: int, count: int, least: int = 0) -> Shortest | None:
        """Return the shortest text to the group's end, of at least `least` parts.

        None if there is none.
        """
        needed = self._needed & ~used
        extra = max(0, self.low - count - needed.bit_count())
        if not extra and least > needed.bit_count():
            extra, used = least - needed.bit_count(), used & ~self.again
        key = (used if extra else needed), extra
        if key not in self._shortest_texts:
            if len(self._shortest_texts) >= _REMEMBERED:
                self._shortest_texts.clear()
            self._shortest_texts[key] = self._shortest(used, needed, extra)
        return self._shortest_texts[key]

    def _shortest(self, used: int, needed: int, extra: int) -> Shortest | None:
        """Return the shortest text of the parts `needed` and of `extra` others."""
        if needed & self._unknown:
            return None
        chosen, number = needed, needed.bit_count()
        total = sum(filter(None, compress(self.costs, self._each(needed))))
        if extra:
            taken = self._each(used)
            for cost, i in self._by_cost:
                if taken[i]:
                    continue
                times = extra if self.parts[i].repeats else 1
                chosen |= 1 << i
                total += cost * times
                number, extra = number + times, extra - times
                if not extra:
                    break
        if extra:
            return None
        early = chosen & ~self._last or chosen  # an order that all parts allow begins with these
        return Shortest(total, (early & -early).bit_length() - 1, number)

    def _each(self, parts: int) -> bytes:
        """Return for each part 1 if it is among the bits of `parts`, else 0."""
        return f"{parts:0{len(self.parts)}b}".encode().translate(_VALUES)[::-1]
