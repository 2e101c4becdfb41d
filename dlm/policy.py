"""Limits that an operator sets for clients: kinds of constraints, and their sizes.

A client's text is measured before anything is built from it. This module knows no grammar, only
which keywords of a schema make none. The depth of a regex is that of its brackets.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import ceil
from typing import Any, Literal

from dlm.errors import DlmError, RequestError
from dlm.grammar import Choice, Grammar, JsonObject, JsonSchema, Regex, Spec, StructuralTag
from dlm.grammar.json_problems import json_problem

TOOLS = "tools"  # name of this kind in errors
DATA = frozenset({JsonObject.kind, JsonSchema.kind, Choice.kind, TOOLS})
GRAMMARS = frozenset({Regex.kind, Grammar.kind, StructuralTag.kind})

# Keywords of a schema: those that make no grammar, that hold schemas by name, that hold data.
_PROSE_WORDS = frozenset(
    """title description $comment examples example default deprecated readOnly writeOnly
    markdownDescription enumDescriptions externalDocs""".split()
)
_NAMED_WORDS = frozenset(
    """properties patternProperties $defs definitions dependentSchemas dependencies""".split()
)
_DATA_WORDS = frozenset(("enum", "const", "required", "dependentRequired"))
_WALKED = 4  # values visited per byte of `max_source_bytes`: a schema may hold another many times

# Where brackets do not count: an escape, a literal or regex, a character class, a comment.
_QUOTED = {
    Regex.kind: re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]", re.DOTALL),
    Grammar.kind: re.compile(
        r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|\[(?:\\.|[^\]\\\n])*\]|#[^\n]*|//[^\n]*'
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Kinds of constraints that are served, and their limits. By default all kinds. Patterns are a
    part of schemas, and served with them. Raises `DlmError` for invalid limits."""

    kinds: frozenset[str] = DATA | GRAMMARS  # values of `Spec.kind`
    # In a grammar's text; in the names, values and patterns of a schema, or of all tools together,
    # without parts that make no grammar, such as descriptions; in a question's labels.
    max_source_bytes: int = 65_536
    max_depth: int = 64  # of nested JSON or brackets; real schemas rarely exceed 15
    max_options: int = 1000  # of a choice; OpenAI's limit for an enum
    max_tools: int = 128  # OpenAI's limit
    answer_tokens: int = 1024  # if a body sets no limit and there is room for them
    max_answer_tokens: int = 131_072  # that a body may set
    answer_share: float = 0.25  # of max_tokens, which reasoning leaves to the answer; 0: none
    max_images: int = 16  # of a request; 0: an engine loads no vision tower
    max_image_pixels: int = 40_000_000  # of an image; a scan of A4 at 600 dpi has 35 million
    image_hosts: frozenset[str] = frozenset()  # from which images are fetched
    max_choices: int = 16  # answers that a body may request
    max_label_bytes: int = 524_288  # in all labels of a decision; equal sets count once
    max_decision_tokens: int = 1_048_576  # of the prompts of all questions of a decision
    compile_seconds: float = 10.0  # of processor time, after which a compiler gives up
    check_seconds: float = 2.0  # of processor time for the check of a finished value
    encode_tokens: int = 1024  # of prompts in one pass, beside the canvases it denoises
    step_work: int = 2000  # units (about 10 us) for all grammars together in one step
    # Units that the grammar of one request may take in all: these, and some for each of max_tokens.
    request_work: int = 400_000
    token_work: int = 500  # a token that needs a new mask takes 34 at the median, and 2,100 at p99
    tools_at_once: bool = True  # a body's tools are checked with it; else as they are compiled
    flags: bool = True  # whether errors name the server's flag for a limit
    max_unfinished_steps: int = 400  # of one query of a grammar; then its request fails
    ignore_unsupported: bool = False  # fields such as penalties have no effect instead of an error

    def __post_init__(self) -> None:
        for field in fields(self):
            limit, least = getattr(self, field.name), int(field.name != "max_images")
            if field.type is int and (not isinstance(limit, int) or limit < least):
                raise DlmError(f"{field.name} must be at least {least}, got {limit!r}")
        for name in ("compile_seconds", "check_seconds"):
            if not (limit := getattr(self, name)) > 0:
                raise DlmError(f"{name} must be more than 0, got {limit!r}")
        if not 0 <= (share := self.answer_share) < 1:
            raise DlmError(f"answer_share must be at least 0 and less than 1, got {share!r}")
        if unknown := sorted(set(self.kinds) - DATA - GRAMMARS):
            kinds = ", ".join(sorted(DATA | GRAMMARS))
            raise DlmError(f"kinds must be among {kinds}, got {unknown[0]!r}")

    @classmethod
    def server(
        cls, allow_client_grammars: bool | Literal["data"] = False, **limits: Any
    ) -> "Policy":
        """Return a policy for unknown clients: by default it serves no constraints. "data" serves
        choices, tools and schemas with their patterns, whose cost is bounded; True adds regexes,
        EBNF, Lark and structural tags."""
        kinds = {True: DATA | GRAMMARS, "data": DATA}.get(allow_client_grammars, frozenset())
        return cls(kinds=kinds, **limits)

    def reserve(self, max_tokens: int) -> int:
        """Return how many of a request's `max_tokens` its reasoning leaves to the answer."""
        return ceil(self.answer_share * max_tokens)

    def check_answer_work(self, units: int, max_tokens: int) -> None:
        """Raise `DlmError` if a grammar's `units` of work are too many for one answer."""
        limit = self.request_work + max_tokens * self.token_work
        if units > limit:
            raise DlmError(
                f"the grammar takes over {limit} units of work for one answer: at most "
                f"{self.request_work} (Policy.request_work) and {self.token_work} for each of "
                f"{max_tokens} tokens (Policy.token_work)"
            )

    def check(self, spec: Spec) -> None:
        """Raise `RequestError` for a spec that is not served."""
        for part in (spec, *spec.parts):
            self.admit(part.kind, part.source)

    def admit(self, kind: str, source: Any) -> None:
        """Raise `RequestError` if `kind` is not served, or if `source`, text or JSON data, exceeds
        its limits."""
        if kind not in self.kinds:
            served = ", ".join(sorted(self.kinds)) or "no constraints"
            right = f"; `--policy {'data' if kind in DATA else 'all'}` serves it"
            raise RequestError(
                f"a {kind} is not served here; this server serves {served}{right * self.flags}"
            )
        if kind == Choice.kind and isinstance(source, list):
            self._within("options", len(source), "max_options")
        if kind == TOOLS and isinstance(source, list | tuple):
            self._within("tools", len(source), "max_tools")
        if isinstance(source, str):
            if kind != JsonSchema.kind:
                self._within("bytes", len(_utf8(source)), "max_source_bytes")
            if kind in _QUOTED:
                self._within("nested brackets", _brackets(kind, source), "max_depth")
                return
            if kind in (JsonSchema.kind, StructuralTag.kind):
                source = _parsed(source)
        self._measure(kind, source)

    def check_labels(self, size: int, total: int) -> None:
        """Raise `RequestError` for a question's labels of `size` bytes, or a decision's of
        `total`."""
        self._within("bytes of labels", size, "max_source_bytes")
        self._within("bytes of labels together", total, "max_label_bytes")

    def check_images(self, number: int) -> None:
        """Raise `RequestError` for a request with `number` images."""
        self._within("images", number, "max_images")

    def check_prompts(self, tokens: int) -> None:
        """Raise `RequestError` for a decision whose prompts have `tokens` tokens together."""
        self._within("tokens of prompts together", tokens, "max_decision_tokens")

    def _measure(self, kind: str, source: Any) -> None:
        """Raise `RequestError` for data that is too deep, or whose counted part is too large. Keys
        and values are walked one by one, without recursion and up to a limit."""
        size = deepest = walked = 0
        most = _WALKED * self.max_source_bytes
        waiting = [(0, source, _ROOTS.get(kind, _DATA))]
        while waiting and walked <= most:
            depth, value, place = waiting.pop()
            walked += 1
            deepest = depth if depth > deepest else deepest
            size += _length(value) * place.counts
            if isinstance(value, str) or walked > most:
                continue
            if isinstance(value, list | tuple):
                waiting += [(depth + 1, inner, place) for inner in value]
            elif isinstance(value, Mapping):
                for key, inner in value.items():
                    within = place.within.get(key, place.others)
                    waiting.append((depth + 1, inner, within))
                    walked += 1
                    size += _length(key) * within.counts
                    if walked > most:
                        break
                deepest = max(deepest, depth + bool(value))
        cut_short = walked > most
        size = max(size, most) if cut_short else size
        self._within("levels", deepest, "max_depth", cut_short)
        what = "bytes" if kind == Choice.kind else "bytes of names, values and patterns"
        self._within(what, size, "max_source_bytes", cut_short)

    def _within(self, what: str, size: int, limit: str, at_least: bool = False) -> None:
        """Raise `RequestError` if `size` is over the named limit; with `at_least`, it is only a
        lower bound."""
        if size > (most := getattr(self, limit)):
            flag = limit.replace("_", "-")
            hint = f"; whoever runs the server may allow more (--{flag})" if self.flags else ""
            size_text = f"{'over ' * at_least}{size} {what}"
            raise RequestError(f"too large: {size_text}, and up to {most} are served here{hint}")


class _Place:
    """Role of a part of a source: whether it counts, and the roles of values within it, by key."""

    def __init__(self, counts: bool):
        self.counts, self.others = counts, self
        self.within: dict[Any, _Place] = {}  # those of other keys are `others`


_PROSE, _DATA = _Place(False), _Place(True)  # parts that make no grammar; any that count as a whole
_SCHEMA, _NAMES = _Place(True), _Place(True)  # a schema, or a list of them; schemas by names
_TOOLS = _Place(False)  # a list of tools, a tool, or its function or custom tool
_NAMES.others, _TOOLS.others = _SCHEMA, _PROSE
_SCHEMA.within = {
    **dict.fromkeys(_DATA_WORDS, _DATA),
    **dict.fromkeys(_NAMED_WORDS, _NAMES),
    **dict.fromkeys(_PROSE_WORDS, _PROSE),
}
_TOOLS.within = {
    "function": _TOOLS,
    "custom": _TOOLS,  # its grammar is admitted as one of its own
    "parameters": _SCHEMA,
    "name": _DATA,
}
_ROOTS = {TOOLS: _TOOLS, JsonSchema.kind: _SCHEMA}  # by kind; that of others is `_DATA`


def _length(value: Any) -> int:
    """Return what a key or a value counts without what is within it."""
    if not isinstance(value, str):
        return 1
    return len(value if value.isascii() else _utf8(value)) + 2


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise RequestError("a lone surrogate is not text") from error


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"not JSON: {json_problem(text, error)}") from error


def _brackets(kind: str, text: str) -> int:
    """Return the greatest depth of brackets in `text`."""
    depth = deepest = 0
    for character in _QUOTED[kind].sub("", text):
        depth = max(0, depth + (character in "([{") - (character in ")]}"))
        deepest = max(deepest, depth)
    return deepest
