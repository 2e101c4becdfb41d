"""The kinds of constraints that a user may choose."""

# ruff: noqa: F401

from dlm.grammar.specs.json_schema import JsonObject, JsonSchema
from dlm.grammar.specs.spec import Spec
from dlm.grammar.specs.structural_tag import StructuralTag
from dlm.grammar.specs.text import Choice, Grammar, Regex
from dlm.grammar.specs.tools import Tools
