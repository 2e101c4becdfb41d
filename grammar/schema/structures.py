"""Grammar rules of arrays and objects.

Arrays have constraints on single items, on their number and on how many of them fit a condition.
Objects have named properties in the schema's order, then other keys. `members` finds the properties
that an object may have: those that its schema names, and sets of keys for others. A closed object
is written in the schema's order. An open one with few properties is written in any order, else in
the schema's order and in some that models tend to choose. Knows neither what an item or a property
is nor how it is written.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.regex.automaton import Automaton
from dlm.grammar.regex.nodes import (
    EMPTY,
    NOTHING,
    Concatenation,
    Node,
    Repetition,
    alternation,
    alternation_of,
    concatenation,
    optional,
    parts_of,
)
from dlm.grammar.rules.rules import Rules
from dlm.grammar.schema.conditions import (
    FALSE,
    Arrays,
    Constant,
    Contains,
    Formula,
    Objects,
    complement,
    every,
    lesser,
    pointer_of,
)
from dlm.grammar.schema.normal import NormalForm
from dlm.grammar.schema.values import Dialect, enclosed

ValueWriter = Callable[[Formula], Node]  # returns the node of the values that fit a condition

MOST_STATES = 2_000  # rules of an array or object, one for each state of what is counted
_MOST_ITEMS = 64  # items that are counted one by one


class TooManyError(Exception):
    """An array or object that takes more rules than allowed."""


def write_array(arrays: Arrays, value: ValueWriter, dialect: Dialect, rules: Rules) -> Node:
    """Return arrays that fit all but `unique` and `repeats`. Raises `TooManyError`."""
    low, high = arrays.low, arrays.high
    prefix = list(arrays.prefix)
    if FALSE in prefix:
        prefix, high = prefix[: prefix.index(FALSE)], lesser(high, prefix.index(FALSE))
    if arrays.rest == FALSE:
        high = lesser(high, len(prefix))
    if high is not None and high < low:
        return NOTHING
    if arrays.contains:
        items, empty = _counted(arrays, low, high, value, dialect, rules)
    else:
        items, empty = _uncounted_items(prefix, arrays.rest, low, high, value, dialect, rules)
    return enclosed("[]", items, empty, dialect)


def _uncounted_items(
    prefix: list[Formula],
    rest: Formula,
    low: int,
    high: int | None,
    value: ValueWriter,
    dialect: Dialect,
    rules: Rules,
) -> tuple[Node, bool]:
    """Return the items of an array without `contains`, and whether it may be empty."""
    if high == 0:
        return NOTHING, True
    first = prefix[:high] or [rest]
    comma = dialect.mark(",")
    tail: Node = EMPTY
    if rest != FALSE and (high is None or high > len(first)):
        most = None if high is None else high - len(first)
        item = Concatenation((comma, value(rest)))
        tail = Repetition(item, max(0, low - len(first)), most)
    for i in reversed(range(1, len(first))):
        node = concatenation(comma, value(first[i]), *parts_of(tail))
        tail = node if i < low else optional(rules.add(node, "items"))
    return concatenation(value(first[0]), *parts_of(tail)), low == 0


def _counted(
    arrays: Arrays, low: int, high: int | None, value: ValueWriter, dialect: Dialect, rules: Rules
) -> tuple[Node, bool]:
    """Return the items of an array with `contains`, and whether it may be empty.

    There is a rule for each number of items so far and of those that count for each `contains`.
    """
    wanted = arrays.contains
    starts = max(len(arrays.prefix), *(one.start for one in wanted))
    longest = max(starts, low if high is None else high)
    if longest + sum(max(one.low, one.high or 0) for one in wanted) > _MOST_ITEMS:
        raise TooManyError
    known: dict[tuple[int, ...], Node] = {}
    comma = dialect.mark(",")

    def ends(counts: tuple[int, ...]) -> bool:
        return counts[0] >= low and all(c >= w.low for c, w in zip(counts[1:], wanted, strict=True))

    def items(state: tuple[int, ...]) -> Node:
        """Return one item and all after it."""
        if state not in known:
            if len(known) > MOST_STATES:
                raise TooManyError
            reference = known[state] = rules.new("items")
            at, *counts = state
            options: list[Node] = []
            if high is None or at < high:
                for item, after in _choices(arrays.item(at), at, counts, wanted):
                    following = (min(at + 1, longest), *after)
                    rest = concatenation(comma, items(following))
                    if ends(following):
                        rest = optional(rest)
                    options.append(concatenation(value(item), rest))
            rules.define(reference, alternation(*options))
        return known[state]

    begin = (0,) * (len(wanted) + 1)
    return items(begin), ends(begin)


def _choices(
    item: Formula, at: int, counts: list[int], wanted: tuple[Contains, ...]
) -> list[tuple[Formula, tuple[int, ...]]]:
    """Return the conditions of which the item at `at` fits one, each with the counts after it."""
    rows: list[list[tuple[Formula | None, int]]] = []
    for one, count in zip(wanted, counts, strict=True):
        most = one.low if one.high is None else one.high
        if at < one.start:
            rows.append([(None, count)])
        else:
            counting = [(one.item, count + 1)] if count < most else []
            rest = None if one.high is None else complement(one.item)
            rows.append([*counting, (rest, count)])
    return [
        (every(item, *(part for part, _ in row if part is not None)), tuple(c for _, c in row))
        for row in product(*rows)
    ]


def write_distinct(
    columns: Callable[[int], list[Constant]],
    low: int,
    high: int,
    literal: Callable[[Constant], Node],
    dialect: Dialect,
    rules: Rules,
) -> Node:
    """Return an array of `low` to `high` distinct items, the item at `i` out of `columns(i)`.

    Raises `TooManyError`.
    """
    if high < low:
        return NOTHING
    known: dict[tuple[int, frozenset[Constant]], Node] = {}
    comma = dialect.mark(",")

    def items(at: int, used: frozenset[Constant]) -> Node:
        key = at, used
        if key not in known:
            if len(known) >= MOST_STATES:
                raise TooManyError
            options: list[Node] = []
            for item in columns(at) if at < high else ():
                if item not in used:
                    rest: Node = EMPTY
                    if at + 1 < high:
                        rest = concatenation(comma, items(at + 1, used | {item}))
                        rest = optional(rest) if at + 1 >= low else rest
                    options.append(concatenation(literal(item), rest))
            known[key] = rules.add(alternation(*options), "items") if options else NOTHING
        return known[key]

    return enclosed("[]", items(0, frozenset()), low == 0, dialect)


_MOST_KEYS = 16  # a pattern with no more texts than these is treated as named properties
_MOST_CLASSES = 64  # sets of keys that share a schema


@dataclass(frozen=True, slots=True)
class Member:
    """A property, or, without a name, any property whose key is one of `keys`."""

    value: Formula
    name: str | None = None
    required: bool = False
    keys: Automaton = Automaton.NONE


@dataclass(frozen=True, slots=True)
class Members:
    """Properties of an object: `named` in order, then any of `free` and one of each `needed`."""

    named: tuple[Member, ...]
    free: tuple[Member, ...]
    needed: tuple[tuple[Member, ...], ...] = ()


def members(
    objects: Objects, normal: NormalForm, keys_of: Callable[[Formula], Automaton]
) -> list[Members]:
    """Return the alternatives for the properties of an object.

    `keys_of` returns the strings that fit a condition. Raises `TooManyError`, and `TooLargeError`
    for a set of keys.
    """
    named = {name: normal.value_of(objects, name) for name in objects.all_names()}
    required = set(objects.required)
    present = [name for name, value in named.items() if normal.possible(value)]
    patterns = any(clause.patterns for clause in objects.clauses)
    names_some = objects.named or bool(present or patterns)
    closed = names_some and not objects.opened and objects.low <= len(present)
    free: list[Member] = []
    for member in _classes(objects, list(named), normal, keys_of, closed):
        words = member.keys.words_up_to(_MOST_KEYS)
        if words is None:
            free.append(member)
        else:
            order = {name: index for index, name in enumerate(_listed(objects, normal))}
            words.sort(key=lambda word: order.get(word, len(order)))
            named |= dict.fromkeys(words, member.value)
    found = [Members((), tuple(free))]
    found[0] = replace(
        found[0],
        named=tuple(Member(v, n, n in required) for n, v in named.items() if normal.possible(v)),
    )
    for keys, value in objects.some:
        language = keys_of(keys) if isinstance(keys, Formula) else keys
        rest = _classes(objects, list(named), normal, keys_of, False) if closed else free
        found = [new for old in found for new in _with(old, language, value, rest)]
        if len(found) > _MOST_CLASSES:
            raise TooManyError
    return found


def _listed(objects: Objects, normal: NormalForm) -> Iterator[str]:
    """Yield the keys that `propertyNames` lists, in its order."""
    for names in objects.names:
        for shape in normal.shapes(names, "string"):
            yield from (value.value for value in shape.values or ())


def _with(old: Members, keys: Automaton, value: Formula, free: list[Member]) -> Iterator[Members]:
    """Yield `old` with a property required that fits `keys` and `value`, named or new."""
    for i, member in enumerate(old.named):
        if keys.accepts(member.name or ""):
            both = every(member.value, value)
            if both != FALSE:
                required = replace(member, value=both, required=True)
                yield replace(old, named=(*old.named[:i], required, *old.named[i + 1 :]))
    for i, needed in enumerate(old.needed):
        if options := _among(needed, keys, value):
            yield replace(old, needed=(*old.needed[:i], options, *old.needed[i + 1 :]))
    if options := _among(free, keys, value):
        yield replace(old, needed=(*old.needed, options))


def _among(some: Iterable[Member], keys: Automaton, value: Formula) -> tuple[Member, ...]:
    """Return `some` restricted to `keys` and `value`, without those that become impossible."""
    both = (Member(every(m.value, value), keys=m.keys.intersection(keys)) for m in some)
    return tuple(member for member in both if member.value != FALSE and not member.keys.is_empty)


def _classes(
    objects: Objects,
    named: list[str],
    normal: NormalForm,
    keys_of: Callable[[Formula], Automaton],
    closed: bool,
) -> list[Member]:
    """Return the keys that the schema does not name, grouped by the condition on their values."""
    rests = every(*(clause.rest for clause in objects.clauses if not clause.patterns))
    if rests == FALSE or (closed and not any(clause.patterns for clause in objects.clauses)):
        return []
    normal.work.count(sum(map(len, named)) // 8, "")
    keys = Automaton.words(named).complement() if named else Automaton.ANY
    for names in objects.names:
        keys = keys.intersection(keys_of(names))
    found: list[tuple[Automaton, tuple[Formula, ...], bool]] = [(keys, (), False)]
    for clause in objects.clauses:
        if not clause.patterns:
            found = [
                (k, (*values, clause.rest), hit) for k, values, hit in found if clause.rest != FALSE
            ]
            continue
        split = [(k, values, hit, False) for k, values, hit in found]
        for pattern, value in clause.patterns:
            normal.work.count(20 * len(split), "")
            matching = normal.languages.of("pattern", pattern)
            others = normal.languages.of("pattern", pattern, False)
            split = [
                part  # keys for which regex engines disagree are in neither part
                for k, values, hit, here in split
                for part in (
                    (k.intersection(matching), (*values, value), True, True),
                    (k.intersection(others), values, hit, here),
                )
                if not part[0].is_empty and FALSE not in part[1]
            ]
            if len(split) > _MOST_CLASSES:
                raise TooManyError
        found = [
            (k, values if here else (*values, clause.rest), hit) for k, values, hit, here in split
        ]
    joined: dict[Formula, Automaton] = {}
    for k, values, hit in found:
        value = every(*values)
        if not k.is_empty and (hit or not closed) and normal.possible(value):
            joined[value] = joined[value].union(k) if value in joined else k
    return [Member(value, keys=k) for value, k in joined.items()]


def key_of(member: Member, dialect: Dialect) -> Node:
    """Return the key of a property. Raises `InvalidGrammarError` for a name without a spelling."""
    if member.name is None:
        return dialect.free_key(member.keys)
    try:
        return dialect.key(member.name)
    except InvalidGrammarError as error:
        where = pointer_of(member.value)
        raise InvalidGrammarError("JSON schema", error.reason, where) from error


_MOST_COUNTED = 1_000  # keys that are listed one by one
_LONGEST_RULE = 64  # parts of one rule


@dataclass
class ObjectWriter:
    """Writer of one object with `low` to `high` of `members`, in their order."""

    members: Members
    low: int
    high: int | None
    value: ValueWriter
    dialect: Dialect
    rules: Rules
    free_first: bool = False  # properties that the schema does not name may come first, too

    def __post_init__(self) -> None:
        named = self.members.named
        least = sum(member.required for member in named) + len(self.members.needed)
        most = None if self.members.free or self.members.needed else len(named)
        if self.low <= least:
            self.low = 0
        if self.high is not None and most is not None and self.high >= most:
            self.high = None
        self._cap = max(self.low, self.high or 0)  # properties are counted up to this number
        self._optional_from = 1 + max((i for i, m in enumerate(named) if m.required), default=-1)
        self._comma = self.dialect.mark(",")
        self._known: dict[tuple[int, int, int], Node] = {}
        self._nodes: dict[Member, Node] = {}
        self._free_member: Node | None = None
        self.repeats = bool(self.members.free) or len(self.members.needed) > 1
        self._unnamed = [*self.members.free, *(m for some in self.members.needed for m in some)]
        self.few_keys = self.repeats and not all(member.keys.is_roomy for member in self._unnamed)

    def write(self) -> Node:
        """Return the object; `NOTHING` if there are too few keys. Raises `TooManyError`."""
        named, everything = self.members.named, (1 << len(self.members.needed)) - 1
        if not self._has_enough_keys():
            return NOTHING
        if self._cap * len(named) > MOST_STATES:
            raise TooManyError
        unnamed = self.members.needed or (self.members.free and named)
        if (self._cap > 64 and unnamed) or everything > 3:
            raise TooManyError
        content = NOTHING
        for at in range(len(named), -1, -1):
            for count in range(min(at, self._cap), -1, -1):
                content = self._rest(at, count, everything)
        empty = self._ends(0, 0, everything)
        if content != NOTHING and self.free_first and self.members.free and named and not self._cap:
            free = concatenation(self._any_free(), self._comma)
            content = concatenation(Repetition(free), *parts_of(content))
        return enclosed("{}", content, empty, self.dialect)

    def _has_enough_keys(self) -> bool:
        """Whether there are at least `low` different keys, as far as they can be listed."""
        most = min(self.low, _MOST_COUNTED)
        words = [member.keys.words_up_to(most) for member in self._unnamed]
        known = {word for some in words if some is not None for word in some}
        return None in words or len(self.members.named) + len(known) >= self.low

    def _ends(self, at: int, count: int, needed: int) -> bool:
        """Whether the object may end; the parameters are those of `_rest`."""
        return at >= self._optional_from and not needed and count >= self.low

    def _rest(self, at: int, count: int, needed: int) -> Node:
        """Return one property or more from the named one at `at` on.

        `count` properties are written already; `needed` are bits of `members.needed` still to come.
        """
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
        tail = self._tail(at + 1, min(count + 1, self._cap), needed)
        if len(parts_of(tail)) > _LONGEST_RULE:
            tail = self.rules.add(tail, "members")
        whole = concatenation(*parts_of(self._member(member)), *parts_of(tail))
        if tail == NOTHING:
            whole = NOTHING
        if member.required:
            return whole
        skipped = self._rest(at + 1, count, needed)
        options = [option for option in (whole, skipped) if option != NOTHING]
        return self.rules.add(alternation(*options), "members") if options else NOTHING

    def _tail(self, at: int, count: int, needed: int) -> Node:
        """Return a comma and `_rest`, optional if the object may end here."""
        rest = self._rest(at, count, needed)
        ends = self._ends(at, count, needed)
        if rest == NOTHING:
            return concatenation() if ends else NOTHING
        more = concatenation(self._comma, *parts_of(rest))
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
            more = Repetition(concatenation(self._comma, *parts_of(free)), low, high)
            return self.rules.add(concatenation(*parts_of(free), more), "free")
        options: list[Node] = []
        reference = self.rules.new("free")
        self._known[len(self.members.named), count, needed] = reference
        for member in self.members.free if needed else ():
            tail = self._tail(len(self.members.named), min(count + 1, self._cap), needed)
            options.append(concatenation(self._member(member), tail))
        for i, special in enumerate(self.members.needed):
            if needed >> i & 1:
                left = needed & ~(1 << i)
                tail = self._tail(len(self.members.named), min(count + 1, self._cap), left)
                if tail != NOTHING:
                    node = alternation(*map(self._member, special))
                    options.append(concatenation(node, *parts_of(tail)))
        return self.rules.define(reference, alternation(*options)) if options else NOTHING

    def _member(self, member: Member) -> Node:
        if member not in self._nodes:
            key = key_of(member, self.dialect)
            node = concatenation(key, self.dialect.mark(":"), self.value(member.value))
            self._nodes[member] = node
        return self._nodes[member]


_MOST_TRACKED = 4  # properties: each set of those already written takes a rule
_MOST_OPTIONS = 160  # properties in all these rules together


def in_other_orders(members: Members, *orders: tuple[str, ...]) -> list[Members]:
    """Return `members` in their order, and for each of `orders` with its properties first."""
    found = {members.named: members}
    for order in orders:
        indices = {name: index for index, name in enumerate(order)}
        named = sorted(members.named, key=lambda m: indices.get(m.name or "", len(indices)))
        found[tuple(named)] = replace(members, named=tuple(named))
    return list(found.values())


class AnyOrderWriter(ObjectWriter):
    """Writer of one object with its members in any order.

    There is a rule for each set of properties already written. If the object has free keys, only
    required properties are tracked, since `parse/keys.py` rules out repeated keys anyway.
    """

    def applies(self) -> bool:
        """Whether any order is possible: properties are not counted, and the rules are few."""
        named = self.members.named
        self._tracked = [m for m in named if m.required or not self.members.free]
        number = len(self._tracked)
        few = number <= _MOST_TRACKED and len(named) << number <= _MOST_OPTIONS
        counted = self._cap or self.high is not None
        return few and not (counted or self.members.needed or self.few_keys)

    def write(self) -> Node:
        self._sets: dict[int, Node] = {}
        self._bits = {member: 1 << i for i, member in enumerate(self._tracked)}
        self._required = sum(bit for member, bit in self._bits.items() if member.required)
        return enclosed("{}", self._from(0), not self._required, self.dialect)

    def _from(self, written: int) -> Node:
        """Return one property or more, after the tracked ones whose bits are in `written`."""
        if written in self._sets:
            return self._sets[written]
        bits = [(member, self._bits.get(member, 0)) for member in self.members.named]
        steps = [(self._member(member), written | bit) for member, bit in bits if not written & bit]
        if (free := self._any_free()) != NOTHING:
            steps.append((free, written))
        if not steps:
            return self._sets.setdefault(written, NOTHING)
        reference = self.rules.new("members")
        self._sets[written] = reference
        return self.rules.define(
            reference, alternation_of([self._followed(*step) for step in steps])
        )

    def _followed(self, node: Node, written: int) -> Node:
        """Return `node` and what may follow it, once the tracked properties `written` are there."""
        rest, ends = self._from(written), not self._required & ~written
        if rest == NOTHING:
            return node if ends else NOTHING
        more = concatenation(self._comma, rest)
        return concatenation(node, optional(more) if ends else more)
