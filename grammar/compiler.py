"""From what a user wrote to what xgrammar runs. One compiler per vocabulary; it caches."""

import re

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
    """Compiles constraints for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary
        self._xgr = xgr.GrammarCompiler(vocabulary.info())

    def compile(self, spec: JsonSchema) -> xgr.CompiledGrammar:
        """Raises `InvalidGrammarError` where xgrammar cannot express the schema."""
        try:
            grammar = xgr.Grammar.from_json_schema(
                spec.source, any_whitespace=True, max_whitespace_cnt=spec.max_whitespace
            )
            rules, loose = _LOOSE.subn(_STRICT, str(grammar))
            return self._xgr.compile_grammar(rules if loose else grammar)
        except RuntimeError as error:  # the only class that xgrammar raises here
            reason = _NOISE.sub("", str(error)).strip()
            raise InvalidGrammarError("JSON schema", reason) from error
