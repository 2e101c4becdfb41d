"""Numbers between bounds: against the comparison of the numbers themselves."""

from decimal import Decimal

import pytest
import xgrammar as xgr
from hypothesis import given, settings
from hypothesis import strategies as st

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.schema.numbers import INTEGER, NUMBER, integers, numbers

BYTES = xgr.GrammarCompiler(
    xgr.TokenizerInfo([bytes([i]) for i in range(256)] + [b""], stop_token_ids=[256]),
    cache_enabled=False,
)


def matches(rules, text):
    """By a grammar whose first rule is `n`, beside others that are called the like."""
    rules = f"root ::= n\nn_0 ::= root\n{rules}"
    grammar = BYTES.compile_grammar(xgr.Grammar.from_ebnf(rules))
    state = xgr.GrammarMatcher(grammar)
    return all(state.accept_token(byte) for byte in text.encode()) and state.is_completed()


def within(value, low, high):
    return (low is None or value > low[0] or (low[1] and value == low[0])) and (
        high is None or value < high[0] or (high[1] and value == high[0])
    )


CENTS = st.integers(-20_000, 20_000).map(lambda cents: cents / 100)


@settings(max_examples=25)
@given(CENTS, CENTS, st.booleans(), st.booleans(), st.lists(st.integers(-300, 300)))
def test_integers_keep_within_their_bounds(one, other, low_closed, high_closed, values):
    low, high = (min(one, other), low_closed), (max(one, other), high_closed)
    near = [int(one) + d for d in (-1, 0, 1)]
    for bounds in ((low, None), (None, high), (low, high)):
        try:
            rules = integers(*bounds, "n")
        except InvalidGrammarError:
            assert not any(within(value, *bounds) for value in range(-201, 202))
            continue
        for value in values + near:
            assert matches(rules, str(value)) == within(value, *bounds)


@settings(max_examples=25)
@given(CENTS, CENTS, st.booleans(), st.booleans(), st.lists(CENTS))
def test_numbers_keep_within_their_bounds(one, other, low_closed, high_closed, values):
    low, high = (min(one, other), low_closed), (max(one, other), high_closed)
    near = [one + d for d in (-1e-6, 0, 1e-6)]
    for bounds in ((low, None), (None, high), (low, high)):
        try:
            rules = numbers(*bounds, "n")
        except InvalidGrammarError:
            assert one == other
            continue
        for value in values + near:
            value = round(value, 6)
            assert matches(rules, format(Decimal(repr(value)), "f")) == within(value, *bounds)


def test_a_number_with_one_bound_is_one_that_python_can_hold():
    rules = numbers((1, True), None, "n")
    assert matches(rules, "9" * 99)
    assert not matches(rules, "9" * 400)
    assert not matches(f"n ::= {INTEGER}", "9" * 400)
    assert not matches(f"n ::= {NUMBER}", "1e400")


@pytest.mark.parametrize(
    ("text", "whole", "any_number"),
    [
        ("0", True, True),
        ("-0", False, True),
        ("-12", True, True),
        ("01", False, False),
        ("1.50", False, True),
        ("1.", False, False),
        (".5", False, False),
        ("-1.5e+10", False, True),
        ("1E-05", False, True),
        ("+1", False, False),
        ("", False, False),
        ("NaN", False, False),
    ],
)
def test_numbers_without_bounds_are_written_as_in_json(text, whole, any_number):
    assert matches(f"n ::= {INTEGER}", text) == whole
    assert matches(f"n ::= {NUMBER}", text) == any_number


@pytest.mark.parametrize(
    ("make", "low", "high", "problem"),
    [
        (integers, (5, True), (3, True), "no integer is between"),
        (integers, (3, False), (4, False), "no integer is between"),
        (integers, (0.2, True), (0.8, True), "no integer is between"),
        (integers, (2**63, True), None, "over 64 bits"),
        (numbers, (1, False), (1, True), "no number is between"),
        (numbers, (1, False), (1.000001, False), "no number is between"),
        (numbers, (1e-9, True), None, "over 6 decimals"),
        (numbers, (1e10, False), None, "beyond 1000000000"),
        (numbers, (1e20, True), None, "beyond 1000000000000000"),
    ],
)
def test_bounds_that_cannot_be_kept_are_refused(make, low, high, problem):
    with pytest.raises(InvalidGrammarError, match=problem):
        make(low, high, "n")
