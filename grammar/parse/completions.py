"""Completions of what a matcher has begun, in which no object of a JSON text holds a key twice.

The parser knows the shortest text to the end, and no keys: where the grammar leaves keys free, it
would say `"":0` again and again. Here such keys are made longer until they differ.
"""

from sys import maxsize

from dlm.grammar.errors import BudgetError, DeadEndError
from dlm.grammar.parse.compiled import BEGUN, Compiled
from dlm.grammar.parse.keys import Keys
from dlm.grammar.parse.state import State

_PLAIN = [bytes([byte]) for byte in range(0x20, 0x7F) if byte not in b'"\\']
_FILLERS = sorted(_PLAIN, key=lambda byte: not byte.isalnum())  # letters and digits first
_LONGEST = 64  # characters that are put into one text at the most
_TOLD = 1 << 15  # bytes of a completion that is counted just to say how long it is

Text = list[bytes | int]  # bytes, and control tokens by their ids


def most_tokens(cost: int) -> int:
    """That a text of so many bytes takes: a free key has four or more, and two make it differ."""
    return cost + cost // 2 + 2


class Completions:
    """Of one grammar. Where its keys are not free, they are the grammar's own."""

    def __init__(self, compiled: Compiled):
        self._compiled, self._vocabulary = compiled, compiled.vocabulary

    def closes_within(self, state: State, keys: Keys | None, tokens: int) -> bool:
        """The text can be completed in so many tokens, its stop not counted."""
        compiled = self._compiled
        if keys is None:
            return compiled.closes_within(state, tokens)
        told = compiled.decided_by_bytes(state, tokens, most_tokens(state.cost or 0))
        if told is False or (told and not compiled.few_keys):
            return told
        shortest = self.shortest(state, keys, tokens)
        return shortest is not None and len(shortest) <= tokens

    def shortest(self, state: State, keys: Keys | None, tokens: int) -> list[int] | None:
        """The tokens of a shortest text to the end; None: there is none.

        At most so many `tokens`, if that is known to be possible.
        """
        compiled = self._compiled
        if keys is None:
            return compiled.shortest_completion(state, tokens)
        spelled = compiled.remembered(
            (state, keys), lambda: self._spelled(self._apart(state, keys, maxsize))
        )
        if spelled is None or len(spelled) > tokens:
            other = compiled.shortest_completion(state, tokens) or []
            pieces = [self._vocabulary.pieces[token] for token in other]
            if len(other) <= tokens and keys.after(b"".join(pieces)) is not None:
                return other or spelled
        return spelled

    def completing(
        self, state: State, keys: Keys | None, tokens: int
    ) -> tuple[list[int] | None, bool]:
        """One of at most so many tokens, and whether that is all of it; None: there is none.

        Where its bytes bound its tokens, its beginning is enough to go on with.
        """
        most = state.cost or 0
        told = self._compiled.decided_by_bytes(state, tokens, most_tokens(most) if keys else most)
        if told is False:
            return None, False
        if told is None or (keys and self._compiled.few_keys):
            return self.shortest(state, keys, tokens), True
        if keys is None:
            return self._compiled.begun(state), False
        return self._spelled(self._apart(state, keys, BEGUN)), False

    def too_long(
        self, state: State, keys: Keys | None, first: int, budget: int
    ) -> BudgetError | DeadEndError:
        """What to raise where none fits `budget` tokens, the stop and `first` others among them."""
        least = first + self._compiled.fewest_possible(state) + 1
        if least > budget and (state.cost or 0) > _TOLD:  # too long to be counted for the message
            return BudgetError(
                f"the shortest answer takes at least {least} tokens, more than {budget}", least
            )
        if not self._compiled.counts(state):
            cost = state.cost or 0
            enough = first + (most_tokens(cost) if keys else cost) + 1
            return BudgetError(
                f"the shortest answer takes at least {least} tokens, and surely fits {enough}, "
                f"but it is too long to tell whether it fits {budget}",
                enough,
            )
        shortest = self.shortest(state, keys, budget - 1 - first)
        if shortest is None:
            return DeadEndError(
                "no text that the grammar accepts can be written in this vocabulary"
            )
        needed = first + len(shortest) + 1
        return BudgetError(f"the shortest answer takes {needed} tokens, more than {budget}", needed)

    def _spelled(self, text: Text | None) -> list[int] | None:
        return None if text is None else self._vocabulary.fewest(text)

    def _apart(self, state: State | None, keys: Keys | None, most: int) -> Text | None:
        """A short text to the end, or its first `most` bytes at least; None: none is found."""
        parser, said = self._compiled.parser, Text()
        for _ in range(_LONGEST):
            if state is None or keys is None or state.cost is None:
                return None
            self._compiled.meter.spend(1 + min(most, state.cost) // 4)
            rest = parser.completion(state, most)
            read, state, keys, doubles = self._read(rest, state, keys)
            said += read
            if not doubles:
                return said
            longer = self._longer(state, keys)
            if longer is None:
                return None
            said.append(longer)
            state, keys = state and parser.behind(state, longer[0]), keys.after(longer)
        return None

    def _read(
        self, text: Text, state: State | None, keys: Keys
    ) -> tuple[Text, State | None, Keys, bool]:
        """`text` up to the byte that ends a key which is there already, if one does, and whether.

        With where that leads to.
        """
        parser, read = self._compiled.parser, Text()
        for part in text:
            if isinstance(part, int):
                state = state and parser.after(state, part, b"")
                read.append(part)
                continue
            for place, byte in enumerate(part):
                onward = state and parser.behind(state, byte)
                behind = onward and self._compiled.keys_after(onward, keys, bytes([byte]))
                if behind is None:
                    return [*read, part[:place]], state, keys, True
                keys, state = behind, onward
            read.append(part)
        return read, state, keys, False

    def _longer(self, state: State | None, keys: Keys) -> bytes | None:
        """What a key that would be a double goes on with; the best if it is none then."""
        parser, ways = self._compiled.parser, []
        for rank, filler in enumerate(_FILLERS):
            at = state and parser.behind(state, filler[0])
            longer = at and self._compiled.keys_after(at, keys, filler)
            if at is not None and at.cost is not None and longer is not None:
                ways.append((longer.double, at.cost, rank, filler))
        return min(ways)[-1] if ways else None
