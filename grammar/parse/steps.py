"""Steps of one grammar: the parser's state, and the keys of the JSON text, after each token."""

from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import TypeVar

import numpy as np
from jaxtyping import Int32

from dlm.grammar.json_escapes import missing
from dlm.grammar.limits import Meter
from dlm.grammar.masks.bits import tokens_in
from dlm.grammar.parse.earley import Parser
from dlm.grammar.parse.growing_sets import SETS, unshared
from dlm.grammar.parse.keys import KEYS_BYTES, NAME_BYTES, Keys
from dlm.grammar.parse.states import State
from dlm.grammar.parse.uniqueness import Detour, Uniqueness
from dlm.grammar.vocabulary.vocabulary import Vocabulary

_MOST_BYTES = 10 << 20  # of memory of cached keys after a token
_DETOUR_BYTES = 32 << 20  # of memory of cached detours
_OPEN_BYTES = 8  # approximate memory of an open object or array, if others hold it as well
_COMPARED = 5  # keys and items that the text is compared with, for a unit of work


K = TypeVar("K")
V = TypeVar("V")


class _SizedCache(dict[K, V]):
    """A dictionary that is emptied before it would hold more than `most_bytes` of memory."""

    def __init__(self, most_bytes: int):
        super().__init__()
        self.nbytes, self._most = 0, most_bytes  # approximate memory, and its limit

    def keep(self, key: K, value: V, size: int) -> None:
        """Keep a new entry of `size` bytes."""
        if self.nbytes + size > self._most:
            self.clear()
            self.nbytes = 0
        self[key] = value
        self.nbytes += size


class Steps:
    """The situations that tokens lead to. If the grammar constrains all keys, `keys` is None."""

    def __init__(self, parser: Parser, vocabulary: Vocabulary, meter: Meter):
        self._parser, self._vocabulary, self._meter = parser, vocabulary, meter
        self._pieces, self._plain = vocabulary.pieces, vocabulary.quoted.plain
        self.few_keys = parser.network.few_keys  # an object may have used all keys that are free
        self.uniqueness = Uniqueness(parser, meter)
        # Whether no new key, or no new item of an array of distinct items, may be left.
        self.may_run_out = self.few_keys or self.uniqueness.distinct
        # Whether tokens may be refused before the first key, such as those that hold one twice.
        self._always_watched = self.may_run_out or bool(vocabulary.quoted.doubling)
        self._detours = _SizedCache[tuple[State, Keys], Detour | None](_DETOUR_BYTES)
        self._keys = _SizedCache[tuple[Keys, int], Keys](_MOST_BYTES)  # by the keys before a token

    @property
    def nbytes(self) -> int:
        """Approximate memory of caches."""
        return self.uniqueness.nbytes + self._keys.nbytes + self._detours.nbytes

    def first_keys(self) -> Keys | None:
        """Return the keys before the text."""
        watched = self._parser.network.free_keys or self.uniqueness.distinct
        return Keys() if watched else None

    def after(self, state: State, token: int) -> State | None:
        """Return the state after a token other than a stop; None if the grammar refuses it."""
        return self._parser.after(state, token, self._vocabulary.pieces[token])

    def read(self, state: State, keys: Keys | None, token: int) -> tuple[State, Keys | None] | None:
        """Return state and keys after a token other than a stop; None if it is not allowed.

        It is not if a key or a distinct item comes twice, or if no new one can follow.
        """
        onward = self._parser.after(state, token, self._pieces[token])
        if onward is None or keys is None:
            return onward and (onward, None)
        if self.may_run_out:
            after = self.uniqueness.after(state, keys, self._pieces[token])
            return None if after is None or not self._leads_on(onward, after) else (onward, after)
        _, key, _, string, escape, _ = keys
        if key is None and not escape and self._plain[string][token]:
            return onward, keys
        after = self._keys.get((keys, token)) or self._keys_after(keys, token)
        return None if after is None else (onward, after)

    def _keys_after(self, keys: Keys, token: int) -> Keys | None:
        """Return the keys after a token, and keep them: texts of a grammar have many in common."""
        after = keys.after(self._pieces[token])
        if after is not None:
            self._keys.keep((keys, token), after, _new_bytes(keys, after))
        return after

    def _leads_on(self, state: State, keys: Keys) -> bool:
        """Whether the next key or distinct item may be a new one."""
        if self.uniqueness.has_spare_strings(state, keys):
            return True
        return not keys.at_risk or self.detour(state, keys) is not None

    def detour(self, state: State, keys: Keys) -> Detour | None:
        """Return `Uniqueness.detour`, from a cache."""
        key = state, keys
        if key not in self._detours:
            detour = self.uniqueness.detour(state, keys)
            size = keys.nbytes + (0 if detour is None else detour.keys.nbytes)
            self._detours.keep(key, detour, size)
        return self._detours[key]

    def are_watched(self, keys: Keys) -> bool:
        """Whether a token may be refused for its keys or items."""
        return self._always_watched or keys.key is not None or any(keys.open)

    def suspects(self, keys: Keys, words: np.ndarray) -> list[int]:
        """Return the tokens of the packed bits `words` that `read` may refuse for their keys."""
        vocabulary, quoted = self._vocabulary, self._vocabulary.quoted
        tokens = keys.suspects(quoted)
        if self.may_run_out:
            taken = keys.taken_continuations
            self._meter.add((len(taken) + keys.compared) // _COMPARED)
            tokens = tokens.union(vocabulary.beginnings(*taken) if taken else ())
            if keys.string or not keys.watched:
                strings = (text for text in taken if text.endswith(b'"'))
                tokens = tokens.union(*map(quoted.spelling, strings))
            if taken and keys.escape:
                tokens = tokens.union(self._continuing(keys.escape, taken, words))
        if not tokens and not self.may_run_out:  # the usual case
            return []
        suspects = {t for t in tokens if words[t >> 5] >> (t & 31) & 1}
        if self.few_keys:  # after the others, new keys are left
            suspects.update(_members(quoted.joining[keys.string], words))
        if self.uniqueness.distinct:
            suspects.update(tokens_in(words & keys.item_suspects(quoted)).tolist())
        return sorted(suspects)

    def _continuing(
        self, escape: bytes, continuations: Iterable[bytes], words: np.ndarray
    ) -> Iterator[int]:
        """Yield the tokens of the packed bits `words` that go on with `escape` as `continuations`.

        Digits above 9 may be in upper or lower case.
        """
        size, pieces = missing(escape), self._vocabulary.pieces
        digits = {text[:size] for text in continuations}
        if escape == b"\\":
            words = words & self._vocabulary.quoted.packed["unicode"]
        for token in tokens_in(words).tolist():
            piece = pieces[token][:size].lower()
            if any(text.startswith(piece) for text in digits):
                yield token


def _new_bytes(before: Keys, after: Keys) -> int:
    """Return the approximate memory of the keys `after` a token, without what those `before` hold.

    No array of distinct items is open.
    """
    size = KEYS_BYTES + len(after.key or before.key or b"")
    if after.open is not before.open:
        size += _OPEN_BYTES * len(after.open)
        for names, old in zip_longest(after.open, before.open):
            if names is not old and isinstance(names, SETS):
                size += NAME_BYTES * unshared(names, old if isinstance(old, SETS) else frozenset())
    return size


def _members(tokens: Int32[np.ndarray, " tokens"], words: np.ndarray) -> list[int]:
    """Return those of `tokens` that are among the packed bits `words`."""
    return tokens[words[tokens >> 5] >> (tokens & 31) & 1 != 0].tolist()
