"""Grammar rules of arrays.

Arrays have constraints on single items, on their number and on how many of them fit a part.
"""

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
    if arrays.rest is FALSE:
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
    further: Formula,
    low: int,
    high: int | None,
    value: ValueWriter,
    dialect: Dialect,
    rules: Rules,
) -> tuple[Node, bool]:
    """Return the items of an array without `contains`, and whether it may be empty."""
    if high == 0:
        return NOTHING, True
    leading = prefix[:high] or [further]
    comma = dialect.mark(",")
    tail: Node = EMPTY
    if further is not FALSE and (high is None or high > len(leading)):
        most = None if high is None else high - len(leading)
        item = Concatenation((comma, value(further)))
        tail = Repetition(item, max(0, low - len(leading)), most)
    required = max(1, min(low, len(leading)))  # number of leading items that must be there
    for item in reversed(leading[required:]):
        node = concatenation(comma, value(item), *parts_of(tail))
        tail = optional(rules.add(node, "items"))
    content = [value(leading[0])]
    for item in leading[1:required]:
        content += (comma, value(item))
    return concatenation(*content, *parts_of(tail)), low == 0


def _counted(
    arrays: Arrays, low: int, high: int | None, value: ValueWriter, dialect: Dialect, rules: Rules
) -> tuple[Node, bool]:
    """Return the items of an array with `contains`, and whether it may be empty.

    There is a rule for each number of items so far and of those that count for each `contains`.
    """
    contains = arrays.contains
    starts = max(len(arrays.prefix), *(part.start for part in contains))
    longest = max(starts, low if high is None else high)
    if longest + sum(max(part.low, part.high or 0) for part in contains) > _MOST_ITEMS:
        raise TooManyError
    references: dict[tuple[int, ...], Node] = {}
    comma = dialect.mark(",")

    def ends(counts: tuple[int, ...]) -> bool:
        pairs = zip(counts[1:], contains, strict=True)
        return counts[0] >= low and all(count >= part.low for count, part in pairs)

    def items(state: tuple[int, ...]) -> Node:
        """Return one item and all after it."""
        if state not in references:
            if len(references) > MOST_STATES:
                raise TooManyError
            reference = references[state] = rules.new("items")
            at, *counts = state
            options: list[Node] = []
            if high is None or at < high:
                for item, after in _choices(arrays.item(at), at, counts, contains):
                    following = (min(at + 1, longest), *after)
                    tail = concatenation(comma, items(following))
                    if ends(following):
                        tail = optional(tail)
                    options.append(concatenation(value(item), tail))
            rules.define(reference, alternation(*options))
        return references[state]

    begin = (0,) * (len(contains) + 1)
    return items(begin), ends(begin)


def _choices(
    item: Formula, at: int, counts: list[int], contains: tuple[Contains, ...]
) -> list[tuple[Formula, tuple[int, ...]]]:
    """Return the conditions of which the item at `at` fits one, each with the counts after it."""
    rows: list[list[tuple[Formula | None, int]]] = []
    for part, count in zip(contains, counts, strict=True):
        most = part.low if part.high is None else part.high
        if at < part.start:
            rows.append([(None, count)])
        else:
            counting = [(part.item, count + 1)] if count < most else []
            not_counting = None if part.high is None else complement(part.item)
            rows.append([*counting, (not_counting, count)])
    return [
        (
            every(item, *(formula for formula, _ in row if formula is not None)),
            tuple(c for _, c in row),
        )
        for row in product(*rows)
    ]
