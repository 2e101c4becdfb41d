"""From what a user wrote to what xgrammar runs. One compiler per vocabulary."""

import re
from functools import lru_cache

import xgrammar as xgr

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.schema import JsonSchema
from dlm.grammar.vocabulary import Vocabulary

# xgrammar's errors begin with a time, a C++ file and line, and sometimes the failed check.
_NOISE = re.compile(r"^\[[\d:]+\] \S+:\d+: (?:Check failed: \(.*?\) is false: )?")

# The character rule of strings with a minimal or maximal length lets control characters through,
# which JSON forbids (RFC 8259, section 7); the one of plain strings does not.
_LOOSE = re.compile(r'^(\S+ ::= )\(\(\[\^\\"\\\\\\r\\n\]\)\)$', re.MULTILINE)
_STRICT = r'\1(([^\\0-\\x1f\\"\\\\]))'


class Compiler:
    """Compiles constraints for one vocabulary, and remembers the last ones.

    xgrammar's own cache is off: with it, a pattern with a long repetition does not compile.
    """

    def __init__(self, vocabulary: Vocabulary, remembered: int = 64):
        self.vocabulary = vocabulary
        self._xgr = xgr.GrammarCompiler(vocabulary.info(), cache_enabled=False)
        self._compiled = lru_cache(maxsize=remembered)(self._json_schema)

    def compile(self, spec: JsonSchema) -> xgr.CompiledGrammar:
        """Raises `InvalidGrammarError` where xgrammar cannot express the schema."""
        try:
            return self._compiled(spec.source, spec.max_whitespace)
        except RuntimeError as error:  # the only class that xgrammar raises here
            reason = _NOISE.sub("", str(error)).strip() or "xgrammar failed on it"
            raise InvalidGrammarError("JSON schema", reason) from error

    def _json_schema(self, source: str, max_whitespace: int) -> xgr.CompiledGrammar:
        grammar = xgr.Grammar.from_json_schema(
            source, any_whitespace=True, max_whitespace_cnt=max_whitespace
        )
        rules, loose = _LOOSE.subn(_STRICT, str(grammar))
        return self._xgr.compile_grammar(rules if loose else grammar)
