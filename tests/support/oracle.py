"""What xgrammar alone makes of a spec: the judge of what is made of it together with places."""

from collections.abc import Hashable
from functools import lru_cache

import xgrammar as xgr

from dlm.grammar import Spec, Vocabulary

_KNOWN: dict[Hashable, xgr.CompiledGrammar] = {}


@lru_cache(maxsize=8)
def _backend(vocabulary: Vocabulary, calls: bool) -> xgr.GrammarCompiler:
    return xgr.GrammarCompiler(vocabulary.info(calls), cache_enabled=False)


def judge(spec: Spec, vocabulary: Vocabulary) -> xgr.GrammarMatcher:
    """A fresh matcher of all that `spec` says, every bound included."""
    key = spec.key, vocabulary
    if key not in _KNOWN:
        grammar = spec.grammar(vocabulary)
        _KNOWN[key] = _backend(vocabulary, spec.calls).compile_grammar(grammar)
    return xgr.GrammarMatcher(
        _KNOWN[key], override_stop_tokens=list(vocabulary.stops), max_rollback_tokens=-1
    )
