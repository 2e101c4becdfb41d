"""The progress of a canvas: its guess, its pins and bans, and when it is settled.

Knows no tensor: whoever denoises canvases elsewhere can tell by it, too, what is stuck.
"""

from dataclasses import dataclass, field

from dlm import sampling
from dlm.config import DecodeConfig
from dlm.grammar import Fixed, Guidance
from dlm.request import Stats

Bans = dict[int, set[int]]  # tokens, by position


@dataclass(slots=True, kw_only=True, eq=False)
class Progress:
    """Of one canvas, from noise to what is committed of it."""

    stats: Stats  # the request's
    pinned: list[int] = field(default_factory=list)  # leading tokens that are fixed
    barred: Bans = field(default_factory=dict)  # those of answers that were refused
    banned: Bans = field(default_factory=dict)  # those taken back: they led nowhere
    guess: list[int] | None = None  # of the last pass, as far as that was read
    steps: int = 0  # passes
    retries: int = 0  # choices taken back
    frontier: int = -1  # how far the guess has agreed with the grammar
    waited: int = 0  # passes since that moved right
    work: int = 0  # the grammar's, on the pass that it has not finished

    def fixed(self, max_steps: int) -> Fixed:
        """For the next pass; from `max_steps` on, what was taken back is not worth a detour."""
        last = self.steps + 1 >= max_steps
        banned = self.barred if last else self.banned | self.barred
        return Fixed(pinned=self.pinned, banned=banned, last=last)

    def settle(self, guidance: Guidance, entropy: float, config: DecodeConfig) -> bool:
        """Count the pass, fix what is stuck, and say whether the guess is ready.

        It is not while some of it was predicted under a wrong left context. The bound: from the
        pass `max_steps` on, each pins at least what the grammar is sure of and twice as many
        positions as the one before, so a canvas of L positions takes at most
        `max_steps + log2(L) + 1` passes. Without a constraint nothing is suspect, and it takes
        `max_steps`. `entropy` is the mean over the scored positions, in nats.
        """
        guess, suspect = guidance.guess, guidance.suspect
        self.steps += 1
        self.work = 0
        self.stats.repairs += guidance.repaired
        stable = self.guess is not None and guess[: len(self.guess)] == self.guess
        self.guess = guess[: guidance.read]
        late = self.steps - config.max_steps
        if suspect >= guidance.scored:
            return late >= 0 or sampling.settled(stable, entropy, config.confidence)
        self.waited = 0 if suspect > self.frontier else self.waited + 1
        self.frontier = max(self.frontier, suspect)
        if late >= 0:
            self._pin(guess[: max(suspect, len(self.pinned) + 2**late)])
            return len(self.pinned) >= guidance.scored
        if self.waited >= config.patience:
            lost = guidance.mass < config.lost and guidance.choice >= 0
            if lost and self.retries < config.retries:
                self._take_back(guidance.choice, guess[guidance.choice])
            elif self.banned:  # nothing that was tried instead got further
                self.banned, self.waited = {}, 0
            else:
                self._pin(guess[:suspect])
        return False

    def _pin(self, tokens: list[int]) -> None:
        """The canvas begins with `tokens`, for good."""
        self.pinned, self.banned, self.waited = tokens, {}, 0
        self.stats.pins += 1

    def _take_back(self, position: int, token: int) -> None:
        """Ban `token` at `position`, which led nowhere; what comes before it stays."""
        kept = {at: tokens for at, tokens in self.banned.items() if at < position}
        self.banned = kept | {position: self.banned.get(position, set()) | {token}}
        self.frontier, self.waited = position, 0
        self.retries += 1
        self.stats.rollbacks += 1
