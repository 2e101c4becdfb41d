"""Grammars over token canvases, on top of xgrammar. CPU only: no model, no kernel."""

from dlm.grammar.compiler import Compiler
from dlm.grammar.constraint import Constraint, Free, Guidance, Scores
from dlm.grammar.errors import (
    DeadEndError,
    GrammarError,
    InvalidGrammarError,
    InvalidValueError,
)
from dlm.grammar.frontier import Frontier
from dlm.grammar.schema import JsonSchema
from dlm.grammar.spec import Spec
from dlm.grammar.text import Choice, Grammar, Regex
from dlm.grammar.vocabulary import Vocabulary

__all__ = [
    "Choice",
    "Compiler",
    "Constraint",
    "DeadEndError",
    "Free",
    "Frontier",
    "Grammar",
    "GrammarError",
    "Guidance",
    "InvalidGrammarError",
    "InvalidValueError",
    "JsonSchema",
    "Regex",
    "Scores",
    "Spec",
    "Vocabulary",
]
