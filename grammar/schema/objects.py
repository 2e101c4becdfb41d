"""Grammar rules of objects, whose properties come in the order that is chosen (`PropertyOrder`).

The module knows neither what a property is nor how it is written.
"""

from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal, get_args

from dlm.grammar.regex.automaton import Automaton
from dlm.grammar.regex.nodes import (
    NOTHING,
    AnyOrder,
    Component,
    Concatenation,
    Node,
    alternation,
    concatenation,
    parts_of,
)
from dlm.grammar.rules.rules import Rules
from dlm.grammar.schema.dialects import Dialect
from dlm.grammar.schema.key_sets import key_sets
from dlm.grammar.schema.members import Member, Members, key_of
from dlm.grammar.schema.structures import TooManyError, ValueWriter
from dlm.grammar.schema.values import enclosed

PropertyOrder = Literal["required", "schema", "any"]
PROPERTY_ORDERS: tuple[str, ...] = get_args(PropertyOrder)
_MOST_COUNTED = 1_000  # keys that are listed one by one
_MOST_NEEDED = 2  # sets of keys of which one property each is needed
_LONGEST_RULE = 64  # parts of one rule
_MOST_DISTINCT = 32  # keys without a name that are needed and whose repetitions do not count
_SETS_PER_KEY = 8  # sets of keys for each of these


@dataclass
class ObjectWriter:
    """Writer of one object with `low` to `high` of `members`.

    `order` "required": required properties come in their order, and others anywhere. "schema": all
    named properties come in their order, and others after them. "any": all come anywhere.

    `distinct`: there are `low` different keys even if those without a name repeat, and none of
    these replaces a property that is needed. Without it, the caller sees to it that no key repeats.
    """

    members: Members
    low: int
    high: int | None
    value: ValueWriter
    dialect: Dialect
    rules: Rules
    order: PropertyOrder
    distinct: bool = False

    def __post_init__(self) -> None:
        named = self.members.named
        self._least = sum(member.required for member in named) + len(self.members.needed)
        most = None if self.members.free or self.members.needed else len(named)
        if self.low <= self._least:
            self.low = 0
        if self.high is not None and most is not None and self.high >= most:
            self.high = None
        self.repeats = bool(self.members.free) or len(self.members.needed) > 1
        self._unnamed = [*self.members.free, *(m for some in self.members.needed for m in some)]
        self.few_keys = self.repeats and not all(member.keys.is_roomy for member in self._unnamed)

    def write(self) -> Node:
        """Return the object; `NOTHING` if there are too few keys. Raises `TooManyError`."""
        high = self.high
        if not self._has_enough_keys() or (high is not None and high < max(self.low, self._least)):
            return NOTHING
        if len(self.members.needed) > _MOST_NEEDED:
            raise TooManyError
        empty = not self._least and not self.low
        if self.distinct and self.members.needed:
            return enclosed("{}", self._kept(), empty, self.dialect)
        parts = [] if high == 0 else self._parts()
        return enclosed("{}", self._content(parts) if parts else NOTHING, empty, self.dialect)

    def _kept(self) -> Node:
        """Return one property or more, of which one is needed, and no later one of its name fits
        less: it is the last, or all properties fit that may have its name.

        Raises `TooManyError`.
        """
        if len(self.members.needed) > 1 or self.low:
            raise TooManyError
        options = next(iter(self.members.needed))
        names = reduce(Automaton.union, (member.keys for member in options))
        others = (m._replace(keys=m.keys.difference(names)) for m in self.members.free)
        free = (*options, *(member for member in others if not member.keys.is_empty))
        fitting = replace(self, members=self.members._replace(free=free), distinct=False)
        contents = [fitting._content(fitting._parts())]
        most = None if self.high is None else self.high - 1
        if most != 0:
            before = replace(self, members=self.members._replace(needed=()), high=most)
            needed = alternation(*map(self._member, options))
            comma = self.dialect.mark(",")
            contents.append(concatenation(before._content(before._parts()), comma, needed))
        return alternation(*contents)

    def _has_enough_keys(self) -> bool:
        """Whether there are at least `low` different keys, as far as they can be listed."""
        most = min(self.low, _MOST_COUNTED)
        words = [member.keys.words_up_to(most) for member in self._unnamed]
        listed = {word for some in words if some is not None for word in some}
        return None in words or len(self.members.named) + len(listed) >= self.low

    def _parts(self) -> list[Component]:
        last = self.order == "schema"
        named = [
            Component(
                self._member(member),
                required=member.required,
                ordered=last or (self.order == "required" and member.ordered),
            )
            for member in self.members.named
        ]
        needed = [
            Component(alternation(*map(self._member, some)), required=True, last=last)
            for some in self.members.needed
        ]
        return [*named, *needed, *self._free(last)]

    def _free(self, last: bool) -> list[Component]:
        """Return the properties without a name.

        If more than one of them is needed, each that counts has a key of another set, and later
        keys of the same set do not count. Raises `TooManyError`.
        """
        free = [self._member(member) for member in self.members.free]
        missing = self.low - self._least
        if not self.distinct or missing <= 1 or not free:
            return [Component(node, repeats=True, last=last) for node in free]
        if missing > _MOST_DISTINCT or self.members.needed:
            raise TooManyError
        again = self.high is None
        return [
            Component(self._member(member._replace(keys=keys)), last=last, again=again)
            for member in self.members.free
            for keys in key_sets(self.dialect.free_keys(member.keys), _SETS_PER_KEY * missing)
        ]

    def _content(self, parts: list[Component]) -> Node:
        """Return one property or more; if all are required in one order, as a plain sequence."""
        comma = self.dialect.mark(",")
        single = len(parts) == 1 and not parts[0].repeats
        if not single and not all(part.required and part.ordered for part in parts):
            return AnyOrder(tuple(parts), comma, self.low, self.high)
        content = parts_of(parts[-1].node)
        for part in reversed(parts[:-1]):
            if len(content) > _LONGEST_RULE:
                content = (self.rules.add(Concatenation(content), "members"),)
            content = (*parts_of(part.node), comma, *content)
        return concatenation(*content)

    def _member(self, member: Member) -> Node:
        key, colon = key_of(member, self.dialect), self.dialect.mark(":")
        return Concatenation((key, colon, self.value(member.value)))
