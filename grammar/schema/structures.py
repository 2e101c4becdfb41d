"""Grammar rules of arrays and objects.

Arrays have constraints on single items, on their number and on how many of them fit a condition.
`members` finds the properties that an object may have: those that its schema names, and sets of
keys for others. `ObjectWriter` writes them in the order that is chosen (`PropertyOrder`). Knows
neither what an item or a property is nor how it is written.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from typing import Literal, get_args

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.regex.automaton import Automaton
from dlm.grammar.regex.nodes import (
    EMPTY,
    NOTHING,
    AnyOrder,
    Component,
    Concatenation,
    Node,
    Repetition,
    alternation,
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
from dlm.grammar.schema.key_sets import key_sets
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
    ordered: bool = False  # it is required for all values, not by a dependency
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
    required, in_order = set(objects.required), objects.in_order()
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
        named=tuple(
            Member(v, n, n in required, n in in_order)
            for n, v in named.items()
            if normal.possible(v)
        ),
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
        others = (replace(m, keys=m.keys.difference(names)) for m in self.members.free)
        free = (*options, *(member for member in others if not member.keys.is_empty))
        fitting = replace(self, members=replace(self.members, free=free), distinct=False)
        contents = [fitting._content(fitting._parts())]
        most = None if self.high is None else self.high - 1
        if most != 0:
            before = replace(self, members=replace(self.members, needed=()), high=most)
            needed = alternation(*map(self._member, options))
            comma = self.dialect.mark(",")
            contents.append(concatenation(before._content(before._parts()), comma, needed))
        return alternation(*contents)

    def _has_enough_keys(self) -> bool:
        """Whether there are at least `low` different keys, as far as they can be listed."""
        most = min(self.low, _MOST_COUNTED)
        words = [member.keys.words_up_to(most) for member in self._unnamed]
        known = {word for some in words if some is not None for word in some}
        return None in words or len(self.members.named) + len(known) >= self.low

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
            Component(self._member(replace(member, keys=keys)), last=last, again=again)
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
        key = key_of(member, self.dialect)
        return concatenation(key, self.dialect.mark(":"), self.value(member.value))
