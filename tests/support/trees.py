"""Grammars that hypothesis makes up: trees, of which nodes are made later, since beartype draws
random numbers of its own; texts near a grammar's, and grammars compiled for any vocabulary."""

import random
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from dlm.grammar import Compiled, Vocabulary
from dlm.grammar.parse import Network, Terminals
from dlm.grammar.regex import Alternation, Concatenation, Literal, Node, Repetition
from dlm.grammar.rules import Rules


def trees(leaves: st.SearchStrategy[Any], max_leaves: int) -> st.SearchStrategy[Any]:
    """Return trees of `leaves`: nodes, or texts, which are literals."""
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(st.just(Concatenation), st.lists(inner, max_size=3)),
            st.tuples(st.just(Alternation), st.lists(inner, min_size=1, max_size=3)),
            st.tuples(st.just(Repetition), inner, st.integers(0, 2), st.sampled_from([None, 2, 5])),
        ),
        max_leaves=max_leaves,
    )


def node_of(tree: Any) -> Node:
    match tree:
        case str():
            return Literal(tree)
        case (kind, list(parts)):
            return kind(tuple(map(node_of, parts)))
        case (kind, part, low, high):
            return kind(node_of(part), low, high)
    return tree


def texts_near(seed: int, alphabet: Sequence[str], count: int = 40) -> list[str]:
    """The empty text, and `count` texts of up to 8 parts of `alphabet`, drawn by chance."""
    choose = random.Random(seed)
    return ["", *("".join(choose.choices(alphabet, k=choose.randint(1, 8))) for _ in range(count))]


def compiled_for(vocabulary: Vocabulary, rules: Rules) -> Compiled:
    return Compiled(Network(rules), vocabulary, Terminals(vocabulary.trie, len(vocabulary)))
