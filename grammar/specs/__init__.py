"""The kinds of constraints that a user may choose."""

# ruff: noqa: F401

from dlm.grammar.specs.spec import Choice, Grammar, JsonObject, JsonSchema, Regex, Spec
from dlm.grammar.specs.structural_tag import StructuralTag
from dlm.grammar.specs.tools import Tools
