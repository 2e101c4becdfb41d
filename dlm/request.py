"""What a caller asks, and what comes back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dlm.errors import RequestError
from dlm.grammar import Spec, ToolCall

FinishReason = Literal["stop", "length"]
_PASS = ("denoise", "guide", "settle")  # the phases of a denoising pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One generation. Exactly one of `prompt`, `messages` and `token_ids` is given.

    `prompt` is a user's message; `messages` a conversation of `{"role", "content"}`; both are
    rendered through the model's chat template. `token_ids` go to the model as they are; under a
    constraint an empty thought channel is added to a turn that has only been opened.
    Raises `RequestError` for a request that no model could serve.
    """

    prompt: str | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    token_ids: Sequence[int] | None = None
    tools: Sequence[Mapping[str, Any]] = ()  # declared to the model by the chat template
    constraint: Spec | None = None  # None: free text
    max_tokens: int = 256  # at most this many, the stop token counted
    seed: int = 0
    thinking: bool = False  # let the model reason before it answers
    thinking_budget: int | None = None  # tokens of it at most, markers included; None: what is left

    def __post_init__(self) -> None:
        given = [n for n in ("prompt", "messages", "token_ids") if getattr(self, n) is not None]
        if len(given) != 1:
            raise RequestError(
                f"give one of prompt, messages and token_ids; got {' and '.join(given) or 'none'}"
            )
        source = getattr(self, given[0])
        if len(source) == 0 or (isinstance(source, str) and not source.strip()):
            raise RequestError(f"{given[0]} is empty: there is nothing to answer")
        for i, message in enumerate(self.messages or ()):
            if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
                raise RequestError(f"messages[{i}] is no object with a role and a content")
        if not isinstance(self.max_tokens, int) or self.max_tokens < 1:
            raise RequestError(f"max_tokens is {self.max_tokens!r}: it takes at least 1")
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
            raise RequestError(f"seed is {self.seed!r}: it takes 0 to 2**63 - 1")
        budget = self.thinking_budget
        if budget is not None and (not isinstance(budget, int) or budget < 0):
            raise RequestError(f"thinking_budget is {budget!r}: it takes 0 or more tokens")
        if self.constraint is not None and not isinstance(self.constraint, Spec):
            kind = type(self.constraint).__name__
            raise RequestError(f"constraint is a {kind}: wrap a schema in JsonSchema(...)")


@dataclass(slots=True)
class Stats:
    """What one request cost."""

    denoiser_calls: int = 0  # passes over a canvas
    canvases: int = 0
    tokens: int = 0  # committed, the stop token counted
    cached: int = 0  # tokens of the prompt that another request had encoded
    repairs: int = 0  # passes in which the grammar refused the model's own choice
    pins: int = 0  # times that positions were fixed because the guess was stuck
    rollbacks: int = 0  # choices taken back: they led nowhere, or to a value that was refused
    copies: int = 0  # between host and device, but for the model's own; shared ones count for each
    fetched_rows: int = 0  # rows of logits that the constraint could not do without
    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(_PASS, 0.0)
    )  # wall-clock by phase; a pass shared by several requests counts in full for each
    compiling: float = 0.0  # seconds until its grammar was compiled; 0: it was before
    queued: float = 0.0  # seconds until it had a slot
    prefill: float = 0.0  # seconds from there to the end of the first pass over a canvas

    def spend(self, *seconds: float) -> None:
        """Add a pass, by its three phases."""
        for phase, each in zip(_PASS, seconds, strict=True):
            self.seconds[phase] += each

    @property
    def tokens_per_call(self) -> float:
        return self.tokens / max(1, self.denoiser_calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The outcome of one request.

    `text` is the answer without control tokens and reasoning. `finish_reason` is "stop" only for
    an answer that its stop token ended: under a constraint it is complete, and `parsed` is then
    its value: of JSON the data, of other kinds the text. `parsed` is None otherwise, and where
    Python cannot hold the value (an integer of over 4,300 digits, a thousand nested arrays).
    `tool_calls` are those of an answer under `Tools`, whose `text` is what it says beside them.
    """

    text: str
    reasoning: str | None
    parsed: Any
    tool_calls: tuple[ToolCall, ...]
    finish_reason: FinishReason
    token_ids: list[int]  # everything committed, stop token excluded
    prompt_tokens: int
    stats: Stats
