"""Objects as rules: named properties in the schema's order, then keys that it does not name.

Knows neither what a property's value is nor how it is written.

What properties an object may have: those that its schema names, and sets of other keys.

Knows neither what a property's value is nor how it is written.

Orders in which the properties of an open object may be written: any, if they are few.

Else the schema's own, and those in which people write them.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.regex.automaton import Automaton
from dlm.grammar.regex.nodes import NOTHING, Node, Repetition, alternation, concatenation, optional
from dlm.grammar.rules.rules import Rules
from dlm.grammar.schema.arrays import MOST_STATES, TooManyError, ValueWriter, either
from dlm.grammar.schema.dialect import Dialect
from dlm.grammar.schema.facets import Objects
from dlm.grammar.schema.formula import FALSE, Formula, every, place
from dlm.grammar.schema.normal import NormalForm

_MOST_KEYS = 16  # texts of a pattern up to which they are properties that the schema names
_MOST_CLASSES = 64  # sets of keys that have the same schema


@dataclass(frozen=True, slots=True)
class Member:
    """A property, or, without a name, any with one of `keys`."""

    value: Formula
    name: str | None = None
    required: bool = False
    keys: Automaton = Automaton.NONE


@dataclass(frozen=True, slots=True)
class Members:
    """Of an object: `named` in this order, then `free` ones; of each of `needed`, one of these."""

    named: tuple[Member, ...]
    free: tuple[Member, ...]
    needed: tuple[tuple[Member, ...], ...] = ()


def members(
    objects: Objects, normal: NormalForm, keys_of: Callable[[Formula], Automaton]
) -> list[Members]:
    """The alternatives. Raises `TooManyError`, and `TooLargeError` for a set of keys.

    `keys_of` has the strings that fit a condition.
    """
    named = {name: normal.value_of(objects, name) for name in objects.all_names()}
    required = set(objects.required)
    present = [name for name, value in named.items() if normal.possible(value)]
    patterns = any(clause.patterns for clause in objects.clauses)
    # It names properties, or none at all, says nothing of others, and needs no others.
    speaks = objects.named or bool(present or patterns)
    closed = speaks and not objects.opened and objects.low <= len(present)
    free: list[Member] = []
    for member in _classes(objects, list(named), normal, keys_of, closed):
        words = member.keys.words_up_to(_MOST_KEYS)
        if words is None:
            free.append(member)
        else:
            places = {name: place for place, name in enumerate(_listed(objects, normal))}
            words.sort(key=lambda word: places.get(word, len(places)))
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
    """The keys that `propertyNames` lists, in its order."""
    for names in objects.names:
        for shape in normal.shapes(names, "string"):
            yield from (value.value for value in shape.values or ())


def _with(old: Members, keys: Automaton, value: Formula, free: list[Member]) -> Iterator[Members]:
    """With a property that has one of `keys`, and such a value: one that is there, or a new one."""
    for i, member in enumerate(old.named):
        if keys.accepts(member.name or ""):
            both = every(member.value, value)
            if both != FALSE:
                there = replace(member, value=both, required=True)
                yield replace(old, named=(*old.named[:i], there, *old.named[i + 1 :]))
    for i, needed in enumerate(old.needed):
        if options := _among(needed, keys, value):
            yield replace(old, needed=(*old.needed[:i], options, *old.needed[i + 1 :]))
    if options := _among(free, keys, value):
        yield replace(old, needed=(*old.needed, options))


def _among(some: Iterable[Member], keys: Automaton, value: Formula) -> tuple[Member, ...]:
    """Those of `some` that have one of `keys`, with such a value."""
    both = (Member(every(m.value, value), keys=m.keys.intersection(keys)) for m in some)
    return tuple(member for member in both if member.value != FALSE and not member.keys.is_empty)


def _classes(
    objects: Objects,
    named: list[str],
    normal: NormalForm,
    keys_of: Callable[[Formula], Automaton],
    closed: bool,
) -> list[Member]:
    """Keys that have no name in the schema, by what their values have to fit."""
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
                part  # and no keys of which readers disagree whether they match
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


_MOST_COUNTED = 1_000  # keys that are looked at one by one
_LONGEST = 64  # parts of one rule


@dataclass
class ObjectWriter:
    """Writes the members of one object, with at least `low` and at most `high` of them."""

    members: Members
    low: int
    high: int | None
    value: ValueWriter
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
