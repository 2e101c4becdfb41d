"""What a user may ask the output to be: text or calls of tools."""

import json
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import xgrammar as xgr

from dlm.grammar.calls.gemma import Calls
from dlm.grammar.calls.gemma_text import read_calls
from dlm.grammar.calls.markup import MARKUPS
from dlm.grammar.calls.tool_call import Answer
from dlm.grammar.errors import InvalidGrammarError, InvalidValueError
from dlm.grammar.kinds.spec import Spec
from dlm.grammar.regex import pattern
from dlm.grammar.schema.parameters import Parameters
from dlm.grammar.vocabulary import Vocabulary

_NATIVE = "gemma4"
_CHOICES = ("auto", "required")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MAX_WHITESPACE = 8  # characters between JSON's own tokens, as in `JsonSchema`
_NONE: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class Tools(Spec):
    """Text, calls of `tools`, or text and then calls.

    `tools` are in OpenAI's form; each function needs a name, and without `parameters` it takes
    none. With `choice` "required" there is a call, and no text before it; with `named` exactly
    one, of that tool. Without `parallel` there is one call at most.

    In Gemma 4's own form, "gemma4", schemas are enforced to the letter, `strict` or not, and what
    cannot be is refused: arguments come in the schema's order, a pattern without anchors matches
    the whole string, and the formats are those of `formats.FORMATS`. Other forms are as exact as
    xgrammar is.

    Raises `InvalidGrammarError`, its `where` a JSON pointer.
    """

    tools: Sequence[Any]
    choice: str = "auto"  # or "required"
    named: str | None = None  # a tool's name; `choice` then says nothing
    parallel: bool = True
    format: str = _NATIVE  # or one of markup.MARKUPS

    kind = Parameters.kind

    def __post_init__(self) -> None:
        if self.choice not in _CHOICES:
            raise self._error(f"{self.choice!r:.40} is none of {', '.join(_CHOICES)}", "/choice")
        if self.format != _NATIVE and self.format not in MARKUPS:
            known = ", ".join([_NATIVE, *MARKUPS])
            raise self._error(f"{self.format!r:.40} is none of {known}", "/format")
        if self.named is not None and self.named not in self.parameters:
            raise self._error(f"there is no tool {self.named!r:.80}", "/named")
        if not self.parameters:
            raise self._error("there are no tools", "/tools")

    def _error(self, reason: str, where: str) -> InvalidGrammarError:
        return InvalidGrammarError(self.kind, reason, where)

    @cached_property
    def parameters(self) -> dict[str, Parameters]:
        """Of each tool, by its name."""
        found: dict[str, Parameters] = {}
        for i, tool in enumerate(_plain(self.tools)):
            function = tool.get("function") if isinstance(tool, dict) else None
            if not isinstance(function, dict) or tool.get("type") != "function":
                form = '{"type": "function", "function": {...}}'
                raise self._error(f"a tool is {form}, not {tool!r:.60}", f"/tools/{i}")
            name, where = function.get("name"), f"/tools/{i}/function"
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                reason = f"a name is 1 to 64 letters, digits and _ - . , not {name!r:.80}"
                raise self._error(reason, f"{where}/name")
            if name in found:
                raise self._error(f"{name!r} is there twice", f"{where}/name")
            schema = function.get("parameters")
            schema = _NONE if schema is None else schema
            try:
                found[name] = Parameters(schema, f"{where}/parameters")
            except RecursionError as error:
                raise self._error("nested too deep", f"{where}/parameters") from error
        return found

    @property
    def calls(self) -> bool:
        return self.format == _NATIVE

    @property
    def checked(self) -> bool:
        return not self.calls

    @property
    def source(self) -> Any:
        return self.tools

    @property
    def key(self) -> Hashable:
        schemas = json.dumps({name: tool.schema for name, tool in self.parameters.items()})
        return self.kind, self.format, self.choice, self.named, self.parallel, schemas

    def grammar(self, vocabulary: Vocabulary) -> xgr.Grammar:
        try:
            return self._native(vocabulary) if self.calls else self._tagged()
        except RecursionError as error:
            raise self._error("nested too deep", "/tools") from error

    def _native(self, vocabulary: Vocabulary) -> xgr.Grammar:
        if vocabulary.call is None:
            raise self._error("this model's vocabulary has no tool call tokens", "/format")
        calls = Calls(vocabulary.call)
        offered = [self.named] if self.named is not None else list(self.parameters)
        rules = [calls.add(name, self.parameters[name]) for name in offered]
        several = "+" if self.parallel and self.named is None else ""
        made = f"({' | '.join(str(rule) for rule in rules)}){several}"
        free = self.choice == "auto" and self.named is None
        root = f"text | text? {made}" if free else made
        text = f"{pattern.charset(pattern.CHARACTERS)}+"
        return xgr.Grammar.from_ebnf(f"root ::= {root}\ntext ::= {text}\n{calls}")

    def _tagged(self) -> xgr.Grammar:
        tools: list[Any] = [
            {"type": "function", "function": {"name": name, "parameters": tool.schema}}
            for name, tool in self.parameters.items()
        ]
        choice: Any = self.choice
        if self.named is not None:
            choice = {"type": "function", "function": {"name": self.named}}
        tag = xgr.get_model_structural_tag(
            MARKUPS[self.format].model,
            tools=tools,
            tool_choice=choice,
            reasoning="disabled",
            max_whitespace_cnt=_MAX_WHITESPACE,
            parallel_tool_calls=self.parallel,
        )
        return xgr.Grammar.from_structural_tag(tag)

    def value(self, text: str) -> Answer:
        """As `read`, for a text: in Gemma 4's own form, it has no calls."""
        if self.calls:
            return self._checked(Answer(text or None, ()))
        return self._checked(MARKUPS[self.format].read(text, self.parameters))

    def read(self, tokens: Sequence[int], vocabulary: Vocabulary) -> Answer:
        """The text and the calls of any answer, made under this constraint or not.

        Raises `InvalidValueError` for a malformed call, one of an unknown tool or with arguments
        that its schema refuses, and where `choice`, `named` or `parallel` are not met.
        """
        if self.calls:
            return self._checked(read_calls(tokens, vocabulary))
        return self.value(vocabulary.text(tokens))

    def _checked(self, answer: Answer) -> Answer:
        for call in answer.tool_calls:
            if call.name not in self.parameters or self.named not in (None, call.name):
                raise InvalidValueError(f"a call of {call.name!r:.80}, which is not offered")
            try:
                self.parameters[call.name].check(call.arguments)
            except InvalidValueError as error:
                raise InvalidValueError(f"call of {call.name}: {error}") from error
        if not answer.tool_calls and (self.choice == "required" or self.named is not None):
            raise InvalidValueError("a tool call is required, and there is none")
        if len(answer.tool_calls) > 1 and (not self.parallel or self.named is not None):
            raise InvalidValueError("there is more than one tool call")
        return answer


def _plain(tools: Any) -> list[Any]:
    """A copy of the tools, as plain JSON data."""
    try:
        plain = json.loads(json.dumps(tools, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidGrammarError(Tools.kind, f"not JSON data: {error}", "/tools") from error
    if not isinstance(plain, list):
        raise InvalidGrammarError(Tools.kind, f"a list of tools, not {tools!r:.40}", "/tools")
    return plain
