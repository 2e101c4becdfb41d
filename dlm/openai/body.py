"""Reads of a JSON body that tell a client what was found, and what would have been right.

Knows JSON's types, and no field.

From what a field says to a spec, within the limits of a policy.

JSON that clients send, read only if that cannot take long.

Python's interpreter does nothing else while it reads one text: not a step of anybody's request.
How long it takes goes by the values and their keys, far more than by the length.

Fields of a body that are read for what they are: those without an effect, and the unknown.

A field that would change what an ordinary server answers, and changes nothing here, is refused
unless its value asks for nothing. So nobody is given less than was asked for without being told.
"""

import json
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from typing import Any

from dlm.errors import RequestError
from dlm.grammar import InvalidGrammarError, Spec
from dlm.policy import Policy


def object_at(field: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong(field, value, "an object")
    return value


def list_at(field: str, value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise wrong(field, value, "a list that is not empty")
    return value


def text_at(field: str, value: Any, right: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise wrong(field, value, right)
    return value


def whole_at(field: str, value: Any) -> int | None:
    if value is not None and type(value) is not int:  # true and false are ints to Python
        raise wrong(field, value, "a whole number")
    return value


def flag_at(field: str, value: Any) -> bool | None:
    if not isinstance(value, bool | None):
        raise wrong(field, value, "true or false")
    return value


def check_only(field: str, found: Mapping[str, Any], known: Collection[str]) -> None:
    """`RequestError` for what is there beside `known`."""
    for name, value in found.items():
        if name not in known and value is not None:
            raise RequestError(f"{field}.{name!s:.40} is unknown: it takes {', '.join(known)}")


def wrong(field: str, found: Any, right: str) -> RequestError:
    return RequestError(f"{field} is {shown(found)}: it takes {right}")


def shown(value: Any) -> str:
    """A value in a few words. Never recursive: a client may nest as deep as it likes."""
    match value:
        case None:
            return "missing"
        case dict():
            return f"an object of {', '.join(map(str, value)):.60}" if value else "an empty object"
        case list():
            return "a list" if value else "an empty list"
        case bool():
            return str(value).lower()
        case _:
            return f"{value!r:.60}"


def make_spec(field: str, policy: Policy, kind: str, source: Any, make: Callable[[], Spec]) -> Spec:
    """What `make` makes of `source`, if the policy admits it."""
    try:
        policy.admit(kind, source)
        return make()
    except (InvalidGrammarError, RequestError) as error:
        raise RequestError(f"{field}: {error}") from error
    except RecursionError as error:
        raise RequestError(f"{field}: nested too deep") from error


MOST_PARTS = 1 << 18  # about 50 ms at the most


def parse_json(what: str, text: str | bytes) -> Any:
    """The value of `text`, which errors call `what`. Raises `RequestError` for what is no JSON, or
    has too many signs that begin a value, those within texts included: commas and opening brackets,
    and twice the colons and braces, since to make an object takes longer."""
    signs = text if isinstance(text, str) else text.decode("latin-1")
    count = signs.count
    parts = count(",") + count("[") + 2 * (count(":") + count("{"))
    if parts > MOST_PARTS:
        raise RequestError(
            f"{what} has too many values: its commas and opening brackets, and twice its colons "
            f"and opening braces, are {parts}, and it takes {MOST_PARTS}"
        )
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{what} is not JSON: {str(error)[:200]}") from error


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


# Labels of a request, which change no answer of OpenAI's either.
LABELS = frozenset(
    """user metadata safety_identifier prompt_cache_key prompt_cache_retention
    prompt_cache_options""".split()
)

_ENTROPY = "sampling goes by the entropy of whole canvases, in which it has no meaning"
_LABELS = "the probabilities of labels are the model's own, and nothing is drawn"
_WHOLE = "a canvas is denoised as a whole, and its tokens have no probabilities of their own"
_COMPLETE = "an answer ends where it is complete"
_TEXT = "this server's models read and write text"
_OWN = "a conversation is rendered by the model's own template"

# By field: the values that ask for nothing, and why others are refused.
_NEUTRAL: dict[str, tuple[tuple[Any, ...], str]] = {
    "top_p": ((1,), _LABELS),  # an answer that is no decision takes these
    "top_k": ((-1, 0), _LABELS),
    "min_p": ((0,), _LABELS),
    "frequency_penalty": ((0,), _ENTROPY),
    "presence_penalty": ((0,), _ENTROPY),
    "repetition_penalty": ((1,), _ENTROPY),
    "length_penalty": ((1,), _ENTROPY),
    "logit_bias": (({},), _ENTROPY),
    "bad_words": (([],), "use structured_outputs"),
    "allowed_token_ids": (([],), "use structured_outputs"),
    "use_beam_search": ((False,), _ENTROPY),
    "best_of": ((1,), "use n"),
    "logprobs": ((False,), _WHOLE),
    "top_logprobs": ((0,), _WHOLE),
    "prompt_logprobs": ((), _WHOLE),
    "min_tokens": ((0,), _COMPLETE),
    "ignore_eos": ((False,), _COMPLETE),
    "include_stop_str_in_output": ((False,), "an answer ends in front of its stop"),
    "skip_special_tokens": ((True,), "control tokens are no text"),
    "spaces_between_special_tokens": ((True,), "control tokens are no text"),
    "truncate_prompt_tokens": ((), "a prompt is read whole or not at all"),
    "return_token_ids": ((False,), "use /tokenize"),
    "return_tokens_as_token_ids": ((False,), "use /tokenize"),
    "echo": ((False,), "an answer does not repeat its prompt"),
    "suffix": (("",), "an answer continues its prompt"),
    "add_special_tokens": ((True,), "a prompt begins as the model was trained to see it"),
    "chat_template": ((), _OWN),
    "add_generation_prompt": ((True,), _OWN),
    "continue_final_message": ((False,), _OWN),
    "documents": (([],), _OWN),
    "cache_salt": ((), "all requests share what is known of their prompts"),
    "priority": ((0,), "who comes first is served first"),
    "service_tier": (("auto", "default", "flex", "priority", "scale"), "there is one tier"),
    "store": ((False, True), "nothing is stored here"),
    "verbosity": (("low", "medium", "high"), "say it in the prompt"),
    "modalities": ((["text"],), _TEXT),
    "audio": ((), _TEXT),
    "mm_processor_kwargs": (({},), _TEXT),
    "prediction": ((), "nothing is predicted ahead"),
    "web_search_options": ((), "this server searches nothing"),
}
_SCHEMA = (
    'a schema goes to response_format: {"type": "json_schema", "json_schema": {"name": ..., '
    '"schema": ...}}, or to structured_outputs.json'
)
_ELSEWHERE = {  # by field of other servers, or of OpenAI's until 2023: where it goes here
    **dict.fromkeys(
        "json_schema schema response_schema responseSchema output_schema output_format format json "
        "output_config text".split(),
        _SCHEMA,
    ),
    **dict.fromkeys(
        ("json_object", "json_mode", "response_mime_type"),
        'any JSON object is response_format: {"type": "json_object"}',
    ),
    **dict.fromkeys(("regex", "pattern"), "a regex goes to structured_outputs.regex"),
    **dict.fromkeys(
        ("grammar", "ebnf", "gbnf", "lark"),
        "a grammar, EBNF or Lark, goes to structured_outputs.grammar",
    ),
    **dict.fromkeys(
        ("choice", "choices"),
        "a list of texts to choose from goes to structured_outputs.choice",
    ),
    "structural_tag": "a structural tag goes to structured_outputs.structural_tag",
    **dict.fromkeys(
        ("extra_body", "extra_json"),
        "clients send what it holds at the top of the body, where it goes: structured_outputs, say",
    ),
    **dict.fromkeys(
        ("max_output_tokens", "max_new_tokens", "num_predict", "n_predict"),
        "send max_completion_tokens or max_tokens",
    ),
    **dict.fromkeys(
        ("enable_thinking", "thinking", "reasoning"),
        "send reasoning_effort, thinking_token_budget or chat_template_kwargs.enable_thinking",
    ),
    "stop_sequences": "send stop",
    "functions": "use tools",
    "function_call": "use tool_choice",
}
_KINDS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
_GUIDED = "guided_"  # vLLM's fields of constraints until 2026
_ALIKE = 0.8  # of two names, of which one is perhaps the other, misspelled


def check_fields(body: Mapping[str, Any], known: Collection[str]) -> None:
    """`RequestError` for a field that is neither `known` nor without an effect."""
    check_old(body, known)
    for field, value in body.items():
        if value is None or field in known or field in LABELS:
            continue
        if value == "" and field in _ELSEWHERE:
            continue
        if field in _NEUTRAL:
            neutral, reason = _NEUTRAL[field]
            if not any(type(value) in _like(one) and value == one for one in neutral):
                said = f"{field} is {shown(value)}, which is not supported: {reason}"
                raise RequestError(said, field=field)
        else:
            name = f"{field!s:.60}"
            alike = get_close_matches(name.lower(), known, 1, _ALIKE)
            meant = f", or send {alike[0]} if that is meant" if alike else ""
            raise RequestError(f"{name} is unknown here: leave it out{meant}", field=name)


def check_old(body: Mapping[str, Any], known: Collection[str] = ()) -> None:
    """`RequestError` for a field that says here by another name, or in another place, what it is to
    say; without it a constraint might be lost. An empty text says nothing."""
    for field, value in body.items():
        if value is None or value == "" or field in known:
            continue
        place = _ELSEWHERE.get(field)
        if place is None and str(field).startswith(_GUIDED):
            kind = str(field).removeprefix(_GUIDED)
            place = f"use structured_outputs{f'.{kind}' if kind in _KINDS else ''}"
        if place is not None:
            name = f"{field:.60}"
            raise RequestError(f"{name} is not supported: {place}", field=name)


def _like(value: Any) -> tuple[type, ...]:
    """Types of JSON values that may equal it: 1 is no true."""
    return (int, float) if type(value) is int else (type(value),)
