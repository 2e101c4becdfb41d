"""From the JSON body of an HTTP request to the generations that it asks for.

Knows bodies and policies, not HTTP: a `RequestError` says what a 400 should carry. A field that is
null counts as left out, as clients send it.

Which names a model goes by, and what a client is told that asks for another.
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

UNLIMITED = -1  # as `max_tokens`, of llama.cpp and LM Studio: what an answer may have by default
COMPLETION_TOKENS = 16  # of a completion that does not say how many, as OpenAI has it
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
    """What one body asks for: a request for each choice, and how they are to be told of."""

    requests: tuple[Request, ...]
    prompts: int = 1  # of which `requests` are the answers, as many of each
    model: str | None = None  # None: whichever there is
    id: str | None = None  # the client's name for it
    stream: bool = False
    usage: bool = False  # a stream ends with what it cost
    drafts: bool = False  # a stream shows canvases between passes
    tokens_field: str = "max_tokens"  # the client's name for that field of its requests
    reasoning: bool = True  # an answer tells what the model reasoned
    named: bool = False  # a certain tool must be called

    def error(self, error: RequestError) -> RequestError:
        """The error about one of the requests, by the client's names of its fields."""
        if error.field != "max_tokens" or self.tokens_field == "max_tokens":
            return error
        said = str(error).replace("max_tokens", self.tokens_field)
        return RequestError(said, field=self.tokens_field)


def request_of(body: Any, policy: Policy) -> Request:
    """The one generation that `body` asks for.

    `messages` is a conversation; `prompt` a user's message, or token ids that go to the model as
    they are. Tools are declared to the model unless `tool_choice` is "none". How a server is to
    answer (`stream`, `model`) is not read. Raises `RequestError`.
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
    """What a body of `/v1/chat/completions` asks for. Raises `RequestError`."""
    body = object_at("the body", body)
    check_fields(body, CHAT)
    if body.get("messages") is None:
        raise wrong("messages", None, "a list of messages")
    fields = _fields(body, policy)
    fields.setdefault("max_tokens", policy.answer_tokens)
    fit = _tokens_of(body)[1] is None
    named = choice_of(body.get("tool_choice")).named is not None and bool(body.get("tools"))
    shown_too = flag_at("include_reasoning", body.get("include_reasoning"))
    requests = _choices([fields | {"fit": fit}], body, policy)
    return _generation(requests, body, named=named, reasoning=shown_too is not False)


def completion_of(body: Any, policy: Policy) -> Generation:
    """What a body of `/v1/completions` asks for: a text or tokens, or several of either, which the
    model continues as they are. Raises `RequestError`."""
    body = object_at("the body", body)
    check_fields(body, COMPLETION)
    fields: dict[str, Any] = {"max_tokens": COMPLETION_TOKENS} | _fields(body, policy)
    if body.get("max_tokens") == UNLIMITED:
        fields |= {"max_tokens": policy.answer_tokens, "fit": True}
    prompt = body.get("prompt")
    several = isinstance(prompt, list) and bool(prompt) and type(prompt[0]) is not int
    prompts = []
    for i, one in enumerate(prompt if several else [prompt]):
        read = _prompt(f"prompt[{i}]" if several else "prompt", one)
        prompts.append(fields | {"text" if isinstance(read, str) else "token_ids": read})
    return _generation(_choices(prompts, body, policy), body, prompts=len(prompts))


def model_of(body: Mapping[str, Any]) -> str | None:
    model = body.get("model")
    return None if model is None else text_at("model", model, "the name of a model")


def _fields(body: Mapping[str, Any], policy: Policy) -> dict[str, Any]:
    """Of a `Request`, those that `body` says something of."""
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
    """`n` requests for each prompt, each with a seed of its own."""
    n = whole_at("n", body.get("n"))
    count = 1 if n is None else n
    if not 1 <= count * len(prompts) <= policy.max_choices:
        several = f"prompt holds {len(prompts)} prompts of {count} answers each"
        asked = several if len(prompts) > 1 else f"n is {count}"
        raise RequestError(f"{asked}: it takes 1 to {policy.max_choices} answers together")
    seed = prompts[0].get("seed")
    first = randbelow(_SEEDS) if seed is None else seed
    requests = []
    for i in range(count * len(prompts)):
        fields = prompts[i // count]
        requests.append(Request(**{**fields, "seed": first + i}))
    return tuple(requests)


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
    """`include_obfuscation` pads chunks at OpenAI, `continuous_usage_stats` counts in each chunk at
    vLLM; both are read, and chunks are as they are: usage comes with the last one."""
    if value is None:
        return {}
    if not stream:
        raise RequestError("stream_options is there without stream: set stream to true")
    options = object_at("stream_options", value)
    known = ("include_usage", "drafts", "include_obfuscation", "continuous_usage_stats")
    check_only("stream_options", options, known)
    return {name: flag_at(f"stream_options.{name}", option) for name, option in options.items()}


def _max_tokens(body: Mapping[str, Any], policy: Policy) -> int | None:
    field, asked = _tokens_of(body)
    if asked is not None and not 1 <= asked <= policy.max_answer_tokens:
        most = policy.max_answer_tokens
        right = ": it takes at least 1" if asked < 1 else f", and up to {most} are served here"
        raise RequestError(f"{field} is {shown(asked)}{right}", field=field)
    return asked


def _tokens_of(body: Mapping[str, Any]) -> tuple[str, int | None]:
    """The name and the value of the field that bounds an answer; None: it is left out, or
    `UNLIMITED`."""
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
    """Return a number. `right` names the range, which `Request` checks."""
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
    """No model goes by that name: an HTTP 404."""


def known_name(asked: str | None, names: Sequence[str]) -> str:
    """The name that the client knows the model by: the first, if it asks for none.

    Raises `UnknownModelError`.
    """
    if asked is None:
        return names[0]
    if asked not in names:
        raise UnknownModelError(
            f"The model {asked!r:.100} does not exist here: it takes {', '.join(names)}",
            field="model",
        )
    return asked
