"""Bodies of chats and completions, and the requests they become.

The fields stand in groups, which bodies of other forms may have too: `DrawFields`, `StopFields`,
`StreamFields`, `FormatFields`, `ToolFields` and `ReasoningFields`. `admitted_tokens`,
`choice_requests` and `known_name` need no body. `python -m dlm.serving.fields` writes the fields'
table in the docs.

This module knows bodies and policies, not HTTP: the message of a `RequestError` is meant for a
response with status 400.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from secrets import randbelow
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, ConfigDict, Field, PlainValidator, TypeAdapter

from dlm.errors import RequestError
from dlm.grammar import InvalidGrammarError, Tools
from dlm.openai.answer_format import FormatFields
from dlm.openai.body import (
    REQUIRED,
    ClosedModel,
    Each,
    JsonModel,
    Several,
    Takes,
    Words,
    shown,
    validated,
)
from dlm.openai.constraint import ConstraintFields
from dlm.openai.logprobs import ChatLogprobFields, TextLogprobFields, check_numbers
from dlm.openai.messages import Messages, ReasoningFields, chat_messages
from dlm.openai.other_fields import CHAT_HINTS, Hints, RequestModel, admitted
from dlm.openai.tools import tools_refusal
from dlm.policy import Policy
from dlm.request import HOTTEST, Request

UNLIMITED = -1  # as `max_tokens`, from clients of llama.cpp and LM Studio: the server's default
COMPLETION_TOKENS = 16  # default `max_tokens` of a completion, as OpenAI has it
_SEEDS = 2**63

TokenId = Annotated[int, Takes("a token id")]
Prompt = Annotated[Words | Several[TokenId], Takes("text that is not blank, or token ids")]
ModelName = Annotated[Words, Takes("the name of a model")]
_STRICT = ConfigDict(strict=True)
_PROMPT: TypeAdapter[str | list[int]] = TypeAdapter(Prompt, config=_STRICT)
_PROMPTS: TypeAdapter[list[str | list[int]]] = TypeAdapter(Several[Prompt], config=_STRICT)


def _prompts(value: Any) -> list[str | list[int]]:
    """Return one prompt, or those of a list, as a list."""
    if isinstance(value, list) and value and type(value[0]) is not int:
        return _PROMPTS.validate_python(value)
    return [_PROMPT.validate_python(value)]


_PROMPTS_READ = PlainValidator(
    _prompts, json_schema_input_type=str | list[int] | list[str | list[int]]
)


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


_COUNTS = """up to 16 answers, and at most `--slots` plus `--max-queue`. Their seeds count up from \
`seed`, and without a `temperature` several are drawn at 1"""
_LENGTH = """by default 1,024 for a chat, or fewer if the context ends earlier, and 16 for a \
completion; -1 is 1,024 for both. Under a constraint the answer ends within them, or the request \
is refused; `finish_reason` is `length` if they made it another answer"""
_CUTS = """only the likeliest tokens are kept: `top_k` of them (0, -1: all); the fewest that \
together reach `top_p` (above 0, up to 1); those at least `min_p` times as likely as the likeliest \
(0 to 1). As in vLLM the cut comes before the sampler: entropies, draws, soft embeddings and the \
guess see the remaining tokens. It uses the model's probabilities before the schedule's \
temperature; left to right, after the temperature. It is made among the tokens that a constraint \
allows. Equally likely tokens are kept or removed together. A request with a cut and without a \
`temperature` is drawn at 1"""
_STOPS = """free text ends before them: an answer without a constraint, and the text before the \
first call of a tool. Text under a constraint ends where it is complete and ignores them"""
_STREAM = """`include_usage`: usage in the last chunk, also with `continuous_usage_stats`. \
`drafts` is our own: chunks without choices that show each canvas between two passes (see \
[Answers](#answers))"""


def given_fields(body: JsonModel, group: type[JsonModel]) -> dict[str, Any]:
    """Return the fields of `group` that a body sets."""
    values = {name: getattr(body, name) for name in group.model_fields}
    return {name: value for name, value in values.items() if value is not None}


class DrawFields(JsonModel):
    """Fields of a body about the draws of tokens. `Request` checks their ranges."""

    seed: int | None = Field(
        None,
        description="any integer, by default a random one. Left to right it counts where tokens \
are drawn (see `temperature`)",
    )
    temperature: Annotated[int | float, Takes(f"0 to {HOTTEST:g}")] | None = Field(
        None,
        description="0 to 2. On canvases, the draws of a pass are sharpened below 1, and at 0 they \
are the likeliest tokens; above 1 the model's whole schedule is hotter, and without it they are as \
the schedule says. Canvases begin from noise at any temperature: for the same answer send the same \
`seed`. Left to right, as the built-in model writes unless `--decoding` says otherwise, tokens are \
drawn at it; without it at 1 if there is a cut or `n` is over 1, and otherwise the likeliest are \
written",
    )
    top_k: int | None = Field(None, description=_CUTS)
    top_p: Annotated[int | float, Takes("more than 0, up to 1")] | None = Field(
        None, description=_CUTS
    )
    min_p: Annotated[int | float, Takes("0 to 1")] | None = Field(None, description=_CUTS)

    @property
    def draws(self) -> dict[str, Any]:
        """Fields of a `Request`."""
        return given_fields(self, DrawFields)


class StopFields(JsonModel):
    """Fields of a body that end free text."""

    stop: (
        Annotated[Each[str], Takes("a text or a list of texts"), BeforeValidator(_as_list)] | None
    ) = Field(None, description=_STOPS)
    stop_token_ids: Annotated[Each[TokenId], Takes("a list of token ids")] | None = Field(
        None, description=_STOPS
    )

    @property
    def stops(self) -> dict[str, Any]:
        """Fields of a `Request`."""
        return given_fields(self, StopFields)


class StreamOptions(ClosedModel):
    """Options of a stream. `include_obfuscation` (OpenAI) and `continuous_usage_stats` (vLLM) have
    no effect: usage comes with the last chunk."""

    include_usage: bool | None = None
    drafts: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class StreamFields(JsonModel):
    """Fields of a body about the form of a stream."""

    stream: bool | None = Field(None, description=_STREAM)
    stream_options: StreamOptions | None = Field(None, description=_STREAM)

    @property
    def options(self) -> StreamOptions:
        """Options, which only a stream may have. Raises `RequestError`."""
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options is given without stream: set stream to true")
        return self.stream_options or StreamOptions()


class AnswerFields(JsonModel):
    """Fields of a chat and a completion about their answers."""

    model: ModelName | None = Field(None, description="one of the names, else 404; may be left out")
    n: int | None = Field(None, description=_COUNTS)
    max_tokens: int | None = Field(None, description=_LENGTH)
    request_id: (
        Annotated[
            str,
            Field(pattern=r"^[\x21-\x7e]{1,128}$"),
            Takes("1 to 128 letters, digits and signs of ASCII"),
        ]
        | None
    ) = Field(None, description="becomes part of the answer's `id`")


_CALLS = "a completion calls no tools; a chat does"


class CompletionBody(
    RequestModel,
    StreamFields,
    FormatFields,
    StopFields,
    TextLogprobFields,
    DrawFields,
    AnswerFields,
):
    """Body of `/v1/completions`."""

    hints: ClassVar[Hints] = {
        **CHAT_HINTS,
        "length": "send max_tokens",
        "thinking": "a completion has no reasoning; a chat has it",
        "tools": _CALLS,
        "tool_choice": _CALLS,
    }

    prompt: Annotated[list[str | list[int]], _PROMPTS_READ] = Field(
        REQUIRED,
        description="text or token ids, or a list of either. It is continued as it is, and names \
of control tokens mean the tokens",
    )


class _ConversationBody(
    RequestModel,
    StreamFields,
    ReasoningFields,
    ConstraintFields,
    StopFields,
    ChatLogprobFields,
    DrawFields,
    AnswerFields,
):
    max_completion_tokens: int | None = Field(None, description=_LENGTH)
    include_reasoning: bool | None = Field(
        None, description="whether reasoning is sent to the client, true by default"
    )

    @property
    def budget(self) -> tuple[str, int | None]:
        """Name and value of the field that bounds an answer's tokens. The value is None if the
        field is left out or `UNLIMITED`."""
        fields = {
            "max_completion_tokens": self.max_completion_tokens,
            "max_tokens": self.max_tokens,
        }
        limits = {name: limit for name, limit in fields.items() if limit not in (None, UNLIMITED)}
        if len(set(limits.values())) > 1:
            new, old = limits.values()
            raise RequestError(
                f"max_completion_tokens is {new} and max_tokens {old}: send one of them"
            )
        return next(iter(limits.items()), ("max_tokens", None))

    def fields(self, policy: Policy) -> dict[str, Any]:
        """Return the fields of a `Request` that the body sets, but its prompt."""
        thinking, thinking_budget = self.thinking
        fields = {
            "constraint": self.spec(policy),
            "max_tokens": admitted_tokens(*self.budget, policy),
            "tools": self.declared or None,
            "thinking": thinking or None,
            "thinking_budget": thinking_budget,
            "logprobs": self.alternatives,
        }
        set_fields = {name: value for name, value in fields.items() if value is not None}
        return self.draws | self.stops | set_fields


class ChatBody(_ConversationBody):
    """Body of `/v1/chat/completions`."""

    messages: Messages = Field(
        REQUIRED,
        description="text, or parts: text, and in messages of users and results of tools images \
(`image_url`), for a model with a vision tower; sound is a 400. Tool calls and their results are \
shown to the model, and its earlier reasoning is not. Arguments that are not a JSON object are \
shown as text. Other fields of messages and parts (`id`, `metadata`, `cache_control`, \
`reasoning_details`, `thinking_blocks`, `annotations`, ...) are ignored; a misspelled name of a \
missing field is a 400",
    )


class LibraryBody(_ConversationBody):
    """Body that `request_of` reads."""

    messages: Messages | None = None
    prompt: Prompt | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Content of one body: a request for each choice, and the form of their answers."""

    requests: tuple[Request, ...]
    prompts: int = 1  # number of prompts; `requests` has equally many for each, one after another
    model: str | None = None  # None: the server's only model
    id: str | None = None  # `request_id` of the body
    stream: bool = False
    usage: bool = False  # a stream ends with the usage
    drafts: bool = False  # a stream shows canvases between passes
    tokens_field: str = "max_tokens"  # the body's name for `max_tokens` of its requests
    prompt_field: str | None = None  # that for `messages` or `prompt`; None: the same
    reasoning: bool = True  # answers contain the model's reasoning
    named: bool = False  # a certain tool must be called

    def error(self, error: RequestError) -> RequestError:
        """Return an error about one of the requests with the body's names of fields."""
        constraint, cause = self.requests[0].constraint, error.__cause__
        if isinstance(constraint, Tools) and isinstance(cause, InvalidGrammarError):
            error = tools_refusal(constraint, cause)
        message, field = str(error), error.field
        if field == "max_tokens":
            field = self.tokens_field
            message = message.replace("max_tokens", field)
        elif field in ("messages", "prompt"):
            field = self.prompt_field or field
        return error if field == error.field else error.reworded(message, field)


def request_of(body: Any, policy: Policy) -> Request:
    """Return the one request in `body`.

    `messages` is a conversation. `prompt` is a user's message, or token ids that the model gets
    unchanged. Tools are declared to the model unless `tool_choice` is "none". Fields about the
    form of the answer (`stream`, `model`) have no effect. Raises `RequestError`.
    """
    parsed = validated(LibraryBody.model_validate, admitted(body, policy))
    if parsed.n not in (None, 1):
        raise RequestError(f"n must be 1 here, got {shown(parsed.n)}")
    fields, prompt = parsed.fields(policy), parsed.prompt
    if (parsed.messages is None) is (prompt is None):
        sent = "neither" if prompt is None else "messages and prompt"
        raise RequestError(f"give messages or prompt; got {sent}")
    if parsed.messages is not None:
        fields["messages"] = chat_messages(parsed.messages)
    else:
        fields["prompt" if isinstance(prompt, str) else "token_ids"] = prompt
    return Request(**fields)


def chat_of(body: Any, policy: Policy) -> Generation:
    """Read a body of `/v1/chat/completions`. Raises `RequestError`."""
    chat = validated(ChatBody.model_validate, admitted(body, policy))
    field, tokens = chat.budget
    fields = {"max_tokens": policy.answer_tokens, "fit": tokens is None} | chat.fields(policy)
    fields["messages"] = chat_messages(chat.messages)
    return _generation(
        chat,
        choice_requests([fields], chat.n, policy),
        named=chat.choice.named is not None and bool(chat.tools),
        reasoning=chat.include_reasoning is not False,
        tokens_field=field,
    )


def completion_of(body: Any, policy: Policy) -> Generation:
    """Read a body of `/v1/completions`: a text or tokens, or a list of either, which the model
    continues without a chat template. Raises `RequestError`."""
    completion = validated(CompletionBody.model_validate, admitted(body, policy))
    fields: dict[str, Any] = {"constraint": completion.content_spec(policy)}
    fields["logprobs"] = completion.alternatives
    fields |= completion.draws | completion.stops
    if completion.max_tokens == UNLIMITED:
        fields |= {"max_tokens": policy.answer_tokens, "fit": True}
    else:
        tokens = admitted_tokens("max_tokens", completion.max_tokens, policy)
        fields["max_tokens"] = COMPLETION_TOKENS if tokens is None else tokens
    prompts = [
        fields | {"text" if isinstance(prompt, str) else "token_ids": prompt}
        for prompt in completion.prompt
    ]
    requests = choice_requests(prompts, completion.n, policy)
    return _generation(completion, requests, prompts=len(prompts))


def admitted_tokens(field: str, tokens: int | None, policy: Policy) -> int | None:
    """Return `tokens`, the value of the `field` that bounds an answer. Raises `RequestError` if the
    policy does not admit it."""
    most = policy.max_answer_tokens
    if tokens is not None and not 1 <= tokens <= most:
        right = "at least 1" if tokens < 1 else f"at most {most} here"
        raise RequestError(f"{field} must be {right}, got {shown(tokens)}", field=field)
    return tokens


def choice_requests(
    prompts: Sequence[Mapping[str, Any]], n: int | None, policy: Policy
) -> tuple[Request, ...]:
    """Make `n` requests of each prompt's fields, each with a seed of its own. Several without a
    temperature have 1, so that they differ left to right too. Raises `RequestError`."""
    count = 1 if n is None else n
    total = count * len(prompts)
    if not 1 <= total <= policy.max_choices:
        right, got = f"1 to {policy.max_choices}", shown(count)
        if len(prompts) == 1:
            raise RequestError(f"n must be {right}, got {got}")
        got = f"{len(prompts)} prompts of {got} answers each"
        raise RequestError(f"prompt must have {right} answers together, got {got}")
    seed = prompts[0].get("seed")
    first_seed = randbelow(_SEEDS) if seed is None else seed
    drawn = {"temperature": 1.0} if count > 1 else {}
    return tuple(
        Request(**{**drawn, **prompts[i // count], "seed": first_seed + i}) for i in range(total)
    )


def _generation(
    body: ChatBody | CompletionBody, requests: tuple[Request, ...], **fields: Any
) -> Generation:
    check_numbers(requests)
    return Generation(
        requests=requests,
        model=body.model,
        id=body.request_id,
        stream=body.stream or False,
        usage=body.options.include_usage or False,
        drafts=body.options.drafts or False,
        **fields,
    )


class UnknownModelError(RequestError):
    """Error for a model's name that is unknown here: an HTTP 404."""


def known_name(model: str | None, names: Sequence[str]) -> str:
    """Return the model's name for a body's field `model`: the first of `names` if it is None.

    Raises `UnknownModelError` if `model` is not among `names`.
    """
    if model is None:
        return names[0]
    if model not in names:
        raise UnknownModelError(
            f"The model {model!r:.100} does not exist here; the models are {', '.join(names)}",
            field="model",
        )
    return model
