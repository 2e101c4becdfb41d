"""Keywords that older drafts of JSON Schema spell otherwise, for checks by `jsonschema`.

A schema that does not say its draft is read with the keywords of all of them. The library takes it
for one of the newest, and has to be told of the others.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jsonschema import exceptions

from dlm.grammar.schema.drafts import known

Errors = Iterator[exceptions.ValidationError]
Keyword = Callable[[Any, Any, Any, Any], Errors | None]


def older(rules: Mapping[str, Keyword], draft: int) -> dict[str, Keyword]:
    """What stands for some of the own `rules` of a draft."""
    said = {
        "items": _items(rules["items"]),
        "additionalItems": _additional_items,
        "dependencies": rules.get("dependencies", _dependencies),
        "exclusiveMinimum": _exclusive("minimum", rules.get("exclusiveMinimum")),
        "exclusiveMaximum": _exclusive("maximum", rules.get("exclusiveMaximum")),
    }
    return {word: rule for word, rule in said.items() if known(draft, word)}


def _items(rule: Keyword) -> Keyword:
    """A list is what 2020-12 calls `prefixItems`."""

    def items(validator: Any, wanted: Any, instance: Any, schema: Any) -> Errors:
        if not isinstance(wanted, list):
            yield from rule(validator, wanted, instance, schema) or ()
        elif isinstance(instance, list):
            for i, (item, part) in enumerate(zip(instance, wanted, strict=False)):
                yield from validator.descend(item, part, path=i, schema_path=i)

    return items


def _additional_items(validator: Any, rest: Any, instance: Any, schema: Any) -> Errors:
    """Of what is behind a list of `items`; without a list it says nothing."""
    first = schema.get("items")
    if isinstance(first, list) and isinstance(instance, list):
        for i, item in enumerate(instance[len(first) :], start=len(first)):
            yield from validator.descend(item, rest, path=i)


def _dependencies(validator: Any, needed: Any, instance: Any, schema: Any) -> Errors:
    """What there has to be, or has to fit, beside a property."""
    for name in needed if isinstance(instance, dict) else ():
        needs = needed[name]
        if name in instance and isinstance(needs, dict | bool):
            yield from validator.descend(instance, needs, schema_path=name)
        elif name in instance:
            for other in [needs] if isinstance(needs, str) else needs:
                if other not in instance:
                    yield exceptions.ValidationError(f"{other!r:.80} depends on {name!r:.80}")


def _exclusive(word: str, rule: Keyword | None) -> Keyword:
    """Draft 4 says by true or false whether the limit itself is left out."""

    def exclusive(validator: Any, limit: Any, instance: Any, schema: Any) -> Errors:
        if not isinstance(limit, bool):
            yield from (rule(validator, limit, instance, schema) or ()) if rule else ()
        elif limit and validator.is_type(instance, "number") and instance == schema.get(word):
            yield exceptions.ValidationError(f"{instance!r:.80} is the {word}, which is left out")

    return exclusive
