"""Positions of a pattern that other positions of the same state make superfluous."""

from dlm.grammar.regex.characters import bits

_MOST_CHAINS = 64  # positions of counted parts whose copies are compared


class Dominance:
    """Removal of positions whose further texts another position of the same state accepts, too.

    Without it, a count over characters that also follow it multiplies the states. A copy of a
    counted part is as good as any later one. A final position that reads itself again is as good as
    one from which only the same characters can be read. Other cases are not looked for.
    """

    def __init__(
        self,
        follow: list[int],
        ends: int,
        letters: list[int],
        copies: list[tuple[int, int, int]],
    ):
        """`letters` are the positions that read each class of characters.

        `copies` are counted parts after whose copies nothing more is needed: the first position,
        the positions in each copy, and the number of copies.
        """
        chains = sorted(
            (-number, start + offset, size)
            for start, size, number in copies
            for offset in range(min(size, _MOST_CHAINS))
        )
        self._chains = [
            sum(1 << start + copy * size for copy in range(-number))
            for number, start, size in chains[:_MOST_CHAINS]
        ]
        self._chained = 0
        for chain in self._chains:
            self._chained |= chain
        self._free = self._free_positions(follow, ends, letters)

    def reduced(self, state: int) -> int:
        """Return the positions of `state` without those that others make superfluous."""
        for position, superfluous in self._free:
            if state & position:
                state &= ~superfluous
        several = state & self._chained
        if several & (several - 1):
            for chain in self._chains:
                if (copies := state & chain) & (copies - 1):
                    state ^= copies ^ (copies & -copies)
        return state

    @staticmethod
    def _free_positions(follow: list[int], ends: int, letters: list[int]) -> list[tuple[int, int]]:
        """Return final positions that read themselves again, each with those it replaces."""
        loops = [p for p in bits(ends) if follow[p] >> p & 1][:_MOST_CHAINS]
        replaced: list[tuple[int, int]] = []
        for loop in loops:
            own = sum(1 << p for p in loops if p < loop)  # of two that are equal, the first stays
            others = 0  # positions that read a character that `loop` does not read
            for mask in letters:
                others |= 0 if mask >> loop & 1 else mask
            superfluous = ~_reaching(follow, others) & (1 << len(follow)) - 1
            replaced.append((1 << loop, superfluous & ~own & ~(1 << loop)))
        return replaced


def _reaching(follow: list[int], targets: int) -> int:
    """Return the positions from which one of `targets` may follow, at once or later."""
    reaching = 0
    while True:
        before, goals = reaching, targets | reaching
        for position in reversed(range(len(follow))):
            if follow[position] & goals:
                reaching |= 1 << position
                goals |= 1 << position
        if reaching == before:
            return reaching
