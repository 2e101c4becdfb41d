"""Which properties of an object a schema has judged, for checks by `jsonschema`.

The library finds out with `re`, which backtracks; here whoever checks says what a pattern fits.
"""

from collections.abc import Callable, Iterator
from typing import Any

from referencing.jsonschema import lookup_recursive_ref

from dlm.grammar.schema.older import Errors, Keyword

Fits = Callable[[str, str], bool]  # a pattern, a key


def unevaluated_properties(fits: Fits, step: Callable[[], None]) -> Keyword:
    """The keyword of drafts 2019-09 and 2020-12. `step` is called for each schema looked at."""

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
            if word in schema:  # what they do not judge, another keyword has
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
    """The schemas that the object itself fits, each with a validator that reads it."""
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
