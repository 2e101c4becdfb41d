"""From the JSON body of an HTTP request to what it asks for: OpenAI's fields, and vLLM's.

Knows bodies and policies, not HTTP: a `RequestError` says what a 400 should carry. A field that is
null counts as left out, as clients send it.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from dlm.body import list_at, object_at, only, shown, text_at, whole_at, wrong
from dlm.errors import RequestError
from dlm.grammar import (
    Choice,
    Grammar,
    InvalidGrammarError,
    JsonObject,
    JsonSchema,
    Regex,
    Spec,
    StructuralTag,
    Tools,
)
from dlm.policy import Policy
from dlm.request import Request

# Tokens of reasoning at most, by `reasoning_effort`: whole canvases of 256. "none" does not think.
EFFORT = {"none": 0, "low": 256, "medium": 1024, "high": 4096}
ROLES = ("system", "developer", "user", "assistant", "tool")

_OLD = {"functions": "tools", "function_call": "tool_choice"}  # OpenAI's until 2023
_UNSUPPORTED = (  # options of vLLM's structured_outputs
    "disable_any_whitespace",
    "disable_additional_properties",
    "disable_fallback",
    "whitespace_pattern",
)
_EBNF = re.compile(r"^[ \t]*root[ \t]*::=", re.MULTILINE)
_LARK = re.compile(r"^[ \t]*[?!]*start(?:\.\d+)?[ \t]*:(?!:=)", re.MULTILINE)


def constraint_of(body: Any, policy: Policy) -> Spec | None:
    """The one constraint that `body` asks for, in whichever field; None for free text.

    Tools constrain the answer unless `tool_choice` is "none". Beside calls it is free text, so that
    no other constraint holds as well, not even with "auto". Raises `RequestError`.
    """
    body = object_at("the body", body)
    for field, value in body.items():
        if value is not None and field in _OLD:
            raise RequestError(f"{field} is not supported: use {_OLD[field]}")
        if value is not None and isinstance(field, str) and field.startswith("guided_"):
            raise RequestError(f"{field} is not supported: use structured_outputs")
    readers = (
        ("response_format", _response_format),
        ("structured_outputs", _structured_outputs),
        ("tools", _tools),
    )
    asked = {field: spec for field, read in readers if (spec := read(body, policy)) is not None}
    if len(asked) > 1:
        way_out = ', or set tool_choice to "none"' if "tools" in asked else ""
        raise RequestError(
            f"{' and '.join(asked)} each say what the answer must be: send one of them{way_out}"
        )
    return next(iter(asked.values()), None)


def request_of(body: Any, policy: Policy) -> Request:
    """The generation that `body` asks for.

    `messages` is a conversation; `prompt` a user's message, or token ids that go to the model as
    they are. Tools are declared to the model unless `tool_choice` is "none". Fields of sampling
    and of transport (`temperature`, `stop`, `stream`) are not read. Raises `RequestError`.
    """
    constraint = constraint_of(body, policy)
    fields: dict[str, Any] = {
        "max_tokens": _max_tokens(body),
        "seed": whole_at("seed", body.get("seed")),
    }
    if (prompt := body.get("prompt")) is not None:
        fields["prompt" if isinstance(prompt, str) else "token_ids"] = _prompt(prompt)
    if (messages := body.get("messages")) is not None:
        messages = enumerate(list_at("messages", messages))
        fields["messages"] = [_message(f"messages[{i}]", message) for i, message in messages]
    thinking, budget = thinking_of(body.get("reasoning_effort"))
    return Request(
        constraint=constraint,
        tools=constraint.tools if isinstance(constraint, Tools) else (),
        thinking=thinking,
        thinking_budget=budget if thinking else None,
        **{name: value for name, value in fields.items() if value is not None},
    )


def thinking_of(effort: Any) -> tuple[bool, int | None]:
    """Whether to think, and for how many tokens at most, by a `reasoning_effort`."""
    if effort is None:
        return False, None
    if not isinstance(effort, str) or effort not in EFFORT:
        raise wrong("reasoning_effort", effort, ", ".join(EFFORT))
    return EFFORT[effort] > 0, EFFORT[effort]


def _response_format(body: Mapping[str, Any], policy: Policy) -> Spec | None:
    field = "response_format"
    if body.get(field) is None:
        return None
    wanted = object_at(field, body[field])
    match wanted.get("type"):
        case "text":
            only(field, wanted, ("type",))
            return None
        case "json_object":
            only(field, wanted, ("type",))
            return _json_object(field, True, policy)
        case "json_schema":
            only(field, wanted, ("type", "json_schema"))
            field = f"{field}.json_schema"
            named = object_at(field, wanted.get("json_schema"))
            only(field, named, ("name", "description", "schema", "strict"))
            for name, type_, right in (
                ("name", str, "text"),
                ("description", str, "text"),
                ("strict", bool, "true or false"),
            ):
                if not isinstance(named.get(name), type_ | None):
                    raise wrong(f"{field}.{name}", named[name], right)
            lax = named.get("strict") is False
            return _json(f"{field}.schema", named.get("schema"), policy, lax)
        case "structural_tag":
            return _structural_tag(field, wanted, policy)
        case other:
            hint = f"; structured_outputs takes {other}" if other in tuple(_KINDS) else ""
            right = f"text, json_object, json_schema or structural_tag{hint}"
            raise wrong(f"{field}.type", other, right)


def _structured_outputs(body: Mapping[str, Any], policy: Policy) -> Spec | None:
    field = "structured_outputs"
    if body.get(field) is None:
        return None
    outputs = {k: v for k, v in object_at(field, body[field]).items() if v is not None}
    for option in _UNSUPPORTED:
        if outputs.pop(option, False) is not False:
            raise RequestError(f"{field}.{option} is not supported: leave it out")
    only(field, outputs, tuple(_KINDS))
    if len(outputs) != 1:
        got = " and ".join(outputs) or "none"
        raise RequestError(f"{field} takes exactly one of {', '.join(_KINDS)}; got {got}")
    ((name, value),) = outputs.items()
    return _KINDS[name](f"{field}.{name}", value, policy)


def _json(field: str, value: Any, policy: Policy, lax: bool = False) -> Spec:
    """If `lax`, what a grammar cannot enforce is checked at the end rather than refused."""
    if not isinstance(value, str | dict) or not value:
        raise wrong(field, value, "a JSON schema; json_object takes any object")

    def make() -> Spec:
        schema = json.loads(value) if isinstance(value, str) else value
        if isinstance(schema, dict) and not isinstance(schema.get("$schema", ""), str):
            raise wrong("$schema", schema["$schema"], "a URI")
        return JsonSchema(value, unenforced="check" if lax else "refuse")

    return _made(field, policy, JsonSchema.kind, value, make)


def _json_object(field: str, value: Any, policy: Policy) -> Spec:
    if value is not True:
        raise wrong(field, value, "true")
    return _made(field, policy, JsonObject.kind, None, JsonObject)


def _regex(field: str, value: Any, policy: Policy) -> Spec:
    value = text_at(field, value, "a regex as text")
    return _made(field, policy, Regex.kind, value, lambda: Regex(value))


def _choice(field: str, value: Any, policy: Policy) -> Spec:
    options = list_at(field, value)
    for i, option in enumerate(options):
        if not isinstance(option, str):
            raise wrong(f"{field}[{i}]", option, "text")
    return _made(field, policy, Choice.kind, options, lambda: Choice(options))


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
    return _made(field, policy, Grammar.kind, rules, lambda: Grammar(rules, syntax))


def _structural_tag(field: str, value: Any, policy: Policy) -> Spec:
    if not isinstance(value, str | dict) or not value:
        raise wrong(field, value, "a structural tag")
    return _made(field, policy, StructuralTag.kind, value, lambda: StructuralTag(value))


_KINDS: dict[str, Callable[[str, Any, Policy], Spec]] = {
    "json": _json,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "structural_tag": _structural_tag,
    "json_object": _json_object,
}


def _tools(body: Mapping[str, Any], policy: Policy) -> Spec | None:
    parallel = body.get("parallel_tool_calls")
    if not isinstance(parallel, bool | None):
        raise wrong("parallel_tool_calls", parallel, "true or false")
    choice, named = _tool_choice(body.get("tool_choice"))
    if body.get("tools") is None:
        if choice == "required":
            raise RequestError("tool_choice asks for a call, and there are no tools")
        return None
    tools = list_at("tools", body["tools"])
    if choice == "none":
        return None
    functions = [tool.get("function") for tool in tools if isinstance(tool, dict)]
    names = [function.get("name") for function in functions if isinstance(function, dict)]
    if named is not None and named not in names:
        offered = ", ".join(map(shown, names))
        raise RequestError(f"tool_choice names {named!r:.80}: it takes one of {offered:.200}")
    calls = parallel is not False
    return _made("tools", policy, Tools.kind, tools, lambda: Tools(tools, choice, named, calls))


def _tool_choice(value: Any) -> tuple[str, str | None]:
    """Whether calls are to be: none, auto or required; and of which tool, if of a certain one."""
    if value is None:
        return "auto", None
    if isinstance(value, str) and value in ("none", "auto", "required"):
        return value, None
    function = value.get("function") if isinstance(value, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(value, dict) or value.get("type") != "function" or not isinstance(name, str):
        form = '{"type": "function", "function": {"name": ...}}'
        raise wrong("tool_choice", value, f"none, auto, required or {form}")
    return "required", name


def _made(field: str, policy: Policy, kind: str, source: Any, make: Callable[[], Spec]) -> Spec:
    """What `make` makes of `source`, if the policy admits it."""
    try:
        policy.admit(kind, source)
        return make()
    except (InvalidGrammarError, RequestError) as error:
        raise RequestError(f"{field}: {error}") from error
    except RecursionError as error:
        raise RequestError(f"{field}: nested too deep") from error


def _max_tokens(body: Mapping[str, Any]) -> int | None:
    new, old = (
        whole_at(field, body.get(field)) for field in ("max_completion_tokens", "max_tokens")
    )
    if None not in (new, old) and new != old:
        raise RequestError(f"max_completion_tokens is {new} and max_tokens {old}: send one of them")
    return old if new is None else new


def _prompt(value: Any) -> str | list[int]:
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value or not all(type(token) is int for token in value):
        raise wrong("prompt", value, "text or token ids")
    return value


def _message(field: str, value: Any) -> dict[str, Any]:
    message = object_at(field, value)
    if message.get("role") not in ROLES:
        raise wrong(f"{field}.role", message.get("role"), ", ".join(ROLES))
    content = message.get("content")
    if not isinstance(content, str | list | None):
        raise wrong(f"{field}.content", content, "text or a list of parts")
    return {"content": "", **{k: v for k, v in message.items() if v is not None}}
