"""Constraints to text or calls of tools.

The rules of a tool's arguments are exact, or allow more than the schema. In the second case, the
finished arguments are checked.
"""

import json
from collections.abc import Hashable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from hashlib import sha256
from typing import Any

from dlm.grammar.calls.answer import Answer
from dlm.grammar.calls.gemma import gemma_call
from dlm.grammar.calls.markups import MARKUPS, OTHER_NAMES, AnswerReading, Markup
from dlm.grammar.errors import InvalidGrammarError, InvalidValueError
from dlm.grammar.limits import TooMuchEffortError, at_most
from dlm.grammar.regex.automaton import Automaton
from dlm.grammar.regex.nodes import (
    Node,
    SpecialToken,
    Terminal,
    alternation,
    concatenation,
    optional,
)
from dlm.grammar.regex.patterns import free_of
from dlm.grammar.rules.rules import Rules
from dlm.grammar.schema.documents import MOST_WORK, TooMuchWorkError
from dlm.grammar.schema.evaluate import plain
from dlm.grammar.schema.objects import PROPERTY_ORDERS, PropertyOrder
from dlm.grammar.specs.call_arguments import QUOTE, Arguments, CallPart, WrittenArguments
from dlm.grammar.specs.finished_calls import FindSpan, check_calls, reads_as
from dlm.grammar.specs.json_schema import AT_ONCE, EFFORT_AT_ONCE, JsonSchema
from dlm.grammar.specs.python_types import is_function, tool_of
from dlm.grammar.specs.spec import WRITTEN, Spec
from dlm.grammar.specs.tool_forms import INPUT, ToolPlaces, functions_of, input_spec, schemas_of
from dlm.grammar.vocabulary.pieces import ANY_MARKERS, CallMarkers, GemmaMarkers, TokenPieces

_GEMMA, _JSON = "gemma4", "hermes"  # a form of its own, and one whose arguments are JSON
_CHOICES = ("auto", "required")
_FORMATS = (*MARKUPS, *OTHER_NAMES)
_MOST_SENT = 32 << 20  # bytes of arguments as rules: pickling 126 MiB blocks a server for 0.4 s


@dataclass(frozen=True)
class Tools(Spec):
    """Text, calls of `tools`, or text and then calls.

    `tools` are in OpenAI's form, and each function there needs a name; or they are Python's own
    functions, which are converted to that form. A tool takes no arguments if its
    `parameters` are left out, or do not describe an object's properties. A custom tool takes one
    text, `input`, of any form or of a grammar (`format`). If `choice` is
    "required", there is a call, and no text before it. If `named` is given, there is exactly one
    call, of that tool. Without `parallel`, there is at most one call. If `content` is given, the
    answer is either text of that spec, or calls without text.

    Schemas may use all keywords of `JsonSchema`. Keywords that rules can not express are left to a
    check of the finished arguments. If the check refuses them, they are generated again; if it can
    not decide, they are returned. A tool with `strict` is refused instead, and so are names that
    the form can not express.

    Unless `at_once`, schemas are only read where the spec is compiled. `places` are where a
    client's body has the tools: `ToolPlaces.placed` puts them into errors.

    Raises `InvalidGrammarError`, with a JSON pointer as `where`, here or in `rules`.
    """

    tools: Sequence[Any]
    choice: str = "auto"  # or "required"
    named: str | None = None  # a tool's name; `choice` is ignored then
    parallel: bool = True
    format: str | None = None  # one of `MARKUPS` or `OTHER_NAMES`; None: that of the model
    content: Spec | None = None  # None: any text
    property_order: PropertyOrder = "required"  # of arguments, as in `JsonSchema`

    # Whether the constructor reads schemas, as far as that is quick.
    at_once: bool = field(default=True, kw_only=True, compare=False)
    # Equal specs of several bodies share the error of a compile, which has none of them.
    places: ToolPlaces = field(default=ToolPlaces(), kw_only=True, compare=False)

    kind = "tools"

    def __post_init__(self) -> None:
        if isinstance(self.tools, list | tuple) and any(map(is_function, self.tools)):
            tools = [tool_of(tool) if is_function(tool) else tool for tool in self.tools]
            object.__setattr__(self, "tools", tools)
        options = ("choice", _CHOICES), ("format", _FORMATS), ("property_order", PROPERTY_ORDERS)
        for option, names in options:
            value = getattr(self, option)
            if value not in names and (option, value) != ("format", None):
                reason = f"{option} must be one of {', '.join(names)}, got {value!r:.40}"
                raise self._error(reason, f"/{option}")
        if self.format in (*OTHER_NAMES,):
            object.__setattr__(self, "format", OTHER_NAMES[self.format])
        object.__setattr__(self, "tools", self._copied())
        if self.named is not None and self.named not in (*self.parameters,):
            raise self._error(f"there is no tool {self.named!r:.80}", "/named")
        if not self.parameters:
            raise self._error("there are no tools", "/tools")
        if self._refusal is not None and self._has_other_forms:
            self._in_forms[_JSON] = replace(self, format=_JSON)
        else:
            self._check_form()

    @property
    def _has_other_forms(self) -> bool:
        """Whether another form may have calls that Gemma's cannot have: `in_form` raises the
        refusal. Any form has those of JSON, and raises what none has."""
        return self.format is None and not any(self.custom.values())

    def check(self, form: str | None) -> None:
        """Read schemas, as far as that is quick, and raise the `InvalidGrammarError` that calls in
        a `form` have for them."""
        replace(self, at_once=True).in_form(form)

    def _check_form(self) -> None:
        """Raise `InvalidGrammarError` if the form cannot have these calls."""
        if self.content is not None and self._markup.opening.startswith("{"):
            reason = f"content must be None with {self.format}, got a {self.content.kind}"
            raise self._error(reason, "/content")
        for name, spec in self.custom.items():
            if spec is not None and self._form != _GEMMA:
                raise self._error(
                    f"calls in the form {self._form} cannot enforce a tool's grammar; those of "
                    f"{_GEMMA} can",
                    f"/tools/{list(self.parameters).index(name)}/custom/format",
                )
        if self._refusal is not None:
            raise self._refusal

    @cached_property
    def _refusal(self) -> InvalidGrammarError | None:
        """The error for arguments that the form cannot have; None: none is known at once."""
        if not self.at_once:
            return None
        with at_most(EFFORT_AT_ONCE):
            for name in self._offered:
                if self.custom.get(name) is not None:
                    continue  # a grammar is read in `rules` alone, since it may take long
                try:
                    self._arguments(name, AT_ONCE // len(self._offered))
                except (TooMuchWorkError, TooMuchEffortError):
                    continue  # `rules` tries again with more work
                except InvalidGrammarError as error:
                    return error.with_traceback(None)
        return None

    def _error(self, reason: str, where: str) -> InvalidGrammarError:
        return InvalidGrammarError(self.kind, reason, where)

    @cached_property
    def parameters(self) -> dict[str, dict[str, Any]]:
        """The schema of each tool, by its name."""
        return schemas_of(self._functions)

    def _copied(self) -> list[dict[str, Any]]:
        """Return a copy of the tools, as plain JSON data."""
        tools = self.tools
        copied = plain(self.kind, tools, "/tools") if not isinstance(tools, str) else None
        if not isinstance(copied, list):
            raise self._error(f"tools must be a list, got {self.tools!r:.40}", "/tools")
        return copied

    @cached_property
    def _functions(self) -> list[dict[str, Any]]:
        """The tools as functions."""
        return functions_of(self.tools)

    @cached_property
    def custom(self) -> dict[str, Spec | None]:
        """The custom tools by name, with the spec of their text; None: any text."""
        specs: dict[str, Spec | None] = {}
        for i, (tool, function) in enumerate(zip(self.tools, self._functions, strict=True)):
            if tool["type"] != "custom":
                continue
            specs[function["name"]] = input_spec(tool, f"/tools/{i}/custom")
        return specs

    @cached_property
    def _strict(self) -> frozenset[str]:
        """The names of strict tools."""
        return frozenset(f["name"] for f in self._functions if f.get("strict") is True)

    @property
    def _offered(self) -> list[str]:
        return [self.named] if self.named is not None else list(self.parameters)

    @property
    def calls(self) -> bool:
        return True

    @property
    def _form(self) -> str:
        """The name of the form; that of a model which is unknown yet counts as Gemma's."""
        return self.format or _GEMMA

    @property
    def _markup(self) -> Markup:
        return MARKUPS[self._form]

    def in_form(self, form: str | None) -> "Spec":
        if self.format is not None:
            return self
        if form == _GEMMA:
            self._check_form()
            return self
        if form is None:
            raise self._error(
                "this model's chat template shows no form of calls that is known "
                f"({', '.join(MARKUPS)}), so it cannot call tools",
                "/tools",
            )
        written = self._in_forms
        if form not in written:
            written[form] = self._written_in(form)
        return written[form]

    def _written_in(self, form: str) -> "Tools":
        """Return a copy in a form. Its schemas are read again only if it does not write JSON."""
        written = copy(self)
        object.__setattr__(written, "format", OTHER_NAMES.get(form, form))
        of_form = ["_fidelity", "_content_is_wide", "_in_forms"]
        if self._refusal is not None or written._markup.arguments is not MARKUPS[_JSON].arguments:
            of_form.append("_refusal")
        for name in of_form:
            vars(written).pop(name, None)
        written._check_form()
        return written

    @cached_property
    def _in_forms(self) -> "dict[str, Tools]":
        """Copies of the spec in forms of models, by form."""
        return {}

    @property
    def checked(self) -> bool:
        parts = self._fidelity.values()
        exact = self._markup.exact and all(exact for exact, _ in parts)
        return not exact or self._content_is_wide

    @property
    def enforced(self) -> bool:
        """Whether no answer is refused, but for arguments of a tool that is not strict, if no call
        is required and content is free."""
        relied = self._strict if self.opens_free else self._fidelity
        faithful = all(all(self._fidelity[name]) for name in relied)
        return faithful and not self._content_is_wide

    @cached_property
    def _content_is_wide(self) -> bool:
        """Whether content may be refused: it may hold a key twice, or begin as a call does."""
        content = self._content
        if content is None:
            return False
        if content.checked or (self._markup.opening and not isinstance(content, JsonSchema)):
            return True
        inner = content.rules(None)
        return inner.free_keys or bool(inner.distinct)

    @cached_property
    def _fidelity(self) -> dict[str, tuple[bool, bool]]:
        """For each tool that may be called, whether the rules allow no arguments that its schema
        refuses, and whether these are read as ones that fit. `rules` sets it."""
        self.rules(ANY_MARKERS.get(self._markup.markers))
        return vars(self)["_fidelity"]

    @property
    def opening(self) -> str:
        return self._markup.opening

    @property
    def opens_free(self) -> bool:
        return self.choice == "auto" and self.named is None and self.content is None

    @property
    def _content(self) -> Spec | None:
        """The spec in place of free text; None if there is no text, or any text."""
        return self.content if self.choice == "auto" and self.named is None else None

    @property
    def parts(self) -> tuple[Spec, ...]:
        inputs = tuple(spec for spec in self.custom.values() if spec is not None)
        return inputs if self.content is None else (*inputs, self.content)

    @property
    def source(self) -> Any:
        return self.tools

    @property
    def key(self) -> Hashable:
        content = None if self._content is None else self._content.key
        inputs = tuple((name, spec.key) for name, spec in self.custom.items() if spec is not None)
        form = self.format, self.choice, self.named, self.parallel, self.property_order
        return self.kind, *form, self._digest, inputs, content

    @cached_property
    def _digest(self) -> bytes:
        """Digest of the schemas, and of which tools are strict."""
        return sha256(json.dumps([self.parameters, sorted(self._strict)]).encode()).digest()

    def rules(self, markers: CallMarkers | None) -> Rules:
        rules, kind = Rules(), self._markup.markers
        if kind is not None and not isinstance(markers, kind):
            reason = f"this model's vocabulary lacks the control tokens of the form {self._form}"
            raise self._error(reason, "/format")
        markers = None if kind is None else markers  # those of another form mean nothing here
        self._check_arguments()
        written = [self._call(name, markers, rules) for name in self._offered]
        fidelity = {name: call[1:] for name, call in zip(self._offered, written, strict=True)}
        object.__setattr__(self, "_fidelity", fidelity)
        options = [call.node for call in written]
        call, several = alternation(*options), self.parallel and self.named is None
        if len(options) > 1:
            call = rules.add(call, "call")
        calls = self._markup.calls(call, several, markers)
        rules.nodes[rules.root] = self._answer(calls, rules)
        return rules

    def _check_arguments(self) -> None:
        """Raise `InvalidGrammarError` for arguments that no form can have, or else this one."""
        try:
            for name in self._offered:
                if self.custom.get(name) is None:
                    self._arguments(name, MOST_WORK)
        except InvalidGrammarError:
            if self._has_other_forms:
                replace(self, format=_JSON).rules(None)
            raise

    def _answer(self, calls: Node, rules: Rules) -> Node:
        """Return the node of text or calls, given that of calls."""
        opening, space = self._markup.opening, self._markup.space
        if self.choice != "auto" or self.named is not None:
            return concatenation(space, calls)
        if self._content is not None:
            content = rules.include(self._content.rules(None))
            return alternation(content, concatenation(space, calls))
        if opening:
            text = free_of([opening])
            return concatenation(Terminal(text), optional(calls))
        return concatenation(optional(Terminal(Automaton.lengths(1, None))), optional(calls))

    def _call(self, name: str, markers: CallMarkers | None, rules: Rules) -> CallPart:
        """Add the rules of a tool's call to `rules`, and return the call."""
        if isinstance(markers, GemmaMarkers) and (spec := self.custom.get(name)) is not None:
            quote = SpecialToken(frozenset((markers.quote,)))
            try:
                text = rules.include(spec.rules(None))
            except InvalidGrammarError as error:
                reason = f"{error.reason} ({error.where})" if error.where else error.reason
                where = f"/tools/{list(self.parameters).index(name)}/custom/format/definition"
                raise self._error(f"tool {name!r}: {reason}", where) from error
            node = concatenation(f"{{{INPUT}:", quote, text, quote, "}")
            return CallPart(gemma_call(name, node, markers))
        written = self._arguments(name, MOST_WORK)
        quote = {QUOTE: markers.quote} if isinstance(markers, GemmaMarkers) else None
        node = self._markup.write(name, rules.include(written.rules, quote), markers)
        return CallPart(node, written.exact, written.faithful)

    def _arguments(self, name: str, most_work: int) -> WrittenArguments:
        """Return a tool's arguments as rules, as `Arguments.written` does."""
        if (written := self._written.get(name)) is not None:
            return written
        where = f"/tools/{list(self.parameters).index(name)}/function/parameters"
        schema, strict = self.parameters[name], name in self._strict
        arguments = Arguments(name, schema, where, strict, self._form, self.property_order)
        written = arguments.written(most_work)
        vars(self)[WRITTEN] = {**self._written, name: written}  # another thread may pickle the old
        return written

    @cached_property
    def _written(self) -> dict[str, WrittenArguments]:
        """Arguments of tools as rules, as far as they are written; copies have none of them."""
        return {}

    def take_written(self) -> dict[str, WrittenArguments] | None:
        written = super().take_written()
        large = sum(part.total for part in (written or {}).values()) > _MOST_SENT
        return None if large else written

    def value(self, text: str) -> Answer:
        """Return the answer of a text, as `read` does. Calls that begin with control tokens are not
        found in it."""
        if not self._markup.opening:
            return self._checked(Answer(text or None, ()))
        reader = self.reader(None)
        reader.feed_text(text)
        return self._judged(reader.answer())

    def reader(self, vocabulary: TokenPieces | None, target: Sequence[str | int] = ()) -> Any:
        """Return a reader of an answer (`CallReader`); without a vocabulary, it reads texts.
        `target` is a call's index and a path in its arguments, whose tokens it looks for."""
        return self._markup.reader(
            AnswerReading(vocabulary, self._accepts, self._content is None, target)
        )

    def read(self, tokens: Sequence[int], vocabulary: TokenPieces) -> Answer:
        """Return the text and the calls of any answer, constrained or not.

        Raises `InvalidValueError` for a malformed call, an unknown tool, or arguments that the
        schema refuses, and if `choice`, `named` or `parallel` are violated.
        """
        kind = self._markup.markers
        if kind is not None and not isinstance(vocabulary.call, kind):
            return self._judged(Answer(vocabulary.text(tokens) or None, ()))
        reader = self.reader(vocabulary)
        reader.feed(tokens)
        return self._judged(reader.answer(), partial(self._span, tokens, vocabulary))

    def _span(
        self, tokens: Sequence[int], vocabulary: TokenPieces, call: int, path: Sequence[str | int]
    ) -> tuple[int, int] | None:
        """Return the first and the last token of a part of a call's arguments, if it is found."""
        reader = self.reader(vocabulary, [call, *path])
        with suppress(InvalidValueError):
            reader.feed(tokens)
        return reader.span

    def _judged(self, answer: Answer, span: FindSpan | None = None) -> Answer:
        """Return a valid answer; raise `InvalidValueError` for any other."""
        self._checked(answer, span)
        if self._content is not None and not answer.tool_calls:
            self._content.value(answer.content or "")
        return answer

    def _accepts(self, name: str, argument: str, value: Any, text: str) -> bool:
        return reads_as(self.parameters.get(name, {}), argument, value, text)

    def _checked(self, answer: Answer, span: FindSpan | None = None) -> Answer:
        """Return `answer` if its calls are valid, else raise `InvalidValueError`.

        `span` finds the tokens of a part of a call's arguments; None: they are not known.
        """
        if self.named is None:
            schemas = self.parameters
        else:
            schemas = {self.named: self.parameters[self.named]}
        check_calls(answer.tool_calls, schemas, span)
        if not answer.tool_calls and (self.choice == "required" or self.named is not None):
            raise InvalidValueError("a tool call is required, and there is none")
        if len(answer.tool_calls) > 1 and (not self.parallel or self.named is not None):
            raise InvalidValueError("there is more than one tool call")
        return answer
