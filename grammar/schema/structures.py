"""Limits and types that the rules of arrays and of objects share."""

from collections.abc import Callable

from dlm.grammar.regex.nodes import Node
from dlm.grammar.schema.formulas import Formula

ValueWriter = Callable[[Formula], Node]  # returns the node of the values that fit a condition
MOST_STATES = 2_000  # rules of an array or object, one for each state of what is counted


class TooManyError(Exception):
    """An array or object that takes more rules than allowed."""
