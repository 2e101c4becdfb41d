"""JSON schemas of Python's types and functions, by pydantic."""

import inspect
from collections.abc import Callable
from enum import Enum
from typing import Any, Literal, TypeGuard, get_args, get_origin

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from dlm.grammar.errors import InvalidGrammarError


def is_type(value: Any) -> bool:
    """Return whether a value is a type or an annotation, such as `list[int]`."""
    return isinstance(value, type) or get_origin(value) is not None


def type_name(type_: Any) -> str:
    return getattr(type_, "__name__", None) or str(type_)


def adapter(kind: str, type_: Any) -> TypeAdapter[Any]:
    """Return pydantic's reader of a type. Raises `InvalidGrammarError` of this `kind` for one that
    pydantic cannot read."""
    try:
        return TypeAdapter(type_)
    except PydanticUserError as error:
        reason = str(error).partition("\n")[0]
        raise InvalidGrammarError(
            kind, f"{type_name(type_):.60} has no schema: {reason}"
        ) from error


def schema_of_type(kind: str, type_: Any) -> dict[str, Any]:
    """Return the JSON schema of a type. Raises `InvalidGrammarError` of this `kind`."""
    described = adapter(kind, type_)
    try:
        return described.json_schema()
    except PydanticUserError as error:
        reason = str(error).partition("\n")[0]
        raise InvalidGrammarError(
            kind, f"{type_name(type_):.60} has no schema: {reason}"
        ) from error


def options_of(kind: str, type_: Any) -> dict[str, Any]:
    """Return the members of an enumeration by their texts, or the texts of a `Literal`.

    Raises `InvalidGrammarError` of this `kind` for other types, and for a value that is no text.
    """
    if isinstance(type_, type) and issubclass(type_, Enum):
        named = {str(member): (member.value, member) for member in type_}
    elif get_origin(type_) is Literal:
        named = {repr(value): (value, value) for value in get_args(type_)}
    else:
        raise InvalidGrammarError(
            kind, f"options must be texts, an Enum or a Literal, got {type_name(type_):.60}"
        )
    for name, (value, _) in named.items():
        if not isinstance(value, str):
            raise InvalidGrammarError(
                kind, f"{name} must be text, got {value!r:.40}; for other values use JsonSchema"
            )
    return {
        str(value.value if isinstance(value, Enum) else value): option
        for value, option in named.values()
    }


def tool_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the tool of a function in OpenAI's form: its name, the text of its docstring, and the
    schema of its parameters, by their annotations.

    Raises `InvalidGrammarError` for parameters that are not passed by name, or without a schema.
    """
    kind, name = "tools", type_name(function)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise InvalidGrammarError(
                kind, f"{name}: its parameter {parameter.name!r} is not passed by its name"
            )
    schema = schema_of_type(kind, function)
    described: dict[str, Any] = {"name": name, "parameters": schema}
    if text := inspect.getdoc(function):
        described["description"] = text
    return {"type": "function", "function": described}


def is_function(value: Any) -> TypeGuard[Callable[..., Any]]:
    """Return whether a value is a function or a method, of which a tool can be made."""
    return inspect.isroutine(value)
