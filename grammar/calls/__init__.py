"""Forms of tool calls: rules and readers."""

# ruff: noqa: F401

from dlm.grammar.calls.answer import Answer, CallDelta, ToolCall
from dlm.grammar.calls.gemma import GemmaReader, gemma_call
from dlm.grammar.calls.markups import MARKUPS, OTHER_NAMES, AnswerReading, Markup
from dlm.grammar.calls.reader import CallReader
from dlm.grammar.calls.xml_calls import Accepts
