"""Grammar rules of arrays of distinct items that are listed values, or some of which are.

Each rule knows which listed values were used, so that no item takes a value that a later one needs.
"""

from collections.abc import Callable
from math import comb
from sys import maxsize
from typing import NamedTuple

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
from dlm.grammar.schema.conditions import Arrays, lesser
from dlm.grammar.schema.constants import Constant
from dlm.grammar.schema.dialects import Dialect
from dlm.grammar.schema.formulas import FALSE, Formula, complement, every
from dlm.grammar.schema.keywords import Keywords
from dlm.grammar.schema.normal import NormalForm
from dlm.grammar.schema.structures import MOST_STATES, TooManyError, ValueWriter
from dlm.grammar.schema.values import enclosed

_MOST_USED, _MOST_SETS = 8, 400  # used values that rules know, and sets of them
_MOST_COLUMNS = 64  # of arrays of which not all items are listed


class Column(NamedTuple):
    """Values of one item, or of each further one."""

    values: list[Constant]
    condition: Formula | None = None  # of other values; None: there are no others

    @property
    def is_listed(self) -> bool:
        return self.condition is None


def columns_of(arrays: Arrays, normal: NormalForm, keywords: Keywords) -> list[Column] | None:
    """Return what each item may be, the last column for all further ones.

    Returns None if no required item but the first is listed: the parser, which refuses repeated
    items, is enough then. Unless all items are listed, only few values are read, and no lists with
    arrays or objects.
    """
    items = (*arrays.prefix, arrays.rest)
    listed = [normal.listed(item) for item in items]
    if None in listed:
        listed = [values if values and _are_scalars(values) else None for values in listed]
        number = len(frozenset[Constant]().union(*(values or () for values in listed)))
        few = len(items) <= _MOST_COLUMNS and _may_know(number, arrays.high)
        if not few or not any(listed[1 : arrays.low]):
            return None
    columns: list[Column] = []
    later = set[Constant]()  # values that later items list
    for item, values in zip(reversed(items), reversed(listed), strict=True):
        condition = None
        if values is None:
            enum = {"enum": [value.value for value in later]}
            values, condition = frozenset(later), item
            if later:
                condition = every(item, complement(keywords.formula(enum, keywords.reader.root)))
        else:
            later |= values
        fitting = [v for v in sorted(values, key=repr) if normal.admits(item, v)]
        columns.append(Column(fitting, condition))
    return columns[::-1]


def most_items(arrays: Arrays, columns: list[Column]) -> int | None:
    """Return the most items that are distinct; None if their number has no limit."""
    high = arrays.high
    if arrays.rest is FALSE:
        high = lesser(high, len(columns) - 1)
    if all(column.is_listed for column in columns):
        high = lesser(high, len(_values(columns)))
    return high


def are_few(columns: list[Column], high: int | None) -> bool:
    """Whether rules may know which of the listed values were used in up to `high` items."""
    return _may_know(len(_values(columns)), high)


def listed_later(columns: list[Column]) -> list[frozenset[Constant]]:
    """Return for each column the values that later ones list; the last one also stands for those
    after it."""
    later = [frozenset(columns[-1].values if columns[-1].is_listed else ())]
    for column in reversed(columns[1:]):
        values = column.values if column.is_listed else ()
        later.append(later[-1] if later[-1].issuperset(values) else later[-1].union(values))
    return later[::-1]


def write_distinct(
    columns: list[Column],
    low: int,
    high: int | None,
    literals: Callable[[list[Constant]], Node],
    value: ValueWriter,
    dialect: Dialect,
    rules: Rules,
) -> Node:
    """Return an array of `low` to `high` items, whose listed ones are distinct.

    Raises `TooManyError`.
    """
    item_rules = _ItemRules(columns, low, high, literals, value, dialect.mark(","), rules)
    node = item_rules.items(0, frozenset()) if high != 0 else NOTHING
    return enclosed("[]", node, low == 0, dialect)


class _ItemRules:
    """Rules of the items of one array, from a place on, by the listed values that were used."""

    def __init__(
        self,
        columns: list[Column],
        low: int,
        high: int | None,
        literals: Callable[[list[Constant]], Node],
        value: ValueWriter,
        comma: Node,
        rules: Rules,
    ):
        self._columns, self._low, self._high = columns, low, high
        self._literals, self._value, self._comma, self._rules = literals, value, comma, rules
        self._last, self._later = len(columns) - 1, listed_later(columns)
        self._nodes: dict[tuple[int, frozenset[Constant]], Node] = {}

    def items(self, at: int, used: frozenset[Constant]) -> Node:
        """Return the item at `at` and all after it."""
        key = at, used
        if key not in self._nodes:
            if len(self._nodes) >= MOST_STATES:
                raise TooManyError
            column = min(at, self._last)
            (values, condition), later = self._columns[column], self._later[column]
            after: dict[frozenset[Constant], list[Constant]] = {}  # by the values used then
            for item in values:
                if item not in used:
                    after.setdefault(later & (used | {item}), []).append(item)
            options = [
                concatenation(self._literals(listed), self._further(at + 1, then))
                for then, listed in after.items()
            ]
            if condition is not None:
                node = self._further(at + 1, later & used)
                options.append(concatenation(self._value(condition), node))
            rule = self._rules.add(alternation(*options), "items") if options else NOTHING
            self._nodes[key] = rule
        return self._nodes[key]

    def _further(self, at: int, used: frozenset[Constant]) -> Node:
        """Return a comma and the items from `at` on, if there are any."""
        if self._high is not None and at >= self._high:
            return EMPTY
        condition = self._columns[-1].condition
        if at >= self._last and condition is not None:
            most = None if self._high is None else self._high - at
            item = Concatenation((self._comma, self._value(condition)))
            return Repetition(item, max(0, self._low - at), most)
        node = concatenation(self._comma, self.items(at, used))
        return optional(node) if at >= self._low else node


def _values(columns: list[Column]) -> dict[Constant, None]:
    return dict.fromkeys(value for column in columns for value in column.values)


def _may_know(values: int, high: int | None) -> bool:
    """Whether rules may know which of some `values` were used in up to `high` items."""
    most = min(_MOST_USED, maxsize if high is None else high)
    return sum(comb(values, k) for k in range(most)) <= _MOST_SETS


def _are_scalars(values: frozenset[Constant]) -> bool:
    return all(value.kind not in ("array", "object") for value in values)
