"""Grammars over tokens and canvases of tokens. CPU only: no model, no kernel.

Names are imported at their first use. Rules need neither numpy nor torch, so a process that only
builds rules starts without them.
"""

# ruff: noqa: F401  # type checkers read the imports, Python the table

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlm.grammar.calls import Answer, ToolCall
    from dlm.grammar.canvas.compiler import Compiler
    from dlm.grammar.canvas.frontier import Bounded, BoundedTokens, Frontier
    from dlm.grammar.canvas.workers import Task, Workers
    from dlm.grammar.constraint import (
        NOTHING,
        Candidates,
        Constraint,
        Fixed,
        Free,
        FreeTokens,
        Guidance,
        NextTokens,
        Row,
        Scores,
        TokenConstraint,
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
    from dlm.grammar.parse.compiled import Compiled
    from dlm.grammar.parse.left_to_right import LeftToRight
    from dlm.grammar.parse.matcher import Matcher
    from dlm.grammar.parse.reasoning import Reasoning
    from dlm.grammar.specs.spec import Choice, Grammar, JsonObject, JsonSchema, Regex, Spec
    from dlm.grammar.specs.structural_tag import StructuralTag
    from dlm.grammar.specs.tools import Tools
    from dlm.grammar.vocabulary import Vocabulary

_EXPORTS = {
    "dlm.grammar.calls": "Answer ToolCall",
    "dlm.grammar.canvas.compiler": "Compiler",
    "dlm.grammar.canvas.frontier": "Bounded BoundedTokens Frontier",
    "dlm.grammar.canvas.workers": "Task Workers",
    "dlm.grammar.constraint": (
        "NOTHING Candidates Constraint Fixed Free FreeTokens Guidance NextTokens Row Scores "
        "TokenConstraint"
    ),
    "dlm.grammar.errors": (
        "BudgetError CrashError DeadEndError GrammarError InvalidGrammarError "
        "InvalidValueError LimitError Unfinished"
    ),
    "dlm.grammar.specs.spec": "Choice Grammar JsonObject JsonSchema Regex Spec",
    "dlm.grammar.specs.structural_tag": "StructuralTag",
    "dlm.grammar.specs.tools": "Tools",
    "dlm.grammar.parse.compiled": "Compiled",
    "dlm.grammar.parse.left_to_right": "LeftToRight",
    "dlm.grammar.parse.matcher": "Matcher",
    "dlm.grammar.parse.reasoning": "Reasoning",
    "dlm.grammar.vocabulary": "Vocabulary",
}
_HOMES = {name: module for module, names in _EXPORTS.items() for name in names.split()}
if not TYPE_CHECKING:
    __all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
