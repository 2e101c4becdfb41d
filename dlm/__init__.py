"""Diffusion-LM decoding: denoise a canvas under a grammar, commit it, encode it, repeat."""

from dlm.config import DecodeConfig
from dlm.engine import Engine
from dlm.errors import DlmError, RequestError
from dlm.events import Committed, Draft, Event, Failed, Finished
from dlm.fields import EFFORT, constraint_of, request_of
from dlm.grammar import (
    Answer,
    Choice,
    Grammar,
    GrammarError,
    InvalidGrammarError,
    JsonObject,
    JsonSchema,
    Regex,
    StructuralTag,
    ToolCall,
    Tools,
)
from dlm.models import CheckpointError, ModelError
from dlm.policy import Policy
from dlm.request import Request, Result, Stats

__all__ = [
    "EFFORT",
    "Answer",
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
    "JsonObject",
    "JsonSchema",
    "ModelError",
    "Policy",
    "Regex",
    "Request",
    "RequestError",
    "Result",
    "Stats",
    "StructuralTag",
    "ToolCall",
    "Tools",
    "constraint_of",
    "request_of",
]
