"""From what a user wrote to a compiled grammar. One compiler per vocabulary."""

import pickle
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from hashlib import sha256
from threading import Lock

from dlm.grammar.canvas.tasks import build, read
from dlm.grammar.canvas.warmup import Warmup
from dlm.grammar.canvas.workers import Task, Workers
from dlm.grammar.errors import CrashError
from dlm.grammar.parse.compiled import Compiled
from dlm.grammar.parse.network import Network
from dlm.grammar.parse.terminal_masks import Terminals
from dlm.grammar.specs.spec import Spec
from dlm.grammar.tokens import VocabularySlice
from dlm.grammar.vocabulary import Vocabulary

_REMEMBERED = 1024  # grammars and failures
_LOOKED = 16  # uses after which all are measured again, since they grow; always from half full on


class Compiler:
    """Compiles constraints for one vocabulary, and remembers them.

    Networks are made in processes of their own, which can be ended, whatever a client asks for;
    what is remembered takes about `max_bytes` at most; what was used last stays.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        max_bytes: int = 1 << 30,
        seconds: float = 10.0,
        workers: Workers | None = None,
    ):
        """A compile takes at most so many `seconds` of processor time. `workers` are those of
        several compilers, by default its own: who made them closes them."""
        self.vocabulary, self._seconds, self._max_bytes = vocabulary, seconds, max_bytes
        vocabulary.index()
        self._terminals = Terminals(vocabulary.trie, len(vocabulary))
        self._terminals.share_any_text()
        self._workers, self._shared = workers or Workers(), workers is not None
        self._lock = Lock()
        self._known: OrderedDict[Hashable, Task] = OrderedDict()
        self._sizes: dict[Hashable, int] = {}  # bytes when they were last looked at
        self._uses = 0
        self._cold: dict[int, Warmup] = {}  # by the grammar's `id`; several threads change it

    def submit(self, spec: Spec) -> Task:
        """Compile in the background; the same spec is compiled once, and asked for once. Who does
        not wait for it any more leaves it.

        The future raises `InvalidGrammarError` where no grammar can express `spec`, and
        `LimitError` where it takes too long.
        """
        with self._lock:
            known = self._known.get(spec.key)
            if known is None or not known.join() or _crashed(known):
                self._known[spec.key] = self._workers.submit(
                    build,
                    (spec, self.vocabulary.call),
                    seconds=self._seconds,
                    label=f"{spec.kind}: {{}} to compile",
                    then=self._finish,
                )
            return self._used(spec.key)

    def compile(self, spec: Spec) -> Compiled:
        """Compile here and now, however long it takes. Raises `InvalidGrammarError`."""
        return self._made(spec.key, lambda: build(spec, self.vocabulary.call))

    def unpack(self, packed: bytes) -> Compiled:
        """Make a grammar of what `Compiled.packed` returned in another process; equal bytes are one
        grammar. They are unpickled: they must come from a process that is trusted."""
        return self._made(sha256(packed).digest(), lambda: pickle.loads(packed))

    def _made(self, key: Hashable, make: Callable[[], tuple[Network, bool]]) -> Compiled:
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
        """What a finished answer means, in the background: as `Spec.read` says, or `LimitError`.
        Whoever waits for it holds a slot: it does not wait for grammars."""
        args = spec, list(tokens), VocabularySlice.of(self.vocabulary, tokens)
        label = "the result {} to check"
        return self._workers.submit(read, args, seconds=seconds, label=label, urgent=True)

    @property
    def cold(self) -> bool:
        """Something is left to warm up."""
        return any(not warmup.done for warmup in list(self._cold.values()))

    def warm_up(self, work: int) -> None:
        """Spend about so many units of work on what was compiled: for when nobody waits."""
        for key, warmup in list(self._cold.items()):
            if not warmup.done:
                warmup.go_on(work)
                return
            self._cold.pop(key, None)

    def close(self) -> None:
        """End what is being compiled and checked."""
        if not self._shared:
            self._workers.close()

    def _finish(self, built: tuple[Network, bool]) -> Compiled:
        """From a network to a grammar: short, since it holds up everybody else."""
        network, checked = built
        compiled = Compiled(network, self.vocabulary, self._terminals, checked)
        self._cold[id(compiled)] = Warmup(compiled)
        return compiled

    def _used(self, key: Hashable) -> Task:
        """What is known; what was not used for the longest time is dropped, until the rest fits."""
        self._known.move_to_end(key)
        self._uses += 1
        near = 2 * sum(self._sizes.values()) > self._max_bytes
        for each in [*self._known] if near or self._uses % _LOOKED == 0 else (key,):
            self._sizes[each] = _size(self._known[each])
        total = sum(self._sizes.values())
        for old in [*self._known][:-1]:
            if total <= self._max_bytes and len(self._known) <= _REMEMBERED:
                break
            if self._known[old].done():
                total -= self._sizes.pop(old, 0)
                self._forget(self._known.pop(old))
        return self._known[key]

    def _forget(self, dropped: Task) -> None:
        """It is freed with its last user, and is not warmed up for others."""
        if _size(dropped):
            self._cold.pop(id(dropped.result()), None)


def _crashed(future: Task) -> bool:
    """It says nothing about the grammar."""
    if not future.done():
        return False
    return future.cancelled() or isinstance(future.exception(), CrashError)


def _size(future: Task) -> int:
    if not future.done():
        return 0
    return 0 if _crashed(future) or future.exception() else future.result().nbytes
