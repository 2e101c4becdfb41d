"""Fields of bodies that are no part of a model: refused, or accepted without an effect.

A `RequestModel` refuses unknown fields, and fields that would change the answer of an ordinary
server but have no effect here, unless their value is neutral. No client gets less than it requested
without an error. A `LenientModel` is for clients that send new fields with each version.
"""

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any, ClassVar

from dlm.errors import RequestError
from dlm.openai.body import JsonModel, shown
from dlm.policy import Policy

# Fields that label a request, which change no answer of OpenAI's either; Ollama's about how a model
# is run, and details of `repeat_penalty` and `mirostat`, which have no effect since those two are
# refused.
ACCEPTED = frozenset(
    """user metadata safety_identifier prompt_cache_key prompt_cache_retention
    prompt_cache_options num_ctx num_batch num_keep num_thread num_gpu main_gpu low_vram f16_kv
    vocab_only numa use_mmap use_mlock keep_alive truncate repeat_last_n penalize_newline
    mirostat_eta mirostat_tau""".split()
)

_ENTROPY = "sampling goes by the entropy of whole canvases, in which it has no meaning"
_LABELS = "the probabilities of labels are the model's own, and nothing is drawn"
_COMPLETE = "an answer ends where it is complete"
_STRUCTURED = "use structured_outputs"
_TEXT = "this server's models read and write text"
_OWN = "a conversation is rendered by the model's own template"

NeutralFields = Mapping[str, tuple[tuple[Any, ...], str]]  # neutral values; why others are refused
NEUTRAL: NeutralFields = {
    "top_p": ((1,), _LABELS),  # these three are refused for decisions only
    "top_k": ((-1, 0), _LABELS),
    "min_p": ((0,), _LABELS),
    "frequency_penalty": ((0,), _ENTROPY),
    "presence_penalty": ((0,), _ENTROPY),
    "repetition_penalty": ((1,), _ENTROPY),
    "length_penalty": ((1,), _ENTROPY),
    "repeat_penalty": ((1,), _ENTROPY),
    "mirostat": ((0,), _ENTROPY),
    "tfs_z": ((1,), _ENTROPY),
    "typical_p": ((1,), _ENTROPY),
    "logit_bias": (({},), _ENTROPY),
    "bad_words": (([],), _STRUCTURED),
    "allowed_token_ids": (([],), _STRUCTURED),
    "use_beam_search": ((False,), _ENTROPY),
    "best_of": ((1,), "use n"),
    "logprobs": ((False,), "nothing is written"),  # for bodies without an answer in tokens
    "top_logprobs": ((0,), "a completion's alternatives are counted by logprobs"),
    "prompt_logprobs": ((), "a prompt is encoded, and its tokens are not predicted"),
    "min_tokens": ((0,), _COMPLETE),
    "ignore_eos": ((False,), _COMPLETE),
    "include_stop_str_in_output": ((False,), "an answer ends before its stop"),
    "skip_special_tokens": ((True,), "control tokens are not text"),
    "spaces_between_special_tokens": ((True,), "control tokens are not text"),
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
    "cache_salt": ((), "all requests share the cache of prompts"),
    "priority": ((0,), "requests are served in the order of their arrival"),
    "service_tier": (("auto", "default", "flex", "priority", "scale"), "there is one tier"),
    "store": ((False, True), "nothing is stored here"),
    "verbosity": (("low", "medium", "high"), "write it in the prompt"),
    "modalities": ((["text"],), _TEXT),
    "audio": ((), _TEXT),
    "mm_processor_kwargs": (({},), _TEXT),
    "options": (({},), "send the fields that it holds at the top of the body"),
    "prediction": ((), "predicted outputs are not used"),
    "web_search_options": ((), "this server searches nothing"),
}
# Fields whose values other than the neutral ones every body refuses: they would change the answer.
_SAMPLING = frozenset(
    name for name, (_, why) in NEUTRAL.items() if why in (_ENTROPY, _COMPLETE, _STRUCTURED)
)
# Fields that an operator may let be ignored: without them an answer is another draw, and has still
# all that its client asked for.
IGNORABLE = frozenset(
    """frequency_penalty presence_penalty repetition_penalty length_penalty repeat_penalty mirostat
    tfs_z typical_p logit_bias use_beam_search best_of min_tokens ignore_eos priority service_tier
    verbosity prediction""".split()
)
_TOPICS = {  # fields of other servers, or of OpenAI until 2023, by what they are about
    **dict.fromkeys(
        "json_schema schema response_schema responseSchema output_schema output_format format json "
        "output_config text".split(),
        "schema",
    ),
    **dict.fromkeys(("json_object", "json_mode", "response_mime_type"), "json_object"),
    **dict.fromkeys(("regex", "pattern"), "regex"),
    **dict.fromkeys(("grammar", "ebnf", "gbnf", "lark"), "grammar"),
    **dict.fromkeys(("choice", "choices"), "choice"),
    "structural_tag": "structural_tag",
    **dict.fromkeys(("extra_body", "extra_json"), "extra_body"),
    **dict.fromkeys(("max_output_tokens", "max_new_tokens", "num_predict", "n_predict"), "length"),
    **dict.fromkeys(("enable_thinking", "thinking", "think", "reasoning"), "thinking"),
    "stop_sequences": "stop",
    "functions": "tools",
    "function_call": "tool_choice",
}
Hints = Mapping[str, str]  # what to send instead, by topic
CHAT_HINTS: Hints = {
    "schema": 'a schema goes to response_format: {"type": "json_schema", "json_schema": {"name": '
    '..., "schema": ...}}, or to structured_outputs.json',
    "json_object": 'any JSON object is response_format: {"type": "json_object"}',
    "regex": "a regex goes to structured_outputs.regex",
    "grammar": "a grammar, EBNF or Lark, goes to structured_outputs.grammar",
    "choice": "a list of texts to choose from goes to structured_outputs.choice",
    "structural_tag": "a structural tag goes to structured_outputs.structural_tag",
    "guided": "use structured_outputs{}",  # with a dot and the kind
    "extra_body": "send the fields that it holds at the top of the body, structured_outputs for "
    "one",
    "length": "send max_completion_tokens or max_tokens",
    "thinking": "send reasoning_effort, thinking_token_budget or "
    "chat_template_kwargs.enable_thinking",
    "stop": "send stop",
    "tools": "use tools",
    "tool_choice": "use tool_choice",
}
OUTPUT_KINDS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
_GUIDED = "guided_"  # vLLM's fields of constraints until 2026
_ALIKE = 0.8  # least similarity of an unknown name to the one that it may stand for


def check_neutral(field: str, value: Any, neutral: Collection[Any], reason: str) -> None:
    """Raise `RequestError` for a value that is none of those that have no effect."""
    if not any(type(value) in _equal_types(accepted) and value == accepted for accepted in neutral):
        message = f"{field} is {shown(value)}, which is not supported: {reason}"
        if field in IGNORABLE:
            message += ". A server with `--ignore-unsupported` ignores it"
        raise RequestError(message, field=field)


def admitted(body: Any, policy: Policy) -> Any:
    """Return a body without the fields that the operator lets be ignored."""
    if not (policy.ignore_unsupported and isinstance(body, dict)):
        return body
    return {name: value for name, value in body.items() if name not in IGNORABLE}


def closest(name: str, names: Collection[str]) -> str | None:
    """Return the one of `names` that an unknown name most likely stands for; None if none is."""
    return next(iter(get_close_matches(name.lower(), names, 1, _ALIKE)), None)


def check_old(
    body: Mapping[str, Any], modelled: Collection[str] = (), hints: Hints = CHAT_HINTS
) -> None:
    """Raise `RequestError` for a field that has another name or place here, so that no constraint
    is lost. An empty text counts as left out; null has been removed from `body` before."""
    for field, value in body.items():
        if value == "" or field in modelled or _changes_nothing(field, value):
            continue
        place = hints.get(_TOPICS.get(field, ""))
        if place is None and "guided" in hints and str(field).startswith(_GUIDED):
            kind = str(field).removeprefix(_GUIDED)
            place = hints["guided"].format(f".{kind}" if kind in OUTPUT_KINDS else "")
        if place is not None:
            name = f"{field:.60}"
            raise RequestError(f"{name} is not supported: {place}", field=name)


def _changes_nothing(field: str, value: Any) -> bool:
    """Return whether a field of `_TOPICS` has an empty text, or asks for no thinking."""
    return field in _TOPICS and (value == "" or (value is False and _TOPICS[field] == "thinking"))


def _equal_types(value: Any) -> tuple[type, ...]:
    """Types of JSON values that may equal `value`: 1 equals 1.0, but not true."""
    return (int, float) if type(value) is int else (type(value),)


class RequestModel(JsonModel):
    """Whole body of a request. Its fields are all that a client may send, beside those that are
    accepted and neutral values."""

    hints: ClassVar[Hints] = CHAT_HINTS  # topics that it has no fields for may be missing

    @classmethod
    def check_names(cls, values: Mapping[str, Any]) -> None:
        names = cls.names()
        check_old(values, names, cls.hints)
        for field, value in values.items():
            if field in names or field in ACCEPTED or _changes_nothing(field, value):
                continue
            if field in NEUTRAL:
                check_neutral(field, value, *NEUTRAL[field])
                continue
            name = f"{field!s:.60}"
            meant = closest(name, names)
            hint = f", or send {meant} if that is meant" if meant else ""
            raise RequestError(f"{name} is unknown here: leave it out{hint}", field=name)


_MOST_IGNORED = 100  # unknown fields of a body: each is compared with all names, which takes long


class LenientModel(JsonModel):
    """Whole body of a request, whose clients send new fields with each version. Unknown fields are
    ignored, unless they would constrain the answer or may be misspelled names."""

    neutral: ClassVar[NeutralFields] = {}  # as `NEUTRAL`, but for this body alone
    hints: ClassVar[Hints] = CHAT_HINTS

    @classmethod
    def check_names(cls, values: Mapping[str, Any]) -> None:
        names = cls.names()
        check_old(values, names, cls.hints)
        unknown = [name for name in values if name not in names]
        if len(unknown) > _MOST_IGNORED:
            raise RequestError(
                f"the body must have at most {_MOST_IGNORED} unknown fields, got {len(unknown)}"
            )
        for name in unknown:
            value = values[name]
            if name in cls.neutral:
                check_neutral(name, value, *cls.neutral[name])
            elif name in _SAMPLING:
                check_neutral(name, value, *NEUTRAL[name])
            elif name not in _TOPICS and (
                meant := closest(f"{name!s:.60}", set(names) - values.keys())
            ):
                raise RequestError(
                    f"{name!s:.60} is unknown here: send {meant} if that is meant", field=meant
                )
