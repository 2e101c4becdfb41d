"""Orders in which the properties of an open object may be written: any, if they are few.

Else the schema's own, and those in which people write them.
"""

from dataclasses import replace

from dlm.grammar.rules.nodes import NOTHING, Node, alternation, concatenation, optional
from dlm.grammar.schema.listing import either
from dlm.grammar.schema.members import Members
from dlm.grammar.schema.objects import ObjectWriter

_MOST_NOTED = 4  # properties: each set of those that are there takes a rule
_MOST_OPTIONS = 160  # properties of all these rules


def in_other_orders(members: Members, *orders: tuple[str, ...]) -> list[Members]:
    """Return the members in their order, and in others: with those first that an order has."""
    found = {members.named: members}
    for order in orders:
        places = {name: place for place, name in enumerate(order)}
        named = sorted(members.named, key=lambda m: places.get(m.name or "", len(places)))
        found[tuple(named)] = replace(members, named=tuple(named))
    return list(found.values())


class AnyOrderWriter(ObjectWriter):
    """Writes the members of an object in any order.

    A rule for each set of properties that are there: only of those that are required, if there are
    other keys without end to go on with, since no key comes twice anyway (`parse/keys.py`).
    """

    def applies(self) -> bool:
        """Whether the object can be written so: it counts nothing, and takes few rules."""
        named = self.members.named
        self._noted = [m for m in named if m.required or not self.members.free]
        enough = len(self._noted) <= _MOST_NOTED and len(named) << len(self._noted) <= _MOST_OPTIONS
        counted = self._cap or self.high is not None
        return enough and not (counted or self.members.needed or self.few_keys)

    def write(self) -> Node:
        self._sets: dict[int, Node] = {}
        self._bits = {member: 1 << i for i, member in enumerate(self._noted)}
        self._required = sum(bit for member, bit in self._bits.items() if member.required)
        content, empty = self._from(0), not self._required
        if content == NOTHING:
            return self.dialect.mark("{}") if empty else NOTHING
        whole = concatenation(self.dialect.mark("{"), content, self.dialect.mark("}"))
        return alternation(self.dialect.mark("{}"), whole) if empty else whole

    def _from(self, there: int) -> Node:
        """At least one property, after those of the set `there`."""
        if there in self._sets:
            return self._sets[there]
        bits = [(member, self._bits.get(member, 0)) for member in self.members.named]
        steps = [(self._member(member), there | bit) for member, bit in bits if not there & bit]
        if (free := self._any_free()) != NOTHING:
            steps.append((free, there))
        if not steps:
            return self._sets.setdefault(there, NOTHING)
        reference = self.rules.new("members")
        self._sets[there] = reference
        return self.rules.define(reference, either([self._followed(*step) for step in steps]))

    def _followed(self, node: Node, there: int) -> Node:
        rest, ends = self._from(there), not self._required & ~there
        if rest == NOTHING:
            return node if ends else NOTHING
        more = concatenation(self._comma, rest)
        return concatenation(node, optional(more) if ends else more)
