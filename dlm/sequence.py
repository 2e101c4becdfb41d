"""What lives as long as a request: its tokens, its costs, its refusals, its randomness."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from dlm.asked import Asked
from dlm.canvas import Canvas
from dlm.grammar import Answer, Constraint, InvalidValueError, Task
from dlm.request import FinishReason, Request, Result, Stats
from dlm.retry import alike_in, is_blank, outside_strings, turn_within, turning_point, untried
from dlm.stream import Stream
from dlm.writing import Writing


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """One admitted request, or one question of a decision. Moved by `Engine.step` alone."""

    number: int  # the engine's, for events about the request
    request: Request
    prompt: list[int]
    stream: Stream
    rng: torch.Generator  # all the randomness of the request
    asked: Asked | None = None  # one canvas answers it; None: what is asked for is a text
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
    writing: Writing = field(init=False)  # of decoding left to right; likewise
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
