"""From what a user wrote to what xgrammar runs. One compiler per vocabulary."""

import re
from collections import OrderedDict
from collections.abc import Hashable

import xgrammar as xgr

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.spec import Spec
from dlm.grammar.vocabulary import Vocabulary

# xgrammar's errors begin with a time, a C++ file and line, and sometimes the failed check.
_NOISE = re.compile(r"^\[[\d:]+\] \S+:\d+: (?:Check failed: \(.*?\) is false: )?")


class Compiler:
    """Compiles constraints for one vocabulary, and remembers the last `remembered` ones.

    xgrammar's own cache is off: with it, a pattern with a long repetition does not compile.
    """

    def __init__(self, vocabulary: Vocabulary, remembered: int = 64):
        self.vocabulary = vocabulary
        self._xgr: dict[bool, xgr.GrammarCompiler] = {}  # by whether tool calls are its alphabet
        self._remembered = remembered
        self._compiled: OrderedDict[Hashable, xgr.CompiledGrammar] = OrderedDict()

    def compile(self, spec: Spec) -> xgr.CompiledGrammar:
        """Raises `InvalidGrammarError` where xgrammar cannot express `spec`."""
        key = spec.key
        if key not in self._compiled:
            try:
                grammar = spec.grammar(self.vocabulary)
                self._compiled[key] = self._backend(spec.calls).compile_grammar(grammar)
            except RuntimeError as error:  # the only class that xgrammar raises here
                reason = _NOISE.sub("", str(error)).strip() or "xgrammar failed on it"
                raise InvalidGrammarError(spec.kind, reason) from error
        self._compiled.move_to_end(key)
        if len(self._compiled) > self._remembered:
            self._compiled.popitem(last=False)
        return self._compiled[key]

    def _backend(self, calls: bool) -> xgr.GrammarCompiler:
        if calls not in self._xgr:
            info = self.vocabulary.info(calls)
            self._xgr[calls] = xgr.GrammarCompiler(info, cache_enabled=False)
        return self._xgr[calls]
