"""Grammar backend of SGLang that compiles constraints for diffusion models.

SGLang hands a constraint over as one of four strings, in a thread of its grammar queue. It is
compiled in a process of the compiler, so that the scheduler goes on meanwhile.
"""

# pyright: reportMissingImports=false

import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from sglang.srt.constrained.base_grammar_backend import (
    BaseGrammarBackend,
    BaseGrammarObject,
    InvalidGrammarObject,
)

from dlm.errors import failure
from dlm.grammar import (
    Compiled,
    Compiler,
    Grammar,
    GrammarError,
    JsonObject,
    JsonSchema,
    Reasoning,
    Regex,
    Spec,
    StructuralTag,
    Vocabulary,
)
from dlm.grammar.vocabulary.markers import Marker
from dlm.integrations.sglang.grammar import RequestGrammar
from dlm.policy import Policy

_LOG = logging.getLogger("sglang.dlm")
_ANY_OBJECT = "$$ANY$$"  # SGLang's schema of `{"type": "json_object"}`
_KEPT = 32  # constraints that are kept ready; the compiler keeps others, within its memory


class BoundGrammar(RequestGrammar, BaseGrammarObject):
    """SGLang's grammar object of one request."""

    def __init__(self, compiled: Compiled, policy: Policy, reasoning: Reasoning | None):
        BaseGrammarObject.__init__(self)
        RequestGrammar.__init__(self, compiled, policy, reasoning)

    def copy(self) -> "BoundGrammar":
        return self.copied()  # pyright: ignore[reportReturnType]


class DiffusionGrammarBackend(BaseGrammarBackend):
    """Compiler of SGLang's constraints."""

    def __init__(self, vocabulary: Vocabulary, thought: tuple[Sequence[int], Sequence[int]] | None):
        """`thought` has the tokens that open and close reasoning; None: the model has none."""
        super().__init__()
        self.policy = Policy()
        self._compiler = Compiler(vocabulary, seconds=self.policy.compile_seconds)
        self._reasoning = None
        if thought is not None:
            opening, closing = (Marker(tokens, vocabulary) for tokens in thought)
            self._reasoning = Reasoning(opening, closing)
        self.cache: OrderedDict[Any, BaseGrammarObject] = OrderedDict()

    def set_cache(self, key: Any, value: BaseGrammarObject) -> None:
        """Keep a constraint ready; the one that has been unused for longest is dropped."""
        if isinstance(value, BoundGrammar):
            self.cache[key] = value
            while len(self.cache) > _KEPT:
                self.cache.popitem(last=False)

    def get_cached_or_future_value(self, key: Any, require_reasoning: bool) -> Any:
        if key in self.cache:
            self.cache.move_to_end(key)
        return super().get_cached_or_future_value(key, require_reasoning)

    def dispatch_json(self, key_string: str) -> BaseGrammarObject:
        if key_string == _ANY_OBJECT:
            return self._compiled(JsonObject)
        return self._compiled(lambda: JsonSchema(json.loads(key_string)))

    def dispatch_regex(self, key_string: str) -> BaseGrammarObject:
        return self._compiled(lambda: Regex(key_string))

    def dispatch_ebnf(self, key_string: str) -> BaseGrammarObject:
        return self._compiled(lambda: Grammar(key_string))

    def dispatch_structural_tag(self, key_string: str) -> BaseGrammarObject:
        return self._compiled(lambda: StructuralTag(_structural_tag(json.loads(key_string))))

    def _compiled(self, make: Callable[[], Spec]) -> BaseGrammarObject:
        """Return the compiled constraint, or why there is none: that is the client's error."""
        try:
            spec = make()
            self.policy.check(spec)
            compiled = self.compiled(spec)
            if compiled.checked:
                raise GrammarError(
                    "a grammar cannot enforce all of this constraint while the text is written"
                )
            return BoundGrammar(compiled, self.policy, self._reasoning)
        except Exception as error:
            return InvalidGrammarObject(str(failure(error)))

    def compiled(self, spec: Spec) -> Compiled:
        """Return `spec` compiled, in another process."""
        return self._compiler.submit(spec).result()


_FLAGS = ("at_least_one", "stop_after_first")


def _structural_tag(source: Any) -> Any:
    """Return a structural tag in xgrammar's form, from SGLang's older one with `structures`."""
    if not isinstance(source, dict) or "structures" not in source:
        return source
    tags = [
        {
            "begin": structure["begin"],
            "content": {"type": "json_schema", "json_schema": structure["schema"]},
            "end": structure["end"],
        }
        for structure in source["structures"]
    ]
    flags = {name: source[name] for name in _FLAGS if name in source}
    triggered = {"type": "triggered_tags", "triggers": source["triggers"], "tags": tags}
    return {"type": "structural_tag", "format": triggered | flags}
