"""Validation of finished JSON texts against a schema by the `jsonschema` library.

Some of the library's keywords are replaced, so that untrusted schemas are safe: patterns and
formats are matched by automata instead of `re`, which backtracks without limit; numbers are exact;
steps are counted. A schema without `$schema` is read with the keywords of all drafts. Knows nothing
of grammars.
"""

import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import fields
from jsonschema import exceptions, validators
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import lookup_recursive_ref, specification_with

from dlm.grammar.errors import InvalidGrammarError, InvalidValueError
from dlm.grammar.regex.automaton import Automaton, TooLargeError, bounded
from dlm.grammar.schema.documents import ANY, draft_of, known, without_nulls
from dlm.grammar.schema.formula import Backtracking, TooLongError, constant, exact
from dlm.grammar.schema.languages import format_texts

Errors = Iterator[exceptions.ValidationError]
Keyword = Callable[[Any, Any, Any, Any], Errors | None]


def older(rules: Mapping[str, Keyword], draft: int) -> dict[str, Keyword]:
    """Return keywords of older drafts that `draft` knows, which replace some of its `rules`."""
    found = {
        "items": _items(rules["items"]),
        "additionalItems": _additional_items,
        "dependencies": rules.get("dependencies", _dependencies),
        "exclusiveMinimum": _exclusive("minimum", rules.get("exclusiveMinimum")),
        "exclusiveMaximum": _exclusive("maximum", rules.get("exclusiveMaximum")),
    }
    return {word: rule for word, rule in found.items() if known(draft, word)}


def _items(rule: Keyword) -> Keyword:
    """Return `items` that reads a list as `prefixItems`, and passes anything else to `rule`."""

    def items(validator: Any, wanted: Any, instance: Any, schema: Any) -> Errors:
        if not isinstance(wanted, list):
            yield from rule(validator, wanted, instance, schema) or ()
        elif isinstance(instance, list):
            for i, (item, part) in enumerate(zip(instance, wanted, strict=False)):
                yield from validator.descend(item, part, path=i, schema_path=i)

    return items


def _additional_items(validator: Any, rest: Any, instance: Any, schema: Any) -> Errors:
    """Apply `additionalItems` to the items after a list of `items`; ignored without a list."""
    first = schema.get("items")
    if isinstance(first, list) and isinstance(instance, list):
        for i, item in enumerate(instance[len(first) :], start=len(first)):
            yield from validator.descend(item, rest, path=i)


def _dependencies(validator: Any, needed: Any, instance: Any, schema: Any) -> Errors:
    """Apply `dependencies`: properties, or a schema, that the presence of a property requires."""
    for name in needed if isinstance(instance, dict) else ():
        needs = needed[name]
        if name in instance and isinstance(needs, dict | bool):
            yield from validator.descend(instance, needs, schema_path=name)
        elif name in instance:
            for other in [needs] if isinstance(needs, str) else needs:
                if other not in instance:
                    yield exceptions.ValidationError(f"{other!r:.80} depends on {name!r:.80}")


def _exclusive(word: str, rule: Keyword | None) -> Keyword:
    """Return an exclusive limit that also accepts draft 4's booleans, which apply to `word`."""

    def exclusive(validator: Any, limit: Any, instance: Any, schema: Any) -> Errors:
        if not isinstance(limit, bool):
            yield from (rule(validator, limit, instance, schema) or ()) if rule else ()
        elif limit and validator.is_type(instance, "number") and instance == schema.get(word):
            yield exceptions.ValidationError(f"{instance!r:.80} is the exclusive {word}")

    return exclusive


Fits = Callable[[str, str], bool]  # (pattern, text): whether the pattern occurs in the text

_LOG = logging.getLogger(__name__)


def pattern_keywords(fits: Fits) -> dict[str, Keyword]:
    """Return the keywords with patterns, matched by `fits`.

    A `pattern` that takes too long to match is logged and not enforced.
    """

    def pattern(validator: Any, wanted: str, instance: Any, schema: Any) -> Errors:
        if not isinstance(instance, str):
            return
        try:
            if not fits(wanted, instance):
                yield exceptions.ValidationError(f"{instance!r:.80} does not match {wanted!r:.80}")
        except TooLongError:
            text = f"{instance!r:.80}"
            _LOG.warning("not enforced: whether %s matches %.80r takes too long", text, wanted)

    def pattern_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Errors:
        if isinstance(instance, dict):
            for key, part in patterns.items():
                for name, value in instance.items():
                    if fits(key, name):
                        yield from validator.descend(value, part, path=name, schema_path=key)

    def additional_properties(validator: Any, rest: Any, instance: Any, schema: Any) -> Errors:
        if isinstance(instance, dict):
            patterns = schema.get("patternProperties", {})
            for name, value in instance.items():
                if name not in schema.get("properties", {}) and not any(
                    fits(pattern, name) for pattern in patterns
                ):
                    yield from validator.descend(value, rest, path=name)

    return {
        "pattern": pattern,
        "patternProperties": pattern_properties,
        "additionalProperties": additional_properties,
    }


def unevaluated_properties(fits: Fits, step: Callable[[], None]) -> Keyword:
    """Return the keyword of drafts 2019-09 and 2020-12; it calls `step` for each schema visited."""

    def keyword(validator: Any, rest: Any, instance: Any, schema: Any) -> Errors:
        if isinstance(instance, dict):
            judged = evaluated(validator, instance, schema)
            for name, value in instance.items():
                if name not in judged:
                    yield from validator.descend(value, rest, path=name, schema_path=name)

    def evaluated(validator: Any, instance: dict[str, Any], schema: Any) -> set[str]:
        step()
        if not isinstance(schema, dict):
            return set()
        found = instance.keys() & schema.get("properties", {})
        for pattern in schema.get("patternProperties", ()):
            found |= {name for name in instance if fits(pattern, name)}
        for word in ("additionalProperties", "unevaluatedProperties"):
            if word in schema:  # another keyword evaluates the other properties
                found |= {
                    name
                    for name, value in instance.items()
                    if _is_valid(validator.descend(value, schema[word]))
                }
        for reader, part in _applied(validator, instance, schema):
            found |= evaluated(reader, instance, part)
        return found

    return keyword


def _applied(
    validator: Any, instance: dict[str, Any], schema: dict[str, Any]
) -> Iterator[tuple[Any, Any]]:
    """Yield the subschemas that apply to `instance` and that it fits, each with its validator."""
    for word in ("$ref", "$dynamicRef", "$recursiveRef"):
        if word in schema:
            resolver = validator._resolver
            recursive = word == "$recursiveRef"
            found = lookup_recursive_ref(resolver) if recursive else resolver.lookup(schema[word])
            yield validator.evolve(schema=found.contents, _resolver=found.resolver), found.contents
    for name, part in schema.get("dependentSchemas", {}).items():
        if name in instance:
            yield validator, part
    for word in ("allOf", "oneOf", "anyOf"):
        for part in schema.get(word, ()):
            if _is_valid(validator.descend(instance, part)):
                yield validator, part
    if "if" in schema:
        holds = _is_valid(validator.descend(instance, schema["if"]))
        if holds:
            yield validator, schema["if"]
        branch = "then" if holds else "else"
        if branch in schema:
            yield validator, schema[branch]


def _is_valid(errors: Errors) -> bool:
    return next(errors, None) is None


_BASES = {
    4: validators.Draft4Validator,
    6: validators.Draft6Validator,
    7: validators.Draft7Validator,
    2019: validators.Draft201909Validator,
    2020: validators.Draft202012Validator,
    ANY: validators.Draft202012Validator,
}
# Errors of `jsonschema` and its libraries for schemas that are malformed or nested too deeply.
_FROM_LIBRARY = (RecursionError, TooLargeError, Unresolvable, exceptions.UnknownType)
_PANIC = "PanicException"  # a Rust library's stack overflow; not an `Exception`
_DEEPEST = 150  # nested keywords; each takes about 4 of Python's 1,000 stack frames
MOST_STEPS = 50_000  # keywords applied to values; about 10 us each


class UncheckableError(Exception):
    """A value that cannot be checked against its schema."""


def parsed(text: str) -> Any:
    """Return the JSON value of `text`.

    Raises `InvalidValueError` if it is not JSON, or JSON that parsers read differently: a repeated
    key, a number beyond a double, half a surrogate pair. Raises `UncheckableError` beyond Python's
    limits.
    """
    try:
        value = _DECODER.decode(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise InvalidValueError(f"the text is not JSON: {error}") from error
    except UnicodeEncodeError as error:
        raise InvalidValueError("a string has half a surrogate pair") from error
    except ValueError as error:  # including InvalidValueError
        if isinstance(error, InvalidValueError):
            raise
        raise UncheckableError(f"the JSON cannot be read: {error}") from error
    except RecursionError as error:
        raise UncheckableError("the JSON is nested too deeply to be read") from error
    return value


def decoded(text: str, at: int) -> tuple[Any, int]:
    """Return the JSON value that begins at `text[at]`, and the index of its end.

    Raises `ValueError` if `parsed` would refuse it, and `RecursionError`.
    """
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
    """Raise `InvalidValueError`, with the path of the error, if `value` does not fit `schema`.

    `about` limits this to errors about the property of that name. Raises `UncheckableError` if
    the check fails or exceeds its limits.
    """
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
    """One check: the library's validators with our own keywords, and the number of their steps."""

    def __init__(self, formats: bool, about: str | None):
        self._steps = self._depth = 0
        self._about = about
        self._backtracking = Backtracking()
        self._classes: dict[int, Any] = {}  # validator classes by draft
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
        """Return the first error in `value`; None if it fits."""
        wanted = self._class(_draft(schema, ANY))
        specification = specification_with(str(wanted.META_SCHEMA["$schema"]))
        documents = Registry().with_resources(
            (uri, specification.detect(document).create_resource(document))
            for uri, document in registry.items()
        )
        try:
            return self._first(wanted(schema, registry=documents).iter_errors(value))
        except Unresolvable:  # identifiers within a schema are often mere comments
            plain = _without_identifiers(schema)
            return self._first(wanted(plain, registry=documents).iter_errors(value))

    def _first(self, errors: Errors) -> exceptions.ValidationError | None:
        return next((e for e in errors if self._about is None or _is_about(e, self._about)), None)

    def _class(self, draft: int) -> Any:
        """Return the validator class of `draft`, which follows the `$schema` of subschemas."""
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
                raise UncheckableError(f"more than {_DEEPEST} keywords are nested")
            try:
                yield from keyword(validator, wanted, instance, schema) or ()
            finally:  # the caller may stop after the first error
                self._depth -= 1

        return errors

    def _fits(self, pattern: str, text: str) -> bool:
        """Whether the pattern occurs in the text. Raises `TooLongError`."""
        try:
            automaton, low, high = bounded(pattern, False)
        except (InvalidGrammarError, TooLargeError):
            return self._backtracking.fits(pattern, text)
        most = len(text) if high is None else high
        return low <= len(text) <= most and automaton.accepts(text)

    def _step(self) -> None:
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise UncheckableError(f"it takes more than {MOST_STEPS} steps to check")


def _is_about(error: exceptions.ValidationError, name: str) -> bool:
    """Whether `error`, or an error within it, is about the property `name`."""
    path = error.absolute_path
    if path and path[0] == name:
        return True
    return any(_is_about(inner, name) for inner in error.context or ())


def _draft(schema: Any, otherwise: int) -> int:
    uri = schema.get("$schema") if isinstance(schema, dict) else None
    return draft_of(uri) if isinstance(uri, str) else otherwise


def _without_identifiers(schema: Any) -> Any:
    """Return a copy without `$id` and `id`, so that all references resolve from its root."""
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
    raise InvalidValueError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_float, parse_constant=_constant)


def _multiple_of(validator: Any, step: Any, instance: Any, schema: Any) -> Errors:
    if validator.is_type(instance, "number") and exact(instance) % exact(step) != 0:
        yield exceptions.ValidationError(f"{instance!r:.80} is not a multiple of {step!r}")


def _unique_items(validator: Any, unique: Any, instance: Any, schema: Any) -> Errors:
    items = instance if unique and isinstance(instance, list) else []
    if len({constant(item) for item in items}) < len(items):
        yield exceptions.ValidationError("an item occurs twice")


def _format(validator: Any, name: Any, instance: Any, schema: Any) -> Errors:
    if isinstance(instance, str) and isinstance(name, str):
        automaton, _, longest = format_texts(name) or (Automaton.ANY, 0, None)
        if not automaton.accepts(instance) or len(instance) > (longest or len(instance)):
            yield exceptions.ValidationError(f"{instance!r:.80} is not a valid {name}")
