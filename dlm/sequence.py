"""State of one request, as long as it lives.

`Sequence` holds its tokens, costs, refusals and randomness. `Canvas` is the canvas that the model
looks at; `Progress` is the part of it without tensors: guess, pins, bans, and whether it is
settled. Another engine that denoises canvases can use `Progress` alone. `LeftToRightState` is what
decoding from left to right keeps between two passes. At the end are the functions that choose the
token to go back to when a finished value is refused.
"""

import json
from collections import abc
from collections.abc import Collection, Mapping
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
from dlm.grammar.json_scanner import JsonScanner
from dlm.logits.sampling import generator
from dlm.models.image_tokens import EncodedImage
from dlm.request import FinishReason, Request, Result, Stats
from dlm.stream import Stream, begun_at_end

Bans = dict[int, set[int]]  # tokens, by position


@dataclass(slots=True, kw_only=True, eq=False)
class Progress:
    """Progress of one canvas, from noise to commit."""

    stats: Stats  # the request's
    pinned: list[int] = field(default_factory=list)  # leading tokens that are fixed
    barred: Bans = field(default_factory=dict)  # tokens of answers that were refused
    banned: Bans = field(default_factory=dict)  # tokens taken back: they led nowhere
    guess: list[int] | None = None  # of the last pass, if the constraint has read all of it
    stable: bool = False  # whether the last pass had the guess of the one before
    steps: int = 0  # passes
    retries: int = 0  # choices taken back
    frontier: int = -1  # the first position that the grammar has not confirmed
    waited: int = 0  # passes since the frontier moved right
    work: int = 0  # units that the grammar has spent on the unfinished pass

    def fixed(self, max_steps: int) -> Fixed:
        """Return what is fixed for the next pass; bans of tokens taken back are dropped from
        `max_steps` on."""
        last = self.steps + 1 >= max_steps
        banned = self.barred if last else self.banned | self.barred
        return Fixed(pinned=self.pinned, banned=banned, last=last)

    def settle(self, guidance: Guidance, entropy: float, config: DecodeConfig) -> bool:
        """Count the pass, fix what is stuck, and return whether the guess is ready to be committed.

        A guess is not ready while a part of it was predicted under a wrong left context. Without a
        constraint nothing is suspect, and a canvas takes at most `max_steps` passes. With one, a
        canvas of L positions takes at most `max_steps + log2(L) + 1`: from the pass `max_steps` on,
        each pins at least what the grammar is sure of, and twice as many positions as the one
        before. `entropy` is the mean over the scored positions, in nats.
        """
        guess, suspect, sampler = guidance.guess, guidance.suspect, config.sampler
        self.steps += 1
        self.work = 0
        self.stats.repairs += guidance.repaired
        self.stable = guess == self.guess
        self.guess = guess if guidance.read >= len(guess) else None
        late = self.steps - sampler.max_steps
        if suspect >= guidance.scored:
            return late >= 0 or sampler.settled(self, guidance, entropy)
        self.waited = 0 if suspect > self.frontier else self.waited + 1
        self.frontier = max(self.frontier, suspect)
        if late >= 0:
            self._pin(guess[: max(suspect, len(self.pinned) + 2**late)])
            return len(self.pinned) >= guidance.scored
        if self.waited >= config.patience and sampler.mask is None:  # else tokens stand anyway
            stuck = guidance.mass < config.lost and guidance.choice >= 0
            if stuck and self.retries < config.retries:
                self._take_back(guidance.choice, guess[guidance.choice])
            elif self.banned:  # no alternative got further
                self.banned, self.waited = {}, 0
            else:
                self._pin(guess[:suspect])
        return False

    def keep(self, accepted: list[bool], guidance: Guidance) -> None:
        """Let the leading accepted tokens of a masked canvas stand, up to a stop."""
        count = next((i for i, kept in enumerate(accepted) if not kept), len(accepted))
        count = min(max(count, len(self.pinned)), guidance.stop + 1)
        self.pinned = guidance.guess[:count]

    def _pin(self, tokens: list[int]) -> None:
        """Fix `tokens` at the beginning of the canvas."""
        self.pinned, self.banned, self.waited = tokens, {}, 0
        self.stats.pins += 1

    def _take_back(self, position: int, token: int) -> None:
        """Ban `token` at `position`, since it led nowhere; bans before it stay."""
        kept = {at: tokens for at, tokens in self.banned.items() if at < position}
        self.banned = kept | {position: self.banned.get(position, set()) | {token}}
        self.frontier, self.waited = position, 0
        self.retries += 1
        self.stats.rollbacks += 1


@dataclass(slots=True, kw_only=True, eq=False)
class Canvas(Progress):
    """Canvas of `L` positions."""

    tokens: Tensor  # [L] what the model looks at: accepted tokens, and noise or masks
    soft_embedding: Tensor | None  # [L, hidden] self-conditioning; None: the sampler carries none
    uniform: Tensor | None = None  # [L] to draw by, of a pass that is to be repeated


_DRAWN = 64  # numbers drawn at a time: on a GPU each draw is a copy


class DrawNumbers:
    """Random numbers in [0, 1) that an answer's tokens are drawn by, one for each position.

    A position keeps its number in all passes until the token that was drawn by it is refused: then
    it and all later positions get new ones. The numbers depend on the seed and on the refusals so
    far, and not on how many were requested ahead.
    """

    def __init__(self, seed: int, device: torch.device):
        self._seed, self._device, self._renewals = seed, device, 0
        self._rng, self._known = generator(seed, device), list[float]()

    def between(self, begin: int, end: int) -> list[float]:
        """Return the numbers of positions `begin` to `end`."""
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
    """State of a request that is written left to right."""

    constraint: TokenConstraint
    drafting: Constraint | None  # the same constraint over draft canvases; None: there are none
    numbers: DrawNumbers  # that tokens are drawn by
    next_tokens: NextTokens | None = None  # None: the constraint has not been queried yet
    exact: bool = False  # the next query has to be exact: the last token did not fit
    work: int = 0  # units that the grammar has spent on the unfinished query
    draft: list[int] = field(default_factory=list)  # what may come next, to be judged by a pass
    guess: list[int] = field(default_factory=list)  # of the canvas that the draft is from
    guessed_at: int | None = None  # the answer's token where `guess` begins; None: it is stale

    def commit(self, tokens: list[int]) -> None:
        self.constraint.commit(tokens)
        if self.drafting is not None:
            self.drafting.commit(tokens)

    def rollback(self, count: int) -> None:
        self.constraint.rollback(count)
        if self.drafting is not None:
            self.drafting.rollback(count)
        self.next_tokens, self.exact, self.draft, self.guessed_at = None, False, [], None


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """State of one admitted request, or of one question of a decision; `Engine.step` alone changes
    it."""

    number: int  # in all events about the request
    request: Request
    prompt: list[int]
    stream: Stream
    rng: torch.Generator  # all the randomness of the request
    images: tuple[EncodedImage, ...] = ()  # that tokens of the prompt stand for
    question: RunningQuestion | None = None  # answered from one canvas; None: a text is generated
    tokens: list[int] = field(default_factory=list)  # committed
    stats: Stats = field(default_factory=Stats)
    refused: dict[tuple[int, ...], set[int]] = field(default_factory=dict)  # by tokens before
    refusals: int = 0  # times that a finished answer was refused
    cut: bool = False  # whether a text of `stop` ended it: its last token is no stop token
    halted: bool = False  # whether a token of `stop_token_ids` ended a grammar's free text
    last_replaced: int | None = None  # index of the token that was replaced last
    attached: bool = False  # whether its prompt was looked for in the cache
    checking: Task | None = None  # the check of a finished answer
    started: float = 0.0  # time at which it began to wait for a slot, by `perf_counter`
    begun: float = 0.0  # time at which it got one
    ended: bool = False  # whether nothing is left to do
    grammar_work: int = 0  # units that its grammar has taken so far
    squeezed: bool = False  # whether its budget took a token of `tokens` from the model
    client: str = ""  # its owner: slots and passes are shared among clients
    paused: bool = False  # whether the next pass is for other requests of its client
    last_pass: int = 0  # the scheduler's number of the last pass that it was in

    constraint: Constraint = field(init=False)  # over canvases; made when the request can run
    state: LeftToRightState = field(init=False)  # of decoding left to right; made at the same time
    checked: bool = False  # whether its grammar allows more than its spec, which checks the end
    canvas: Canvas = field(init=False)  # the current one; left to right, the one of the next draft

    @property
    def most_tokens(self) -> int:
        """Maximum number of its tokens in the cache."""
        return len(self.prompt) + (0 if self.question is not None else self.request.max_tokens)

    def begin_canvas(self, tokens: Tensor, soft_embedding: Tensor | None) -> None:
        self.canvas = Canvas(tokens=tokens, soft_embedding=soft_embedding, stats=self.stats)
        self.stats.canvases += 1

    def commit(self, tokens: list[int]) -> None:
        """Append final tokens; the cache need not hold them yet."""
        self.tokens = self.tokens + tokens
        self.stats.tokens += len(tokens)

    def write(self, tokens: list[int]) -> None:
        """Commit tokens left to right, and move the constraints."""
        self.state.commit(tokens)
        self.commit(tokens)

    def token_to_replace(self, error: InvalidValueError) -> int:
        """Return the index of the token to replace in a stopped answer that was refused with
        `error`."""
        first, pieces = self._stopped_answer()
        last_replaced = None if self.last_replaced is None else self.last_replaced - first
        if error.span is not None:
            at = token_within(*error.span, last_replaced)
        else:
            at = token_to_replace(pieces, error.path, last_replaced)
        begin = self.stream.free_text(self.tokens).stop
        outside = outside_strings(pieces)
        idle = {first + i for i, piece in enumerate(pieces) if outside[i] and is_blank(piece)}
        return untried(self.tokens, first + at, begin, self.refused, idle)

    def go_back(self, at: int, kept: int) -> set[int]:
        """Go back to before token `at` of a refused answer, which must be replaced by one that
        spells something else. The first `kept` tokens stay committed. Returns the tokens that may
        not come at `at` again."""
        led, vocabulary = tuple(self.tokens[:at]), self.stream.vocabulary
        first, pieces = self._stopped_answer()
        free = first <= at < first + len(pieces) and outside_strings(pieces)[at - first]
        piece = vocabulary.pieces[self.tokens[at]]
        alike = alike_in(vocabulary.pieces, piece, free) if piece else set()
        self.refused.setdefault(led, set()).update({self.tokens[at]}, alike)
        self.tokens = self.tokens[:kept]
        self.refusals, self.last_replaced = self.refusals + 1, at
        self.stats.rollbacks += 1
        self.stats.tokens = len(self.tokens)
        return self.refused[led]

    def _stopped_answer(self) -> tuple[int, list[bytes]]:
        """Return the index of a stopped answer's first token, after the reasoning, and what each of
        its tokens spells."""
        answer = self.answer_tokens()
        pieces = [self.stream.vocabulary.pieces[token] for token in answer]
        return len(self.tokens) - 1 - len(answer), pieces

    @property
    def halts(self) -> frozenset[int]:
        """Tokens that end a grammar's free text. Empty without a grammar: then the constraint
        itself ends the text at them."""
        spec = self.request.constraint
        free = spec is not None and spec.opens_free
        return frozenset(self.request.stop_token_ids) if free else frozenset()

    @property
    def ready(self) -> bool:
        """Whether the next pass can work on it."""
        read = self.question is not None and self.question.was_read
        return self.attached and self.checking is None and not read and not self.paused

    def unencoded(self, encoded: int) -> list[int]:
        """Return the tokens of the prompt and of finished canvases after the first `encoded` of
        them."""
        return self.prompt[encoded:] + self.tokens[max(0, encoded - len(self.prompt)) :]

    def content_tokens(self, stopped: bool) -> list[int]:
        """Return all committed tokens without the stop token."""
        return self.tokens[:-1] if stopped and not self.cut else self.tokens

    def answer_tokens(self) -> list[int]:
        """Return the tokens of an answer that has stopped, without its reasoning and its stop."""
        return self.stream.split(self.content_tokens(stopped=True))[1]

    def result(self, parsed: Any, reason: FinishReason) -> Result:
        """Return the result of an answer that a stop, or its budget, has ended."""
        stopped = reason == "stop"
        tokens = self.content_tokens(stopped)
        reasoning, answer = self.stream.split(tokens)
        text = self.stream.text(answer)
        if self.cut and isinstance(parsed, Answer):
            parsed = replace(parsed, content=text or None)
        elif isinstance(parsed, Answer) and (opening := self.stream.refused_opening):
            content = parsed.content or ""
            content = content[: len(content) - begun_at_end(content, opening)]
            parsed = replace(parsed, content=content or None)
        return Result(
            text=text,
            reasoning=reasoning or None,
            parsed=parsed,
            tool_calls=parsed.tool_calls if isinstance(parsed, Answer) else (),
            finish_reason="length" if self.squeezed else reason,
            complete=stopped,
            squeezed=self.squeezed,
            token_ids=tokens,
            prompt_tokens=len(self.prompt),
            reasoning_tokens=len(tokens) - len(answer),
            stats=self.stats,
        )


_SKIP = " \t\r\n"
_BLANK = _SKIP.encode()


def token_to_replace(
    pieces: abc.Sequence[bytes], path: abc.Sequence[str | int], last_replaced: int | None
) -> int:
    """Return the index of the token to replace, of tokens that spell `pieces`. `path` leads to the
    wrong part of the JSON text; a text that is no JSON is one part. `last_replaced` is the index of
    the token that was replaced last."""
    ends, total = [], 0
    for piece in pieces:
        total += len(piece)
        ends.append(total)
    text = b"".join(pieces).decode("utf-8", "replace")
    try:
        begin, end = _span(text, path)
        whole = text[begin] not in "[{"
    except (ValueError, IndexError, RecursionError):  # for example, calls within a text
        begin, end, whole = 0, len(text), False
    start, stop = len(text[:begin].encode()), len(text[:end].encode())
    first = next((i for i, at in enumerate(ends) if at > start), 0)
    last = next((i for i, at in enumerate(ends) if at >= stop), len(ends) - 1)
    return token_within(first, last, None if whole else last_replaced)


def token_within(first: int, last: int, last_replaced: int | None) -> int:
    """Return the token to replace in a wrong part that reaches from token `first` to `last`. That
    is the last one at first, then the one before `last_replaced`, since the error may be anywhere
    in the part."""
    return last if last_replaced is None else max(first, min(last, last_replaced - 1))


def outside_strings(pieces: abc.Sequence[bytes]) -> list[bool]:
    """Return whether each token begins outside of the strings of the JSON text. White space changes
    nothing there. False for all tokens of a text that is no JSON."""
    text = b"".join(pieces)
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return [False] * len(pieces)
    outside, scanner = list[bool](), JsonScanner()
    for piece in pieces:
        outside.append(not scanner.string)
        scanner.read(piece)
    return outside


def is_blank(piece: bytes) -> bool:
    """Return whether a token spells white space of JSON and nothing else."""
    return bool(piece) and not piece.strip(_BLANK)


def alike_in(pieces: list[bytes], piece: bytes, outside: bool = False) -> set[int]:
    """Return all tokens that spell `piece`: a byte has one, and so may its character. With
    `outside`, the piece begins outside of JSON strings, where white space changes nothing. Then
    tokens that differ from it only in white space are returned too, and so are all blank ones."""
    if not outside:
        return {token for token, other in enumerate(pieces) if other == piece}
    ends_within = JsonScanner().read(piece).string
    bare = bytes.lstrip if ends_within else bytes.strip
    core = bare(piece, _BLANK)
    found = {token for token, other in enumerate(pieces) if other.isspace() and is_blank(other)}
    if core:
        holding = (token for token, other in enumerate(pieces) if core in other)
        found.update(token for token in holding if bare(pieces[token], _BLANK) == core)
    return found


def untried(
    tokens: abc.Sequence[int],
    at: int,
    begin: int,
    refused: Mapping[tuple[int, ...], Collection[int]],
    idle: Collection[int] = (),
) -> int:
    """Return `at`, or the nearest token before it, or else the last one after it, that was not
    replaced yet.

    `refused` holds replaced tokens by the tokens before them: a refused token may come again where
    the grammar allows no other. The answer is `tokens` from `begin` on, without the stop at the
    end. `idle` are the indices of tokens that change nothing, which are not worth replacing.
    """

    def is_open(i: int) -> bool:
        return i not in idle and tokens[i] not in refused.get(tuple(tokens[:i]), ())

    order = [*range(at, begin - 1, -1), *range(len(tokens) - 2, at, -1)]
    return next(filter(is_open, order), at)


def _span(text: str, path: abc.Sequence[str | int]) -> tuple[int, int]:
    """Return where the part of a JSON text begins and ends; the whole text if it has no such
    part."""
    read = json.JSONDecoder().raw_decode
    begin = _skip(text, 0)
    for step in path:
        at, index = _skip(text, begin + 1), 0
        while at < len(text) and text[at] not in "]}":
            key: str | int = index
            if text[begin] == "{":
                key, at = read(text, at)
                at = _skip(text, _skip(text, at) + 1)
            if key == step:
                break
            at, index = _skip(text, read(text, at)[1]), index + 1
            at = _skip(text, at + 1) if text[at] == "," else at
        begin = at
    return begin, read(text, begin)[1]


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SKIP:
        at += 1
    return at
