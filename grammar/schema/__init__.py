"""Translation of JSON Schema into grammar rules."""

# ruff: noqa: F401

from dlm.grammar.schema.documents import TooMuchWorkError
from dlm.grammar.schema.evaluate import check, plain
from dlm.grammar.schema.languages import format_texts
from dlm.grammar.schema.structures import PROPERTY_ORDERS, PropertyOrder
from dlm.grammar.schema.values import MOST_CHARACTERS, Dialect, is_bare, number_automaton, run
from dlm.grammar.schema.writer import Written, write
