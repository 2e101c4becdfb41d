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
from dlm.grammar.vocabulary import Vocabulary

__all__ = [
    "Compiler",
    "Constraint",
    "DeadEndError",
    "Free",
    "Frontier",
    "GrammarError",
    "Guidance",
    "InvalidGrammarError",
    "InvalidValueError",
    "JsonSchema",
    "Scores",
    "Vocabulary",
]
