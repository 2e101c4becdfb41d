"""Patterns as nodes, and their automata."""

# ruff: noqa: F401

from dlm.grammar.regex.automaton import MOST_STATES, Automaton, TooLargeError
from dlm.grammar.regex.build import determinized
from dlm.grammar.regex.characters import SURROGATES
from dlm.grammar.regex.edges import has_assertions, without_edges
from dlm.grammar.regex.lengths import any_of_length
from dlm.grammar.regex.nodes import (
    EMPTY,
    NOTHING,
    Alternation,
    AnyOrder,
    Characters,
    Component,
    Concatenation,
    Literal,
    Node,
    Reference,
    Repetition,
    SpecialToken,
    Spelling,
    Terminal,
    alternation,
    concatenation,
)
from dlm.grammar.regex.patterns import automaton_of, bounded, dispatch, free_of, parse
from dlm.grammar.regex.reader import read_regex
from dlm.grammar.regex.unicode_sets import property_
