"""Checks of finished calls: their arguments against the schemas of tools."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dlm.grammar.calls.answer import ToolCall
from dlm.grammar.errors import InvalidValueError, UncheckableError
from dlm.grammar.schema.documents import DocumentReader, Work
from dlm.grammar.schema.drafts import REFERENCES
from dlm.grammar.schema.evaluate import check

FindSpan = Callable[[int, Sequence[str | int]], tuple[int, int] | None]
"""Finds the tokens of a part of a call's arguments, by the call's index and a path."""


def check_calls(
    calls: Iterable[ToolCall], schemas: Mapping[str, dict[str, Any]], span: FindSpan | None
) -> None:
    """Raise `InvalidValueError` for a call of a tool that has none of the `schemas`, or whose
    schema refuses the arguments. If it cannot be checked, the call is valid.

    `span` finds the tokens of a part of a call's arguments; None: they are not known.
    """
    for number, call in enumerate(calls):
        if call.name not in schemas:
            raise InvalidValueError(f"a call of {call.name!r:.80}, which is not offered")
        try:
            check(call.arguments, schemas[call.name])
        except InvalidValueError as error:
            tokens = span(number, error.path) if span else None
            wrong: Any = call.arguments
            for step in error.path:
                wrong = wrong[step]
            if tokens and not isinstance(wrong, dict | list):
                tokens = tokens[1], tokens[1]  # only the value's end has to change
            raise InvalidValueError(f"call of {call.name}: {error}", span=tokens) from error
        except UncheckableError:
            pass  # the rules were exact, or the tool is not strict


_DEPENDING = frozenset(("anyOf", "oneOf", "not", "if", "dependentSchemas"))


def judges_arguments_alone(schema: dict[str, Any]) -> bool:
    """Whether a tool's schema demands the same of an argument whatever the others are, so that
    `reads_as` accepts a value of it if and only if it fits."""
    if _fits(schema, "", {}) is None:
        return False
    reader = DocumentReader(schema, None, "", Work())
    waiting, visited = [reader.root], set[int]()
    while waiting:
        source = waiting.pop()
        if id(source.node) in visited:
            continue
        visited.add(id(source.node))
        if not _DEPENDING.isdisjoint(source.node):
            return False
        waiting += [reader.target(source, word) for word in REFERENCES if word in source.node]
        waiting += [reader.source(part, source) for part in source.node.get("allOf", ())]
    return True


def reads_as(schema: dict[str, Any], argument: str, value: Any, text: str) -> bool:
    """Whether a tool's schema accepts that value of an argument, or, where it cannot be checked,
    refuses its text."""
    accepted = _fits(schema, argument, value)
    return _fits(schema, argument, text) is False if accepted is None else accepted


def _fits(schema: dict[str, Any], argument: str, value: Any) -> bool | None:
    """Whether a tool's schema accepts that value of an argument; None: it cannot be checked."""
    try:
        check({argument: value}, schema, about=argument)
    except InvalidValueError:
        return False
    except UncheckableError:
        return None
    return True
