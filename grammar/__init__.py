"""Grammars over tokens and canvases of tokens. CPU only: no model, no kernel.

Names are imported at their first use. Rules need neither numpy nor torch, so a process that only
builds rules starts without them.
"""

# ruff: noqa: F401  # type checkers read the imports, Python the table

from typing import TYPE_CHECKING

from dlm.grammar.lazy import homes, lazily

if TYPE_CHECKING:
    from dlm.grammar.calls.answer import Answer, ToolCall
    from dlm.grammar.canvas.bounded import Bounded, BoundedTokens
    from dlm.grammar.canvas.compiler import Compiler
    from dlm.grammar.canvas.frontier import Frontier
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
    from dlm.grammar.specs import (
        Choice,
        Grammar,
        JsonObject,
        JsonSchema,
        Regex,
        Spec,
        StructuralTag,
        Tools,
    )
    from dlm.grammar.vocabulary.markers import Reasoning
    from dlm.grammar.vocabulary.vocabulary import Vocabulary


_HOMES = homes(
    {
        "calls": "Answer ToolCall",
        "canvas": "Bounded BoundedTokens Compiler Frontier Task Workers",
        "constraint": (
            "NOTHING Candidates Constraint Fixed Free FreeTokens Guidance NextTokens Row Scores "
            "TokenConstraint"
        ),
        "errors": (
            "BudgetError CrashError DeadEndError GrammarError InvalidGrammarError "
            "InvalidValueError LimitError Unfinished"
        ),
        "parse": "Compiled LeftToRight Matcher",
        "specs": "Choice Grammar JsonObject JsonSchema Regex Spec StructuralTag Tools",
        "vocabulary": "Reasoning Vocabulary",
    }
)
if not TYPE_CHECKING:
    __all__ = [*_HOMES]
    __getattr__ = lazily(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
