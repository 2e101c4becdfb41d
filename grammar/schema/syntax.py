"""What the keywords of a JSON schema may hold, and where schemas are within it.

It knows the syntax of each keyword, not what it says about a value.
"""

import sys
from collections.abc import Iterator
from typing import Any

from dlm.grammar.schema.drafts import ANY

_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
_ONE = frozenset(
    """not if then else additionalProperties additionalItems contains propertyNames items
    unevaluatedItems unevaluatedProperties contentSchema""".split()
)
_LISTS = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
_MAPS = {*"properties patternProperties $defs definitions dependentSchemas dependencies".split()}
DATA = ("const", "enum", "default", "examples")
_COUNTS = {m + n for m in ("min", "max") for n in ("Length", "Items", "Properties", "Contains")}
_TEXTS = frozenset("pattern $ref $id $anchor $dynamicAnchor $dynamicRef $recursiveRef".split())


def has_ref_alone(node: dict[str, Any], draft: int) -> bool:
    """Whether the `$ref` of a schema is all that counts in it: in drafts up to 7 its siblings,
    identifiers among them, are ignored."""
    return "$ref" in node and 0 < draft <= 7


def is_schema_list(word: str, value: Any) -> bool:
    """Whether the value of a keyword is a list of schemas."""
    return isinstance(value, list) and (word in _LISTS or word == "items")


def is_schema_map(word: str) -> bool:
    """Whether a keyword has schemas by names of their own."""
    return word in _MAPS


def parts(word: str, value: Any) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """The schemas in the value of a keyword, with the keys that lead there."""
    if is_schema_list(word, value):
        yield from (((i,), part) for i, part in enumerate(value))
    elif word in _ONE:
        yield (), value
    elif word in _MAPS:
        for key, part in value.items():
            if word != "dependencies" or not isinstance(part, list | str):
                yield (key,), part


def flaw(word: str, value: Any, draft: int) -> str | None:
    """Why `value` is nothing that the keyword may have."""
    if word in _LISTS:
        if not isinstance(value, list) or not value:
            return "it is a list of schemas, and not empty"
    elif word in _MAPS or word == "dependentRequired":
        if not isinstance(value, dict):
            return f"it is an object, not {value!r:.40}"
        if word == "dependentRequired" and not all(map(_names, value.values())):
            return "its values are lists of names"
    elif word in _COUNTS:
        if not _number(value) or value < 0 or value != int(value):
            return f"it is an integer from 0, not {value!r:.40}"
    elif word in ("minimum", "maximum", "multipleOf"):
        if not _number(value) or (word == "multipleOf" and value <= 0):
            return f"it is a {'positive ' * (word == 'multipleOf')}number, not {value!r:.40}"
    elif word in ("exclusiveMinimum", "exclusiveMaximum"):
        if not _number(value) and not (isinstance(value, bool) and draft in (ANY, 4)):
            return f"it is a number, not {value!r:.40}"
    elif word in _TEXTS:
        if not isinstance(value, str):
            return f"it is text, not {value!r:.40}"
    elif word == "type":
        kinds = value if isinstance(value, list) else [value]
        if unknown := [kind for kind in kinds if kind not in _TYPES]:
            return f"{unknown[0]!r:.40} is no type: {', '.join(_TYPES)} are"
    elif word == "enum":
        if not isinstance(value, list):
            return f"it is a list, not {value!r:.40}"
    elif word == "required" and not _names(value):
        return f"it is a list of names, not {value!r:.40}"
    return None


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) <= sys.float_info.max
