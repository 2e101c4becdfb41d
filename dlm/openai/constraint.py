"""Reader of the constraint in a body: from OpenAI's fields, and vLLM's.

The message of a `RequestError` is meant for a response with status 400. A field that is null
counts as left out.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from dlm.errors import RequestError
from dlm.grammar import (
    Choice,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
    Spec,
    StructuralTag,
)
from dlm.openai.body import (
    check_old,
    check_only,
    flag_at,
    list_at,
    make_spec,
    object_at,
    text_at,
    wrong,
)
from dlm.openai.tools import tools_of
from dlm.policy import Policy

_WRAPPER = ("name", "description", "schema", "strict")  # fields of OpenAI's object around a schema
_KEYWORDS = frozenset(  # every schema that constrains anything has one of these
    """type properties required additionalProperties patternProperties items prefixItems enum const
    anyOf allOf oneOf not if $ref $defs definitions $schema""".split()
)
_FLAGS = ("disable_any_whitespace", "disable_additional_properties", "disable_fallback")
_EBNF = re.compile(r"^[ \t]*root[ \t]*::=", re.MULTILINE)
_LARK = re.compile(r"^[ \t]*[?!]*start(?:\.\d+)?[ \t]*:(?!:=)", re.MULTILINE)


def constraint_of(body: Any, policy: Policy) -> Spec | None:
    """Return the one constraint in `body`; None for free text.

    Tools constrain the answer unless `tool_choice` is "none". A `response_format` beside them
    constrains answers without calls. Raises `RequestError`.
    """
    body = object_at("the body", body)
    check_old(body)
    formats = {
        "response_format": _response_format(body, policy),
        "structured_outputs": _structured_outputs(body, policy),
    }
    given = {field: spec for field, spec in formats.items() if spec is not None}
    if len(given) > 1:
        raise RequestError(f"{' and '.join(given)} each constrain the answer: send one of them")
    content = next(iter(given.values()), None)
    return tools_of(body, policy, content) or content


def _response_format(body: Mapping[str, Any], policy: Policy) -> Spec | None:
    field = "response_format"
    if body.get(field) is None:
        return None
    format = object_at(field, body[field])
    match format.get("type"):
        case "text":
            check_only(field, format, ("type",))
            return None
        case "json_object" | "json":
            check_only(field, format, ("type", "schema"))
            if format.get("schema") is not None:
                return _json(f"{field}.schema", format["schema"], policy, lax=True)
            return _json_object(field, True, policy)
        case "json_schema":
            return _json_schema(field, format, policy)
        case "structural_tag":
            return _structural_tag(field, format, policy)
        case other:
            hint = f"; structured_outputs takes {other}" if other in tuple(_KINDS) else ""
            if not _KEYWORDS.isdisjoint(format.keys() - {"type"}):
                hint = "; a schema goes to json_schema.schema beside the type json_schema"
            right = f"text, json_object, json_schema or structural_tag{hint}"
            raise wrong(f"{field}.type", other, right)


def _json_schema(field: str, format: Mapping[str, Any], policy: Policy) -> Spec:
    """Read a schema in OpenAI's wrapper, `{"json_schema": {"schema": ...}}`. As on other servers,
    the wrapper's fields may stand beside `type`, and `json_schema` may be the schema itself."""
    if format.get("json_schema") is None and format.get("schema") is not None:
        check_only(field, format, ("type", *_WRAPPER))
        wrapper = {name: value for name, value in format.items() if name != "type"}
    else:
        check_only(field, format, ("type", "json_schema"))
        field = f"{field}.json_schema"
        wrapper = object_at(field, format.get("json_schema"))
        if "schema" not in wrapper and not _KEYWORDS.isdisjoint(wrapper):
            return _json(field, wrapper, policy, lax=wrapper.get("strict") is not True)
        check_only(field, wrapper, _WRAPPER)
    for name, type_, right in (
        ("name", str, "text"),
        ("description", str, "text"),
        ("strict", bool, "true or false"),
    ):
        if not isinstance(wrapper.get(name), type_ | None):
            raise wrong(f"{field}.{name}", wrapper[name], right)
    lax = wrapper.get("strict") is not True
    return _json(f"{field}.schema", wrapper.get("schema"), policy, lax)


def _structured_outputs(body: Mapping[str, Any], policy: Policy) -> Spec | None:
    field = "structured_outputs"
    if body.get(field) is None:
        return None
    outputs = {k: v for k, v in object_at(field, body[field]).items() if v is not None}
    if outputs.pop("whitespace_pattern", None) is not None:
        raise RequestError(
            f"{field}.whitespace_pattern is not supported: whitespace is free, or left out with "
            "disable_any_whitespace"
        )
    flags = {name: flag_at(f"{field}.{name}", outputs.pop(name, None)) for name in _FLAGS}
    compact = flags["disable_any_whitespace"] is True
    opened = flags["disable_additional_properties"] is False  # if it is left out, they are closed
    check_only(field, outputs, tuple(_KINDS))
    if len(outputs) != 1:
        got = " and ".join(outputs) or "none"
        raise RequestError(f"{field} takes exactly one of {', '.join(_KINDS)}; got {got}")
    ((name, value),) = outputs.items()
    if name == "json":
        return _json(f"{field}.{name}", value, policy, compact=compact, opened=opened)
    if name == "json_object":
        return _json_object(f"{field}.{name}", value, policy, compact)
    return _KINDS[name](f"{field}.{name}", value, policy)


def _json(
    field: str,
    value: Any,
    policy: Policy,
    lax: bool = False,
    *,
    compact: bool = False,
    opened: bool = False,
) -> Spec:
    """Make a spec of a schema. With `lax`, keywords that no grammar can enforce are checked at the
    end rather than refused. `compact` JSON has no whitespace. With `opened`, objects may have
    additional properties if the schema allows them."""
    if not isinstance(value, str | dict) or value == "":
        raise wrong(field, value, "a JSON schema; json_object takes any object")
    if isinstance(value, dict) and isinstance(value.get("schema"), dict):
        # OpenAI's wrapper, which as a schema would constrain nothing.
        value = value["schema"] if value.keys() <= set(_WRAPPER) else value

    def make() -> Spec:
        schema = json.loads(value) if isinstance(value, str) else value
        if isinstance(schema, dict) and not isinstance(schema.get("$schema", ""), str):
            raise wrong("$schema", schema["$schema"], "a URI")
        return JsonSchema(
            value,
            unenforced="check" if lax else "refuse",
            additional_properties="schema" if opened else "closed",
            whitespace="compact" if compact else "any",
        )

    return make_spec(field, policy, JsonSchema.kind, value, make)


def _json_object(field: str, value: Any, policy: Policy, compact: bool = False) -> Spec:
    if value is not True:
        raise wrong(field, value, "true")

    def make() -> Spec:
        return JsonObject(whitespace="compact" if compact else "any")

    return make_spec(field, policy, JsonObject.kind, None, make)


def _regex(field: str, value: Any, policy: Policy) -> Spec:
    value = text_at(field, value, "a regex as text")
    return make_spec(field, policy, Regex.kind, value, lambda: Regex(value))


def _choice(field: str, value: Any, policy: Policy) -> Spec:
    options = list_at(field, value)
    for i, option in enumerate(options):
        if not isinstance(option, str):
            raise wrong(f"{field}[{i}]", option, "text")
    return make_spec(field, policy, Choice.kind, options, lambda: Choice(options))


def _grammar(field: str, value: Any, policy: Policy) -> Spec:
    rules = text_at(field, value, "a grammar as text")
    ebnf, lark = (bool(form.search(rules)) for form in (_EBNF, _LARK))
    if ebnf is lark:
        found = "both" if ebnf else "neither"
        raise RequestError(
            f"{field} takes EBNF with a rule `root ::= ...`, or Lark with a rule `start: ...`;"
            f" found {found}"
        )
    syntax = "ebnf" if ebnf else "lark"
    return make_spec(field, policy, Grammar.kind, rules, lambda: Grammar(rules, syntax))


def _structural_tag(field: str, value: Any, policy: Policy) -> Spec:
    if not isinstance(value, str | dict) or not value:
        raise wrong(field, value, "a structural tag")
    return make_spec(field, policy, StructuralTag.kind, value, lambda: StructuralTag(value))


_KINDS: dict[str, Callable[[str, Any, Policy], Spec]] = {
    "json": _json,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "structural_tag": _structural_tag,
    "json_object": _json_object,
}
