"""The arguments of one tool as rules: exact, or wider than their schema, and then to be checked."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.regex.automaton import TooLargeError
from dlm.grammar.rules.nodes import Node
from dlm.grammar.rules.rules import Rules
from dlm.grammar.schema.arrays import TooManyError
from dlm.grammar.schema.dialect import Dialect
from dlm.grammar.schema.reader import spelled_out
from dlm.grammar.schema.work import MOST_WORK, TooMuchWorkError
from dlm.grammar.schema.writer import Form, write

_KIND = "tools"
_NONE: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_ANY: dict[str, Any] = {"type": "object", "additionalProperties": True}
_HOLDS = frozenset(  # keywords that say what an object holds, unless they are empty
    """properties patternProperties propertyNames required dependentRequired dependentSchemas
    dependencies minProperties allOf anyOf oneOf not if $ref $dynamicRef $recursiveRef enum
    const""".split()
)
_OPENS = ("additionalProperties", "unevaluatedProperties")  # empty, they allow every property
_MAPS = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
_TOO_HARD = RecursionError, TooLargeError, TooManyError


@dataclass(frozen=True, slots=True)
class Arguments:
    """The rules of a tool's arguments."""

    node: Node
    exact: bool  # the rules allow nothing that the schema refuses


def schema_of(parameters: dict[str, Any] | None) -> dict[str, Any]:
    """The schema that a tool's `parameters` mean, with OpenAPI's `nullable` as types.

    Where they do not say what an object holds, the tool takes no arguments. Raises `RecursionError`
    for parameters that are nested too deep.
    """
    if parameters is None:
        return _NONE
    kinds = parameters.get("type", "object")
    objects = kinds == "object" or (isinstance(kinds, list) and "object" in kinds)
    holds = any(parameters.get(word) not in (None, {}, []) for word in _HOLDS)
    opened = any(parameters.get(word) is not None for word in _OPENS)
    return spelled_out(parameters if holds or opened or not objects else {**parameters, **_NONE})


def write_arguments(
    schema: dict[str, Any],
    *,
    tool: str,
    strict: bool,
    where: str,
    dialect: Dialect,
    form: Form,
    rules: Rules,
    most_work: int,
) -> Arguments:
    """Add the rules of a tool's arguments to `rules`.

    What they cannot enforce is left to a check of the finished arguments, unless the tool is
    `strict`. `where` is the schema's JSON pointer. Raises `InvalidGrammarError`, which names the
    tool, and `TooMuchWorkError` where `most_work` is less than a schema may take.
    """
    before = len(rules.nodes)
    write_as = partial(
        write,
        dialect=dialect,
        rules=rules,
        unenforced="check",
        where=where,
        form=form,
        most_work=most_work,
    )
    try:
        written = write_as(schema)
        inexact = written.inexact
    except InvalidGrammarError as error:
        much = isinstance(error, TooMuchWorkError)
        if much and most_work < MOST_WORK:
            raise
        inexact = ((error.where, error.reason),)
        hard = isinstance(error.__cause__, _TOO_HARD) or _is_pattern(error.where)
        if not much and not hard:
            whole = ": arguments are an object" * (error.where == where)
            reason = f"tool {tool!r}: {error.reason}{whole}"
            raise InvalidGrammarError(_KIND, reason, error.where or where) from error
        if strict:
            raise _unenforced(tool, where, inexact) from error
        for rule in list(rules.nodes)[before:]:
            del rules.nodes[rule]
        written = write_as(_ANY)
    if inexact and strict:
        raise _unenforced(tool, where, inexact)
    return Arguments(written.node, not inexact)


def _unenforced(tool: str, where: str, places: Sequence[tuple[str, str]]) -> InvalidGrammarError:
    """What a strict tool is refused with whose rules would be too wide."""
    (first, reason), *others = places
    *_, above, last = ("", "", *first.removeprefix(where).split("/"))
    named = "the schema there" if last == "" or above in _MAPS else f"the keyword {last}"
    more = f" ({len(others)} more places likewise)" if others else ""
    return InvalidGrammarError(
        _KIND,
        f"tool {tool!r} is strict, and {named} cannot be enforced while arguments are written: "
        f"{reason}{more}. Change the schema; or leave strict out, and the arguments are checked "
        "when they are finished",
        where if first in ("", "/") else first,
    )


def _is_pattern(where: str) -> bool:
    """Whether a place in a schema is a regex; not all of them are automata."""
    *_, above, last = ("", "", *where.split("/"))
    return last == "pattern" or above == "patternProperties"
