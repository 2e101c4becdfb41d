"""From what a user wrote to what xgrammar runs. One compiler per vocabulary."""

import re
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any

import xgrammar as xgr

from dlm.grammar.canvas.compiled import Compiled
from dlm.grammar.canvas.warmup import rehearse
from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.kinds.spec import Spec
from dlm.grammar.parse.network_reader import loosened, read_network
from dlm.grammar.vocabulary import Vocabulary

# xgrammar's errors begin with a time, a C++ file and line, and sometimes the failed check.
_NOISE = re.compile(r"\[[\d:]+\] \S+:\d+: (?:Check failed: \(.*?\) is false: )?")
_REMEMBERED = 1024  # grammars and failures


class Compiler:
    """Compiles constraints for one vocabulary, in threads of its own, and remembers them.

    What is remembered takes about `max_bytes` at most; what was used last stays. xgrammar's own
    cache is off: with it, a pattern with a long repetition does not compile, and schemas that
    differ in properties named like annotations are taken for the same.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        max_bytes: int = 1 << 30,
        threads: int = 2,
        rehearsed: bool = False,
    ):
        """`rehearsed` grammars take longer to compile and less time at the first step; grammars are
        rehearsed while no other waits to be compiled."""
        self.vocabulary, self._rehearsed = vocabulary, rehearsed
        self._max_bytes = max_bytes
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="compile")
        self._lock = Lock()
        self._unbegun = 0  # grammars that no thread has taken up
        self._known: OrderedDict[Hashable, Future[Compiled]] = OrderedDict()
        self._backends: dict[bool, xgr.GrammarCompiler] = {}  # by whether calls are the alphabet's

    def submit(self, spec: Spec) -> "Future[Compiled]":
        """Compile in the background; the same spec is compiled once, and asked for once.

        The future raises `InvalidGrammarError` where xgrammar cannot express `spec`.
        """
        key = spec.key, spec.checked
        with self._lock:
            if key not in self._known:
                self._unbegun += 1
                self._known[key] = self._pool.submit(self._compile, spec)
            self._known.move_to_end(key)
            self._forget()
            return self._known[key]

    def compile(self, spec: Spec) -> Compiled:
        """Compile, and wait. Raises `InvalidGrammarError` where xgrammar cannot express `spec`."""
        return self.submit(spec).result()

    def check(self, spec: Spec, tokens: Sequence[int], seconds: float) -> "Future[Any]":
        """What a finished answer means, in the background, as `Spec.read` says."""
        return self._pool.submit(spec.read, tokens, self.vocabulary)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _compile(self, spec: Spec) -> Compiled:
        with self._lock:
            self._unbegun -= 1
        try:
            grammar = spec.grammar(self.vocabulary)
            far = self.vocabulary.far
            matcher = self._backend(spec.calls).compile_grammar(loosened(grammar, far))
            compiled = Compiled(matcher, read_network(grammar, far), self.vocabulary)
            compiled.checked = spec.checked
        except (RuntimeError, UnicodeError) as error:  # all that xgrammar raises here
            raise InvalidGrammarError(spec.kind, _reason(error)) from error
        if self._rehearsed and not self._unbegun:
            rehearse(compiled, hurry=lambda: self._unbegun > 0)
        return compiled

    def _backend(self, calls: bool) -> xgr.GrammarCompiler:
        with self._lock:
            if calls not in self._backends:
                info = self.vocabulary.info(calls)
                self._backends[calls] = xgr.GrammarCompiler(info, cache_enabled=False)
            return self._backends[calls]

    def _forget(self) -> None:
        """Drop what was not used for the longest time, until the rest fits; failures are small."""
        sizes = {key: _size(future) for key, future in self._known.items() if future.done()}
        total = sum(sizes.values())
        for key, size in list(sizes.items())[:-1]:
            if total <= self._max_bytes and len(self._known) <= _REMEMBERED:
                break
            del self._known[key]
            total -= size


def _size(future: "Future[Compiled]") -> int:
    return 0 if future.exception() else future.result().nbytes


def _reason(error: RuntimeError | UnicodeError) -> str:
    """What xgrammar says; its message may quote half a character of the source."""
    said = str(error)
    if isinstance(error, UnicodeDecodeError):
        said = bytes(error.object).decode("utf-8", "replace")
    return " ".join(_NOISE.sub("", said).split()) or "xgrammar failed on it"
