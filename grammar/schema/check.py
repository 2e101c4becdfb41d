"""Whether a text is a JSON value that a schema accepts, asked of the `jsonschema` library.

It is made safe against what a client may send: patterns and formats are read by automata, numbers
are exact, steps are counted. Knows nothing of grammars.
"""

import json
import logging
import math
from collections.abc import Mapping
from typing import Any

from attrs import fields
from jsonschema import exceptions, validators
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import specification_with

from dlm.grammar.errors import InvalidGrammarError, InvalidValueError
from dlm.grammar.regex.automaton import Automaton, TooLargeError
from dlm.grammar.schema.backtracking import TooLongError
from dlm.grammar.schema.constant import constant, exact
from dlm.grammar.schema.drafts import ANY, draft_of
from dlm.grammar.schema.languages import format_texts
from dlm.grammar.schema.nulls import without_nulls
from dlm.grammar.schema.older import Errors, Keyword, older
from dlm.grammar.schema.patterns import Patterns, pattern_keywords
from dlm.grammar.schema.unevaluated import unevaluated_properties

_LOG = logging.getLogger(__name__)
_BASES = {
    4: validators.Draft4Validator,
    6: validators.Draft6Validator,
    7: validators.Draft7Validator,
    2019: validators.Draft201909Validator,
    2020: validators.Draft202012Validator,
    ANY: validators.Draft202012Validator,
}
# What `jsonschema` and its libraries raise for schemas that are odd, or nested too deeply.
_FROM_LIBRARY = (RecursionError, TooLargeError, Unresolvable, exceptions.UnknownType)
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
        value = _DECODER.decode(text)
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


def decoded(text: str, at: int) -> tuple[Any, int]:
    """The JSON value that begins at `at`, and where it ends. Raises `ValueError` for one that
    `parsed` refuses, and `RecursionError`."""
    value, end = _DECODER.raw_decode(text, at)
    if "\\u" in text[at:end]:
        json.dumps(value, ensure_ascii=False).encode()
    return value, end


def check(
    value: Any,
    schema: Any,
    registry: Mapping[str, Any] | None = None,
    *,
    formats: bool = True,
    about: str | None = None,
) -> None:
    """Raises `InvalidValueError` for a value that does not fit, with its path; and
    `UncheckableError`. With the name of a property, only for what is wrong `about` that one."""
    try:
        documents = {uri: without_nulls(one) for uri, one in (registry or {}).items()}
        problem = _Check(formats, about).problem(value, without_nulls(schema), documents)
    except UncheckableError:
        raise
    except TooLongError as error:
        raise UncheckableError("a pattern takes too long to judge") from error
    except InvalidGrammarError as error:
        raise UncheckableError(f"the JSON cannot be checked: {error.reason}") from error
    except _FROM_LIBRARY as error:
        raise UncheckableError(f"the JSON cannot be checked: {error!r:.200}") from error
    except Exception as error:
        _LOG.exception("a bug: a finished value could not be checked")
        raise UncheckableError(f"the JSON cannot be checked: {error!r:.200}") from error
    except BaseException as error:
        if type(error).__name__ != _PANIC:
            raise
        raise UncheckableError(f"the JSON cannot be checked: {error!r:.200}") from error
    if problem is not None:
        raise InvalidValueError(
            f"the JSON does not fit the schema at {problem.json_path}: {problem.message:.200}",
            list(problem.absolute_path),
        )


class _Check:
    """One check: the library's validators with keywords of ours, and the steps that they took."""

    def __init__(self, formats: bool, about: str | None):
        self._steps = self._depth = 0
        self._fits = Patterns().fits
        self._about = about
        self._classes: dict[int, Any] = {}  # of validators, by draft
        self._own: dict[str, Keyword] = {
            **pattern_keywords(self._fits),
            "unevaluatedProperties": unevaluated_properties(self._fits, self._step),
            "multipleOf": _multiple_of,
            "uniqueItems": _unique_items,
        }
        if formats:
            self._own["format"] = _format

    def problem(
        self, value: Any, schema: Any, registry: Mapping[str, Any]
    ) -> exceptions.ValidationError | None:
        """The first one; None: the value fits."""
        wanted = self._class(_draft(schema, ANY))
        specification = specification_with(str(wanted.META_SCHEMA["$schema"]))
        documents = Registry().with_resources(
            (uri, specification.detect(document).create_resource(document))
            for uri, document in registry.items()
        )
        try:
            return self._first(wanted(schema, registry=documents).iter_errors(value))
        except Unresolvable:  # identifiers within a schema are often no more than remarks
            plain = _without_identifiers(schema)
            return self._first(wanted(plain, registry=documents).iter_errors(value))

    def _first(self, errors: Errors) -> exceptions.ValidationError | None:
        return next((e for e in errors if self._about is None or _is_about(e, self._about)), None)

    def _class(self, draft: int) -> Any:
        """Validators of a draft, which make further ones of their own kind."""
        if draft not in self._classes:
            base = _BASES[draft]
            rules = {**base.VALIDATORS, **older(base.VALIDATORS, draft)}
            rules |= {word: rule for word, rule in self._own.items() if word in rules}
            words = {word: self._counted(rule) for word, rule in rules.items()}
            made = validators.extend(base, words)

            def evolve(validator: Any, **changes: Any) -> Any:
                schema = changes.setdefault("schema", validator.schema)
                for field in fields(made):
                    if field.init:
                        changes.setdefault(field.alias, getattr(validator, field.name))
                return self._class(_draft(schema, draft))(**changes)

            made.evolve = evolve
            self._classes[draft] = made
        return self._classes[draft]

    def _counted(self, keyword: Keyword) -> Keyword:
        def errors(validator: Any, wanted: Any, instance: Any, schema: Any) -> Errors:
            self._step()
            self._depth += 1
            if self._depth > _DEEPEST:
                raise UncheckableError(f"over {_DEEPEST} keywords lead from one to the next")
            try:
                yield from keyword(validator, wanted, instance, schema) or ()
            finally:  # the first error may be the last that is asked for
                self._depth -= 1

        return errors

    def _step(self) -> None:
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise UncheckableError(f"it takes more than {MOST_STEPS} steps to check")


def _is_about(error: exceptions.ValidationError, name: str) -> bool:
    """It, or what failed within it."""
    path = error.absolute_path
    if path and path[0] == name:
        return True
    return any(_is_about(inner, name) for inner in error.context or ())


def _draft(schema: Any, otherwise: int) -> int:
    uri = schema.get("$schema") if isinstance(schema, dict) else None
    return draft_of(uri) if isinstance(uri, str) else otherwise


def _without_identifiers(schema: Any) -> Any:
    """A copy whose references all lead from its root."""
    if isinstance(schema, list):
        return [_without_identifiers(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_identifiers(part)
        for key, part in schema.items()
        if key not in ("$id", "id") or not isinstance(part, str)
    }


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


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_float, parse_constant=_constant)


def _multiple_of(validator: Any, step: Any, instance: Any, schema: Any) -> Errors:
    if validator.is_type(instance, "number") and exact(instance) % exact(step) != 0:
        yield exceptions.ValidationError(f"{instance!r:.80} is not a multiple of {step!r}")


def _unique_items(validator: Any, unique: Any, instance: Any, schema: Any) -> Errors:
    items = instance if unique and isinstance(instance, list) else []
    if len({constant(item) for item in items}) < len(items):
        yield exceptions.ValidationError("an item comes twice")


def _format(validator: Any, name: Any, instance: Any, schema: Any) -> Errors:
    if isinstance(instance, str) and isinstance(name, str):
        automaton, _, longest = format_texts(name) or (Automaton.ANY, 0, None)
        if not automaton.accepts(instance) or len(instance) > (longest or len(instance)):
            yield exceptions.ValidationError(f"{instance!r:.80} is no {name}")
