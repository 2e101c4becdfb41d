"""Grammars over token canvases, on top of xgrammar. CPU only: no model, no kernel."""

from dlm.grammar.compiled import Compiled
from dlm.grammar.compiler import Compiler
from dlm.grammar.constraint import (
    NOTHING,
    Candidates,
    Constraint,
    Fixed,
    Free,
    Guidance,
    Scores,
)
from dlm.grammar.errors import (
    BudgetError,
    DeadEndError,
    GrammarError,
    InvalidGrammarError,
    InvalidValueError,
)
from dlm.grammar.frontier import Frontier
from dlm.grammar.json_object import JsonObject
from dlm.grammar.reasoning import Reasoning
from dlm.grammar.schema import JsonSchema
from dlm.grammar.spec import Spec
from dlm.grammar.tags import StructuralTag
from dlm.grammar.text import Choice, Grammar, Regex
from dlm.grammar.tool_call import Answer, ToolCall
from dlm.grammar.tools import Tools
from dlm.grammar.vocabulary import Vocabulary

__all__ = [
    "NOTHING",
    "Answer",
    "BudgetError",
    "Candidates",
    "Choice",
    "Compiled",
    "Compiler",
    "Constraint",
    "DeadEndError",
    "Fixed",
    "Free",
    "Frontier",
    "Grammar",
    "GrammarError",
    "Guidance",
    "InvalidGrammarError",
    "InvalidValueError",
    "JsonObject",
    "JsonSchema",
    "Reasoning",
    "Regex",
    "Scores",
    "Spec",
    "StructuralTag",
    "ToolCall",
    "Tools",
    "Vocabulary",
]
