"""State of one request, as long as it lives: its tokens, costs, refusals and randomness."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from dlm.canvas import Canvas, CanvasQuestion
from dlm.grammar import Answer, Constraint, InvalidValueError, Task
from dlm.left_to_right_state import LeftToRightState
from dlm.logprobs import TokenLogprob
from dlm.models.image_tokens import EncodedImage
from dlm.replacement import (
    alike_in,
    is_blank,
    outside_strings,
    token_to_replace,
    token_within,
    untried,
)
from dlm.request import FinishReason, Request, Result, Stats
from dlm.stream import Stream, begun_at_end


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
    question: CanvasQuestion | None = None  # answered from one canvas; None: a text is generated
    tokens: list[int] = field(default_factory=list)  # committed
    logprobs: list[TokenLogprob] = field(default_factory=list)  # of these, if asked for
    logprobs_sent: int = 0  # those of the answer that events have had
    stats: Stats = field(default_factory=Stats)
    refused: dict[tuple[int, ...], set[int]] = field(default_factory=dict)  # by tokens before
    refusals: int = 0  # times that a finished answer was refused
    cut: bool = False  # whether a text of `stop` ended it: its last token is no stop token
    halted: bool = False  # whether a token of `stop_token_ids` ended a grammar's free text
    last_replaced: int | None = None  # index of the token that was replaced last
    attached: bool = False  # whether its prompt was looked for in the cache
    checking: Task | None = None  # the check of a finished answer
    ahead: tuple[list[int], Task] | None = None  # a likely answer, and its check
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
        self.leave_ahead()
        self.canvas = Canvas(tokens=tokens, soft_embedding=soft_embedding, stats=self.stats)
        self.stats.canvases += 1

    def begun_check(self, answer: list[int]) -> Task | None:
        """Return the check of `answer`, if it was begun ahead."""
        if self.ahead is None or self.ahead[0] != answer:
            return None
        task, self.ahead = self.ahead[1], None
        return task

    def leave_ahead(self) -> None:
        """Leave the check that was begun ahead: its answer did not come."""
        if self.ahead is not None:
            self.ahead[1].leave()
            self.ahead = None

    def leave_checks(self) -> None:
        """Leave the checks that are under way, whose results nobody reads."""
        self.leave_ahead()
        if self.checking is not None:
            self.checking.leave()

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
        self.tokens, self.logprobs = self.tokens[:kept], self.logprobs[:kept]
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
        logprobs = None
        if self.request.logprobs is not None:
            logprobs = tuple(self.logprobs[place] for place in self.stream.answer_places(tokens))
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
            logprobs=logprobs,
            stats=self.stats,
        )
