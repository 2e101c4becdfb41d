"""From what a user wrote to what xgrammar runs. One compiler per vocabulary."""

import re
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any

import xgrammar as xgr

from dlm.grammar.canvas.compiled import Compiled
from dlm.grammar.canvas.tasks import build, read
from dlm.grammar.canvas.warmup import rehearse
from dlm.grammar.canvas.workers import Workers
from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.excerpt import Excerpt
from dlm.grammar.kinds.spec import Spec
from dlm.grammar.parse.network_reader import loosened, read_network
from dlm.grammar.vocabulary import Vocabulary

# xgrammar's errors begin with a time, a C++ file and line, and sometimes the failed check.
_NOISE = re.compile(r"\[[\d:]+\] \S+:\d+: (?:Check failed: \(.*?\) is false: )?")
_REMEMBERED = 1024  # grammars and failures


class Compiler:
    """Compiles constraints for one vocabulary, and remembers them.

    Rules are made in processes of their own, which can be ended, whatever a client asks for; what
    is remembered takes about `max_bytes` at most; what was used last stays.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        max_bytes: int = 1 << 30,
        seconds: float = 10.0,
        rehearsed: bool = False,
        workers: Workers | None = None,
    ):
        """A compile takes at most so many `seconds` of processor time. `rehearsed` grammars take
        longer to compile and less time at the first step. `workers` are those of several compilers,
        by default its own: who made them closes them."""
        self.vocabulary, self._seconds, self._rehearsed = vocabulary, seconds, rehearsed
        self._max_bytes = max_bytes
        self._workers, self._shared = workers or Workers(), workers is not None
        self._lock = Lock()
        self._known: OrderedDict[Hashable, Future[Compiled]] = OrderedDict()
        self._backends: dict[bool, xgr.GrammarCompiler] = {}  # by whether calls are the alphabet's
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="compile")

    def submit(self, spec: Spec) -> "Future[Compiled]":
        """Compile in the background; the same spec is compiled once, and asked for once.

        The future raises `InvalidGrammarError` where no grammar can express `spec`, and
        `LimitError` where it takes too long.
        """
        key = spec.key, spec.checked
        with self._lock:
            if key not in self._known:
                self._known[key] = self._submit(spec)
            return self._used(key)

    def compile(self, spec: Spec) -> Compiled:
        """Compile here and now, however long it takes. Raises `InvalidGrammarError`."""
        key = spec.key, spec.checked
        if key not in self._known:
            future: Future[Compiled] = Future()
            try:
                future.set_result(self._compile(spec))
            except Exception as error:
                future.set_exception(error)
            with self._lock:
                self._known.setdefault(key, future)
        with self._lock:
            future = self._used(key)
        return future.result()

    def check(self, spec: Spec, tokens: Sequence[int], seconds: float) -> "Future[Any]":
        """What a finished answer means, in the background: as `Spec.read` says, or `LimitError`."""
        if hasattr(spec, "grammar"):
            return self._pool.submit(spec.read, tokens, self.vocabulary)
        args = spec, list(tokens), Excerpt.of(self.vocabulary, tokens)
        return self._workers.submit(read, args, seconds=seconds, label="the result {} to check")

    def close(self) -> None:
        """End what is being compiled and checked."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        if not self._shared:
            self._workers.close()

    def _submit(self, spec: Spec) -> "Future[Compiled]":
        if hasattr(spec, "grammar"):
            return self._pool.submit(self._compile, spec)
        return self._workers.submit(
            build,
            (spec, self.vocabulary.call),
            seconds=self._seconds,
            label=f"{spec.kind}: {{}} to compile",
            then=self._finish,
        )

    def _finish(self, built: Any) -> Compiled:
        """From rules to a grammar: short, since it holds up everybody else."""
        raise NotImplementedError

    def _compile(self, spec: Spec) -> Compiled:
        try:
            grammar = spec.grammar(self.vocabulary)
            far = self.vocabulary.far
            matcher = self._backend(spec.calls).compile_grammar(loosened(grammar, far))
            compiled = Compiled(matcher, read_network(grammar, far), self.vocabulary)
            compiled.checked = spec.checked
        except (RuntimeError, UnicodeError) as error:  # all that xgrammar raises here
            raise InvalidGrammarError(spec.kind, _reason(error)) from error
        if self._rehearsed:
            rehearse(compiled)
        return compiled

    def _backend(self, calls: bool) -> xgr.GrammarCompiler:
        if calls not in self._backends:
            info = self.vocabulary.info(calls)
            self._backends[calls] = xgr.GrammarCompiler(info, cache_enabled=False)
        return self._backends[calls]

    def _used(self, key: Hashable) -> "Future[Compiled]":
        """What is known; what was not used for the longest time is dropped, until the rest fits."""
        self._known.move_to_end(key)
        sizes = {key: _size(future) for key, future in self._known.items() if future.done()}
        total = sum(sizes.values())
        for old, size in list(sizes.items())[:-1]:
            if total <= self._max_bytes and len(self._known) <= _REMEMBERED:
                break
            if old != key:
                del self._known[old]
                total -= size
        return self._known[key]


def _size(future: "Future[Compiled]") -> int:
    return 0 if future.exception() else future.result().nbytes


def _reason(error: RuntimeError | UnicodeError) -> str:
    """What xgrammar says; its message may quote half a character of the source."""
    said = str(error)
    if isinstance(error, UnicodeDecodeError):
        said = bytes(error.object).decode("utf-8", "replace")
    return " ".join(_NOISE.sub("", said).split()) or "xgrammar failed on it"
