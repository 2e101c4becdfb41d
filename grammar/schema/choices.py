"""Grammar rules of objects under several conditions about named properties.

Each condition is a choice: the object fits one of its alternatives, as "if a is there, so is b".
Properties are written in an order, and a rule stands for a place in it and for the choices that are
open there: those of which some properties are written and others are not. A choice is forgotten
once it is decided, so that conditions about neighbours cost a few rules each. Optional properties
are written next to those that share a condition with them; required ones keep the schema's order,
unless any order is allowed and another takes fewer rules.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain

from dlm.grammar.regex.nodes import (
    NOTHING,
    Node,
    Repetition,
    alternation,
    alternation_of,
    concatenation,
    optional,
    parts_of,
)
from dlm.grammar.rules.rules import Rules
from dlm.grammar.schema.conditions import Objects
from dlm.grammar.schema.dialects import Dialect
from dlm.grammar.schema.formulas import FALSE, TRUE, Formula, every
from dlm.grammar.schema.members import Member, Members, key_of
from dlm.grammar.schema.objects import PropertyOrder
from dlm.grammar.schema.structures import MOST_STATES, TooManyError
from dlm.grammar.schema.values import enclosed

Viable = frozenset[int]  # indices of the alternatives of a choice that still fit
Open = tuple[tuple[int, Viable], ...]  # the choices that are open, by their indices


@dataclass(frozen=True, slots=True)
class _Step:
    """One way to write a property: no value, if it is absent, and what is open after it."""

    value: Formula | None
    after: Open


class ChoiceWriter:
    """Writer of one object with choices."""

    def __init__(
        self,
        members: Members,
        objects: Objects,
        order: PropertyOrder,
        closed: bool,
        possible: Callable[[Formula], bool],
        count: Callable[[int], None],
    ):
        """`members` include the properties of all choices.

        `closed`: a property that only an alternative names needs that alternative. `possible`:
        whether a value may fit a condition. `count` counts steps of work. Raises `TooManyError`.
        """
        if members.needed or objects.low > sum(m.required for m in members.named):
            raise TooManyError
        if objects.high is not None:
            raise TooManyError
        self._choices = objects.choices
        self._own = set(objects.all_names())
        self._closed, self._possible, self._count = closed, possible, count
        self._names = [
            [(set(alternative.all_names()), set(alternative.required)) for alternative in choice]
            for choice in self._choices
        ]
        self._free = members.free
        for named in _orders(members.named, self._names, order):
            self._place(named)
            with suppress(TooManyError):
                self._search()
                return
        raise TooManyError

    def _place(self, members: list[Member]) -> None:
        """Find where in the order of `members` each choice begins and ends."""
        self._members = members
        at = {member.name or "": i for i, member in enumerate(self._members)}
        places = [
            [at[name] for names, _ in choice for name in names if name in at]
            for choice in self._names
        ]
        self._begins_at = [min(some, default=0) for some in places]
        self._ends_at = [max(some, default=0) for some in places]
        self._missing = {
            name
            for choice in self._names
            for names, _ in choice
            for name in names
            if name not in at
        }
        self._remaining = [frozenset(list(at)[i:]) for i in range(len(at) + 1)]

    def _search(self) -> None:
        """Find what may be open before each property. Raises `TooManyError`."""
        self._steps: list[dict[Open, list[_Step]]] = []
        states, total = dict[Open, None]({self._begun((), 0): None}), 0
        for at, member in enumerate(self._members):
            self._steps.append({state: list(self._next(at, member, state)) for state in states})
            reached = (step.after for steps in self._steps[-1].values() for step in steps)
            states = dict.fromkeys(reached)
            total += len(states)
            if total > MOST_STATES:
                raise TooManyError
            self._count(sum(map(len, self._steps[-1].values())))
        self._ends = [state for state in states if all(viable for _, viable in state)]

    def _begun(self, state: Open, at: int) -> Open:
        """Return `state` with the choices that begin at the property `at`, all open."""
        new = [
            (number, frozenset(i for i, pair in enumerate(choice) if not pair[1] & self._missing))
            for number, choice in enumerate(self._names)
            if self._begins_at[number] == at
        ]
        return tuple(sorted((*state, *new), key=lambda pair: pair[0]))

    def _next(self, at: int, member: Member, state: Open) -> Iterator[_Step]:
        name = member.name or ""
        if not member.required:
            absent = [(c, self._without(c, viable, name)) for c, viable in state]
            yield from self._after(at, None, absent)
        options: list[tuple[Formula, bool, list[tuple[int, Viable]]]] = [
            (member.value, not self._closed or name in self._own, [])
        ]
        for choice, viable in state:
            groups: dict[tuple[Formula, bool], set[int]] = {}
            for i in viable:
                group = self._value(choice, i, name), name in self._names[choice][i][0]
                groups.setdefault(group, set()).add(i)
            combined = [
                (every(value, mine), named or names, [*chosen, (choice, frozenset(which))])
                for value, named, chosen in options
                for (mine, names), which in groups.items()
                if mine is not FALSE
            ]
            options = [option for option in combined if self._possible(option[0])]
            self._count(len(combined))
            if len(options) > MOST_STATES:
                raise TooManyError
        for value, named, chosen in options:
            if named:
                yield from self._after(at, value, chosen)

    def _value(self, choice: int, index: int, name: str) -> Formula:
        clauses = self._choices[choice][index].clauses
        return every(*(dict(clause.properties).get(name, TRUE) for clause in clauses))

    def _without(self, choice: int, viable: Viable, name: str) -> Viable:
        return frozenset(i for i in viable if name not in self._names[choice][i][1])

    def _after(
        self, at: int, value: Formula | None, state: list[tuple[int, Viable]]
    ) -> Iterator[_Step]:
        """Yield the step to the next property, unless some choice has no alternative left."""
        if all(viable for _, viable in state):
            still = tuple(pair for pair in state if not self._decided(*pair, at + 1))
            yield _Step(value, self._begun(still, at + 1))

    def _decided(self, choice: int, viable: Viable, at: int) -> bool:
        """Whether the choice fits whatever is written from the property `at` on."""
        if self._ends_at[choice] < at:
            return True
        remaining = self._remaining[at]
        free = any(
            self._names[choice][i][1].isdisjoint(remaining)
            and all(
                self._value(choice, i, n) is TRUE for n in self._names[choice][i][0] & remaining
            )
            for i in viable
        )
        named = chain.from_iterable(self._names[choice][i][0] & remaining for i in viable)
        return free and not (self._closed and any(name not in self._own for name in named))

    def write(self, value: Callable[[Formula], Node], dialect: Dialect, rules: Rules) -> Node:
        """Return the object. `value` returns the node of the values that fit a condition."""
        comma = dialect.mark(",")

        def member(key: Node, condition: Formula) -> Node:
            return concatenation(key, dialect.mark(":"), value(condition))

        free = [member(dialect.free_key(m.keys), m.value) for m in self._free]
        free_members: Node = NOTHING
        if free:
            free_member = alternation_of(free)
            free_members = rules.add(
                concatenation(free_member, Repetition(concatenation(comma, free_member))), "free"
            )
        # By what is open: one property or more from here on, and whether the object may end.
        after = defaultdict[Open, tuple[Node, bool]](lambda: (NOTHING, False))
        after.update(dict.fromkeys(self._ends, (free_members, True)))
        for at in reversed(range(len(self._members))):
            before = defaultdict[Open, tuple[Node, bool]](lambda: (NOTHING, False))
            key = key_of(self._members[at], dialect)
            written: dict[Formula, Node] = {}
            for state, steps in self._steps[at].items():
                options: list[Node] = []
                ends = False
                for step in steps:
                    following, may_end = after[step.after]
                    if step.value is None:
                        options.append(following)
                        ends = may_end
                        continue
                    if step.value not in written:
                        written[step.value] = rules.add(member(key, step.value), "member")
                    property_node = written[step.value]
                    if following == NOTHING:
                        options.append(property_node if may_end else NOTHING)
                    else:
                        tail = concatenation(comma, *parts_of(following))
                        options.append(
                            concatenation(property_node, optional(tail) if may_end else tail)
                        )
                kept = [option for option in options if option != NOTHING]
                node = rules.add(alternation(*kept), "members") if kept else NOTHING
                before[state] = node, ends
            after = before
        content, empty = after[self._begun((), 0)]
        return enclosed("{}", content, empty, dialect)


def _orders(
    named: tuple[Member, ...], choices: list[list[tuple[set[str], set[str]]]], order: PropertyOrder
) -> Iterator[list[Member]]:
    """Yield orders of `named`: with each optional property right after the first that shares a
    choice, with it right after the first required one that does, and with all in any order."""
    together: dict[str, set[str]] = {}
    for choice in choices:
        names = set(chain.from_iterable(pair[0] for pair in choice))
        for name in names:
            together.setdefault(name, set()).update(names)
    required = {member.name or "" for member in named if member.required}
    yield _neighbours(named, together, required, set())
    yield _neighbours(named, together, required, required)
    if order == "any":
        yield _neighbours(named, together, set(), set())


def _neighbours(
    named: tuple[Member, ...], together: dict[str, set[str]], fixed: set[str], awaited: set[str]
) -> list[Member]:
    """Return `named` with each property that is not `fixed` right after the first, or the first of
    `awaited`, that it has in common with others in `together`."""
    order: dict[Member, None] = {}
    for member in named:
        name = member.name or ""
        if name not in fixed and together.get(name, set()) & awaited:
            continue  # it comes after one of these
        waiting = [member]
        while waiting:
            current = waiting.pop(0)
            if current in order:
                continue
            order[current] = None
            linked = together.get(current.name or "", ())
            waiting += (m for m in named if m.name in linked and m.name not in fixed)
    return list(order)
