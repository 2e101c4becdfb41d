"""Reader of JSON bodies: from the body of a chat or a completion to its requests.

This module knows bodies and policies, not HTTP: the message of a `RequestError` is meant for a
response with status 400. A field that is null counts as left out, as clients send it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from secrets import randbelow
from typing import Any

from dlm.errors import RequestError
from dlm.openai.body import (
    check_fields,
    check_only,
    flag_at,
    object_at,
    shown,
    text_at,
    whole_at,
    wrong,
)
from dlm.openai.constraint import constraint_of
from dlm.openai.messages import messages_of, thinking_of
from dlm.openai.tools import choice_of, declared
from dlm.policy import Policy
from dlm.request import HOTTEST, Request

UNLIMITED = -1  # as `max_tokens`, from clients of llama.cpp and LM Studio: the server's default
COMPLETION_TOKENS = 16  # default `max_tokens` of a completion, as OpenAI has it
_SEEDS = 2**63
_ID = re.compile(r"[\x21-\x7e]{1,128}")

_COMMON = (
    "model n seed stop stop_token_ids max_tokens temperature top_k top_p min_p stream "
    "stream_options request_id response_format structured_outputs"
).split()
CHAT = (
    "messages max_completion_tokens tools tool_choice parallel_tool_calls reasoning_effort "
    "thinking_token_budget include_reasoning chat_template_kwargs"
).split() + _COMMON
COMPLETION = ["prompt", *_COMMON]
TOKENIZE = ("model", "prompt", "return_token_strs")
TOKENIZE_CHAT = ("model", "messages", "tools", "chat_template_kwargs", "return_token_strs")
DETOKENIZE = ("model", "tokens")


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
    reasoning: bool = True  # answers contain the model's reasoning
    named: bool = False  # a certain tool must be called

    def error(self, error: RequestError) -> RequestError:
        """Return an error about one of the requests with the body's names of fields."""
        if error.field != "max_tokens" or self.tokens_field == "max_tokens":
            return error
        message = str(error).replace("max_tokens", self.tokens_field)
        return RequestError(message, field=self.tokens_field)


def request_of(body: Any, policy: Policy) -> Request:
    """Return the one request in `body`.

    `messages` is a conversation. `prompt` is a user's message, or token ids that the model gets
    unchanged. Tools are declared to the model unless `tool_choice` is "none". Fields about the
    form of the answer (`stream`, `model`) are not read. Raises `RequestError`.
    """
    body = object_at("the body", body)
    check_fields(body, [*CHAT, "prompt"])
    if body.get("n") not in (None, 1):
        raise RequestError(f"n is {shown(body['n'])}: it takes 1 here")
    given = [name for name in ("messages", "prompt") if body.get(name) is not None]
    if len(given) != 1:
        raise RequestError(f"give messages or prompt; got {' and '.join(given) or 'neither'}")
    fields = _fields(body, policy)
    if (prompt := body.get("prompt")) is not None:
        fields["prompt" if isinstance(prompt, str) else "token_ids"] = _prompt("prompt", prompt)
    return Request(**fields)


def chat_of(body: Any, policy: Policy) -> Generation:
    """Read a body of `/v1/chat/completions`. Raises `RequestError`."""
    body = object_at("the body", body)
    check_fields(body, CHAT)
    if body.get("messages") is None:
        raise wrong("messages", None, "a list of messages")
    fields = _fields(body, policy)
    fields.setdefault("max_tokens", policy.answer_tokens)
    fit = _tokens_of(body)[1] is None
    named = choice_of(body.get("tool_choice")).named is not None and bool(body.get("tools"))
    reasoning = flag_at("include_reasoning", body.get("include_reasoning")) is not False
    requests = _choices([fields | {"fit": fit}], body, policy)
    return _generation(requests, body, named=named, reasoning=reasoning)


def completion_of(body: Any, policy: Policy) -> Generation:
    """Read a body of `/v1/completions`: a text or tokens, or a list of either, which the model
    continues without a chat template. Raises `RequestError`."""
    body = object_at("the body", body)
    check_fields(body, COMPLETION)
    fields: dict[str, Any] = {"max_tokens": COMPLETION_TOKENS} | _fields(body, policy)
    if body.get("max_tokens") == UNLIMITED:
        fields |= {"max_tokens": policy.answer_tokens, "fit": True}
    prompt = body.get("prompt")
    several = isinstance(prompt, list) and bool(prompt) and type(prompt[0]) is not int
    prompts = []
    for i, value in enumerate(prompt if several else [prompt]):
        read = _prompt(f"prompt[{i}]" if several else "prompt", value)
        prompts.append(fields | {"text" if isinstance(read, str) else "token_ids": read})
    return _generation(_choices(prompts, body, policy), body, prompts=len(prompts))


def model_of(body: Mapping[str, Any]) -> str | None:
    model = body.get("model")
    return None if model is None else text_at("model", model, "the name of a model")


def _fields(body: Mapping[str, Any], policy: Policy) -> dict[str, Any]:
    """Return the fields of a `Request` that `body` sets."""
    constraint = constraint_of(body, policy)
    thinking, budget = thinking_of(body)
    fields: dict[str, Any] = {
        "constraint": constraint,
        "max_tokens": _max_tokens(body, policy),
        "seed": whole_at("seed", body.get("seed")),
        "temperature": _number_at("temperature", body.get("temperature"), f"0 to {HOTTEST:g}"),
        "top_k": whole_at("top_k", body.get("top_k")),
        "top_p": _number_at("top_p", body.get("top_p"), "more than 0, up to 1"),
        "min_p": _number_at("min_p", body.get("min_p"), "0 to 1"),
        "stop": _stop(body.get("stop")),
        "stop_token_ids": body.get("stop_token_ids"),
        "tools": declared(body) or None,
        "thinking": thinking or None,
        "thinking_budget": budget,
    }
    if body.get("messages") is not None:
        fields["messages"] = messages_of(body["messages"])
    return {name: value for name, value in fields.items() if value is not None}


def _choices(
    prompts: list[dict[str, Any]], body: Mapping[str, Any], policy: Policy
) -> tuple[Request, ...]:
    """Make `n` requests for each prompt, each with a seed of its own."""
    n = whole_at("n", body.get("n"))
    count = 1 if n is None else n
    total = count * len(prompts)
    if not 1 <= total <= policy.max_choices:
        several = f"prompt holds {len(prompts)} prompts of {count} answers each"
        found = several if len(prompts) > 1 else f"n is {count}"
        raise RequestError(f"{found}: it takes 1 to {policy.max_choices} answers together")
    seed = prompts[0].get("seed")
    first = randbelow(_SEEDS) if seed is None else seed
    return tuple(Request(**{**prompts[i // count], "seed": first + i}) for i in range(total))


def _generation(
    requests: tuple[Request, ...],
    body: Mapping[str, Any],
    *,
    prompts: int = 1,
    named: bool = False,
    reasoning: bool = True,
) -> Generation:
    stream = flag_at("stream", body.get("stream")) or False
    options = _stream_options(body.get("stream_options"), stream)
    id = body.get("request_id")
    if id is not None and not (isinstance(id, str) and _ID.fullmatch(id)):
        raise wrong("request_id", id, "1 to 128 letters, digits and signs of ASCII")
    return Generation(
        requests=requests,
        prompts=prompts,
        model=model_of(body),
        id=id,
        stream=stream,
        usage=options.get("include_usage") or False,
        drafts=options.get("drafts") or False,
        named=named,
        reasoning=reasoning,
        tokens_field=_tokens_of(body)[0],
    )


def _stream_options(value: Any, stream: bool) -> dict[str, bool | None]:
    """Return the flags of `stream_options`. `include_obfuscation` (OpenAI) and
    `continuous_usage_stats` (vLLM) are accepted without effect: usage comes with the last chunk."""
    if value is None:
        return {}
    if not stream:
        raise RequestError("stream_options is given without stream: set stream to true")
    options = object_at("stream_options", value)
    known = ("include_usage", "drafts", "include_obfuscation", "continuous_usage_stats")
    check_only("stream_options", options, known)
    return {name: flag_at(f"stream_options.{name}", option) for name, option in options.items()}


def _max_tokens(body: Mapping[str, Any], policy: Policy) -> int | None:
    field, tokens = _tokens_of(body)
    most = policy.max_answer_tokens
    if tokens is not None and not 1 <= tokens <= most:
        right = ": it takes at least 1" if tokens < 1 else f", and up to {most} are served here"
        raise RequestError(f"{field} is {shown(tokens)}{right}", field=field)
    return tokens


def _tokens_of(body: Mapping[str, Any]) -> tuple[str, int | None]:
    """Return the name and the value of the field that bounds an answer's tokens. The value is None
    if the field is left out or `UNLIMITED`."""
    given = {
        field: tokens
        for field in ("max_completion_tokens", "max_tokens")
        if (tokens := whole_at(field, body.get(field))) not in (None, UNLIMITED)
    }
    if len(set(given.values())) > 1:
        new, old = given.values()
        raise RequestError(f"max_completion_tokens is {new} and max_tokens {old}: send one of them")
    return next(iter(given.items()), ("max_tokens", None))


def _number_at(field: str, value: Any, right: str) -> float | None:
    """Return a number or None. `right` names the range, which only `Request` checks."""
    if value is not None and type(value) not in (int, float):
        raise wrong(field, value, right)
    return value


def _stop(value: Any) -> list[str] | None:
    if not isinstance(value, str | list | None):
        raise wrong("stop", value, "a text or a list of texts")
    return [value] if isinstance(value, str) else value


def _prompt(field: str, value: Any) -> str | list[int]:
    if isinstance(value, str):
        return text_at(field, value, "text that is not blank, or token ids")
    if not isinstance(value, list) or not value:
        raise wrong(field, value, "text or token ids")
    for i, token in enumerate(value):
        if type(token) is not int:
            raise wrong(f"{field}[{i}]", token, "a token id")
    return value


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
            f"The model {model!r:.100} does not exist here: it takes {', '.join(names)}",
            field="model",
        )
    return model
