"""Whether a text is a JSON value that a schema accepts, asked of the `jsonschema` library.

It is made safe against what a client may send: patterns and formats are read by automata, numbers
are exact, steps are counted. Knows nothing of grammars.
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from jsonschema import exceptions, validators
from referencing import Registry
from referencing.jsonschema import specification_with

from dlm.grammar.errors import InvalidGrammarError, InvalidValueError
from dlm.grammar.regex.automaton import Automaton
from dlm.grammar.regex.pattern import automaton_of
from dlm.grammar.schema.constant import exact, identity
from dlm.grammar.schema.languages import format_texts
from dlm.grammar.schema.older import Errors, older

_PANIC = "PanicException"  # of a library in Rust where the stack ends; no `Exception`
_DEEPEST = 150  # keywords within one another: about 4 calls of Python each, of 1,000
MOST_STEPS = 50_000  # keywords applied to values; about 10 us each


class UncheckableError(Exception):
    """It cannot be said whether the value fits."""


def parsed(text: str) -> Any:
    """What `text` says as JSON. Raises `InvalidValueError` for what not everybody reads alike: a
    key that comes twice, a number that no double holds, half a surrogate pair; and
    `UncheckableError` for what Python cannot hold."""
    try:
        value = json.loads(
            text, object_pairs_hook=_object, parse_float=_float, parse_constant=_constant
        )
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise InvalidValueError(f"the text is not JSON: {error}") from error
    except UnicodeEncodeError as error:
        raise InvalidValueError("a string has half a surrogate pair") from error
    except ValueError as error:  # InvalidValueError is one, too
        if isinstance(error, InvalidValueError):
            raise
        raise UncheckableError(f"the JSON cannot be read: {error}") from error
    except RecursionError as error:
        raise UncheckableError("the JSON is nested too deeply to be read") from error
    return value


def check(
    value: Any,
    schema: Any,
    registry: Mapping[str, Any] | None = None,
    *,
    formats: bool = True,
) -> None:
    """Raises `InvalidValueError` for a value that does not fit, with its path; and
    `UncheckableError`."""
    base = validators.validator_for(schema, default=validators.Draft202012Validator)
    steps = depth = 0

    def counted(keyword: Callable[..., Any]) -> Callable[..., Errors]:
        def errors(validator: Any, wanted: Any, instance: Any, schema: Any) -> Errors:
            nonlocal steps, depth
            steps, depth = steps + 1, depth + 1
            if steps > MOST_STEPS:
                raise UncheckableError(f"it takes more than {MOST_STEPS} steps to check")
            if depth > _DEEPEST:
                raise UncheckableError(f"over {_DEEPEST} keywords lead from one to the next")
            try:
                yield from keyword(validator, wanted, instance, schema) or ()
            finally:  # the first error may be the last that is asked for
                depth -= 1

        return errors

    own = {"pattern": _pattern, "patternProperties": _pattern_properties}
    own |= {"multipleOf": _multiple_of, "uniqueItems": _unique_items}
    own |= {"additionalProperties": _additional_properties}
    if formats:
        own["format"] = _format
    rules = {**base.VALIDATORS, **older(base.VALIDATORS)}
    keywords = {word: counted(own.get(word, rule)) for word, rule in rules.items()}
    try:
        specification = specification_with(str(base.META_SCHEMA["$schema"]))
        documents = Registry().with_resources(
            (uri, specification.detect(document).create_resource(document))
            for uri, document in (registry or {}).items()
        )
        checker = validators.extend(base, keywords)(schema, registry=documents)
        problem = next(checker.iter_errors(value), None)
    except UncheckableError:
        raise
    except InvalidGrammarError as error:
        raise UncheckableError(f"the JSON cannot be checked: {error.reason}") from error
    except BaseException as error:  # what the library raises for a schema that is odd
        if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
            raise
        raise UncheckableError(f"the JSON cannot be checked: {error!r:.200}") from error
    if problem is not None:
        raise InvalidValueError(
            f"the JSON does not fit the schema at {problem.json_path}: {problem.message:.200}",
            list(problem.absolute_path),
        )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        again = next(name for i, name in enumerate(names) if name in names[:i])
        raise InvalidValueError(f"an object has the key {again!r:.80} twice", [again])
    return value


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise InvalidValueError(f"the number {text:.40} is larger than a double can be")
    return value


def _constant(text: str) -> float:
    raise InvalidValueError(f"{text} is no JSON")


def _fits(pattern: str, text: str) -> bool:
    return automaton_of(pattern, False).accepts(text)


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Errors:
    if isinstance(instance, str) and not _fits(pattern, instance):
        yield exceptions.ValidationError(f"{instance!r:.80} does not match {pattern!r:.80}")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Errors:
    if isinstance(instance, dict):
        for pattern, part in patterns.items():
            for name, value in instance.items():
                if _fits(pattern, name):
                    yield from validator.descend(value, part, path=name, schema_path=pattern)


def _additional_properties(validator: Any, rest: Any, instance: Any, schema: Any) -> Errors:
    if isinstance(instance, dict):
        patterns = schema.get("patternProperties", {})
        for name, value in instance.items():
            if name not in schema.get("properties", {}) and not any(
                _fits(pattern, name) for pattern in patterns
            ):
                yield from validator.descend(value, rest, path=name)


def _multiple_of(validator: Any, step: Any, instance: Any, schema: Any) -> Errors:
    if validator.is_type(instance, "number") and exact(instance) % exact(step) != 0:
        yield exceptions.ValidationError(f"{instance!r:.80} is not a multiple of {step!r}")


def _unique_items(validator: Any, unique: Any, instance: Any, schema: Any) -> Errors:
    items = instance if unique and isinstance(instance, list) else []
    if len({identity(item) for item in items}) < len(items):
        yield exceptions.ValidationError("an item comes twice")


def _format(validator: Any, name: Any, instance: Any, schema: Any) -> Errors:
    if isinstance(instance, str) and isinstance(name, str):
        automaton, _, longest = format_texts(name) or (Automaton.ANY, 0, None)
        if not automaton.accepts(instance) or len(instance) > (longest or len(instance)):
            yield exceptions.ValidationError(f"{instance!r:.80} is no {name}")
