"""Arrays as rules: items by their place, how many there are, and how many of them fit what.

Knows neither what an item is nor how it is written.

Listed values as rules, each in its one spelling.
"""

from collections.abc import Callable
from itertools import product

from dlm.grammar.regex.nodes import (
    EMPTY,
    NOTHING,
    Concatenation,
    Node,
    Repetition,
    alternation,
    concatenation,
    optional,
)
from dlm.grammar.rules.rules import Rules
from dlm.grammar.schema.dialect import Dialect, choice
from dlm.grammar.schema.documents import Work
from dlm.grammar.schema.facets import Arrays, Contains
from dlm.grammar.schema.formula import FALSE, Constant, Formula, complement, every, spellings

ValueWriter = Callable[[Formula], Node]  # writes a condition as rules

MOST_STATES = 2_000  # of the automaton that counts items
_LONGEST = 64  # items that are counted one by one


class TooManyError(Exception):
    """It takes more rules than it may."""


def write_array(arrays: Arrays, value: ValueWriter, dialect: Dialect, rules: Rules) -> Node:
    """Raises `TooManyError`."""
    low, high = arrays.low, arrays.high
    prefix = list(arrays.prefix)
    if FALSE in prefix:
        prefix, high = prefix[: prefix.index(FALSE)], _least(high, prefix.index(FALSE))
    if arrays.rest == FALSE:
        high = _least(high, len(prefix))
    if high is not None and high < low:
        return NOTHING
    if arrays.contains:
        items, empty = _counted(arrays, low, high, value, dialect, rules)
    else:
        items, empty = _plain(prefix, arrays.rest, low, high, value, dialect, rules)
    return array(items, empty, dialect)


def array(items: Node, empty: bool, dialect: Dialect) -> Node:
    """With its brackets; `items` are at least one."""
    whole = concatenation(dialect.mark("["), items, dialect.mark("]"))
    if items == NOTHING:
        return dialect.mark("[]") if empty else NOTHING
    return alternation(dialect.mark("[]"), whole) if empty else whole


def _plain(
    prefix: list[Formula],
    rest: Formula,
    low: int,
    high: int | None,
    value: ValueWriter,
    dialect: Dialect,
    rules: Rules,
) -> tuple[Node, bool]:
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
        node = concatenation(comma, value(first[i]), *_parts(tail))
        tail = node if i < low else optional(rules.add(node, "items"))
    return concatenation(value(first[0]), *_parts(tail)), low == 0


def _parts(node: Node) -> tuple[Node, ...]:
    return node.parts if isinstance(node, Concatenation) else (node,)


def _counted(
    arrays: Arrays, low: int, high: int | None, value: ValueWriter, dialect: Dialect, rules: Rules
) -> tuple[Node, bool]:
    """A rule for each number of items so far, and of those that fit each `contains`."""
    wanted = arrays.contains
    starts = max(len(arrays.prefix), *(one.start for one in wanted))
    longest = max(starts, low if high is None else high)
    if longest + sum(max(one.low, one.high or 0) for one in wanted) > _LONGEST:
        raise TooManyError
    known: dict[tuple[int, ...], Node] = {}
    comma = dialect.mark(",")

    def ends(counts: tuple[int, ...]) -> bool:
        return counts[0] >= low and all(c >= w.low for c, w in zip(counts[1:], wanted, strict=True))

    def items(state: tuple[int, ...]) -> Node:
        """One item and all behind it."""
        if state not in known:
            if len(known) > MOST_STATES:
                raise TooManyError
            reference = known[state] = rules.new("items")
            at, *counts = state
            options: list[Node] = []
            if high is None or at < high:
                for item, after in _choices(arrays.item(at), at, counts, wanted):
                    behind = (min(at + 1, longest), *after)
                    rest = concatenation(comma, items(behind))
                    if ends(behind):
                        rest = optional(rest)
                    options.append(concatenation(value(item), rest))
            rules.define(reference, alternation(*options))
        return known[state]

    begin = (0,) * (len(wanted) + 1)
    return items(begin), ends(begin)


def _choices(
    item: Formula, at: int, counts: list[int], wanted: tuple[Contains, ...]
) -> list[tuple[Formula, tuple[int, ...]]]:
    """What an item may be, with the counts behind it."""
    rows: list[list[tuple[Formula | None, int]]] = []
    for one, count in zip(wanted, counts, strict=True):
        most = one.low if one.high is None else one.high
        if at < one.start:
            rows.append([(None, count)])
        elif one.high is None:
            counting = [(one.item, count + 1)] if count < most else []
            rows.append([*counting, (None, count)])
        else:
            counting = [(one.item, count + 1)] if count < most else []
            rows.append([*counting, (complement(one.item), count)])
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
    """`low` to `high` items, all different: at each place one of its column's. `TooManyError`."""
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

    return array(items(0, frozenset()), low == 0, dialect)


def _least(one: int | None, other: int) -> int:
    return other if one is None else min(one, other)


class Listing:
    """Writes values; what one array or object is written as, it keeps.

    `plain_integers`: an integer has no point and no exponent; to draft 4 it would be none.
    """

    def __init__(self, dialect: Dialect, work: Work, plain_integers: bool = False):
        self._dialect, self._work, self._plain_integers = dialect, work, plain_integers
        # By id: values that are equal may be spelled otherwise, and these are kept.
        self._structures: dict[int, tuple[Constant, Node]] = {}

    def one_of(self, values: list[Constant], integers: bool = False, within: bool = False) -> Node:
        """One of some values, each in its one spelling; `integers` are none with a point. `within`
        another value, what may have to be an integer is not known."""
        plain_integers = self._plain_integers and (integers or within)
        texts = [value.value for value in values if value.kind == "string"]
        plain = {"null": "null", True: "true", False: "false"}
        others: list[str] = []
        options: list[Node] = []
        for value in values:
            if value.kind == "number":
                others += spellings(value.value, plain_integers)[: 1 if integers else None]
            elif value.kind in ("null", "boolean"):
                others.append(plain["null" if value.value is None else value.value])
            elif value.kind != "string":
                options.append(self._structure(value))
        if texts:
            options.append(self._dialect.words(tuple(texts)))
        if others:
            options.append(choice(tuple(dict.fromkeys(others))))
        return either(options)

    def _structure(self, value: Constant) -> Node:
        if id(value) not in self._structures:
            self._work.count(1 + len(value.parts) // 4, "")
            self._structures[id(value)] = value, self._written_out(value)
        return self._structures[id(value)][1]

    def _written_out(self, value: Constant) -> Node:
        comma, parts = self._dialect.mark(","), []
        for key, part in zip(value.value, value.parts, strict=True):
            item = self.one_of([part], within=True)
            if value.kind == "object":
                item = concatenation(self._dialect.key(key), self._dialect.mark(":"), item)
            parts += [comma, item] if parts else [item]
        if value.kind == "array":
            return (
                array(concatenation(*parts), False, self._dialect)
                if parts
                else array(NOTHING, True, self._dialect)
            )
        if not parts:
            return self._dialect.mark("{}")
        return concatenation(self._dialect.mark("{"), *parts, self._dialect.mark("}"))


def either(options: list[Node]) -> Node:
    """One of some nodes, each once."""
    kept = [option for option in dict.fromkeys(options) if option != NOTHING]
    return alternation(*kept) if kept else NOTHING
