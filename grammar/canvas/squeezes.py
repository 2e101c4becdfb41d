"""Tokens that a budget took from a model: its own choices, which only a larger budget allows.

A canvas is read several times before it is committed, and a pass sees the tokens that replaced
earlier choices: it may come to choose them itself. So each choice is kept, with the tokens before
it, until the canvas is committed. It counts if these were committed, and another token after them.

The tokens before may change in later passes, while the token that replaced a choice stays: the
model saw it. Such a choice counts too, if the budget refuses it after the committed tokens as well.

`Squeezes` knows no grammar and no model.
"""

from collections.abc import Callable, Collection, Mapping, Sequence


class Squeezes:
    """The choices that a request's budget refused."""

    def __init__(self) -> None:
        self._noted: set[tuple[tuple[int, ...], int]] = set()  # the canvas's tokens before, choice
        self._ends: set[tuple[int, ...]] = set()  # the tokens before those where the text ends
        # By position in the canvas and the token that replaced a choice there: the last choice.
        self._replaced: dict[tuple[int, int], int] = {}
        self._committed: list[int] = []  # positions in the answer

    def __bool__(self) -> bool:
        """Whether a token that was committed stands in the place of a refused one."""
        return bool(self._committed)

    def note(self, before: Sequence[int], token: int, ends: bool = False) -> None:
        """Note that `token` was refused after the canvas's tokens `before`.

        If `ends`, the text ends there from now on.
        """
        prefix = tuple(before)
        self._noted.add((prefix, token))
        if ends:
            self._ends.add(prefix)

    def note_replacement(self, position: int, token: int, replacement: int) -> None:
        """Note that `replacement` stands at the canvas's `position` in the place of `token`."""
        self._replaced[position, replacement] = token

    def ends_after(self, before: Sequence[int]) -> bool:
        """Whether the text ends after the canvas's tokens `before`."""
        return bool(self._ends) and tuple(before) in self._ends

    @property
    def ends(self) -> frozenset[int]:
        """The positions of the canvas at which the text ends, after some tokens before them."""
        return frozenset(map(len, self._ends))

    def note_bans(self, before: Sequence[int], banned: Mapping[int, Collection[int]]) -> None:
        """Note those of the tokens `before` that are `banned`, if a choice after them was refused:
        they were taken back since the likely tokens after them did not fit the budget."""
        prefix = tuple(before)
        if any(noted == prefix for noted, _ in self._noted):
            for position, tokens in banned.items():
                if position < len(prefix) and prefix[position] in tokens:
                    self.note(prefix[:position], prefix[position])

    def commit(
        self, begin: int, tokens: Sequence[int], refuses: Callable[[int, int], bool]
    ) -> None:
        """Keep what counts among the canvas's `tokens`, the first of which is the answer's token
        `begin`. The next canvas begins.

        `refuses(position, token)` is whether the budget alone refuses `token` at the canvas's
        `position`, after the committed tokens before it.
        """
        text = tuple(tokens)
        for prefix, token in self._noted:
            position = len(prefix)
            if position < len(text) and text[:position] == prefix and text[position] != token:
                self._committed.append(begin + position)
        stayed = [
            (position, token)
            for (position, replacement), token in self._replaced.items()
            if text[position : position + 1] == (replacement,)
            and begin + position not in self._committed
        ]
        self._committed += [begin + at for at, token in sorted(stayed) if refuses(at, token)]
        self.begin_canvas()

    def begin_canvas(self) -> None:
        """Forget what was noted on the canvas."""
        self._noted.clear()
        self._ends.clear()
        self._replaced.clear()

    def rollback(self, position: int) -> None:
        """Forget what was committed from the answer's `position` on."""
        self._committed = [at for at in self._committed if at < position]
        self.begin_canvas()
