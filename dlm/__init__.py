"""Diffusion-LM decoding: denoise a canvas under a grammar, commit it, encode it, repeat.

Names are imported at their first use: torch takes seconds to import, and not all of them need it.
"""

# ruff: noqa: F401  # the imports are for type checkers, the table for Python

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlm import grammar, integrations, models
    from dlm.config import DecodeConfig
    from dlm.decisions.questions import (
        ChoiceAnswer,
        ChoiceQuestion,
        Decision,
        Label,
        PredicateAnswer,
        PredicateQuestion,
        Question,
        ScoreAnswer,
        ScoreQuestion,
        question_of,
    )
    from dlm.engine import Engine
    from dlm.errors import RequestError
    from dlm.events import Committed, Decided, Draft, Event, Failed, Finished
    from dlm.grammar import (
        Answer,
        Choice,
        Grammar,
        GrammarError,
        InvalidGrammarError,
        JsonObject,
        JsonSchema,
        Regex,
        Spec,
        StructuralTag,
        ToolCall,
        Tools,
    )
    from dlm.logprobs import TokenLogprob
    from dlm.loop.diffusion import Diffusion
    from dlm.loop.left_to_right import Autoregressive
    from dlm.models import BackendError, CheckpointError, ModelError
    from dlm.openai.constraint import constraint_of
    from dlm.openai.messages import EFFORT
    from dlm.openai.requests import request_of
    from dlm.policy import Policy
    from dlm.request import Request, Result, Stats
    from dlm.root_error import DlmError
    from dlm.serving.async_engine import AsyncEngine

_EXPORTS = {
    "dlm.loop.left_to_right": "Autoregressive",
    "dlm.config": "DecodeConfig",
    "dlm.logprobs": "TokenLogprob",
    "dlm.loop.diffusion": "Diffusion",
    "dlm.engine": "Engine",
    "dlm.errors": "RequestError",
    "dlm.events": "Committed Decided Draft Event Failed Finished",
    "dlm.grammar": (
        "Answer Choice Grammar GrammarError InvalidGrammarError JsonObject JsonSchema "
        "Regex Spec StructuralTag ToolCall Tools"
    ),
    "dlm.models": "BackendError CheckpointError ModelError",
    "dlm.openai.constraint": "constraint_of",
    "dlm.openai.requests": "request_of",
    "dlm.openai.messages": "EFFORT",
    "dlm.policy": "Policy",
    "dlm.decisions.questions": (
        "ChoiceAnswer ChoiceQuestion Decision Label PredicateAnswer PredicateQuestion Question "
        "ScoreAnswer ScoreQuestion question_of"
    ),
    "dlm.request": "Request Result Stats",
    "dlm.root_error": "DlmError",
    "dlm.serving.async_engine": "AsyncEngine",
}
_PACKAGES = ("grammar", "integrations", "models")
_HOMES = {name: module for module, names in _EXPORTS.items() for name in names.split()}
if not TYPE_CHECKING:
    __all__ = [*_HOMES, *_PACKAGES]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_PACKAGES})
