"""Diffusion-LM decoding: denoise a canvas under a grammar, commit it, encode it, repeat."""

from dlm.config import DecodeConfig
from dlm.engine import Engine
from dlm.errors import DlmError, RequestError
from dlm.events import Committed, Draft, Event, Failed, Finished
from dlm.grammar import Choice, Grammar, GrammarError, InvalidGrammarError, JsonSchema, Regex
from dlm.models import CheckpointError, ModelError
from dlm.request import Request, Result, Stats

__all__ = [
    "CheckpointError",
    "Choice",
    "Committed",
    "DecodeConfig",
    "DlmError",
    "Draft",
    "Engine",
    "Event",
    "Failed",
    "Finished",
    "Grammar",
    "GrammarError",
    "InvalidGrammarError",
    "JsonSchema",
    "ModelError",
    "Regex",
    "Request",
    "RequestError",
    "Result",
    "Stats",
]
