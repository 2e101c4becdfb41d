"""Constraint that a request of vLLM asks for: its spec, and what of it may be left free.

Tools that may be called (`tool_choice` "auto") and are not `strict` are lax. vLLM serves them
without any constraint, so that a lax tool is never the reason of a refusal: the arguments of the
tool that an error names are left free, then those of all lax tools, then the whole answer. What is
strict, or beside the tools, is still refused. Knows neither the model nor grammars.
"""

import copy
import json
import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from dlm.errors import DlmError, RequestError
from dlm.grammar import InvalidGrammarError, Spec, Tools
from dlm.grammar.schema import PROPERTY_ORDERS
from dlm.grammar.vocabulary import GemmaMarkers
from dlm.integrations.vllm.needs import OUTPUTS
from dlm.integrations.vllm.payload import FIELD, KEY, RESPONSES, THINKING, TOOLS, check_names
from dlm.openai.constraint import constraint_of
from dlm.openai.responses import response_constraint_of
from dlm.openai.tools import tools_refusal
from dlm.policy import Policy

_LOG = logging.getLogger("vllm.dlm")
_FIELDS = (*OUTPUTS, "whitespace_pattern")
_FLAGS = "disable_any_whitespace disable_additional_properties".split()
ORDER = "property_order"  # in `extra_args`: vLLM's own fields have no place for it
_SUPPORTED = frozenset(("diffusion_max_steps",))  # vLLM's `diffusion_` options with constraints
_ANY = {"type": "object", "additionalProperties": True}
_TOOL = re.compile(r"/tools/(\d+)")

Body = dict[str, Any]


def has_constraint(params: Any) -> bool:
    """Whether `params` have tools or a constraint. Raises `RequestError` for the plugin's names
    from a client."""
    extra = params.extra_args or {}
    check_names(extra)
    return KEY in extra or TOOLS in extra or params.structured_outputs is not None


class UnenforcedError(RequestError):
    """Refusal of tools whose arguments only a check of the finished answer decides. `hint` says why
    if no keyword does."""

    def __init__(self, message: str, hint: str = ""):
        super().__init__(message)
        self.hint = hint


class Requested:
    """Constraint of one request. `spec` is asked again after each `relax`."""

    def __init__(self, params: Any):
        """`params` are vLLM's sampling parameters."""
        self._params = params
        tools = (params.extra_args or {}).get(TOOLS)
        self._body: Body = {} if tools is None else json.loads(tools)
        self._responses = self._body.pop(RESPONSES, False)
        # Whether the client asks the chat template for reasoning; None: it does not say.
        self.thinking: bool | None = self._body.pop(THINKING, None)
        self._tools: list[Body] = self._body.get("tools") or []
        self._auto = bool(self._tools) and _may_call(self._body.get("tool_choice"))
        outputs = params.structured_outputs
        if outputs is not None:
            self._responses |= getattr(outputs, FIELD, None) == "text.format"
            self._body |= _format_of(outputs)
        order = (params.extra_args or {}).get(ORDER)
        if order is not None and order not in PROPERTY_ORDERS:
            right = ", ".join(PROPERTY_ORDERS)
            raise RequestError(f"vllm_xargs.{ORDER} must be one of {right}, got {order!r:.40}")
        if order is not None and self._body:
            self._body.setdefault("structured_outputs", {})[ORDER] = order
        strict = any(
            _is_strict(definition) for tool in self._tools for definition in _definitions(tool)
        )
        self._free = False  # nothing of the request is enforced
        self._may_be_free = self._auto and outputs is None and not strict
        self._policy, self._form = Policy(), GemmaMarkers.form
        self._steps = 0  # that were taken to leave something free
        self._spec: Spec | None = None  # the one to compile

    def spec(self, policy: Policy, form: str | None) -> Spec | None:
        """Return the spec, with calls in a `form`; None for free text. Raises `RequestError`."""
        self._policy, self._form = policy, form
        while not self._free and self._body:
            try:
                check_options(self._params)
            except RequestError as error:
                self.give_up(error)
                break
            try:
                return self._read(self._body, policy)
            except RequestError as error:
                self.relax(error)
        return None

    def _read(self, body: Body, policy: Policy) -> Spec | None:
        reader = response_constraint_of if self._responses else constraint_of
        spec = self._spec = reader(body, policy)
        try:
            return spec and spec.in_form(self._form)
        except InvalidGrammarError as error:
            raise RequestError(str(error), field=spec and spec.kind) from error

    def relax(self, error: DlmError) -> None:
        """Leave free what `error` is about, if that is lax; otherwise raise it."""
        if isinstance(error, InvalidGrammarError) and isinstance(self._spec, Tools):
            error = tools_refusal(self._spec, error)
        self._steps += 1
        if not self._auto:
            raise self._located(error)
        if self._steps == 1 and (number := _tool_of(error)) is not None:
            if self._loosen([number]):
                return
            self._steps += 1
        if self._steps <= 2:
            self._steps = 2
            if self._loosen(range(len(self._tools))):
                return
        self.give_up(error)

    def give_up(self, error: DlmError) -> None:
        """Leave the whole answer free, if all of the request is lax; otherwise raise `error`."""
        if not self._may_be_free:
            raise self._located(error)
        self._free = True
        _LOG.info("dlm: tools are left free, since they cannot be enforced: %s", error)

    def _located(self, error: DlmError) -> DlmError:
        """Return `error` with the place in the tools that it is about, if that is unknown yet."""
        if not isinstance(error, UnenforcedError):
            return error
        body = copy.deepcopy(self._body)
        for tool in body["tools"]:
            for definition in _definitions(tool):
                definition["strict"] = True
        try:
            self._read(body, replace(self._policy, tools_at_once=True))
        except RequestError as strict:
            if isinstance(cause := strict.__cause__, InvalidGrammarError) and cause.where:
                return RequestError(f"{cause.where}: {error}", field="tools")
        return RequestError(f"{error}; {error.hint}", field="tools") if error.hint else error

    def _loosen(self, numbers: Collection[int]) -> bool:
        """Leave the arguments of some tools free, as far as they are lax; return whether any was
        not yet. Of lax tools with one name, one is left, and any arguments."""
        before = json.dumps(self._tools)
        lax: dict[Any, Body] = {}  # by their names
        kept = []
        for number, tool in enumerate(self._tools):
            definitions = [
                definition for definition in _definitions(tool) if not _is_strict(definition)
            ]
            name = definitions[0].get("name") if len(definitions) == 1 else None
            if number in numbers:
                for definition in definitions:
                    _free_arguments(definition)
                if name in lax:
                    _free_arguments(lax[name])
                    continue
            if name is not None:
                lax.setdefault(name, definitions[0])
            kept.append(tool)
        self._tools = self._body["tools"] = kept
        return json.dumps(kept) != before


def _format_of(outputs: Any) -> Body:
    """Return the fields of a body for vLLM's structured outputs, under the client's own names."""
    values = {name: getattr(outputs, name, None) for name in _FIELDS}
    chosen = {name: value for name, value in values.items() if value is not None}
    flags = {name: True for name in _FLAGS if getattr(outputs, name, False)}
    field = getattr(outputs, FIELD, None)
    if field is None or flags or len(chosen) != 1:
        return {"structured_outputs": chosen | flags}
    ((kind, value),) = chosen.items()
    if kind == "json_object":
        format = {"type": kind}
    elif kind == "json":
        named = {"name": "answer", "schema": value, "strict": True}
        flat = field == "text.format"
        format = {"type": "json_schema"} | (named if flat else {"json_schema": named})
    elif kind == "structural_tag" and field == "response_format":
        format = json.loads(value) if isinstance(value, str) else value
    else:
        return {"structured_outputs": chosen}
    return {"text": {"format": format}} if field == "text.format" else {field: format}


def _may_call(choice: Any) -> bool:
    """Whether a `tool_choice` leaves it to the model whether a tool is called."""
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools", choice)
        return isinstance(allowed, Mapping) and allowed.get("mode") == "auto"
    return choice in (None, "auto")


def _definitions(tool: Any) -> list[Body]:
    """Return the parts of a tool that have a name and a schema: one, or those of a namespace."""
    if not isinstance(tool, dict):
        return []
    if tool.get("type") == "namespace":
        inner = tool.get("tools")
        return (
            [definition for definition in inner if isinstance(definition, dict)]
            if isinstance(inner, list)
            else []
        )
    nested = tool.get(tool.get("type"))
    return [nested if isinstance(nested, dict) else tool]


def _is_strict(definition: Body) -> bool:
    return definition.get("strict") is True


def _free_arguments(definition: Body) -> None:
    if "parameters" in definition or "format" not in definition:
        definition["parameters"] = _ANY
    definition.pop("format", None)


def _tool_of(error: BaseException | None) -> int | None:
    """Return the number of the tool that an error or its cause points to."""
    while error is not None:
        where = error.where if isinstance(error, InvalidGrammarError) else ""
        if match := _TOOL.match(where):
            return int(match[1])
        error = error.__cause__
    return None


def check_options(params: Any) -> None:
    """Raise `RequestError` for options that would end an answer early, or let it go on, or that
    vLLM cannot serve beside a constraint."""
    for name, reason in (
        ("ignore_eos", "the answer ends where its constraint does"),
        ("stop", "a text that stops the answer would leave it incomplete"),
        ("stop_token_ids", "a token that stops the answer would leave it incomplete"),
        ("repetition_detection", "it would leave the answer incomplete"),
        ("trace_decode_token_ids", "the answer is generated"),
    ):
        if getattr(params, name, None):
            raise RequestError(f"{name} beside a constraint is not supported: {reason}")
    for name in ("prompt_logprobs", "prompt_logprob_token_ids"):
        if getattr(params, name, None) is not None:
            reason = "this model has no log-probabilities of a prompt"
            raise RequestError(f"{name} beside a constraint is not supported: {reason}")
    for name, value in (params.extra_args or {}).items():
        if name.startswith("diffusion_") and name not in _SUPPORTED and value:
            raise RequestError(f"{name} beside a constraint is not supported")
