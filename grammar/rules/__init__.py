"""Grammars as rules, and the notations that they are written in."""

# ruff: noqa: F401

from dlm.grammar.rules.folding import with_terminals
from dlm.grammar.rules.lark import read_lark
from dlm.grammar.rules.notation import read_ebnf
from dlm.grammar.rules.properties import check_rules
from dlm.grammar.rules.rules import Rules
