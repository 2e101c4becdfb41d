"""Automata of numbers, compared with the arithmetic of fractions and with doubles."""

import json
import re
from fractions import Fraction
from math import inf, nextafter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from readers import misread

from dlm.grammar.regex import TooLargeError
from dlm.grammar.schema import MOST_CHARACTERS, number_automaton

JSON = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?")
LITERALS = st.one_of(
    st.integers(-300, 300).map(str),
    st.decimals(-50, 50, places=2, allow_nan=False).map(str),
    st.sampled_from(["0", "-1", "1e-3", "99.99", "1000", "0.3", "-0.25"]),
)
BOUNDS = st.none() | st.tuples(LITERALS, st.booleans())
UNITS = st.sampled_from(["0.01", "0.1", "2", "3", "0.5", "2.5", "7", "0.003", "60", "8"])


def number(bound: tuple[str, bool] | None) -> tuple[Fraction, bool] | None:
    return bound and (Fraction(bound[0]), bound[1])


def within(value, low, high) -> bool:
    above = low is None or value > low[0] or (value == low[0] and low[1])
    return above and (high is None or value < high[0] or (value == high[0] and high[1]))


def spelled(value: Fraction, places: int) -> str:
    digits = f"{round(abs(value) * 10**places):0{places + 1}}"
    point = len(digits) - places
    return "-" * (value < 0) + digits[:point] + (f".{digits[point:]}" if places else "")


@settings(max_examples=150)
@given(
    BOUNDS,
    BOUNDS,
    st.lists(UNITS, max_size=2),
    st.lists(UNITS, max_size=1),
    st.booleans(),
    st.lists(st.tuples(st.integers(-30_000, 30_000), st.integers(0, 3)), min_size=10),
    st.lists(st.text("-0123456789.", max_size=5), min_size=5),
)
def test_an_automaton_accepts_the_numbers_of_its_bounds_and_multiples(
    low, high, units, others, integer, values, texts
):
    low, high = number(low), number(high)
    units, others = (tuple(map(Fraction, drawn)) for drawn in (units, others))
    automaton = number_automaton(
        low=low,
        high=high,
        multiples=units,
        not_multiples=others,
        integer=integer,
    )
    drawn = [Fraction(value, 10**places) for value, places in values]
    near = [bound[0] for bound in (low, high) if bound] + [*units, Fraction(0)]
    near += [value + step for value in near for step in (-1, 1, Fraction("0.01"), Fraction("-0.1"))]
    texts += [spelled(value, places) for value in drawn + near for places in (0, 1, 3)]
    for text in texts:
        fits = JSON.fullmatch(text) is not None
        if fits:
            value = Fraction(text)
            fits = within(value, low, high)
            fits &= all((value / unit).denominator == 1 for unit in units)
            fits &= all((value / unit).denominator != 1 for unit in others)
            fits &= not integer or (value.denominator == 1 and "." not in text)
        assert automaton.accepts(text) == fits


@pytest.mark.parametrize(
    ("bounds", "accepted", "refused"),
    [
        ({"low": "0", "high": "1e-7"}, ["0.00000001", "0.0000000999"], ["", "0", "0.0", "1e-7"]),
        ({"low": "9223372036854775807"}, ["9223372036854775808"], ["9223372036854775807"]),
        ({"low": "9223372036854775808"}, ["9223372036854777856"], ["9223372036854775808.1"]),
        ({"low": "0"}, ["0.5", "1e5", "2.5E-07"], ["-1", "-1e5", "0"]),
        ({"high": "0"}, ["-0.5", "-1e5"], ["1", "1e5", "-0"]),
        ({"low": "5", "high": "4"}, [], ["4", "5", "4.5"]),
        ({}, ["-0", "1e307", "-1.5e-10", "1.6e308", "1E05"], ["1e999", "1.8e308", "12e307", "01"]),
        ({}, ["0", "-12.50"], ["1.", ".5", "+1", "", "NaN", "1e", "--1", "1e-400"]),
    ],
)
def test_numbers_between_open_bounds_are_accepted(bounds, accepted, refused):
    automaton = number_automaton(**{side: (Fraction(b), False) for side, b in bounds.items()})
    assert misread(automaton.accepts, accepted, refused) == []


@settings(max_examples=40)
@given(st.floats(-1e6, 1e6), st.booleans())
def test_no_double_of_an_accepted_number_is_beyond_an_open_bound(bound, below):
    """Numbers of more digits than a double has may round onto the bound."""
    exact = Fraction(repr(bound))
    side = {"high" if below else "low": (exact, False)}
    automaton = number_automaton(**side)
    for power in range(1, 24):
        text = spelled(exact - Fraction(1 if below else -1, 10**power), 45)
        if automaton.accepts(text):
            assert float(text) < bound if below else float(text) > bound
        else:
            assert float(text) in (bound, nextafter(bound, -inf if below else inf))


def test_a_small_closed_bound_can_be_reached():
    automaton = number_automaton(low=(Fraction(0), False), high=(Fraction("1e-7"), True))
    assert automaton.shortest() == "0.0000001"


def test_the_longest_numbers_are_finite_doubles():
    automaton = number_automaton()
    for text in ["9" * MOST_CHARACTERS, "-" + "9" * (MOST_CHARACTERS - 3) + ".9", "9.9e307"]:
        assert automaton.accepts(text)
        assert len(text) <= MOST_CHARACTERS
        assert abs(float(text)) < float("inf")
    assert not automaton.accepts("1e309")
    json.dumps(float("1.6999999e308"), allow_nan=False)


@pytest.mark.parametrize(
    ("unit", "accepted", "refused"),
    [
        ("1e9", ["3000000000", "0"], ["300000000"]),
        ("1e-8", ["12391239123", "0.00000001"], ["0.000000001"]),
        ("86400", ["172800", "-86400.000"], ["172801", "86400.5"]),
        ("1024", ["4096"], ["2047"]),
        ("0.0075", ["0.0075", "1.5"], ["0.01"]),
    ],
)
def test_multiples_of_units_of_any_size_are_accepted(unit, accepted, refused):
    automaton = number_automaton(multiples=(Fraction(unit),))
    assert misread(automaton.accepts, accepted, refused) == []


def test_decimals_that_are_multiples_of_a_third_are_whole_numbers():
    automaton = number_automaton(multiples=(Fraction(1, 3),))
    assert automaton == number_automaton(multiples=(Fraction(1),))


@pytest.mark.parametrize("unit", [Fraction(1_000_003), Fraction("0.123456789"), Fraction(10) ** 50])
def test_multiples_of_a_unit_of_too_many_digits_are_refused(unit):
    with pytest.raises(TooLargeError, match="over"):
        number_automaton(multiples=(unit,))


def test_an_integer_has_no_point():
    automaton = number_automaton(integer=True)
    assert not automaton.accepts("1.0")
    assert automaton.accepts("9" * 300)
