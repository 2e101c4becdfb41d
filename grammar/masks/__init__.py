"""Sets of tokens: packed bits, a table of them, a trie of a vocabulary, and walks along it."""

# ruff: noqa: F401

from dlm.grammar.masks.bits import (
    add_tokens,
    as_numbers_if_few,
    packed,
    token_words,
    tokens_in,
    unpacked,
    without_tokens,
)
from dlm.grammar.masks.rows import Below, NumpyRows, SetRows, made_of, new_rows
from dlm.grammar.masks.table import GrammarMasks, Mask
from dlm.grammar.masks.trie import Nodes, Trie, ranges
from dlm.grammar.masks.walks import (
    Explored,
    Machine,
    Owners,
    Reach,
    Reached,
    TokenSet,
    Walk,
    WalkTable,
    spell,
)
