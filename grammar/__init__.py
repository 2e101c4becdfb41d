"""Grammars over tokens and canvases of tokens. CPU only: no model, no kernel.

Names are imported when they are first used: rules are made without numpy, torch or a tokenizer.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlm.grammar.calls.tool_call import Answer, ToolCall
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
        DeadEndError,
        GrammarError,
        InvalidGrammarError,
        InvalidValueError,
        Unfinished,
    )
    from dlm.grammar.kinds.cfg import Grammar
    from dlm.grammar.kinds.choice import Choice
    from dlm.grammar.kinds.json_object import JsonObject
    from dlm.grammar.kinds.json_schema import JsonSchema
    from dlm.grammar.kinds.regex import Regex
    from dlm.grammar.kinds.spec import Spec
    from dlm.grammar.kinds.structural_tag import StructuralTag
    from dlm.grammar.kinds.tools import Tools
    from dlm.grammar.parse.compiled import Compiled
    from dlm.grammar.parse.matcher import Matcher
    from dlm.grammar.parse.reasoning import Reasoning
    from dlm.grammar.vocabulary import Vocabulary

_HOMES = {
    "calls.tool_call": "Answer ToolCall",
    "canvas.compiler": "Compiler",
    "canvas.frontier": "Frontier",
    "constraint": "NOTHING Candidates Constraint Fixed Free Guidance Scores",
    "errors": "BudgetError DeadEndError GrammarError InvalidGrammarError InvalidValueError"
    " Unfinished",
    "kinds.cfg": "Grammar",
    "kinds.choice": "Choice",
    "kinds.json_object": "JsonObject",
    "kinds.json_schema": "JsonSchema",
    "kinds.regex": "Regex",
    "kinds.spec": "Spec",
    "kinds.structural_tag": "StructuralTag",
    "kinds.tools": "Tools",
    "parse.compiled": "Compiled",
    "parse.matcher": "Matcher",
    "parse.reasoning": "Reasoning",
    "vocabulary": "Vocabulary",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

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
    "Matcher",
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


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
