"""Places of one text: what holds after each of its tokens.

They are stored in columns. A container for each token would live as long as its request, and the
collector of garbage would visit all of them.
"""

from collections.abc import Sequence

from dlm.grammar.parse.keys import Keys
from dlm.grammar.parse.prefix import Prefix
from dlm.grammar.parse.states import State
from dlm.grammar.vocabulary.spelling import common_prefix

Place = tuple[Prefix, State, Keys | None]


class TextPlaces:
    """The places of a text, from where it begins, which has the token -1."""

    def __init__(self, prefix: Prefix, state: State, keys: Keys | None):
        self.tokens = [-1]
        self._prefixes, self._states, self._keys = [prefix], [state], [keys]

    def __getitem__(self, number: int) -> Place:
        return self._prefixes[number], self._states[number], self._keys[number]

    def common(self, begin: int, tokens: Sequence[int]) -> int:
        """Return how many of `tokens` are those of the places from `begin` on."""
        return common_prefix(self.tokens[begin : begin + len(tokens)], tokens)

    def add(self, token: int, place: Place) -> None:
        """Add the place after `token`."""
        prefix, state, keys = place
        self.tokens.append(token)
        self._prefixes.append(prefix)
        self._states.append(state)
        self._keys.append(keys)

    def extend(
        self,
        tokens: Sequence[int],
        prefixes: Sequence[Prefix],
        states: Sequence[State],
        keys: Sequence[Keys | None],
    ) -> None:
        """Add the places after `tokens`."""
        self.tokens += tokens
        self._prefixes += prefixes
        self._states += states
        self._keys += keys

    def columns(self, begin: int) -> tuple[list[int], list[Prefix], list[State], list[Keys | None]]:
        """Return the places from `begin` on, as `extend` takes them."""
        kept = slice(begin, None)
        return self.tokens[kept], self._prefixes[kept], self._states[kept], self._keys[kept]

    def drop(self, begin: int) -> None:
        """Remove the places from `begin` on."""
        del self.tokens[begin:], self._prefixes[begin:], self._states[begin:], self._keys[begin:]
