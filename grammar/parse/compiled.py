"""A compiled grammar, and what is learnt of its states as requests pass them.

It is shared by the requests that use the grammar. Knows tokens, but no request and no canvas.
"""

from collections.abc import Callable
from functools import cached_property
from sys import maxsize

import numpy as np

from dlm.grammar.masks.bits import packed
from dlm.grammar.masks.table import Mask, Masks
from dlm.grammar.parse.allowed import Allowed
from dlm.grammar.parse.exploration import Exploration
from dlm.grammar.parse.fewest import fewest
from dlm.grammar.parse.fresh import leaves_a_key
from dlm.grammar.parse.keys import Keys
from dlm.grammar.parse.meter import Meter
from dlm.grammar.parse.network import Network
from dlm.grammar.parse.parser import Parser
from dlm.grammar.parse.state import Item, State, Thread
from dlm.grammar.parse.within import Terminals
from dlm.grammar.vocabulary import Vocabulary

_EDGE_BYTES, _STATE_BYTES = 200, 1500  # of Python objects, roughly
_COMPLETIONS = 4096  # that are remembered
_FARTHEST = 1 << 16  # states of which it is remembered how far a token may lead from the end
_SPELLED = 2048  # bytes of a completion that is spelled just to count its tokens
BEGUN = 64  # bytes that are spelled of one that is known to fit
_DOUBTFUL = 256  # tokens that are looked at one by one
_FEW = 32  # tokens of a text that is looked for where none is known


class Compiled:
    """Not for several threads at once."""

    def __init__(
        self,
        network: Network,
        vocabulary: Vocabulary,
        terminals: Terminals,
        checked: bool = False,
    ):
        """`checked`: it is wider than what it was made of, and a finished value is to be checked.

        Raises `GrammarError` for a grammar whose first state is too large.
        """
        self.vocabulary, self.meter, self.checked = vocabulary, Meter(), checked
        self.parser = Parser(network, terminals.scanner, self.meter)
        self.masks = Masks(len(vocabulary))
        self._allowed = Allowed(self.parser, vocabulary, terminals, self.masks, self.meter)
        self.extra_bytes = 0  # of what others make of it, and keep as long as it is there
        self._network = network
        self.free_keys = network.free_keys  # the text is JSON, and no key may come twice
        self.few_keys = network.few_keys  # and there may be no other
        self._spelled: dict[int, int | None] = {}  # the tokens of a state's rest, if any
        self._completions: dict[State | tuple[State, Keys], list[int] | None] = {}
        self._begun: dict[State, list[int] | None] = {}  # the first tokens of those
        self._farthest: dict[State, int] = {}  # bytes to the end behind any token that may follow

    @property
    def nbytes(self) -> int:
        """About what it takes in memory by now."""
        learnt = _STATE_BYTES * len(self.parser) + self.masks.nbytes
        return _EDGE_BYTES * len(self._network.edges) + learnt + self.extra_bytes

    def after(self, state: State, token: int) -> State | None:
        """The state behind a token that is no stop; None where the grammar refuses it."""
        return self.parser.after(state, token, self.vocabulary.pieces[token])

    def keys_after(self, onward: State, keys: Keys, piece: bytes) -> Keys | None:
        """The keys behind `piece`, which leads to `onward`; None where one comes twice, or where no
        key is left but those that are there."""
        found = keys.after(piece)
        if found is None or not self.few_keys:
            return found
        return found if leaves_a_key(self.parser, onward, found, self.meter) else None

    def suspects(self, keys: Keys) -> set[int]:
        """All tokens behind which there are no `keys_after`, and perhaps some more."""
        vocabulary = self.vocabulary
        if not self.few_keys:
            return keys.suspects(vocabulary.quoted)
        return keys.dangers(vocabulary.quoted).union(*map(vocabulary.beginnings, keys.rivals))

    def mask(self, state: State) -> Mask:
        """The tokens that may follow at `state`, stops where the text may end."""
        return self._allowed.mask(state)

    def exploration(self) -> Exploration:
        """Of its terminals: what fills their part of the masks."""
        return Exploration(self._network, self._allowed.tokens, self.meter)

    def moves(self, state: State) -> tuple[np.ndarray, np.ndarray, list[State]]:
        """The tokens that may follow at `state`, stops left out, and where each of them leads:
        which of some states, among which others may be."""
        return self._allowed.moves(state)

    def known_mask(self, state: State, keys: Keys | None) -> Mask | None:
        """The mask where an object has `keys`, if a matcher has asked for it before."""
        known = self.masks.known
        mask = known.get(state)
        return known.get((mask, keys)) if keys and keys.doubtful else mask

    def closing(self, state: State, tokens: int, fits: Callable[[int], bool]) -> np.ndarray | None:
        """The tokens behind which the text can be completed in so many more; None: all may follow.

        As packed bits. Of tokens behind which bytes do not bound it, a few are asked for: `fits`.
        """
        if self._farthest.get(state, maxsize) <= tokens:
            return None
        found, costs, all_end = self._allowed.costs(state)
        sure = costs <= tokens if self.vocabulary.spells_every_byte else costs < 0
        if sure.all() and all_end:
            if len(self._farthest) >= _FARTHEST:
                self._farthest.clear()
            self._farthest[state] = int(costs.max(initial=0))
            return None
        members = np.zeros(len(self.vocabulary), dtype=bool)
        members[found[sure]] = True
        order = np.argsort(costs[~sure], kind="stable")[:_DOUBTFUL]
        few = np.cumsum(costs[~sure][order]) <= 8 * _SPELLED
        for token in found[~sure][order][few].tolist():
            members[token] = fits(token)
        return packed(members)

    def closes_within(self, state: State, tokens: int) -> bool:
        """The text can be completed in so many tokens, its stop not counted.

        Bytes bound it, then the tokens of each rule's rest by themselves; seldom is more needed.
        What takes more than `_SPELLED` bytes is not spelled: it wants as many tokens as bytes.
        """
        told = self.bytes_tell(state, tokens, state.cost or 0)
        if told is not None:
            return told
        by_rules = self._by_rules(state)
        if by_rules is not None and by_rules <= tokens:
            return True
        shortest = self.shortest_completion(state, tokens)
        return shortest is not None and len(shortest) <= tokens

    def bytes_tell(self, state: State, tokens: int, most: int) -> bool | None:
        """The same by the bytes that it takes, of at most so many tokens; None: they do not tell.

        What is too long to be spelled is taken not to fit.
        """
        if state.cost is None or self.least_tokens(state) > tokens:
            return False
        if most <= tokens and self.vocabulary.spells_every_byte:
            return True
        return None if self.spells(state) else False

    def shortest_completion(self, state: State, tokens: int = maxsize) -> list[int] | None:
        """The tokens of a shortest text to the end, its stop not counted; None: there is none.

        The shortest in bytes, if it is of at most so many `tokens`, else in tokens.
        """
        plain = self._of_fewest_bytes(state)
        if plain is None or len(plain) > tokens:
            return self._of_fewest_tokens.get(state, plain)
        return plain

    def begun(self, state: State) -> list[int] | None:
        """The first tokens, or all, of the shortest text in bytes; None: it cannot be spelled."""
        if state not in self._begun:
            if len(self._begun) >= _COMPLETIONS:
                self._begun.clear()
            self._begun[state] = self.vocabulary.fewest(self.parser.completion(state, BEGUN))
        return self._begun[state]

    def spells(self, state: State) -> bool:
        """A shortest completion is not too long to be spelled to its end."""
        return state.cost is None or state.cost <= _SPELLED

    def least_tokens(self, state: State) -> int:
        """No completion takes fewer tokens: each is at most as long as the longest one."""
        return -(-(state.cost or 0) // max(1, self.vocabulary.longest))

    def remembered(
        self, key: State | tuple[State, Keys], spell: Callable[[], list[int] | None]
    ) -> list[int] | None:
        """A completion, spelled when it is first asked for: a look that is cut short goes on."""
        if key not in self._completions:
            if len(self._completions) >= _COMPLETIONS:
                self._completions.clear()
            self._completions[key] = spell()
        return self._completions[key]

    def _of_fewest_bytes(self, state: State) -> list[int] | None:
        return self.remembered(state, lambda: self._spell(state))

    def _spell(self, state: State) -> list[int] | None:
        if state.cost is None:
            return None
        self.meter.spend(1 + state.cost)
        return self.vocabulary.fewest(self.parser.completion(state, maxsize))

    @cached_property
    def _of_fewest_tokens(self) -> dict[State, list[int]]:
        """A way through the whole grammar in fewer tokens than the shortest text's, by state."""
        start = self.parser.start
        known = self._of_fewest_bytes(start) if self.spells(start) else None
        most = _FEW if known is None else len(known) - 1
        steps = fewest(self.parser, self.vocabulary, most)
        said = [token for _, token in steps]
        return {state: said[i:] for i, (state, _) in enumerate(steps)}

    def _by_rules(self, state: State) -> int | None:
        """The tokens of a completion that spells each rule's rest by itself."""
        best, total = state.best, 0
        if isinstance(best, Thread):
            scanner = self.parser.scanners[best.terminal]
            begun = self.vocabulary.fewest(
                [scanner.completion(best.at, best.needed, best.remaining)]
            )
            if begun is None:
                return None
            best, total = best.behind, len(begun)
        path: list[Item] = []
        while best is not None:
            path.append(best)
            best = best.stack.best if best.stack.tokens is None else None
        rest = 0
        for item in reversed(path):
            if item.state not in self._spelled:
                spelled = self.vocabulary.fewest(self.parser.rest(item, maxsize))
                self._spelled[item.state] = None if spelled is None else len(spelled)
            own = self._spelled[item.state]
            if own is None:
                return None
            rest = rest if item.stack.tokens is None else item.stack.tokens
            item.stack.tokens = rest
            rest += own
        return total + rest
