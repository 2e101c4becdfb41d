"""The compiler from specs to grammars, one for each vocabulary, with a cache of grammars."""

import logging
import pickle
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from threading import Lock

from dlm.grammar.canvas.warmup import Warmup
from dlm.grammar.canvas.workers import Built, Task, Workers, build, read
from dlm.grammar.errors import CrashError
from dlm.grammar.masks.bits import MADE_BY
from dlm.grammar.parse.compiled import Compiled
from dlm.grammar.parse.terminal_tokens import Terminals
from dlm.grammar.specs.spec import Spec
from dlm.grammar.vocabulary.pieces import VocabularySlice
from dlm.grammar.vocabulary.vocabulary import Vocabulary

_REMEMBERED = 1024  # grammars and failures in the cache
_LOG = logging.getLogger(__name__)
_LOOKED = 16  # uses between two measurements of all grammars; at each use if the cache is half full
_ANEW = 256  # uses between two of those that measure grammars which have not worked, too


@dataclass(slots=True)
class _Measured:
    """A grammar of the cache with its size."""

    task: Task  # the one that made it
    compiled: Compiled
    nbytes: int = 0  # at the last measurement
    work: int = -1  # that the grammar had done then


class Compiler:
    """A compiler of specs for one vocabulary, with a cache of grammars.

    Networks are built in other processes, which can be ended. The cache takes about `max_bytes`
    at most, and drops the least recently used grammars.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        max_bytes: int = 1 << 30,
        seconds: float = 10.0,
        workers: Workers | None = None,
    ):
        """`seconds` limits the processor time of a compile. `workers` may be shared by several
        compilers, and their owner closes them; None: the compiler makes and closes its own.
        """
        self.vocabulary, self._seconds, self._max_bytes = vocabulary, seconds, max_bytes
        vocabulary.index()
        _LOG.info("masks are made by %s", MADE_BY)
        self._terminals = Terminals(vocabulary.trie, len(vocabulary))
        self._terminals.share_any_text()
        self._workers, self._shared = workers or Workers(), workers is not None
        self._lock = Lock()
        self._known: OrderedDict[Hashable, Task] = OrderedDict()
        self._measured: dict[Hashable, _Measured] = {}
        self._total = 0  # bytes of all that are measured
        self._uses = 0
        self._cold: dict[int, Warmup] = {}  # by the grammar's `id`; changed by several threads

    def submit(self, spec: Spec) -> Task:
        """Compile in the background. Equal specs share a task, which a caller may `leave`.

        The task raises `InvalidGrammarError` if no grammar can express `spec`, and `LimitError`
        if the compile takes too long.
        """
        with self._lock:
            known = self._known.get(spec.key)
            if known is None or not known.join() or _crashed(known):
                self._known[spec.key] = self._workers.submit(
                    build,
                    (spec.portable, self.vocabulary.call, spec.take_written()),
                    seconds=self._seconds,
                    label=f"{spec.kind}: {{}} to compile",
                    then=self._finish,
                )
            return self._used(spec.key)

    def compile(self, spec: Spec) -> Compiled:
        """Compile in this thread, without a limit of time. Raises `InvalidGrammarError`."""
        return self._cached(spec.key, lambda: build(spec, self.vocabulary.call))

    def unpack(self, packed: bytes) -> Compiled:
        """Return the grammar of `Compiled.packed` from another process. Equal bytes share one.

        The bytes are unpickled, so they must come from a trusted process.
        """
        return self._cached(sha256(packed).digest(), lambda: pickle.loads(packed))

    def _cached(self, key: Hashable, make: Callable[[], Built]) -> Compiled:
        with self._lock:
            known = self._known.get(key)
            usable = known is not None and known.join() and not _crashed(known)
        if not usable:
            future = Task()
            try:
                future.set_result(self._finish(make()))
            except Exception as error:
                future.set_exception(error)
            with self._lock:
                self._known[key] = future
        with self._lock:
            future = self._used(key)
        return future.result()

    def check(self, spec: Spec, tokens: Sequence[int], seconds: float) -> Task:
        """Run `Spec.read` on a finished answer in the background. Raises `LimitError`, too.

        It is urgent, since its request occupies a slot: it overtakes compiles.
        """
        args = spec.portable, list(tokens), VocabularySlice.of(self.vocabulary, tokens)
        label = "the result {} to check"
        return self._workers.submit(read, args, seconds=seconds, label=label, urgent=True)

    @property
    def cold(self) -> bool:
        """Whether a grammar is left to warm up."""
        return any(not warmup.done for warmup in list(self._cold.values()))

    def warm_up(self, work: int) -> None:
        """Spend about `work` units on the warm-up of a grammar. Call it while no request waits."""
        for key, warmup in list(self._cold.items()):
            if not warmup.done:
                warmup.go_on(work)
                return
            self._cold.pop(key, None)

    def close(self) -> None:
        """End compiles and checks, unless the workers are shared."""
        if not self._shared:
            self._workers.close()

    def _finish(self, built: Built) -> Compiled:
        """Return the grammar of a network. It is quick, since other threads wait meanwhile."""
        network, checked, enforced = built
        compiled = Compiled(network, self.vocabulary, self._terminals, checked, enforced)
        self._cold[id(compiled)] = Warmup(compiled)
        return compiled

    def _used(self, key: Hashable) -> Task:
        """Return the task of `key`, after dropping the least recently used until the cache fits."""
        self._known.move_to_end(key)
        self._uses += 1
        near, anew = 2 * self._total > self._max_bytes, self._uses % _ANEW == 0
        for each in [*self._known] if near or self._uses % _LOOKED == 0 else (key,):
            self._measure(each, anew)
        if self._total > self._max_bytes or len(self._known) > _REMEMBERED:
            self._drop()
        return self._known[key]

    def _drop(self) -> None:
        """Drop the least recently used grammars, but for the last, until the cache fits."""
        for old in [*self._known][:-1]:
            if self._total <= self._max_bytes and len(self._known) <= _REMEMBERED:
                break
            if self._known[old].done():
                if (measured := self._measured.pop(old, None)) is not None:
                    self._total -= measured.nbytes
                self._forget(self._known.pop(old))

    def _measure(self, key: Hashable, anew: bool) -> None:
        """Measure the grammar of `key` again if it has worked, and so may have grown; or `anew`,
        since its share of what others read too may have changed."""
        task, measured = self._known[key], self._measured.get(key)
        if measured is None or measured.task is not task:
            if (compiled := _result(task)) is None:
                return
            before = 0 if measured is None else measured.nbytes
            measured = self._measured[key] = _Measured(task, compiled, before)
        if anew or measured.compiled.meter.spent != measured.work:
            self._total -= measured.nbytes
            measured.nbytes, measured.work = measured.compiled.nbytes, measured.compiled.meter.spent
            self._total += measured.nbytes

    def _forget(self, dropped: Task) -> None:
        """Stop the warm-up of a dropped grammar. Its last request frees it."""
        if (compiled := _result(dropped)) is not None:
            self._cold.pop(id(compiled), None)


def _crashed(future: Task) -> bool:
    """Whether the task ended without a result that depends on its grammar."""
    if not future.done():
        return False
    return future.cancelled() or isinstance(future.exception(), CrashError)


def _result(future: Task) -> Compiled | None:
    """Return the grammar of a task; None if it is not done, or failed."""
    if not future.done() or _crashed(future) or future.exception():
        return None
    return future.result()
