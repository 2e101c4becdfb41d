"""What lives as long as a request: its tokens, its costs, its refusals, its randomness.

The state of one canvas: what the model looks at, and how far it has come.

The progress of a canvas: its guess, its pins and bans, and when it is settled.

Knows no tensor: whoever denoises canvases elsewhere can tell by it, too, what is stuck.

What a request that is written left to right knows of the tokens behind its last one.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from dlm.config import DecodeConfig
from dlm.decisions.running import RunningQuestion
from dlm.grammar import (
    Answer,
    Constraint,
    Fixed,
    Guidance,
    InvalidValueError,
    NextTokens,
    Task,
    TokenConstraint,
)
from dlm.logits import sampling
from dlm.logits.sampling import generator
from dlm.request import FinishReason, Request, Result, Stats
from dlm.retry import alike_in, is_blank, outside_strings, turn_within, turning_point, untried
from dlm.stream import Stream

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


@dataclass(slots=True, kw_only=True, eq=False)
class Canvas(Progress):
    """`L` positions, from noise to what is committed of them."""

    tokens: Tensor  # [L] what the model looks at: accepted tokens and noise
    soft_embedding: Tensor  # [L, hidden] self-conditioning
    uniform: Tensor | None = None  # [L] to draw by, from a pass that is to be made again


_DRAWN = 64  # numbers at a time: on a GPU each time is a copy


class DrawNumbers:
    """The numbers in [0, 1) that an answer's tokens are drawn by, by position.

    A position keeps its number, however often and in whatever pass it is drawn, until the token
    that was drawn by it is refused: then it and all later positions get new ones. They depend on
    the seed and on the refusals so far, and not on how far ahead was asked.
    """

    def __init__(self, seed: int, device: torch.device):
        self._seed, self._device, self._renewals = seed, device, 0
        self._rng, self._known = generator(seed, device), list[float]()

    def between(self, begin: int, end: int) -> list[float]:
        """Return the numbers of the positions from `begin` to `end`."""
        while len(self._known) < end:
            drawn = torch.rand(_DRAWN, generator=self._rng, device=self._device)
            self._known += drawn.tolist()
        return self._known[begin:end]

    def renew(self, begin: int) -> None:
        """Replace the numbers from position `begin` on: a token there was refused."""
        self.between(0, begin)
        del self._known[begin:]
        self._renewals += 1
        self._rng = generator(self._seed, self._device, self._renewals)


@dataclass(slots=True, kw_only=True, eq=False)
class LeftToRightState:
    """It lives as long as its request."""

    constraint: TokenConstraint
    drafting: Constraint | None  # the same over canvases that draft; None: there are none
    numbers: DrawNumbers  # that tokens are drawn by
    look: NextTokens | None = (
        None  # the constraint's, of what comes next; None: it has not looked yet
    )
    exact: bool = False  # the next look has to be: what was written last did not fit
    work: int = 0  # the grammar's, on the look that it has not finished
    draft: list[int] = field(default_factory=list)  # what may come next, to be judged by a pass
    guess: list[int] = field(default_factory=list)  # of the canvas that the draft is from
    guessed_at: int | None = None  # the token of the answer that it begins with; None: it is stale

    def commit(self, tokens: list[int]) -> None:
        self.constraint.commit(tokens)
        if self.drafting is not None:
            self.drafting.commit(tokens)

    def rollback(self, count: int) -> None:
        self.constraint.rollback(count)
        if self.drafting is not None:
            self.drafting.rollback(count)
        self.look, self.exact, self.draft, self.guessed_at = None, False, [], None


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """One admitted request, or one question of a decision. Moved by `Engine.step` alone."""

    number: int  # the engine's, for events about the request
    request: Request
    prompt: list[int]
    stream: Stream
    rng: torch.Generator  # all the randomness of the request
    asked: RunningQuestion | None = None  # one canvas answers it; None: what is asked for is a text
    tokens: list[int] = field(default_factory=list)  # committed
    stats: Stats = field(default_factory=Stats)
    refused: dict[tuple[int, ...], set[int]] = field(default_factory=dict)  # tokens, by what led up
    refusals: int = 0  # times that a finished answer was refused
    cut: bool = False  # ended by a text of `stop`: its last token is no stop token
    halted: bool = False  # ended by a token of `stop_token_ids` in text that a grammar leaves free
    turned: int | None = None  # the token that was replaced the last time
    attached: bool = False  # the cache has looked for its prompt
    checking: Task | None = None  # the value of a finished answer, while it is checked
    started: float = 0.0  # when it began to wait for a slot, by `perf_counter`
    begun: float = 0.0  # when it got one
    ended: bool = False  # nothing is left to do
    client: str = ""  # whose it is: slots and passes are shared among clients
    paused: bool = False  # the next pass is for other requests of its client
    last_pass: int = 0  # the scheduler's number of the last one that it was in

    constraint: Constraint = field(init=False)  # over canvases; made when the request can run
    writing: LeftToRightState = field(init=False)  # of decoding left to right; likewise
    checked: bool = False  # its grammar is wider than its spec: nothing is final before the end
    canvas: Canvas = field(init=False)  # begun when the request runs; left to right, it drafts

    @property
    def most_tokens(self) -> int:
        """That the cache may come to hold."""
        return len(self.prompt) + (0 if self.asked is not None else self.request.max_tokens)

    def begin_canvas(self, noise: Tensor, soft_embedding: Tensor) -> None:
        self.canvas = Canvas(tokens=noise, soft_embedding=soft_embedding, stats=self.stats)
        self.stats.canvases += 1

    def commit(self, tokens: list[int]) -> None:
        """These tokens are final, and the cache need not hold them yet."""
        self.tokens = self.tokens + tokens
        self.stats.tokens += len(tokens)

    def write(self, tokens: list[int]) -> None:
        """Commit tokens left to right, and move what constrains them."""
        self.writing.commit(tokens)
        self.commit(tokens)

    def turning_point(self, error: InvalidValueError) -> int:
        """The token of a stopped answer to replace, which was refused with `error`."""
        _, answer = self.answer(stopped=True)
        first = len(self.tokens) - 1 - len(answer)  # of the answer, after the reasoning
        turned = None if self.turned is None else self.turned - first
        pieces = [self.stream.vocabulary.pieces[token] for token in answer]
        if error.span is not None:
            at = turn_within(*error.span, turned)
        else:
            at = turning_point(pieces, error.path, turned)
        begin = self.stream.free_text(self.tokens).stop
        outside = outside_strings(pieces)
        idle = {first + i for i, piece in enumerate(pieces) if outside[i] and is_blank(piece)}
        return untried(self.tokens, first + at, begin, self.refused, idle)

    def turn_back(self, at: int, kept: int) -> set[int]:
        """The answer was refused: its token `at` becomes one that spells something else.

        The first `kept` tokens stay committed. Returns what may not come at `at` again.
        """
        led = tuple(self.tokens[:at])
        pieces, answer = self.stream.vocabulary.pieces, self.answer(stopped=True)[1]
        outside = outside_strings([pieces[token] for token in answer])
        piece, place = pieces[self.tokens[at]], at - (len(self.tokens) - 1 - len(answer))
        free = 0 <= place < len(outside) and outside[place]
        alike = alike_in(pieces, piece, free) if piece else set()
        self.refused.setdefault(led, set()).update({self.tokens[at]}, alike)
        self.tokens = self.tokens[:kept]
        self.refusals, self.turned = self.refusals + 1, at
        self.stats.rollbacks += 1
        self.stats.tokens = len(self.tokens)
        return self.refused[led]

    @property
    def halts(self) -> frozenset[int]:
        """The tokens that end free text which a grammar takes for text; without a grammar, that is
        the constraint's to see."""
        spec = self.request.constraint
        free = spec is not None and spec.opens_free
        return frozenset(self.request.stop_token_ids) if free else frozenset()

    @property
    def ready(self) -> bool:
        """A pass can go on with it."""
        read = self.asked is not None and self.asked.was_read
        return self.attached and self.checking is None and not read and not self.paused

    def unencoded(self, encoded: int) -> list[int]:
        """Tokens of the prompt and of finished canvases behind the first `encoded` of them."""
        return self.prompt[encoded:] + self.tokens[max(0, encoded - len(self.prompt)) :]

    def said(self, stopped: bool) -> list[int]:
        """All that is committed, a stop token left out."""
        return self.tokens[:-1] if stopped and not self.cut else self.tokens

    def answer(self, stopped: bool) -> tuple[str, list[int]]:
        """The text of the reasoning, and the tokens of the answer, a stop token left out."""
        return self.stream.split(self.said(stopped))

    def result(self, parsed: Any, reason: FinishReason) -> Result:
        stopped = reason == "stop"
        said = self.said(stopped)
        reasoning, answer = self.stream.split(said)
        text = self.stream.text(answer)
        if self.cut and isinstance(parsed, Answer):
            parsed = replace(parsed, content=text or None)
        return Result(
            text=text,
            reasoning=reasoning or None,
            parsed=parsed,
            tool_calls=parsed.tool_calls if isinstance(parsed, Answer) else (),
            finish_reason=reason,
            token_ids=said,
            prompt_tokens=len(self.prompt),
            reasoning_tokens=len(said) - len(answer),
            stats=self.stats,
        )
