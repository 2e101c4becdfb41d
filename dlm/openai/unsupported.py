"""Fields of a body that are read for what they are: those without an effect, and the unknown.

A field that would change what an ordinary server answers, and changes nothing here, is refused
unless its value asks for nothing. So nobody is given less than was asked for without being told.
"""

from collections.abc import Collection, Mapping
from typing import Any

from dlm.errors import RequestError
from dlm.openai.body import shown

# Labels of a request, which change no answer of OpenAI's either.
LABELS = frozenset(
    "user metadata safety_identifier prompt_cache_key prompt_cache_retention".split()
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
    "service_tier": (("auto", "default"), "there is one tier"),
    "store": ((False,), "nothing is stored here"),
    "verbosity": (("medium",), "say it in the prompt"),
    "modalities": ((["text"],), _TEXT),
    "audio": ((), _TEXT),
    "mm_processor_kwargs": (({},), _TEXT),
    "prediction": ((), "nothing is predicted ahead"),
    "web_search_options": ((), "this server searches nothing"),
}
_OLD = {"functions": "tools", "function_call": "tool_choice"}  # OpenAI's until 2023


def check_fields(body: Mapping[str, Any], known: Collection[str]) -> None:
    """`RequestError` for a field that is neither `known` nor without an effect."""
    check_old(body)
    for field, value in body.items():
        if value is None or field in known or field in LABELS:
            continue
        if field in _NEUTRAL:
            neutral, reason = _NEUTRAL[field]
            if not any(type(value) in _like(one) and value == one for one in neutral):
                said = f"{field} is {shown(value)}, which is not supported: {reason}"
                raise RequestError(said, field=field)
        else:
            name = f"{field!s:.60}"
            raise RequestError(f"{name} is unknown here: leave it out", field=name)


def check_old(body: Mapping[str, Any]) -> None:
    """`RequestError` for fields that asked for a constraint once: without them there is none."""
    for field, value in body.items():
        if value is not None and field in _OLD:
            raise RequestError(f"{field} is not supported: use {_OLD[field]}", field=field)
        if value is not None and field.startswith("guided_"):
            name = f"{field:.60}"
            raise RequestError(f"{name} is not supported: use structured_outputs", field=name)


def _like(value: Any) -> tuple[type, ...]:
    """Types of JSON values that may equal it: 1 is no true."""
    return (int, float) if type(value) is int else (type(value),)
