"""Requests and their results."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any, Literal

from dlm.errors import RequestError
from dlm.grammar import InvalidGrammarError, Spec, ToolCall, Tools
from dlm.grammar.json_problems import json_problem
from dlm.grammar.specs.python_types import is_function, tool_of
from dlm.images import check_image, is_image
from dlm.logprobs import MOST_TOP, TokenLogprob

FinishReason = Literal["stop", "length"]
_SOURCES = ("prompt", "messages", "text", "token_ids")
_TEXTS = ("prompt", "text")
_MOST_STOPS = 64
_LONGEST_STOP = 256  # characters
ROLES = ("system", "developer", "user", "assistant", "tool")  # of messages
HOTTEST = 2.0  # highest temperature, as in OpenAI's API
_PASS = "denoise", "guide", "settle"  # phases of a pass: the model's, the grammar's, the decisions


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Request for one generation. Exactly one of `prompt`, `messages`, `text` and `token_ids` is
    given.

    `prompt` is a user's message, `messages` a conversation of `{"role", "content"}`; both are
    rendered by the model's chat template. `token_ids` are passed to the model as they are, and so
    is `text`, in which the names of control tokens are control tokens. Under a constraint, an empty
    thought channel is added to a turn that has just been opened. For a model with a vision tower
    the content of a user's message or of a tool's result (of the role "tool") may be a list with
    images: parts `{"type": "image", "image": ...}` with a PIL image or the bytes of a file.

    `top_k`, `top_p` and `min_p` leave the likeliest tokens of a distribution, among those that the
    constraint allows; entropies, draws and soft embeddings are then computed from these.

    Free text ends before the first text of `stop`, or at a token of `stop_token_ids`. Under `Tools`
    that is the text before the first call. Text under another constraint ends where it is complete,
    regardless of these.

    Tools are given once: `tools` alone makes the constraint `Tools(tools)`, and the tools of such a
    constraint are declared to the model. If both are given, the constraint has some of them.
    Integers may be numpy's. Raises `RequestError` for a request that no model could serve.
    """

    prompt: str | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    text: str | None = None
    token_ids: Sequence[int] | None = None
    tools: Sequence[Mapping[str, Any]] = ()  # declared to the model by the chat template
    constraint: Spec | None = None  # None: free text, or calls of `tools`
    constrained: bool = True  # False: tools are declared, but the answer is free text
    max_tokens: int = 256  # including the stop token
    fit: bool = False  # use fewer than max_tokens if they do not fit, instead of a refusal
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    seed: int | None = 0  # any integer; None: a new one for each request
    temperature: float | None = None  # 0 to 2. 0: the likeliest token is accepted, and lower values
    # come near it; 1: as scheduled; above 1 distributions are flatter and take more passes; None: 1
    # on canvases, and left to right that of the decoding, but 1 if that is 0 and a cut is given
    top_k: int = 0  # tokens that are left, and those as likely as the last one; 0, -1: all
    top_p: float = 1.0  # the likeliest tokens that together reach it are left; 1: all
    min_p: float = 0.0  # tokens are left that have this share of the highest probability; 0: all
    # 0 to 20: of the answer's tokens, and as many likeliest ones beside each; None: none
    logprobs: int | None = None
    thinking: bool = False  # let the model reason before it answers
    thinking_budget: int | None = None  # tokens, including markers; None: no limit of its own

    def __post_init__(self) -> None:
        self._make_plain()
        self._make_tools()
        sources = [name for name in _SOURCES if getattr(self, name) is not None]
        if len(sources) != 1:
            names, got = ", ".join(_SOURCES), " and ".join(sources) or "none"
            raise RequestError(f"give one of {names}; got {got}")
        source = getattr(self, sources[0])
        if isinstance(source, str) != (sources[0] in _TEXTS) or not isinstance(source, Sequence):
            right = "a text" if sources[0] in _TEXTS else "a list"
            raise RequestError(f"{sources[0]} must be {right}, got {_shown(source)}")
        if len(source) == 0 or (isinstance(source, str) and not source.strip()):
            raise RequestError(f"{sources[0]} must not be empty: there is nothing to answer")
        for i, message in enumerate(self.messages or ()):
            _check_message(f"messages[{i}]", message)
        if isinstance(self.tools, str) or not isinstance(self.tools, Sequence):
            raise RequestError(f"tools must be a list of objects, got {_shown(self.tools)}")
        for i, tool in enumerate(self.tools):
            if not isinstance(tool, Mapping):
                raise RequestError(f"tools[{i}] must be an object, got {_shown(tool)}")
        if not _is_whole(self.max_tokens) or self.max_tokens < 1:
            raise RequestError(f"max_tokens must be at least 1, got {_shown(self.max_tokens)}")
        if self.seed is not None and not _is_whole(self.seed):
            raise RequestError(f"seed must be an integer, or None, got {_shown(self.seed)}")
        self._check_sampling()
        for name in ("fit", "thinking", "constrained"):
            if not isinstance(getattr(self, name), bool):
                value = _shown(getattr(self, name))
                raise RequestError(f"{name} must be True or False, got {value}")
        if self.logprobs is not None and (
            not _is_whole(self.logprobs) or not 0 <= self.logprobs <= MOST_TOP
        ):
            value = _shown(self.logprobs)
            raise RequestError(f"logprobs must be 0 to {MOST_TOP}, or None, got {value}")
        budget = self.thinking_budget
        if budget is not None and (not _is_whole(budget) or budget < 0):
            raise RequestError(f"thinking_budget must be at least 0 tokens, got {_shown(budget)}")
        if self.constraint is not None and not isinstance(self.constraint, Spec):
            kind = type(self.constraint).__name__
            raise RequestError(
                f"constraint must be a spec, got a {kind}: wrap a schema in JsonSchema(...)"
            )
        self._check_stops()
        self._join_tools()

    @property
    def is_raw(self) -> bool:
        """Whether the caller has written the whole prompt, without a chat template."""
        return self.text is not None or self.token_ids is not None

    def _make_plain(self) -> None:
        """Convert numbers and token ids of other libraries to Python's."""
        for name in ("max_tokens", "seed", "thinking_budget", "logprobs"):
            object.__setattr__(self, name, _plain(getattr(self, name)))
        for name in ("token_ids", "stop_token_ids"):
            value = getattr(self, name)
            if not isinstance(value, Sequence) and hasattr(value, "tolist"):  # an array
                value = value.tolist()
            if isinstance(value, list | tuple) and any(type(item) is not int for item in value):
                value = [_plain(item) for item in value]
            object.__setattr__(self, name, value)

    def _make_tools(self) -> None:
        """Convert functions among `tools` to tools in OpenAI's form."""
        is_list = isinstance(self.tools, list | tuple)
        if is_list and any(map(is_function, self.tools)):
            try:
                tools = [tool_of(tool) if is_function(tool) else tool for tool in self.tools]
            except InvalidGrammarError as error:
                raise RequestError(f"tools: {error}") from error
            object.__setattr__(self, "tools", tools)

    def _join_tools(self) -> None:
        """Constrain the answer to calls of `tools`, or declare the constraint's own."""
        spec = self.constraint
        if not self.constrained and spec is not None:
            raise RequestError("constrained is False beside a constraint: leave one of them out")
        if spec is None and self.tools and self.constrained:
            try:
                spec = Tools(self.tools)
            except InvalidGrammarError as error:
                raise RequestError(f"tools: {error}") from error
            object.__setattr__(self, "constraint", spec)
        elif isinstance(spec, Tools) and not self.tools:
            object.__setattr__(self, "tools", spec.tools)
        elif isinstance(spec, Tools) and self.tools is not spec.tools:
            declared = {_name(tool): _parameters(tool) for tool in self.tools}
            for tool in spec.tools:
                name = _name(tool)
                if name not in declared:
                    raise RequestError(
                        f"tools and constraint differ: the constraint has a tool {name!r:.80}, "
                        "which is not among tools. Give tools once, in one of the two"
                    )
                if declared[name] != _parameters(tool):
                    raise RequestError(
                        f"tools and constraint differ: {name!r:.80} has other parameters in tools "
                        "than in the constraint. Give tools once, in one of the two"
                    )

    def _check_sampling(self) -> None:
        temperature = self.temperature
        fits = temperature is None or (_is_number(temperature) and 0 <= temperature <= HOTTEST)
        if not fits:
            raise RequestError(f"temperature must be 0 to {HOTTEST:g}, got {_shown(temperature)}")
        if not _is_whole(self.top_k) or self.top_k < -1:
            value = _shown(self.top_k)
            raise RequestError(f"top_k must be at least 1, or 0 or -1 for all tokens, got {value}")
        if not _is_number(self.top_p) or not 0 < self.top_p <= 1:
            raise RequestError(f"top_p must be more than 0, up to 1, got {_shown(self.top_p)}")
        if not _is_number(self.min_p) or not 0 <= self.min_p <= 1:
            raise RequestError(f"min_p must be 0 to 1, got {_shown(self.min_p)}")

    def _check_stops(self) -> None:
        for name, is_one, right in (
            ("stop", lambda stop: isinstance(stop, str), "text"),
            ("stop_token_ids", _is_whole, "token id"),
        ):
            stops = getattr(self, name)
            is_list = isinstance(stops, Sequence) and not isinstance(stops, str)
            if not is_list:
                raise RequestError(f"{name} must be a list of {right}s, got {_shown(stops)}")
            for i, stop in enumerate(stops):
                if not is_one(stop):
                    raise RequestError(f"{name}[{i}] must be a {right}, got {_shown(stop)}")
            if len(stops) > _MOST_STOPS:
                raise RequestError(
                    f"{name} must have at most {_MOST_STOPS} {right}s, got {len(stops)}"
                )
        if "" in self.stop:
            raise RequestError(
                "stop must not have an empty text: every answer would end before it began"
            )
        longest = max(map(len, self.stop), default=0)
        if longest > _LONGEST_STOP:
            raise RequestError(
                f"stop must have texts of at most {_LONGEST_STOP} characters, got {longest}"
            )


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    """Convert an integer of another library to Python's; other values stay as they are."""
    return int(value) if _is_whole(value) else value


def _name(tool: Mapping[str, Any]) -> Any:
    function = tool.get("function")
    return function.get("name") if isinstance(function, Mapping) else None


def _parameters(tool: Mapping[str, Any]) -> str:
    """Return the parameters of a tool as text; equal ones have equal texts."""
    function = tool.get("function")
    parameters = function.get("parameters") if isinstance(function, Mapping) else None
    try:
        return json.dumps(parameters or {}, sort_keys=True)
    except TypeError as error:
        raise RequestError("tools must be JSON data") from error
    except (ValueError, RecursionError) as error:
        raise RequestError(f"tools must be JSON data: {json_problem('', error)}") from error


def _shown(value: Any) -> str:
    """Return a short text of a value; only its type if it may be too deep or too long."""
    if isinstance(value, str | float | None) or (isinstance(value, int) and abs(value) < 1 << 200):
        return f"{value!r:.60}"
    return f"a {type(value).__name__}"


def _check_message(name: str, message: Any) -> None:
    """Raise `RequestError` for a message that a template cannot render or would silently leave
    out."""
    if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
        raise RequestError(f"{name} must be an object with a role and a content")
    if message["role"] not in ROLES:
        right = ", ".join(ROLES)
        raise RequestError(f"{name}.role must be one of {right}, got {_shown(message['role'])}")
    content = message["content"]
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list | tuple):
        kind = type(content).__name__
        raise RequestError(f"{name}.content must be a text or a list of parts, got a {kind}")
    for i, part in enumerate(content):
        if is_image(part):
            check_image(f"{name}.content[{i}]", part)
        elif not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            raise RequestError(
                f"{name}.content[{i}] must be a part of text or an image, got {_shown(part)}"
            )


def check_tokens(what: str, tokens: Sequence[int], vocab_size: int) -> None:
    """Raise `RequestError` for a token that is not in the vocabulary."""
    for token in tokens:
        if not isinstance(token, int) or not 0 <= token < vocab_size:
            raise RequestError(f"{what} must be 0 to {vocab_size - 1}, got {token!r}")


@dataclass(slots=True)
class Stats:
    """Costs of one request."""

    denoiser_calls: int = 0  # forward passes over a canvas, including repeated ones
    causal_calls: int = 0  # forward passes that predict the next token, left to right
    drafted: int = 0  # tokens of drafts that causal passes judged
    drafts_kept: int = 0  # of them, those that would have been written anyway
    graphed: int = 0  # passes over a canvas that were CUDA graphs
    canvases: int = 0
    tokens: int = 0  # committed, including the stop token
    cached: int = 0  # tokens of the prompt that were in the cache already
    repairs: int = 0  # passes in which the grammar refused the model's own choice
    pins: int = 0  # times that positions were fixed since the guess was stuck
    rollbacks: int = 0  # choices taken back: they led nowhere, or to a refused value
    copies: int = 0  # between host and device, not the model's own; shared ones count for each
    fetched_rows: int = 0  # rows of logits that were fetched for the constraint
    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(_PASS, 0.0)
    )  # wall-clock by phase; a shared pass counts in full for each request
    compiling: float = 0.0  # seconds until its grammar was compiled; 0: it was already
    queued: float = 0.0  # seconds until it had a slot
    prefill: float = 0.0  # seconds from then to the end of the first pass over a canvas

    def spend(self, denoise: float = 0.0, guide: float = 0.0, settle: float = 0.0) -> None:
        """Add the seconds of a pass, by phase."""
        self.seconds["denoise"] += denoise
        self.seconds["guide"] += guide
        self.seconds["settle"] += settle

    @classmethod
    def total(cls, parts: Sequence["Stats"]) -> "Stats":
        """Return the sum of several costs, with the waiting times of the first to get a slot."""
        earliest = min(parts, key=lambda part: part.queued)
        total = cls(compiling=earliest.compiling, queued=earliest.queued, prefill=earliest.prefill)
        for part in parts:
            for name in _COUNTS:
                setattr(total, name, getattr(total, name) + getattr(part, name))
            total.spend(**part.seconds)
        return total

    @property
    def calls(self) -> int:
        """Number of forward passes, without those that only encode a part of a long prompt. Left to
        right each is a causal one, and may read a canvas as well."""
        return self.causal_calls or self.denoiser_calls

    @property
    def tokens_per_call(self) -> float:
        return self.tokens / max(1, self.calls)


_COUNTS = [field.name for field in fields(Stats) if field.type is int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of one request.

    `text` is the answer without control tokens and reasoning. It is `complete` if a stop token or a
    text of `stop` ended it. Under a constraint it is then valid, and `parsed` is its value: for
    JSON the data, or an instance of the pydantic model that was given as the schema; for other
    kinds the text. `parsed` is None otherwise, and where Python cannot hold the value (an integer
    of over 4,300 digits, a thousand nested arrays). `tool_calls` are those of an answer under
    `Tools`, whose `text` is the text beside them.

    It is `squeezed` if the budget of `max_tokens` took from the model a token of the answer, or of
    the reasoning: the model chose one that the constraint allows, after which the answer would not
    have fitted. Such an answer is valid too, but not what the model would have answered with more
    tokens. `finish_reason` is "stop" if the answer is complete and not squeezed, else "length".
    """

    text: str
    reasoning: str | None
    parsed: Any
    tool_calls: tuple[ToolCall, ...]
    finish_reason: FinishReason
    complete: bool
    squeezed: bool
    token_ids: list[int]  # all committed tokens but the stop token; with the text of a `stop`
    prompt_tokens: int
    reasoning_tokens: int  # of `token_ids`, including markers
    stats: Stats
    logprobs: tuple[TokenLogprob, ...] | None = None  # of `token_ids` that are no reasoning
