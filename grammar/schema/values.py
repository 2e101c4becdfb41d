"""Single JSON values as texts: dialects, numbers within bounds, and listed values.

A dialect is JSON text, or the form of Gemma's own tool calls. It has the white space allowed
between JSON tokens, which never contains an empty line. Automata of numbers do not limit the number
of digits; `MOST_CHARACTERS` is the limit of a double's range. Knows no schemas.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache, reduce
from math import floor, inf, nextafter
from typing import Literal as OneOf
from typing import get_args

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.limits import RESULTS
from dlm.grammar.regex.automaton import Automaton, TooLargeError, explored, minimal
from dlm.grammar.regex.build import determinized
from dlm.grammar.regex.nodes import (
    EMPTY,
    NOTHING,
    Characters,
    Concatenation,
    Literal,
    Node,
    Repetition,
    SpecialToken,
    Spelling,
    Terminal,
    alternation,
    alternation_of,
    concatenation,
    mapped,
    optional,
)
from dlm.grammar.regex.patterns import automaton_of
from dlm.grammar.schema.conditions import Bound, Constant, spellings
from dlm.grammar.schema.documents import Work

Whitespace = OneOf["any", "compact", "pretty"]
STYLES: tuple[str, ...] = get_args(Whitespace)

_BLANK = Characters(((0x09, 0x09), (0x20, 0x20)))
_LINE_BREAK = Concatenation((optional(Literal("\r")), Literal("\n")))
_LEVEL = 4  # blanks per level of indentation
_DEEPEST = 32  # levels of indentation in the style "pretty"


@RESULTS.remembered
def spaced(text: str, style: Whitespace, most: int) -> Node:
    """Return `text`, one of `{ } [ ] , : {} []`, spaced in a `style`; `most` as in `_run`."""
    if style == "compact" or most == 0:
        return Literal(text)
    if style == "pretty":
        return _pretty(text)
    space = _run(most)
    if len(text) == 2:
        parts = [Literal(text[0]), space, Literal(text[1])]
    else:
        parts = [space] * (text not in "{[") + [Literal(text)] + [space] * (text not in "}]")
    return Terminal(determinized(Concatenation(tuple(parts))))


@RESULTS.remembered
def run(style: Whitespace, most: int) -> Node:
    """Return the white space allowed around a whole value; it may be empty."""
    if style == "compact" or most == 0:
        return EMPTY
    return Terminal(determinized(_run(most)))


def _run(most: int) -> Node:
    """Return up to `most` blanks, then optionally one line break with its indentation.

    The indentation is up to `2 * most` blanks, or up to `most` levels of `_LEVEL` blanks.
    """
    blanks, levels = Repetition(_BLANK, 0, 2 * most), Repetition(Literal(" " * _LEVEL), 0, most)
    line = concatenation(_LINE_BREAK, alternation(blanks, levels))
    return concatenation(Repetition(_BLANK, 0, most), optional(line))


def _pretty(text: str) -> Node:
    """Return `text` spaced as by `json.dumps(value, indent=2)`, with any depth of indentation."""
    if text == ":":
        return Literal(": ")
    if len(text) == 2:
        return Literal(text)
    inner = text not in "}]"  # the next line is inside a value: at least one level
    level = Repetition(Literal("  "), int(inner), _DEEPEST)
    line = Concatenation((Literal("\n"), level))
    parts = (Literal(text), line) if inner else (line, Literal(text))
    return Terminal(determinized(Concatenation(parts)))


_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
# The beginning of a value other than a string, after a key's colon in Gemma's form. 64 characters
# of a number are enough to recognize it before its end.
BARE_VALUE = re.compile(rf"[{{\[]|(?:{_NUMBER}|true|false|null)[,}}]|-?[0-9][0-9.eE+\-]{{62}}")


@dataclass(frozen=True)
class Dialect:
    """The syntax of JSON text, or, if `quote` is given, of Gemma's tool calls.

    JSON text has white space between its tokens, as `whitespace` and `max_whitespace` allow.
    Gemma's form has the token with the id `quote` around strings, bare keys and no white space.
    """

    max_whitespace: int = 8  # blanks in a line, and levels of indentation of the next line
    quote: int | None = None
    whitespace: Whitespace = "any"

    def mark(self, text: str) -> Node:
        """Return `text`, one of `{ } [ ] , : {} []`, with the white space allowed around it."""
        if self.quote is not None:
            return Literal(text)
        return spaced(text, self.whitespace, self.max_whitespace)

    @cached_property
    def space(self) -> Node:
        """White space allowed around a whole value; it may be empty."""
        return run(self.whitespace, self.max_whitespace)

    def key(self, name: str) -> Node:
        """Return the key `name`. Raises `InvalidGrammarError` if it is ambiguous without quotes."""
        if self.quote is None:
            return Literal(json.dumps(name, ensure_ascii=False))
        if not is_bare(name):
            raise InvalidGrammarError(
                "schema",
                f"the name {name!r:.80} is ambiguous where names have no quotes, as in Gemma's "
                "calls: it looks like the end of an object, or like a name and its value",
            )
        return Literal(name)

    def free_keys(self, keys: Automaton) -> Automaton:
        """Return the `keys` that a model may choose; in Gemma's form, those of `_bare_keys`."""
        return keys if self.quote is None else keys.intersection(_bare_keys())

    def free_key(self, keys: Automaton) -> Node:
        """Return a key that is any of `free_keys`."""
        spelling = Spelling.QUOTED if self.quote is None else Spelling.RAW
        return Terminal(self.free_keys(keys), spelling=spelling)

    def string(self, texts: Automaton, low: int = 0, high: int | None = None) -> Node:
        """Return a string that is one of `texts` and has `low` to `high` characters."""
        if self.quote is None:
            return Terminal(texts, low, high, Spelling.QUOTED)
        return self._quoted(Terminal(texts, low, high))

    def string_of(self, content: Node) -> Node:
        """Return a string whose characters `content` matches: nodes of a pattern, as `folded`."""
        if self.quote is None:
            return concatenation('"', self.characters(content), '"')
        return self._quoted(content)

    def characters(self, content: Node) -> Node:
        """Return a part of a string, without quotes."""
        return _escaped(content) if self.quote is None else content

    def words(self, texts: tuple[str, ...]) -> Node:
        """Return one of the strings `texts`, each in its shortest spelling only."""
        if self.quote is None:
            return choice(tuple(json.dumps(text, ensure_ascii=False) for text in texts))
        return self._quoted(choice(texts))

    def _quoted(self, content: Node) -> Node:
        mark = SpecialToken(frozenset(() if self.quote is None else (self.quote,)))
        return Concatenation((mark, content, mark))


def _escaped(node: Node) -> Node:
    """Return `node` with its characters as within a JSON string."""
    match node:
        case Literal(""):
            return node
        case Literal(text):
            return Terminal(Automaton.words([text]), spelling=Spelling.ESCAPED)
        case Characters():
            return Terminal(determinized(node), spelling=Spelling.ESCAPED)
        case Terminal(automaton, low, high):
            return Terminal(automaton, low, high, Spelling.ESCAPED)
    return mapped(node, _escaped)


def is_bare(name: str) -> bool:
    """Whether a key written without quotes is read back unchanged.

    A key ends at the first colon that a value follows, so it may contain other colons. A key
    cannot begin with `}`, which would end the object right after its `{`.
    """
    if name.startswith("}"):
        return False
    colons = (at for at, character in enumerate(name) if character == ":")
    return not any(BARE_VALUE.match(name, at + 1) for at in colons)


def choice(texts: tuple[str, ...]) -> Node:
    """Return a node that matches one of `texts`, character for character."""
    return Literal(texts[0]) if len(texts) == 1 else Terminal(Automaton.words(texts))


@lru_cache(1)
def _bare_keys() -> Automaton:
    """Return the keys without quotes that a model may choose freely.

    They consist of letters, digits, `$ - . / @ _` and non-ASCII characters. `is_bare` accepts more;
    with these fewer, a model that chooses a key cannot begin a string by mistake.
    """
    ascii = (36, 36), (45, 57), (64, 90), (95, 95), (97, 122)
    others = (0xA1, 0xD7FF), (0xE000, 0xFFFD), (0x10000, 0x10FFFF)
    return determinized(Repetition(Characters((*ascii, *others)), 1))


MOST_CHARACTERS = 308  # of any number, which without an exponent is below 10 ** 308
EXACT_CHARACTERS = 16  # of a decimal fraction with `multipleOf`: a double keeps all its digits


_PLAIN = r"(?:0|[1-9]\d*)(?:\.\d+)?"
_EXPONENT = r"[1-9](?:\.\d+)?[eE][+\-]?(?:\d{1,2}|[12]\d\d|30[0-7])|1(?:\.[0-6]\d*)?[eE]\+?308"
_LETTERS = [((ord(c), ord(c)),) for c in "0123456789.-"]
_POINT, _MINUS = 10, 11  # indices in `_LETTERS`; a digit's index is the digit
_MOST_DIGITS = 40  # of the unit of multiples
_UNSIGNED, _WHOLE = -2, -1  # states before the first digit and in the integer part


@RESULTS.remembered
def number_automaton(
    *,
    low: Bound | None = None,
    high: Bound | None = None,
    multiples: tuple[Fraction, ...] = (),
    not_multiples: tuple[Fraction, ...] = (),
    integer: bool = False,
) -> Automaton:
    """Return the automaton of the numbers that fit all arguments.

    A number is a multiple of all `multiples` and of none of `not_multiples`. An `integer` has
    digits alone. Exponents are allowed only without multiples and with no other bound than zero.
    Raises `TooLargeError`.
    """
    if not integer:
        low, high = low and _double(low, inf), high and _double(high, -inf)
    found = _between(low, high)
    if integer:
        found = found.intersection(automaton_of(r"-?(?:0|[1-9]\d*)", whole=True))
    found = reduce(Automaton.intersection, map(_multiples, multiples), found)
    found = reduce(Automaton.difference, map(_multiples, not_multiples), found)
    if integer or multiples or not_multiples or any(bound and bound[0] for bound in (low, high)):
        return found
    signs = "-?" if not low and not high else "-" if not low else "" if not high else None
    return found if signs is None else found.union(automaton_of(f"{signs}(?:{_EXPONENT})", True))


def _double(bound: Bound, towards: float) -> Bound:
    """Return `bound` moved inward, so that no allowed number rounds to a double outside of it.

    `towards` is infinity for a lower bound and its negative for an upper one.
    """
    value, allowed = bound
    if not value or abs(value) >= 10**MOST_CHARACTERS:
        return bound
    nearest = float(value)
    if allowed and (value.denominator > 1 or nearest == value):
        return bound
    if value.denominator > 1 or (nearest <= value if towards > 0 else nearest >= value):
        nearest = nextafter(nearest, towards)
    return Fraction(nearest if nearest.is_integer() else repr(nearest)), True


@RESULTS.remembered
def _between(low: Bound | None, high: Bound | None) -> Automaton:
    below, above = ((-bound[0], bound[1]) if bound else None for bound in (high, low))
    return determinized(
        alternation(
            Terminal(_magnitudes(low, high)),
            concatenation(Literal("-"), Terminal(_magnitudes(below, above))),
        )
    )


# Digits read of the integer part, sign of the comparison so far, and, after the point, the rest of
# the bound's fraction (None before the point).
_State = tuple[int, int, Fraction | None]


class _Comparison:
    """Digit by digit comparison of a number with a bound."""

    def __init__(self, bound: Bound | None, side: int):
        """Compare with `bound`; `side` is 1 for a lower bound and -1 for an upper one."""
        value, self._allowed = bound or (Fraction(0), True)
        self._side = side if bound else 0
        self._digits = [int(digit) for digit in str(floor(value))]
        self._rest = Fraction(value) - floor(value)

    def read(self, state: _State, letter: int) -> _State:
        """Return the state after the digit or point `letter`."""
        count, sign, rest = state
        if not self._side:
            return 0, 0, None if rest is None and letter != _POINT else Fraction(0)
        if letter == _POINT:
            sign = self._longer(count) or sign
            return 0, sign, Fraction(0) if sign else self._rest
        if rest is None:
            if count >= len(self._digits):
                return len(self._digits) + 1, 0, None
            digit = self._digits[count]
            return count + 1, sign or (letter > digit) - (letter < digit), None
        if sign:
            return state
        digit = floor(rest * 10)
        sign = (letter > digit) - (letter < digit)
        return 0, sign, Fraction(0) if sign else rest * 10 - digit

    def _longer(self, count: int) -> int:
        return (count > len(self._digits)) - (count < len(self._digits))

    def holds(self, state: _State) -> bool:
        """Whether a number that ends in `state` is within the bound."""
        count, sign, rest = state
        if rest is None:
            sign, rest = self._longer(count) or sign, self._rest
        sign = sign or -(rest > 0)
        return not self._side or sign == self._side or (not sign and self._allowed)


def _magnitudes(low: Bound | None, high: Bound | None) -> Automaton:
    """Return the automaton of the unsigned numbers within bounds."""
    if high and high[0] < 0:
        return Automaton.NONE
    one = _Comparison(low if low and low[0] >= 0 else None, 1)
    other = _Comparison(high, -1)

    def follow(pair: tuple[_State, _State]) -> Iterable[tuple[int, tuple[_State, _State]]]:
        letters = range(11 if pair[0][2] is None else 10)
        return ((c, (one.read(pair[0], c), other.read(pair[1], c))) for c in letters)

    start = (0, 0, None), (0, 0, None)
    table = explored(
        start, follow, lambda pair: one.holds(pair[0]) and other.holds(pair[1]), _LETTERS
    )
    return minimal(table).intersection(automaton_of(_PLAIN, whole=True))


@RESULTS.remembered
def _multiples(unit: Fraction) -> Automaton:
    """Return the automaton of the multiples of `unit`, with any sign.

    A decimal is a multiple of 1/3 exactly if it is one of 1, so denominators keep only their twos
    and fives. In steps of 1 / 10 ** `places` the unit is the integer `size`. A state is identified
    by the number, modulo `size`, that the remaining digits have to form.
    """
    twos, fives = (_power(unit.denominator, prime) for prime in (2, 5))
    places = max(twos, fives)
    size = unit.numerator * 10**places // (2**twos * 5**fives)
    twos, fives = (_power(size, prime) for prime in (2, 5))
    core = size // (2**twos * 5**fives)
    if max(places, len(str(size))) > _MOST_DIGITS:
        raise TooLargeError(f"a multiple of over {_MOST_DIGITS} digits")

    def needed(value: int, left: int) -> int:
        """Return what the `left` digits after `value` must be, modulo `size`; -1 if impossible."""
        number = -value * 10**left % size
        return number if number < 10**left else -1

    known: dict[tuple[int, ...], int] = {}

    def whole(value: int) -> tuple[int, int]:
        """Return the state after integer digits `value`: any number of digits may follow."""
        lefts = range(places, max(twos, fives, places))
        key = (value % core, *(needed(value, left) for left in lefts))
        return _WHOLE, known.setdefault(key, value % size)

    def follow(state: tuple[int, int]) -> Iterable[tuple[int, tuple[int, int]]]:
        left, value = state
        if left == _UNSIGNED:
            yield _MINUS, whole(0)
        if left < 0:
            yield from ((digit, whole(10 * value + digit)) for digit in range(10))
            if (rest := needed(value, places)) >= 0:
                yield _POINT, (places, rest)
        elif left == 0:
            yield 0, state
        else:
            for digit in range(10):
                rest = (value - digit * 10 ** (left - 1)) % size
                if rest < 10 ** (left - 1):
                    yield digit, (left - 1, rest)

    def accepts(state: tuple[int, int]) -> bool:
        left, value = state
        return (value if left >= 0 else needed(value, places)) == 0

    table = explored((_UNSIGNED, 0), follow, accepts, _LETTERS)
    return minimal(table).intersection(automaton_of(f"-?{_PLAIN}", whole=True))


def _power(number: int, prime: int) -> int:
    """Return the exponent of `prime` in `number`."""
    power = 0
    while number % prime == 0:
        number, power = number // prime, power + 1
    return power


def enclosed(brackets: str, content: Node, empty: bool, dialect: Dialect) -> Node:
    """Return `content` in `brackets`, `[]` or `{}`; `empty` allows the brackets alone as well."""
    if content == NOTHING:
        return dialect.mark(brackets) if empty else NOTHING
    whole = concatenation(dialect.mark(brackets[0]), content, dialect.mark(brackets[1]))
    return alternation(dialect.mark(brackets), whole) if empty else whole


class Listing:
    """Writer of listed values, which caches arrays and objects.

    `plain_integers`: integers have no point and no exponent, as draft 4 demands.
    """

    def __init__(self, dialect: Dialect, work: Work, plain_integers: bool = False):
        self._dialect, self._work, self._plain_integers = dialect, work, plain_integers
        # By id(), since equal values may be spelled differently. Values are kept alive here.
        self._structures: dict[int, tuple[Constant, Node]] = {}

    def one_of(self, values: list[Constant], integers: bool = False, within: bool = False) -> Node:
        """Return one of `values`, each in its own spelling.

        If `integers`, numbers have no point. `within`: the values are inside another value, so that
        it is unknown which of them have to be integers.
        """
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
        return alternation_of(options)

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
            content = concatenation(*parts) if parts else NOTHING
            return enclosed("[]", content, not parts, self._dialect)
        if not parts:
            return self._dialect.mark("{}")
        return concatenation(self._dialect.mark("{"), *parts, self._dialect.mark("}"))
