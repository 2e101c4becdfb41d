"""What `Engine.step` tells of: drafts that may change, text that cannot, and ends."""

from dataclasses import dataclass

from dlm.decisions.questions import QuestionAnswer
from dlm.errors import DlmError
from dlm.request import Result, Stats


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A canvas between two passes: `L` positions."""

    request: int
    step: int  # passes over this canvas so far
    entropy: float  # mean nats a scored position
    tokens: list[int]  # [L] the guess
    accepted: list[bool]  # [L] kept on the canvas; the others are noise
    pinned: int  # leading positions that the constraint has fixed
    suspect: int  # the first position predicted under a wrong left context; L: none
    passes: int  # over all canvases of the request so far
    repairs: int  # of them, those in which the grammar refused the model's own choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """What is final: pinned on a canvas, or committed. It follows the request's earlier events.

    `text` and `reasoning` hold whole characters, so they may lag behind `tokens`.
    """

    request: int
    tokens: list[int]  # markers and the stop token among them
    text: str  # of the answer
    reasoning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    request: int
    result: Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """This request cannot go on; the others are not concerned."""

    request: int
    error: DlmError


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """All questions of a decision are answered."""

    request: int
    answers: list[QuestionAnswer]  # in the order of the questions
    stats: Stats  # of all questions together


End = Finished | Decided | Failed
"""The last event of a request, or of a decision."""

Event = Draft | Committed | End
