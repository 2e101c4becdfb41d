"""A compiled grammar, and what is learnt of its places as requests pass them.

It is shared by the requests that use the grammar. Knows tokens, but no request and no canvas.
"""

from collections.abc import Callable
from functools import cached_property
from sys import maxsize

import xgrammar as xgr

from dlm.grammar.masks.bits import Bits, tokens_in
from dlm.grammar.masks.table import Mask, Masks
from dlm.grammar.parse.fewest import fewest
from dlm.grammar.parse.network import Network
from dlm.grammar.parse.state import Item, Place, Places
from dlm.grammar.vocabulary import Vocabulary

_EDGE_BYTES, _PLACE_BYTES = 200, 2000  # of Python objects, roughly
_WITNESSES = 4096  # completions that are remembered
_FEW = 32  # tokens of a text that is looked for where none is known
_ESCAPE = ord("\\")

Matcher = Callable[[], xgr.GrammarMatcher]  # one that is where it is asked about


class Compiled:
    """Not for several threads at once."""

    def __init__(self, grammar: xgr.CompiledGrammar, network: Network, vocabulary: Vocabulary):
        self.grammar, self.vocabulary = grammar, vocabulary
        self.checked = False  # it is wider than what it was made of: finished values are checked
        self.places = Places(network)
        self.masks = Masks(len(vocabulary))
        self._network = network
        self._spelled: dict[int, list[int] | None] = {}  # the way out of a state, in tokens
        self._witnesses: dict[Place, list[int] | None] = {}

    @property
    def nbytes(self) -> int:
        """About what it takes in memory by now."""
        learnt = _PLACE_BYTES * len(self.places) + self.masks.nbytes
        return self.grammar.memory_size_bytes + _EDGE_BYTES * self._network.size + learnt

    def after(self, place: Place, token: int) -> Place | None:
        """The place behind a token of text; None where the grammar refuses it."""
        return self.places.after(place, token, self.vocabulary.pieces[token])

    def mask(self, place: Place, matcher: Matcher) -> Mask:
        """The tokens that may follow at `place`, where `matcher` is."""
        mask = self.masks.known.get(place)
        if mask is None:
            bits, mask = self.masks.new()
            matcher().fill_next_token_bitmask(bits.tensor, mask)
            if place.room is not None and place.room < self.vocabulary.most_characters:
                self._keep_within(place, place.room, bits, mask)
            self.masks.known[place] = mask
        return mask

    def _keep_within(self, place: Place, room: int, bits: Bits, mask: Mask) -> None:
        """Take out the tokens that go on with more characters than there is `room` for.

        Others as long stay if they end the repetition in time, or if escapes make them that long.
        """
        places, vocabulary, row = self.places, self.vocabulary, bits.rows[mask]
        behind = ((byte, places.behind(place, byte)) for byte in range(256))
        telling = bytes(
            byte
            for byte, at in behind
            if at is not None and (byte == _ESCAPE or at.room is None or at.room > room)
        )
        long = row & vocabulary.longer(room)
        sure = vocabulary.longer(room + place.midway) & ~vocabulary.holding(telling)
        row &= ~long
        for token in tokens_in(long & ~sure).tolist():
            if self.after(place, token) is not None:
                bits.add(mask, token)

    def closes_within(self, place: Place, tokens: int) -> bool:
        """The text can be completed from `place` in so many tokens, its stop not counted.

        Bytes bound it, then the tokens of each rule's rest by themselves; seldom is more needed.
        """
        if place.cost is None:
            return False
        if place.cost <= tokens and self.vocabulary.spells_every_byte:
            return True
        by_rules = self._by_rules(place.best)
        if by_rules is not None and by_rules <= tokens:
            return True
        witness = self.witness(place, tokens)
        return witness is not None and len(witness) <= tokens

    def witness(self, place: Place, tokens: int = maxsize) -> list[int] | None:
        """The tokens of a shortest text that completes the one so far; None: there is none.

        The shortest in bytes, if it is of at most so many `tokens`, else in tokens.
        """
        plain = self._plain(place)
        if plain is None or len(plain) > tokens:
            return self._fewer.get(place, plain)
        return plain

    def _plain(self, place: Place) -> list[int] | None:
        """Of the fewest bytes."""
        if place not in self._witnesses:
            if len(self._witnesses) >= _WITNESSES:
                self._witnesses.clear()
            text = None if place.cost is None else self.places.completion(place)
            self._witnesses[place] = None if text is None else self.vocabulary.fewest(text)
        return self._witnesses[place]

    @cached_property
    def _fewer(self) -> dict[Place, list[int]]:
        """A way through the whole grammar in fewer tokens than its witness, by the places on it."""
        known = self._plain(self.places.start)
        most = _FEW if known is None else len(known) - 1
        steps = fewest(self.places, self.vocabulary, most)
        said = [token for _, token in steps]
        return {place: said[i:] for i, (place, _) in enumerate(steps)}

    def _by_rules(self, item: Item | None) -> int | None:
        """The tokens of a completion that spells each rule's rest by itself."""
        path: list[Item] = []
        while item is not None:
            path.append(item)
            item = item[1].best if item[1].tokens is None else None
        total = 0
        for state, callers in reversed(path):
            if state not in self._spelled:
                self._spelled[state] = self.vocabulary.fewest(self._network.way(state))
            spelled = self._spelled[state]
            if spelled is None:
                return None
            total = total if callers.tokens is None else callers.tokens
            callers.tokens = total
            total += len(spelled)
        return total
