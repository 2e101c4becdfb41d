"""Automata of numbers within bounds, and of multiples.

They do not limit the number of digits; `MOST_CHARACTERS` is the limit of a double's range.
"""

from collections.abc import Iterable
from fractions import Fraction
from functools import reduce
from math import floor, inf, nextafter

from dlm.grammar.limits import RESULTS
from dlm.grammar.regex.automaton import Automaton, TooLargeError, explored, minimal
from dlm.grammar.regex.build import determinized
from dlm.grammar.regex.nodes import (
    Literal,
    Terminal,
    alternation,
    concatenation,
)
from dlm.grammar.regex.patterns import automaton_of
from dlm.grammar.schema.conditions import Bound

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
    automaton = _between(low, high, integer)
    automaton = reduce(Automaton.intersection, map(_multiples, multiples), automaton)
    automaton = reduce(Automaton.difference, map(_multiples, not_multiples), automaton)
    if integer or multiples or not_multiples or any(bound and bound[0] for bound in (low, high)):
        return automaton
    signs = "-?" if not low and not high else "-" if not low else "" if not high else None
    if signs is None:
        return automaton
    return automaton.union(automaton_of(f"{signs}(?:{_EXPONENT})", True))


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
def _between(low: Bound | None, high: Bound | None, integer: bool) -> Automaton:
    below, above = ((-bound[0], bound[1]) if bound else None for bound in (high, low))
    positive = _magnitudes(low, high, integer)
    negative = _magnitudes(below, above, integer)
    if negative.is_empty:
        return positive
    signed = concatenation(Literal("-"), Terminal(negative))
    return determinized(alternation(Terminal(positive), signed))


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
        self._fraction = Fraction(value) - floor(value)
        self._moves: dict[_State, list[_State]] = {}

    def moves(self, state: _State) -> list[_State]:
        """Return the states after each of the digits and the point."""
        if state not in self._moves:
            self._moves[state] = [self.read(state, letter) for letter in range(11)]
        return self._moves[state]

    def read(self, state: _State, letter: int) -> _State:
        """Return the state after the digit or point `letter`."""
        count, sign, fraction = state
        if not self._side:
            return 0, 0, None if fraction is None and letter != _POINT else Fraction(0)
        if letter == _POINT:
            sign = self._longer(count) or sign
            return 0, sign, Fraction(0) if sign else self._fraction
        if fraction is None:
            if count >= len(self._digits):
                return len(self._digits) + 1, 0, None
            digit = self._digits[count]
            return count + 1, sign or (letter > digit) - (letter < digit), None
        if sign:
            return state
        digit = floor(fraction * 10)
        sign = (letter > digit) - (letter < digit)
        return 0, sign, Fraction(0) if sign else fraction * 10 - digit

    def _longer(self, count: int) -> int:
        return (count > len(self._digits)) - (count < len(self._digits))

    def holds(self, state: _State) -> bool:
        """Whether a number that ends in `state` is within the bound."""
        count, sign, fraction = state
        if fraction is None:
            sign, fraction = self._longer(count) or sign, self._fraction
        sign = sign or -(fraction > 0)
        return not self._side or sign == self._side or (not sign and self._allowed)


def _magnitudes(low: Bound | None, high: Bound | None, integer: bool) -> Automaton:
    """Return the automaton of the unsigned numbers within bounds; of those of digits alone, if
    `integer`."""
    if high and high[0] < 0:
        return Automaton.NONE
    lower = _Comparison(low if low and low[0] >= 0 else None, 1)
    upper = _Comparison(high, -1)

    def follow(pair: tuple[_State, _State]) -> Iterable[tuple[int, tuple[_State, _State]]]:
        letters = range(11 if pair[0][2] is None and not integer else 10)
        moves = zip(lower.moves(pair[0]), upper.moves(pair[1]), strict=True)
        return zip(letters, moves, strict=False)

    start = (0, 0, None), (0, 0, None)
    table = explored(
        start, follow, lambda pair: lower.holds(pair[0]) and upper.holds(pair[1]), _LETTERS
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

    def needed(value: int, digits: int) -> int:
        """Return what the `digits` digits after `value` must be modulo `size`; -1 if impossible."""
        number = -value * 10**digits % size
        return number if number < 10**digits else -1

    representatives: dict[tuple[int, ...], int] = {}

    def whole(value: int) -> tuple[int, int]:
        """Return the state after integer digits `value`: any number of digits may follow."""
        lefts = range(places, max(twos, fives, places))
        key = (value % core, *(needed(value, digits) for digits in lefts))
        return _WHOLE, representatives.setdefault(key, value % size)

    def follow(state: tuple[int, int]) -> Iterable[tuple[int, tuple[int, int]]]:
        remaining, value = state
        if remaining == _UNSIGNED:
            yield _MINUS, whole(0)
        if remaining < 0:
            yield from ((digit, whole(10 * value + digit)) for digit in range(10))
            if (decimals := needed(value, places)) >= 0:
                yield _POINT, (places, decimals)
        elif remaining == 0:
            yield 0, state
        else:
            for digit in range(10):
                decimals = (value - digit * 10 ** (remaining - 1)) % size
                if decimals < 10 ** (remaining - 1):
                    yield digit, (remaining - 1, decimals)

    def accepts(state: tuple[int, int]) -> bool:
        remaining, value = state
        return (value if remaining >= 0 else needed(value, places)) == 0

    table = explored((_UNSIGNED, 0), follow, accepts, _LETTERS)
    return minimal(table).intersection(automaton_of(f"-?{_PLAIN}", whole=True))


def _power(number: int, prime: int) -> int:
    """Return the exponent of `prime` in `number`."""
    power = 0
    while number % prime == 0:
        number, power = number // prime, power + 1
    return power
