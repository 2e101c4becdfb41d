"""Numbers as JSON spells them, between bounds and by what they are multiples of: as automata.

They do not count digits: `MOST_CHARACTERS` keeps a number within what a double holds.
"""

from collections.abc import Iterable
from fractions import Fraction
from functools import reduce
from math import floor, inf, nextafter

from dlm.grammar.regex.algebra import explored, minimal
from dlm.grammar.regex.automaton import Automaton, TooLargeError, automaton_of
from dlm.grammar.regex.nodes import Literal, Terminal, alternation, concatenation
from dlm.grammar.shared_cache import RESULTS

MOST_CHARACTERS = 308  # of any number: below 10 ** 308 without an exponent
EXACT_CHARACTERS = 16  # of one with a point, of which multiples are asked: no digit is rounded away

FractionBound = tuple[Fraction, bool]  # and whether it is allowed itself

_PLAIN = r"(?:0|[1-9]\d*)(?:\.\d+)?"
_EXPONENT = r"[1-9](?:\.\d+)?[eE][+\-]?(?:\d{1,2}|[12]\d\d|30[0-7])|1(?:\.[0-6]\d*)?[eE]\+?308"
_LETTERS = [((ord(c), ord(c)),) for c in "0123456789.-"]
_POINT, _MINUS = 10, 11  # the numbers of their letters; a digit's is the digit
_MOST_DIGITS = 40  # of what a number is a multiple of
_UNSIGNED, _WHOLE = -2, -1  # in front of digits; in the integer part


@RESULTS.remembered
def number_automaton(
    *,
    low: FractionBound | None = None,
    high: FractionBound | None = None,
    multiples: tuple[Fraction, ...] = (),
    not_multiples: tuple[Fraction, ...] = (),
    integer: bool = False,
    spelled_integer: bool = True,
) -> Automaton:
    """Of the numbers within bounds that are multiples of all `multiples` and no `not_multiples`.

    An `integer` has no point if it is a `spelled_integer`; else `1.0` is one too. Exponents are
    known only without multiples and without bounds but zero. Raises `TooLargeError`.
    """
    if not integer:
        low, high = low and _double(low, inf), high and _double(high, -inf)
    found = _between(low, high)
    if integer:
        point = r"(?:\.0+)?" if not spelled_integer else ""
        found = found.intersection(automaton_of(rf"-?(?:0|[1-9]\d*){point}", whole=True))
    found = reduce(Automaton.intersection, map(_multiples, multiples), found)
    found = reduce(Automaton.difference, map(_multiples, not_multiples), found)
    if integer or multiples or not_multiples or any(bound and bound[0] for bound in (low, high)):
        return found
    signs = "-?" if not low and not high else "-" if not low else "" if not high else None
    return found if signs is None else found.union(automaton_of(f"{signs}(?:{_EXPONENT})", True))


def _double(bound: FractionBound, towards: float) -> FractionBound:
    """Behind a bound that is not allowed itself, nothing that a double rounds onto it; nor behind
    one that no double is."""
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
def _between(low: FractionBound | None, high: FractionBound | None) -> Automaton:
    below, above = ((-bound[0], bound[1]) if bound else None for bound in (high, low))
    return Automaton.of(
        alternation(
            Terminal(_magnitudes(low, high)),
            concatenation(Literal("-"), Terminal(_magnitudes(below, above))),
        )
    )


# How many digits of the integer part have been read, how it compares so far, and, behind the point,
# what is left of the bound's fraction.
_State = tuple[int, int, Fraction | None]


class _Comparison:
    """Compares a number with a bound while it is read."""

    def __init__(self, bound: FractionBound | None, side: int):
        """`side` is 1 for a lower bound, -1 for an upper one."""
        value, self._allowed = bound or (Fraction(0), True)
        self._side = side if bound else 0
        self._digits = [int(digit) for digit in str(floor(value))]
        self._rest = value - floor(value)

    def read(self, state: _State, letter: int) -> _State:
        count, sign, rest = state
        if not self._side:
            return 0, 0, None if rest is None and letter != _POINT else Fraction(0)
        if letter == _POINT:
            sign = self._longer(count) or sign
            return 0, sign, Fraction(0) if sign else self._rest
        if rest is None:
            if count >= len(self._digits):
                return len(self._digits) + 1, 0, None
            due = self._digits[count]
            return count + 1, sign or (letter > due) - (letter < due), None
        if sign:
            return state
        due = floor(rest * 10)
        sign = (letter > due) - (letter < due)
        return 0, sign, Fraction(0) if sign else rest * 10 - due

    def _longer(self, count: int) -> int:
        return (count > len(self._digits)) - (count < len(self._digits))

    def holds(self, state: _State) -> bool:
        count, sign, rest = state
        if rest is None:
            sign, rest = self._longer(count) or sign, self._rest
        sign = sign or -(rest > 0)
        return not self._side or sign == self._side or (not sign and self._allowed)


def _magnitudes(low: FractionBound | None, high: FractionBound | None) -> Automaton:
    """Numbers without a sign."""
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
    return Automaton(*minimal(table)).intersection(automaton_of(_PLAIN, whole=True))


@RESULTS.remembered
def _multiples(unit: Fraction) -> Automaton:
    """Of `unit`, with any sign; a third has the same as one, since decimals are asked.

    In steps of 1 / 10 ** `places` the unit is the integer `size`. Of the digits to come, as many as
    are left, one number modulo `size` makes a multiple: it tells states apart, and they are few.
    """
    twos, fives = (_power(unit.denominator, prime) for prime in (2, 5))
    places = max(twos, fives)
    size = unit.numerator * 10**places // (2**twos * 5**fives)
    twos, fives = (_power(size, prime) for prime in (2, 5))
    core = size // (2**twos * 5**fives)
    if max(places, len(str(size))) > _MOST_DIGITS:
        raise TooLargeError(f"a multiple of over {_MOST_DIGITS} digits")

    def due(value: int, left: int) -> int:
        """What the `left` digits behind `value` have to be, modulo the size; -1 if they cannot."""
        number = -value * 10**left % size
        return number if number < 10**left else -1

    known: dict[tuple[int, ...], int] = {}

    def whole(value: int) -> tuple[int, int]:
        """Behind digits of the integer part: any number of digits may be left."""
        lefts = range(places, max(twos, fives, places))
        told = (value % core, *(due(value, left) for left in lefts))
        return _WHOLE, known.setdefault(told, value % size)

    def follow(state: tuple[int, int]) -> Iterable[tuple[int, tuple[int, int]]]:
        left, value = state
        if left == _UNSIGNED:
            yield _MINUS, whole(0)
        if left < 0:
            yield from ((digit, whole(10 * value + digit)) for digit in range(10))
            if (behind := due(value, places)) >= 0:
                yield _POINT, (places, behind)
        elif left == 0:
            yield 0, state
        else:
            for digit in range(10):
                behind = (value - digit * 10 ** (left - 1)) % size
                if behind < 10 ** (left - 1):
                    yield digit, (left - 1, behind)

    def accepts(state: tuple[int, int]) -> bool:
        left, value = state
        return (value if left >= 0 else due(value, places)) == 0

    table = explored((_UNSIGNED, 0), follow, accepts, _LETTERS)
    return Automaton(*minimal(table)).intersection(automaton_of(f"-?{_PLAIN}", whole=True))


def _power(number: int, prime: int) -> int:
    """How often it divides the number."""
    power = 0
    while number % prime == 0:
        number, power = number // prime, power + 1
    return power
