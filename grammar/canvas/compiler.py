"""From what a user wrote to a compiled grammar. One compiler per vocabulary."""

from collections import OrderedDict
from collections.abc import Hashable
from concurrent.futures import Future

from dlm.grammar.errors import GrammarError, InvalidGrammarError
from dlm.grammar.kinds.spec import Spec
from dlm.grammar.parse.compiled import Compiled
from dlm.grammar.parse.network import Network
from dlm.grammar.parse.within import Terminals
from dlm.grammar.vocabulary import Vocabulary

_REMEMBERED = 1024  # grammars and failures


class Compiler:
    """Compiles constraints for one vocabulary, and remembers them.

    What is remembered takes about `max_bytes` at most; what was used last stays.
    """

    def __init__(self, vocabulary: Vocabulary, max_bytes: int = 1 << 30, **_):
        self.vocabulary = vocabulary
        self._terminals = Terminals(vocabulary.trie, len(vocabulary))
        self._max_bytes = max_bytes
        self._known: OrderedDict[Hashable, Future[Compiled]] = OrderedDict()

    def submit(self, spec: Spec) -> "Future[Compiled]":
        key = spec.key
        if key not in self._known:
            future: Future[Compiled] = Future()
            try:
                network = Network(spec.rules(self.vocabulary.call))
                future.set_result(Compiled(network, self.vocabulary, self._terminals))
            except GrammarError as error:
                future.set_exception(error)
            self._known[key] = future
        self._known.move_to_end(key)
        return self._known[key]

    def compile(self, spec: Spec) -> Compiled:
        """Compile, and wait. Raises `InvalidGrammarError` for what no grammar can express."""
        return self.submit(spec).result()
