"""Grammars over token canvases, on top of xgrammar. CPU only: no model, no kernel."""

from dlm.grammar.calls.tool_call import Answer, ToolCall
from dlm.grammar.canvas.compiled import Compiled
from dlm.grammar.canvas.compiler import Compiler
from dlm.grammar.canvas.frontier import Frontier
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
    CrashError,
    DeadEndError,
    GrammarError,
    InvalidGrammarError,
    InvalidValueError,
    LimitError,
    Unfinished,
)
from dlm.grammar.kinds.json_object import JsonObject
from dlm.grammar.kinds.json_schema import JsonSchema
from dlm.grammar.kinds.spec import Spec
from dlm.grammar.kinds.structural_tag import StructuralTag
from dlm.grammar.kinds.text import Choice, Grammar, Regex
from dlm.grammar.kinds.tools import Tools
from dlm.grammar.parse.reasoning import Reasoning
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
    "CrashError",
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
    "LimitError",
    "Reasoning",
    "Regex",
    "Scores",
    "Spec",
    "StructuralTag",
    "ToolCall",
    "Tools",
    "Unfinished",
    "Vocabulary",
]
