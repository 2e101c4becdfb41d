"""What an operator lets clients ask for: which kinds of constraints, and how large they may be.

Measures what a client wrote before anything is made of it. Knows no grammar: how deep a regex nests
is how deep its brackets do.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dlm.errors import DlmError, RequestError
from dlm.grammar import Choice, Grammar, JsonObject, JsonSchema, Regex, Spec, StructuralTag

TOOLS = "tools"  # as the errors of Tools name it
DATA = frozenset({JsonObject.kind, JsonSchema.kind, Choice.kind, TOOLS})
GRAMMARS = frozenset({Regex.kind, Grammar.kind, StructuralTag.kind})

# What brackets do not count in: an escape, a literal or regex, a character class, a comment.
_QUOTED = {
    Regex.kind: re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]", re.DOTALL),
    Grammar.kind: re.compile(
        r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|\[(?:\\.|[^\]\\\n])*\]|#[^\n]*|//[^\n]*'
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Kinds of constraints that are served, and their limits. By default all that dlm knows.

    A schema with a `pattern` holds a regex, and is served only where regexes are. Raises `DlmError`
    for limits that nothing could keep.
    """

    kinds: frozenset[str] = DATA | GRAMMARS  # as `Spec.kind` has them
    max_source_bytes: int = 65_536  # of a grammar's text, of a schema's names and values, of labels
    max_depth: int = 64  # of nested JSON or brackets; real schemas seldom pass 15
    max_options: int = 1000  # of a choice; OpenAI's limit for an enum
    max_tools: int = 128  # OpenAI's limit
    answer_tokens: int = 1024  # of an answer whose body does not say, if there is room for them
    max_answer_tokens: int = 131_072  # that a body may ask for
    max_choices: int = 16  # answers that a body may ask for
    max_label_bytes: int = 524_288  # of all labels of a decision; equal sets of them count once
    max_decision_tokens: int = 1_048_576  # of the prompts of all questions of a decision
    compile_seconds: float = 10.0  # of the processor's time, then a compiler gives up
    check_seconds: float = 2.0  # likewise, for the check of a finished value
    encode_tokens: int = 1024  # of prompts that a pass encodes, beside the canvases it denoises
    step_work: int = 2000  # units (about 10 us) that all grammars together may do in one step
    looks: int = 400  # a request fails whose canvas takes a grammar more than so many steps' work

    def __post_init__(self) -> None:
        for name in (
            "max_source_bytes",
            "max_depth",
            "max_options",
            "max_tools",
            "answer_tokens",
            "max_answer_tokens",
            "max_choices",
            "max_label_bytes",
            "max_decision_tokens",
            "encode_tokens",
            "step_work",
            "looks",
        ):
            if not isinstance(limit := getattr(self, name), int) or limit < 1:
                raise DlmError(f"{name} is {limit!r}: it takes at least 1")
        for name in ("compile_seconds", "check_seconds"):
            if not (limit := getattr(self, name)) > 0:
                raise DlmError(f"{name} is {limit!r}: it takes more than 0")
        if unknown := sorted(set(self.kinds) - DATA - GRAMMARS):
            known = ", ".join(sorted(DATA | GRAMMARS))
            raise DlmError(f"kinds holds {unknown[0]!r}: it takes {known}")

    @classmethod
    def server(
        cls, allow_client_grammars: bool | Literal["data"] = False, **limits: Any
    ) -> "Policy":
        """For clients that nobody knows: none of what they send becomes a grammar, by default.

        "data" admits schemas, choices and tools without regexes, whose cost their size bounds;
        True adds regexes, EBNF, Lark and structural tags.
        """
        kinds = {True: DATA | GRAMMARS, "data": DATA}.get(allow_client_grammars, frozenset())
        return cls(kinds=kinds, **limits)

    def check(self, spec: Spec) -> None:
        """`RequestError` for a spec that is not served here."""
        for each in (spec, *spec.parts):
            self.admit(each.kind, each.source)

    def admit(self, kind: str, source: Any) -> None:
        """`RequestError` for a `source` that no spec of this `kind` should be made of.

        `source` is text or JSON data, of whatever shape.
        """
        if kind not in self.kinds:
            served = ", ".join(sorted(self.kinds)) or "no constraints"
            raise RequestError(f"a {kind} is not served here: this server takes {served}")
        if kind == Choice.kind and isinstance(source, list):
            self._within("options", len(source), self.max_options)
        if kind == TOOLS and isinstance(source, list | tuple):
            self._within("tools", len(source), self.max_tools)
        if isinstance(source, str):
            self._within("bytes", len(_utf8(source)), self.max_source_bytes)
            if kind in _QUOTED:
                self._within("nested brackets", _brackets(kind, source), self.max_depth)
                return
            if kind in (JsonSchema.kind, StructuralTag.kind):
                source = _parsed(source)
        self._measure(kind, source)

    def check_labels(self, size: int, total: int) -> None:
        """`RequestError` for a question's labels of `size` bytes, or a decision's of `total`."""
        self._within("bytes of labels", size, self.max_source_bytes)
        self._within("bytes of labels together", total, self.max_label_bytes)

    def check_prompts(self, tokens: int) -> None:
        """`RequestError` for a decision whose prompts have so many tokens together."""
        self._within("tokens of prompts together", tokens, self.max_decision_tokens)

    def _measure(self, kind: str, source: Any) -> None:
        size = 0
        for depth, value in _values(source):
            self._within("levels", depth, self.max_depth)
            size += len(_utf8(value)) + 2 if isinstance(value, str) else 1
            self._within("bytes", size, self.max_source_bytes)
            if Regex.kind not in self.kinds and (name := _regex_in(value)):
                raise RequestError(f"regexes are not served here, and this {kind} has a {name}")

    def _within(self, what: str, found: int, limit: int) -> None:
        if found > limit:
            raise RequestError(f"too large: {found} {what}, and up to {limit} are served here")


def _values(source: Any) -> Iterator[tuple[int, Any]]:
    """Every key and value within `source`, with how deep it lies; lazily, and never recursively."""
    waiting = [(0, source)]
    while waiting:
        depth, value = waiting.pop()
        yield depth, value
        if isinstance(value, Mapping):
            waiting += [(depth + 1, key) for key in value]
            waiting += [(depth + 1, inner) for inner in value.values()]
        elif isinstance(value, list | tuple):
            waiting += [(depth + 1, inner) for inner in value]


def _regex_in(value: Any) -> str | None:
    """The keyword by which a part of a schema holds a regex; a property may be named like it."""
    if isinstance(value, Mapping):
        if isinstance(value.get("pattern"), str):
            return "pattern"
        if isinstance(value.get("patternProperties"), Mapping):
            return "patternProperties"
    return None


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise RequestError("half a surrogate pair is no text") from error


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"not JSON: {error}") from error


def _brackets(kind: str, text: str) -> int:
    """How deep brackets nest in `text`, at its deepest."""
    depth = deepest = 0
    for character in _QUOTED[kind].sub("", text):
        depth = max(0, depth + (character in "([{") - (character in ")]}"))
        deepest = max(deepest, depth)
    return deepest
