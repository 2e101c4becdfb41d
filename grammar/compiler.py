"""From what a user wrote to what xgrammar runs. One compiler per vocabulary; it caches."""

import re

import xgrammar as xgr

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.schema import JsonSchema
from dlm.grammar.vocabulary import Vocabulary

# xgrammar's errors begin with a time, a C++ file and line, and sometimes the failed check.
_NOISE = re.compile(r"^\[[\d:]+\] \S+:\d+: (?:Check failed: \(.*?\) is false: )?")


class Compiler:
    """Compiles constraints for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary
        self._xgr = xgr.GrammarCompiler(vocabulary.info())

    def compile(self, spec: JsonSchema) -> xgr.CompiledGrammar:
        """Raises `InvalidGrammarError` where xgrammar cannot express the schema."""
        try:
            return self._xgr.compile_json_schema(
                spec.source, any_whitespace=True, max_whitespace_cnt=spec.max_whitespace
            )
        except RuntimeError as error:  # the only class that xgrammar raises here
            reason = _NOISE.sub("", str(error)).strip()
            raise InvalidGrammarError("JSON schema", reason) from error
