"""Effort of a template's rendering: what its operations cost, in steps.

- The body of a loop, a macro or a block costs its size in the source, each time it is run;
- a text costs a step for 16 characters, whenever it is made, written or searched;
- a list or an object costs a step for each item when it is made, and the weight of all that is
  within it, as often as it is within it, when it is written, compared or sorted.

What may make much of little has its cost before it runs: repetition, replacement, padding, joins
and formats. A method, filter or test without a known cost has no place in a template.
"""

import re
from collections.abc import Mapping, Sequence, Sized
from itertools import chain
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

CHARACTERS = 16  # characters that cost a step
_SORTED = 20  # comparisons of an item in a sort
_ESCAPED = 6  # the most characters that an escaped one takes
_ENDLESS = 1 << 40  # steps: any more count as this
_LONGEST_INT = 4096  # bits
_PLACES = 100  # the most decimal places of a rounded number


class EffortError(jinja2.TemplateRuntimeError):
    """Template that does more than a rendering may cost."""


class Effort:
    """Steps that a rendering may still take, and the weights of its values."""

    def __init__(self) -> None:
        self._steps = self._left = _ENDLESS
        self._weights: dict[int, tuple[int, Any]] = {}  # by id; the value stays, and so does its id

    def charge(self, steps: int) -> None:
        """Take `steps` off what is left. Raises `EffortError` if that is not enough."""
        self._left -= steps
        if self._left < 0:
            raise EffortError(
                f"it needs more than the {self._steps:,} steps that a rendering of this size may "
                "have: it loops too often, or makes too long a text"
            )

    def limit(self, steps: int) -> None:
        """Set what the rendering may take from here on; until then it is not limited."""
        self._steps = self._left = steps

    def weight(self, value: Any) -> int:
        """Return the steps of reading all of `value`. An item that is there twice counts twice.
        Raises `EffortError` if it is more than a whole rendering may take."""
        if isinstance(value, str | bytes):
            return 1 + len(value) // CHARACTERS
        if isinstance(value, Namespace):
            raise SecurityError("a namespace can be neither written, compared nor kept in a list")
        if not isinstance(value, list | tuple | set | frozenset | Mapping):
            return 1
        weighed = self._weights.get(id(value))
        if weighed is None:
            items = chain(value.keys(), value.values()) if isinstance(value, Mapping) else value
            weighed = 1 + sum(map(self.weight, items)), value
            if weighed[0] > self._steps:
                self.charge(weighed[0])
            self._weights[id(value)] = weighed
        return weighed[0]

    def charge_reading(self, *values: Any) -> None:
        """Charge the reading of all of `values`."""
        for value in values:
            self.charge(self.weight(value))

    def made(self, value: Any) -> Any:
        """Charge for `value`, which an operation has made, and return it."""
        if isinstance(value, int):
            if value.bit_length() > _LONGEST_INT:
                raise EffortError(f"it makes an integer of more than {_LONGEST_INT} bits")
        elif isinstance(value, str | bytes):
            self.charge(len(value) // CHARACTERS)
        elif isinstance(value, list | tuple | set | frozenset | Mapping):
            self.charge(len(value))
            self.weight(value)
        return value


def size_of(value: Any) -> int:
    return len(value) if isinstance(value, Sized) else 0


def _widths(*values: Any) -> int:
    """Return the sum of all integers in `values`: as widths or as counts they make a value long."""
    return sum(min(_ENDLESS, abs(value)) for value in values if isinstance(value, int))


def _replacement(text: str, old: Any = "", new: Any = "", count: Any = None) -> int:
    """Return the steps of replacing `old` in `text`."""
    times = text.count(str(old))
    if isinstance(count, int) and count >= 0:
        times = min(times, count)
    return (len(text) + times * len(str(new))) // CHARACTERS


def _formatting(effort: Effort, text: str, values: Sequence[Any]) -> int:
    """Return the steps of a format: each field may show all values, within its width."""
    widths = [int(digits[:9]) for digits in re.findall(r"\d+", text)]
    if "*" in text or text.count("{") > text.count("}{") + 1:  # values may be widths
        widths.append(_widths(*values))
    fields = text.count("%") + text.count("{")
    return fields * sum(map(effort.weight, values)) + sum(widths) // CHARACTERS


_METHODS: Mapping[
    type, frozenset[str]
] = {  # by type; their cost is that of reading all arguments, unless below
    str: frozenset(
        "capitalize casefold center count endswith expandtabs find format index isalnum isalpha "
        "isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle "
        "isupper join ljust lower lstrip partition removeprefix removesuffix replace rfind rindex "
        "rjust rpartition rsplit rstrip split splitlines startswith strip swapcase title upper "
        "zfill".split()
    ),
    Mapping: frozenset(("copy", "get", "items", "keys", "values")),
    list: frozenset(("copy", "count", "index")),
    tuple: frozenset(("count", "index")),
    float: frozenset(("is_integer",)),
}
_PADDED = frozenset(("center", "expandtabs", "ljust", "rjust", "zfill"))
_SEARCHED = frozenset(("count", "index"))  # methods of lists and tuples that compare


def call_method(effort: Effort, method: Any, name: str, args: Any, kwargs: Any) -> Any:
    """Call a method of a value of Python's own types."""
    value = method.__self__
    allowed = next((names for kind, names in _METHODS.items() if isinstance(value, kind)), ())
    if name not in allowed:
        raise SecurityError(f"a template cannot call {name} of a {type(value).__name__}")
    arguments = [*args, *kwargs.values()]
    if isinstance(value, str):
        if name == "join" and args:
            arguments = [*args[0]]
            args = arguments, *args[1:]
            effort.charge(len(arguments) * effort.weight(value))
        elif name == "replace":
            effort.charge(_replacement(value, *args))
        elif name in _PADDED:
            lines = value.count("\t") if name == "expandtabs" else 1
            effort.charge(lines * _widths(*arguments) // CHARACTERS)
        elif name == "format":
            effort.charge(_formatting(effort, value, arguments))
        effort.charge_reading(value)
    elif name in _SEARCHED:
        effort.charge_reading(value)
    elif name == "copy":
        effort.charge(len(value))
    effort.charge_reading(*arguments)
    return effort.made(method(*args, **kwargs))


def filter_cost(effort: Effort, name: str, value: Any, args: Any, kwargs: Any) -> int:
    """Return the steps of a filter before it is run."""
    arguments = [*args, *kwargs.values()]
    weight = sum(map(effort.weight, arguments))
    if name in SHALLOW_FILTERS:
        return weight + (size_of(value) if name in _ITERATING else 1)
    weight += effort.weight(value)
    if name in ("sort", "unique", "dictsort", "groupby", "min", "max"):
        return weight * _SORTED
    if name == "sum":
        adds = not arguments or all(isinstance(v, int | float | str) for v in arguments)
        return weight if adds else weight * (1 + size_of(value))
    if name == "join":
        return weight * 2 + size_of(value) * sum(map(effort.weight, arguments))
    if name == "replace":
        return weight + _replacement(str(value), *args, **kwargs)
    if name == "indent":
        width = arguments[0] if arguments else 4
        size = len(width) if isinstance(width, str) else _widths(width)
        return weight + (1 + str(value).count("\n")) * size // CHARACTERS
    if name == "format":
        return weight + _formatting(effort, str(value), arguments)
    if name == "tojson":
        indent = kwargs.get("indent")
        size = len(indent) if isinstance(indent, str) else _widths(indent) if indent else 0
        return weight * (1 + size)
    if name in ("center", "batch", "slice"):
        return weight + _widths(*arguments)
    if name == "round" and any(isinstance(v, int) and abs(v) > _PLACES for v in arguments):
        raise EffortError(f"it rounds to more than {_PLACES} places")
    return weight * (_ESCAPED if name in ("e", "escape", "forceescape") else 1)


_ITERATING = frozenset("list map select reject selectattr rejectattr reverse items last".split())
SHALLOW_FILTERS = _ITERATING | frozenset(
    "abs attr count d default first float int length safe".split()
)
DEEP_FILTERS = frozenset(
    "batch capitalize center dictsort e escape forceescape format groupby indent join lower max "
    "min replace round slice sort string sum title tojson trim truncate unique upper "
    "wordcount".split()
)
COMPARING_TESTS = frozenset(
    "eq equalto == ne != lt lessthan < le <= gt greaterthan > ge >= in lower upper".split()
)


def operation_cost(effort: Effort, operator: str, left: Any, right: Any) -> int:
    """Return the steps of `left operator right` before it is computed."""
    if operator == "*":
        for repeated, other in ((left, right), (right, left)):
            if isinstance(repeated, str | bytes):
                return _widths(other) * len(repeated) // CHARACTERS
            if isinstance(repeated, list | tuple):
                return _widths(other) * len(repeated)
    elif operator == "**":
        if isinstance(left, int) and isinstance(right, int):
            effort.made(1 << min(_LONGEST_INT, abs(left).bit_length() * max(0, right)))
    elif operator == "%" and isinstance(left, str | bytes):
        values = right if isinstance(right, tuple) else (right,)
        return _formatting(effort, str(left), values)
    elif operator == "+" and not isinstance(left, int | float | str):
        return size_of(left) + size_of(right)
    return 0
