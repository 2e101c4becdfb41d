"""What xgrammar makes of a spec's rules: a judge that shares no code with the parser."""

from collections.abc import Hashable
from functools import lru_cache

import xgrammar as xgr
from ebnf import to_ebnf

from dlm.grammar import Spec, Vocabulary

_KNOWN: dict[Hashable, xgr.CompiledGrammar] = {}


@lru_cache(maxsize=8)
def _backend(vocabulary: Vocabulary) -> xgr.GrammarCompiler:
    """Control tokens that rules name have bytes that are no UTF-8 there: no text spells them."""
    pieces = list(vocabulary.pieces)
    for token in vocabulary.control - {*vocabulary.stops, vocabulary.pad}:
        pieces[token] = b"\xff%d" % token
    info = xgr.TokenizerInfo(
        pieces, vocab_size=len(vocabulary), stop_token_ids=list(vocabulary.stops)
    )
    return xgr.GrammarCompiler(info, cache_enabled=False)


def judge(spec: Spec, vocabulary: Vocabulary) -> xgr.GrammarMatcher:
    """A fresh matcher of all that `spec` says, every bound included."""
    key = spec.key, vocabulary
    if key not in _KNOWN:
        grammar = xgr.Grammar.from_ebnf(to_ebnf(spec.rules(vocabulary.call)))
        _KNOWN[key] = _backend(vocabulary).compile_grammar(grammar)
    return xgr.GrammarMatcher(
        _KNOWN[key], override_stop_tokens=list(vocabulary.stops), max_rollback_tokens=-1
    )
