"""Grammar rules of arrays.

Arrays have constraints on single items, on their number and on how many of them fit a condition.
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
    parts_of,
)
from dlm.grammar.rules.rules import Rules
from dlm.grammar.schema.conditions import Arrays, Contains, lesser
from dlm.grammar.schema.constants import Constant
from dlm.grammar.schema.dialects import Dialect
from dlm.grammar.schema.formulas import FALSE, Formula, complement, every
from dlm.grammar.schema.structures import MOST_STATES, TooManyError, ValueWriter
from dlm.grammar.schema.values import enclosed

_MOST_ITEMS = 64  # items that are counted one by one


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
