"""Events of `Engine.step`: drafts that may change, text that cannot, and ends."""

from dataclasses import dataclass, field
from typing import Any

from dlm.errors import DlmError
from dlm.logprobs import TokenLogprob
from dlm.request import Result, Stats


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Canvas between two passes: `L` positions. An answer that is drafted has another one after
    each pass: its leading positions are the tokens that the pass wrote."""

    request: int
    step: int  # passes over this canvas so far
    committed: int  # tokens of the answer before the canvas, with those of reasoning and calls
    entropy: float  # mean nats per scored position
    tokens: list[int]  # [L] the guess
    accepted: list[bool]  # [L] whether it is kept on the canvas; the others are noise or masks
    masked: list[bool]  # [L] whether the canvas has a mask there; nowhere on a noisy canvas
    pinned: int  # number of leading positions that are fixed
    suspect: int  # the first position predicted under a wrong left context; L: none
    passes: int  # over all canvases of the request so far
    repairs: int  # those in which the grammar refused the model's own choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """Final tokens and text: pinned on a canvas, or committed. They follow those of earlier events.
    `text` and `reasoning` hold whole characters, so they may hold less than `tokens` do."""

    request: int
    tokens: list[int]  # including markers and the stop token
    answer: list[int]  # tokens of the answer, without reasoning; they may come later than `tokens`
    text: str  # of the answer
    reasoning: str
    # Of tokens of the answer, neither of reasoning nor its stop, if the request asks for them. They
    # may come later than their tokens, and end with the answer.
    logprobs: list[TokenLogprob] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    request: int
    result: Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """End of a request by an error; other requests are not affected."""

    request: int
    error: DlmError


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """End of a decision: all its questions are answered."""

    request: int
    answers: list[Any]  # each a `QuestionAnswer`, in the order of the questions
    stats: Stats  # of all questions together


End = Finished | Decided | Failed
"""Last event of a request or of a decision."""

Event = Draft | Committed | End

StreamEvent = Draft | Committed | Finished
"""Event of a streamed request: `Failed` is raised instead, and `Decided` is for decisions."""
