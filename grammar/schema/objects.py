"""Objects as rules: named properties in the schema's order, then keys that it does not name.

Knows neither what a property's value is nor how it is written.
"""

from dataclasses import dataclass

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.rules.nodes import (
    NOTHING,
    Node,
    Repetition,
    alternation,
    concatenation,
    optional,
)
from dlm.grammar.rules.rules import Rules
from dlm.grammar.schema.arrays import MOST_STATES, TooManyError, Value
from dlm.grammar.schema.dialect import Dialect
from dlm.grammar.schema.formula import place
from dlm.grammar.schema.members import Member, Members

_MOST_COUNTED = 1_000  # keys that are looked at one by one
_LONGEST = 64  # parts of one rule


@dataclass
class ObjectWriter:
    """Writes the members of one object, with at least `low` and at most `high` of them."""

    members: Members
    low: int
    high: int | None
    value: Value
    dialect: Dialect
    rules: Rules
    loose: bool = False  # properties without a name in the schema may come first, too

    def __post_init__(self) -> None:
        named = self.members.named
        least = sum(member.required for member in named) + len(self.members.needed)
        most = None if self.members.free or self.members.needed else len(named)
        if self.low <= least:
            self.low = 0
        if self.high is not None and most is not None and self.high >= most:
            self.high = None
        self._cap = max(self.low, self.high or 0)  # there is no need to count on
        self._optional_from = 1 + max((i for i, m in enumerate(named) if m.required), default=-1)
        self._comma = self.dialect.mark(",")
        self._known: dict[tuple[int, int, int], Node] = {}
        self._nodes: dict[Member, Node] = {}
        self._free_member: Node | None = None
        self.repeats = bool(self.members.free) or len(self.members.needed) > 1
        self._unnamed = [*self.members.free, *(m for some in self.members.needed for m in some)]
        self.few_keys = self.repeats and any(member.keys.runs_out for member in self._unnamed)

    def write(self) -> Node:
        """`NOTHING` where there are too few keys. Raises `TooManyError`."""
        named, everything = self.members.named, (1 << len(self.members.needed)) - 1
        if not self._has_enough_keys():
            return NOTHING
        if self._cap * len(named) > MOST_STATES:
            raise TooManyError
        if (self._cap > 64 and (self.members.free or self.members.needed)) or everything > 3:
            raise TooManyError
        content = NOTHING
        for at in range(len(named), -1, -1):
            for count in range(min(at, self._cap), -1, -1):
                content = self._rest(at, count, everything)
        empty = self._ends(0, 0, everything)
        if content == NOTHING:
            return self.dialect.mark("{}") if empty else NOTHING
        if self.loose and self.members.free and self.members.named and not self._cap:
            free = concatenation(self._any_free(), self._comma)
            content = concatenation(Repetition(free), *_parts(content))
        whole = concatenation(self.dialect.mark("{"), content, self.dialect.mark("}"))
        return alternation(self.dialect.mark("{}"), whole) if empty else whole

    def _has_enough_keys(self) -> bool:
        most = min(self.low, _MOST_COUNTED)
        words = [member.keys.words_up_to(most) for member in self._unnamed]
        known = {word for some in words if some is not None for word in some}
        return None in words or len(self.members.named) + len(known) >= self.low

    def _ends(self, at: int, count: int, needed: int) -> bool:
        return at >= self._optional_from and not needed and count >= self.low

    def _rest(self, at: int, count: int, needed: int) -> Node:
        """The properties from `at` on, at least one, where `count` are there already."""
        key = at, count, needed
        if key not in self._known:
            self._known[key] = self._written(at, count, needed)
        return self._known[key]

    def _written(self, at: int, count: int, needed: int) -> Node:
        if self.high is not None and count >= self.high:
            return NOTHING
        if at == len(self.members.named):
            return self._free(count, needed)
        member = self.members.named[at]
        behind = self._tail(at + 1, min(count + 1, self._cap), needed)
        if len(_parts(behind)) > _LONGEST:
            behind = self.rules.add(behind, "members")
        whole = concatenation(*_parts(self._member(member)), *_parts(behind))
        if behind == NOTHING:
            whole = NOTHING
        if member.required:
            return whole
        skipped = self._rest(at + 1, count, needed)
        options = [option for option in (whole, skipped) if option != NOTHING]
        return self.rules.add(alternation(*options), "members") if options else NOTHING

    def _tail(self, at: int, count: int, needed: int) -> Node:
        rest = self._rest(at, count, needed)
        ends = self._ends(at, count, needed)
        if rest == NOTHING:
            return concatenation() if ends else NOTHING
        more = concatenation(self._comma, *_parts(rest))
        return optional(more) if ends else more

    def _any_free(self) -> Node:
        if not self.members.free:
            return NOTHING
        if self._free_member is None:
            free = alternation(*map(self._member, self.members.free))
            self._free_member = self.rules.add(free, "free") if len(self.members.free) > 1 else free
        return self._free_member

    def _free(self, count: int, needed: int) -> Node:
        if not needed and (free := self._any_free()) != NOTHING:
            low = max(0, self.low - count - 1)
            high = None if self.high is None else self.high - count - 1
            if high is not None and high < low:
                return NOTHING
            more = Repetition(concatenation(self._comma, *_parts(free)), low, high)
            return self.rules.add(concatenation(*_parts(free), more), "free")
        options: list[Node] = []
        reference = self.rules.new("free")
        self._known[len(self.members.named), count, needed] = reference
        for member in self.members.free if needed else ():
            behind = self._tail(len(self.members.named), min(count + 1, self._cap), needed)
            options.append(concatenation(self._member(member), behind))
        for i, special in enumerate(self.members.needed):
            if needed >> i & 1:
                left = needed & ~(1 << i)
                behind = self._tail(len(self.members.named), min(count + 1, self._cap), left)
                if behind != NOTHING:
                    node = alternation(*map(self._member, special))
                    options.append(concatenation(node, *_parts(behind)))
        return self.rules.define(reference, alternation(*options)) if options else NOTHING

    def _member(self, member: Member) -> Node:
        if member not in self._nodes:
            try:
                key = self.dialect.key(member.name) if member.name is not None else None
            except InvalidGrammarError as error:
                raise InvalidGrammarError(
                    "JSON schema", error.reason, place(member.value)
                ) from error
            key = key or self.dialect.free_key(member.keys)
            node = concatenation(key, self.dialect.mark(":"), self.value(member.value))
            self._nodes[member] = node
        return self._nodes[member]


def _parts(node: Node) -> tuple[Node, ...]:
    return getattr(node, "parts", (node,))
