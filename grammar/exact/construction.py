"""Makes a token automaton from a parser's states, breadth first, up to a bound on its size."""

from collections import deque
from sys import maxsize
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch

from dlm.grammar.errors import DeadEndError, LimitError, Unfinished
from dlm.grammar.exact.automaton import END, NOWHERE, START, TokenAutomaton, distances
from dlm.grammar.parse.compiled import Compiled
from dlm.grammar.parse.state import State

MOST_STATES = 8192
_MOST_CELLS = 1 << 22  # states times classes: 16 MiB
_MOST_WORK = 100_000  # units of the grammar's meter: about 2 s


class Automata:
    """The token automata of compiled grammars: each is made, or refused, once, step by step."""

    def __init__(self):
        self._known: WeakKeyDictionary[Compiled, TokenAutomaton | _Refusal | _Builder]
        self._known = WeakKeyDictionary()
        self._left = maxsize

    def begin(self, units: int = maxsize) -> None:
        """From now on so many units may be spent on all of them."""
        self._left = units

    def of(self, compiled: Compiled) -> TokenAutomaton:
        """Raises what `token_automaton` does, and `Unfinished` where it has not been made to its
        end: each may take half of the units that are left, and asking again goes on."""
        found = self._known.get(compiled)
        if found is None or isinstance(found, _Builder):
            found = self._known[compiled] = self._gone_on(compiled, found)
            compiled.extra_bytes = 0 if isinstance(found, _Refusal) else found.nbytes
        if isinstance(found, _Refusal):
            raise found.kind(found.reason)
        if isinstance(found, _Builder):
            raise Unfinished("a token automaton takes more than its share of a step")
        return found

    def _gone_on(
        self, compiled: Compiled, builder: "_Builder | None"
    ) -> "TokenAutomaton | _Refusal | _Builder":
        before = compiled.meter.spent
        try:
            builder = builder or _Builder(compiled)
            if self._left <= 0 or not builder.go_on(compiled, -(-self._left // 2)):
                return builder
            return builder.finished()
        except (LimitError, DeadEndError) as error:
            return _Refusal(type(error), str(error))
        finally:
            self._left -= compiled.meter.spent - before


class _Refusal(NamedTuple):
    """Not the error itself, whose traceback would keep the grammar."""

    kind: type[LimitError | DeadEndError]
    reason: str


def token_automaton(compiled: Compiled, most_states: int = MOST_STATES) -> TokenAutomaton:
    """Every text of `compiled`, spelled in tokens.

    Raises `LimitError` for a grammar that has too many states, classes or tokens to look at, or
    free keys, which no finite automaton tells apart; `DeadEndError` where no text can be spelled.
    """
    builder = _Builder(compiled, most_states)
    builder.go_on(compiled)
    return builder.finished()


class _Builder:
    """States get their numbers as they are met, classes are split as states tell tokens apart.

    Keeps no grammar alive: who waits for its automaton does."""

    def __init__(self, compiled: Compiled, most_states: int = MOST_STATES):
        if compiled.free_keys or compiled.apart.distinct:
            raise LimitError(
                "no token automaton: the grammar has keys that a schema does not name, or items "
                "that have to be distinct, and no finite number of states remembers them"
            )
        self._most_states, self._spent = most_states, 0
        start = compiled.parser.start
        self._numbers: dict[State, int] = {start: START}
        self._waiting = deque([start])
        self._to = np.full((64, 64), NOWHERE, dtype=np.int32)
        self._of = np.zeros(len(compiled.vocabulary), dtype=np.int32)  # class by token
        self._sizes = [len(self._of) + 1]  # by class; one token of `REFUSED` is in no vocabulary

    @property
    def nbytes(self) -> int:
        return self._to.nbytes + self._of.nbytes

    def go_on(self, compiled: Compiled, units: int = maxsize) -> bool:
        """Look at states until so many units are spent, at one at least; True: at all of them."""
        meter = compiled.meter
        begun, most = meter.spent, _MOST_WORK - self._spent
        meter.begin(most)
        try:
            while self._waiting and meter.spent - begun < units:
                self._look_at(self._waiting.popleft(), compiled)
        except Unfinished as error:
            raise LimitError(
                f"no token automaton: it takes over {_MOST_WORK} units of work to make"
            ) from error
        finally:
            self._spent += meter.spent - begun
            meter.begin()
        return not self._waiting

    def _look_at(self, state: State, compiled: Compiled) -> None:
        number = self._numbers[state]
        tokens, targets = self._moves(state, compiled)
        for label, target in self._split(tokens, targets):
            self._to[number, label] = target

    def finished(self) -> TokenAutomaton:
        """Without the states that lead nowhere."""
        S, C = len(self._numbers) + 1, len(self._sizes)
        to = np.full((S, C + 1), NOWHERE, dtype=np.int32)
        to[:, :C] = self._to[:S, :C]
        to[END, C] = END
        distance = distances(to)
        if distance[START] < 0:
            raise DeadEndError("no text that the grammar accepts can be written in this vocabulary")
        alive = distance >= 0
        renumbered = np.where(alive, np.cumsum(alive) - 1, NOWHERE).astype(np.int32)
        to = np.append(renumbered, np.int32(NOWHERE))[to[alive]]  # `NOWHERE` is the last
        return TokenAutomaton(classes=torch.from_numpy(self._of), to=to, distance=distance[alive])

    def _moves(self, state: State, compiled: Compiled) -> tuple[np.ndarray, np.ndarray]:
        """The tokens that `state` takes, and the numbers of the states that they lead to."""
        tokens, which, states = compiled.moves(state)
        numbers = np.full(len(states), NOWHERE)
        for each in np.unique(which).tolist():
            numbers[each] = self._number(states[each])
        stops = compiled.vocabulary.stops if state.cost == 0 else ()
        return (
            np.concatenate((tokens, np.array(stops, dtype=tokens.dtype))),
            np.concatenate((numbers[which], np.full(len(stops), END))),
        )

    def _number(self, state: State) -> int:
        if state not in self._numbers:
            number = len(self._numbers) + 1  # one is that of `END`
            if number >= self._most_states:
                raise LimitError(
                    f"no token automaton: the grammar has over {self._most_states} states"
                )
            self._numbers[state] = number
            self._waiting.append(state)
            self._grow(number, len(self._sizes))
        return self._numbers[state]

    def _split(self, tokens: np.ndarray, targets: np.ndarray) -> list[tuple[int, int]]:
        """Let no class hold tokens that lead to different states; says which class leads where."""
        named, local = np.unique(targets, return_inverse=True)
        keys = self._of[tokens].astype(np.int64) * len(named) + local
        counts = np.bincount(keys, minlength=1)
        present = np.flatnonzero(counts)
        moved = np.zeros(len(counts), dtype=np.int32)
        found = []
        for key in present.tolist():
            label, target = divmod(key, len(named))
            count = int(counts[key])
            if count < self._sizes[label]:
                label = self._new(label, count)
            moved[key] = label
            found.append((label, int(named[target])))
        self._of[tokens] = moved[keys]
        return found

    def _new(self, parent: int, size: int) -> int:
        """A class of `size` tokens out of `parent`, which lead to where the others do so far."""
        label = len(self._sizes)
        self._sizes[parent] -= size
        self._sizes.append(size)
        self._grow(len(self._numbers), label)
        self._to[:, label] = self._to[:, parent]
        return label

    def _grow(self, state: int, label: int) -> None:
        """Have room for a state and a class of these numbers."""
        if state * label > _MOST_CELLS:
            raise LimitError(
                f"no token automaton: {state} states tell {label} classes of tokens apart, "
                f"and up to {_MOST_CELLS} states times classes are kept"
            )
        S, C = self._to.shape
        if state >= S or label >= C:
            larger = np.full((max(S, 2 * state), max(C, 2 * label)), NOWHERE, dtype=np.int32)
            larger[:S, :C] = self._to
            self._to = larger
