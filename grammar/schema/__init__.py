"""Translation of JSON Schema into grammar rules."""

# ruff: noqa: F401

from dlm.grammar.schema.dialects import Dialect, is_bare, run
from dlm.grammar.schema.documents import TooMuchWorkError
from dlm.grammar.schema.evaluate import check, plain
from dlm.grammar.schema.formats import format_texts
from dlm.grammar.schema.numbers import MOST_CHARACTERS, number_automaton
from dlm.grammar.schema.objects import PROPERTY_ORDERS, PropertyOrder
from dlm.grammar.schema.writer import Written, write
