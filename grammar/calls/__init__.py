"""Forms of tool calls: rules and parsers."""

# ruff: noqa: F401

from dlm.grammar.calls.answer import Answer, CallDelta, ToolCall
from dlm.grammar.calls.gemma import CallReader, gemma_call, read_calls, span_of
from dlm.grammar.calls.markups import MARKUPS, Accepts, Markup
