"""Tools in the form of OpenAI's APIs: functions, custom tools of one text, and their refusals."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.schema.drafts import MAPS
from dlm.grammar.specs.spec import Spec
from dlm.grammar.specs.text import Grammar, Regex

KIND = "tools"
_NONE: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_HOLDS = frozenset(  # keywords that describe an object's properties, unless they are empty
    """properties patternProperties propertyNames required dependentRequired dependentSchemas
    dependencies minProperties allOf anyOf oneOf not if $ref $dynamicRef $recursiveRef enum
    const""".split()
)
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_TOOL = re.compile(r"/tools/(?P<number>\d+)/(?:function|custom)(?P<schema>/parameters)?")
_OPENS = ("additionalProperties", "unevaluatedProperties")  # as empty schemas, they allow all


class ToolPlaces(NamedTuple):
    """Places of tools in a client's body, for errors."""

    pointers: Sequence[str] | None = None  # JSON pointers of the tools; None: as in OpenAI's chats
    schema_name: str = "parameters"  # the field of a tool's schema

    def placed(self, error: InvalidGrammarError) -> InvalidGrammarError:
        """Return an error about tools in OpenAI's form as one about the tools of the body."""
        where = error.where
        tool = _TOOL.match(where) if error.kind == KIND else None
        if tool is not None and self.pointers is not None:
            schema = f"/{self.schema_name}" if tool["schema"] else ""
            where = self.pointers[int(tool["number"])] + schema + where[tool.end() :]
        return InvalidGrammarError(error.kind, error.reason, where)


def functions_of(tools: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the functions that a model is shown for `tools` in OpenAI's form. Raises
    `InvalidGrammarError` for a tool in another form."""
    functions = []
    for i, tool in enumerate(tools):
        if (function := function_of(tool)) is None:
            form = '{"type": "function", "function": {...}}, or custom likewise'
            reason = f"a tool must be {form}, got {tool!r:.60}"
            raise InvalidGrammarError(KIND, reason, f"/tools/{i}")
        functions.append(function)
    return functions


def schemas_of(functions: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the schema of each of the `functions`, by its name. Raises `InvalidGrammarError`."""
    schemas: dict[str, dict[str, Any]] = {}
    for i, function in enumerate(functions):
        name, where = function.get("name"), f"/tools/{i}/function"
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            reason = f"a name must have 1 to 64 letters, digits and _ - . , got {name!r:.80}"
            raise InvalidGrammarError(KIND, reason, f"{where}/name")
        if name in schemas:
            raise InvalidGrammarError(KIND, f"{name!r} is there twice", f"{where}/name")
        schema = function.get("parameters")
        if not isinstance(schema, dict | None):
            reason = f"a schema must be an object, got {schema!r:.40}"
            raise InvalidGrammarError(KIND, reason, f"{where}/parameters")
        schemas[name] = _schema_of(schema)
    return schemas


def _schema_of(parameters: dict[str, Any] | None) -> dict[str, Any]:
    """Return the schema of a tool's `parameters`.

    If they do not describe an object's properties, the tool takes no arguments.
    """
    if parameters is None:
        return _NONE
    kinds = parameters.get("type", "object")
    objects = kinds == "object" or (isinstance(kinds, list) and "object" in kinds)
    holds = any(parameters.get(word) not in (None, {}, []) for word in _HOLDS)
    opened = any(parameters.get(word) is not None for word in _OPENS)
    return parameters if holds or opened or not objects else {**parameters, **_NONE}


INPUT = "input"  # name of the one argument of a custom tool
_FORMATS = "text", "grammar"  # of a custom tool's text
_INPUT_FORMS = "lark", "regex"


def function_of(tool: Any) -> dict[str, Any] | None:
    """Return the function that a model is shown for a tool in OpenAI's form; None if it is neither
    `{"type": "function", "function": {...}}` nor `{"type": "custom", "custom": {...}}`.

    A custom tool is a function of one text, `input`, whose grammar is part of its description.
    """
    kind = tool.get("type") if isinstance(tool, dict) else None
    function = tool.get(kind) if kind in ("function", "custom") else None
    if not isinstance(function, dict) or kind == "function":
        return function if isinstance(function, dict) else None
    grammar = _format_of(function)
    described = {"description": "The {}:\n{}".format(*grammar)} if grammar else {}
    text = {"type": "string", **described}
    parameters = {
        "type": "object",
        "properties": {INPUT: text},
        "required": [INPUT],
        "additionalProperties": False,
    }
    return {**function, "parameters": parameters}


def input_spec(tool: dict[str, Any], where: str) -> Spec | None:
    """Return the spec of a custom tool's text, from its `format`; None: any text.

    `where` is the JSON pointer of the tool's `custom`. Raises `InvalidGrammarError`.
    """
    if tool.get("type") != "custom":
        return None
    form = tool["custom"].get("format")
    if form is not None and not (isinstance(form, dict) and form.get("type") in _FORMATS):
        reason = f"a format must have the type {' or '.join(_FORMATS)}, got {form!r:.60}"
        raise InvalidGrammarError(KIND, reason, f"{where}/format")
    if (grammar := _format_of(tool["custom"])) is None:
        return None
    syntax, definition = grammar
    if syntax not in _INPUT_FORMS or not isinstance(definition, str):
        reason = f"a grammar must have a definition, and the syntax {' or '.join(_INPUT_FORMS)}"
        raise InvalidGrammarError(KIND, reason, f"{where}/format")
    try:
        return Regex(definition) if syntax == "regex" else Grammar(definition, "lark")
    except InvalidGrammarError as error:
        reason = f"{error.reason} ({error.where})" if error.where else error.reason
        raise InvalidGrammarError(KIND, reason, f"{where}/format/definition") from error


def _format_of(custom: dict[str, Any]) -> tuple[Any, Any] | None:
    """Return the syntax and the definition of a custom tool's grammar; None: it has none. They
    stand in `format`, or in its field `grammar`, as chat completions have it."""
    form = custom.get("format")
    if not isinstance(form, dict) or form.get("type") != "grammar":
        return None
    inner = form["grammar"] if isinstance(form.get("grammar"), dict) else form
    return inner.get("syntax"), inner.get("definition")


def unenforced(tool: str, where: str, places: Sequence[tuple[str, str]]) -> InvalidGrammarError:
    """Return the error for a strict tool whose rules would allow too much."""
    (place, reason), *others = places
    *_, above, last = ("", "", *place.removeprefix(where).split("/"))
    named = "the schema there" if last == "" or above in MAPS else f"the keyword {last}"
    and_others = f" ({len(others)} more places likewise)" if others else ""
    return InvalidGrammarError(
        KIND,
        f"tool {tool!r} is strict, and {named} cannot be enforced while arguments are written: "
        f"{reason}{and_others}. Change the schema; or leave strict out, and the arguments are "
        "checked when they are finished",
        where if place in ("", "/") else place,
    )


def is_pattern(where: str) -> bool:
    """Whether a place in a schema is a regex, which may not be expressible by an automaton."""
    *_, above, last = ("", "", *where.split("/"))
    return last == "pattern" or above == "patternProperties"
