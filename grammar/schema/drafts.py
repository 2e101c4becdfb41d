"""Keywords of JSON Schema: those of each draft, their values, and their form in 2020-12.

Knows which keywords contain schemas, but not what a keyword means for a JSON value.
"""

import sys
from collections.abc import Iterator
from typing import Any

ANY = 0  # no draft named: the newest, with the keywords of older ones
DRAFTS = {
    "json-schema.org/draft-03/schema": 3,
    "json-schema.org/draft-04/schema": 4,
    "json-schema.org/draft-06/schema": 6,
    "json-schema.org/draft-07/schema": 7,
    "json-schema.org/schema": 7,
    "json-schema.org/draft/2019-09/schema": 2019,
    "json-schema.org/draft/2020-12/schema": 2020,
}
_SINCE = {
    **dict.fromkeys(("const", "contains", "propertyNames"), 6),
    **dict.fromkeys(("if", "then", "else"), 7),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "minContains", "maxContains"), 2019),
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties", "$anchor"), 2019),
    **dict.fromkeys(("prefixItems", "$dynamicRef", "$dynamicAnchor"), 2020),
}
_UNTIL = {"$recursiveRef": 2019, "id": 4}  # other old keywords keep their meaning if still used


def has_keyword(draft: int, word: str) -> bool:
    """Whether `draft` has the keyword `word`."""
    return draft == ANY or _SINCE.get(word, 0) <= draft <= _UNTIL.get(word, 9999)


def pointer(*parts: str | int) -> str:
    """Return the JSON pointer (RFC 6901) made of `parts`."""
    text = "/".join(("", *map(str, parts)))
    if "~" not in text and text.count("/") == len(parts):
        return text
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
_ONE = frozenset(
    """not if then else additionalProperties additionalItems contains propertyNames items
    unevaluatedItems unevaluatedProperties contentSchema""".split()
)
_LISTS = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
MAPS = {*"properties patternProperties $defs definitions dependentSchemas dependencies".split()}
_VALUES = ("const", "default")  # keywords that may be null
DATA = (*_VALUES, "enum", "examples")
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_COUNTS = {m + n for m in ("min", "max") for n in ("Length", "Items", "Properties", "Contains")}
_TEXTS = frozenset(("pattern", "$id", "$anchor", "$dynamicAnchor", *REFERENCES))
_LIMITS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
# Keywords that may have a wrong value, or schemas in it.
EXAMINED = (
    frozenset(("type", "enum", "required", "dependentRequired"))
    | _ONE | _LISTS | MAPS | _COUNTS | _TEXTS | _LIMITS
)  # fmt: skip
HOLDING = _ONE | _LISTS | MAPS  # keywords with schemas in their values
NAMES = frozenset(("id", "$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor"))
# Keywords whose values have another form in 2020-12, besides `type`.
_REWRITTEN = _COUNTS.union(("items", "exclusiveMinimum", "exclusiveMaximum", "dependencies"))
# By draft: keywords that it does not have.
_FOREIGN = {
    draft: frozenset(word for word in {*_SINCE, *_UNTIL} if not has_keyword(draft, word))
    for draft in {ANY, *DRAFTS.values()}
}


def has_ref_alone(node: dict[str, Any], draft: int) -> bool:
    """Whether all keywords beside the `$ref` of a schema are ignored, as in drafts up to 7."""
    return node.get("$ref") is not None and 0 < draft <= 7


def keywords_of(node: dict[str, Any], draft: int) -> dict[str, Any]:
    """Return the keywords of a schema that `draft` has; `node` itself if these are all.

    Keywords that are null are left out: Go and Java clients write null for absent.
    """
    foreign = _FOREIGN[draft]
    if None not in node.values() and foreign.isdisjoint(node):
        return node
    return {
        word: value
        for word, value in node.items()
        if word not in foreign and (value is not None or word in _VALUES)
    }


def upgraded(node: dict[str, Any], draft: int) -> dict[str, Any]:
    """Return the keywords of a schema of `draft` in the form of 2020-12.

    `type` becomes a list, and counts become integers. The subschemas stay as they are;
    `$recursiveRef` stays, too, beside `$dynamicRef`.
    """
    if has_ref_alone(node, draft):
        return {"$ref": node["$ref"]}
    if node.get("nullable") is True:
        return _nullable(node, draft)
    words = dict(keywords_of(node, draft))
    if isinstance(words.get("type"), str):
        words["type"] = [words["type"]]
    if _REWRITTEN.isdisjoint(words):
        return words
    for word in _COUNTS.intersection(words):
        words[word] = int(words[word])
    if isinstance(words.get("items"), list):
        words["prefixItems"] = words.pop("items")
        if "additionalItems" in words:
            words["items"] = words["additionalItems"]
    for end, strict in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(words.get(strict), bool) and words.pop(strict) and end in words:
            words[strict] = words.pop(end)
    if "dependencies" in words:
        needed = dict(words.get("dependentRequired", {}))
        schemas = dict(words.get("dependentSchemas", {}))
        for name, needs in words.pop("dependencies").items():
            if isinstance(needs, dict | bool):
                schemas[name] = {"allOf": [schemas[name], needs]} if name in schemas else needs
            else:
                names = [needs] if isinstance(needs, str) else needs
                needed[name] = [*needed.get(name, ()), *names]
        words |= {"dependentRequired": needed, "dependentSchemas": schemas}
    return words


_NAMING = frozenset(
    "$schema $id id $anchor $dynamicAnchor $recursiveAnchor $defs definitions".split()
)
_COMBINING = frozenset((*REFERENCES, "allOf", "anyOf", "oneOf", "not", "if", "const"))


def _nullable(node: dict[str, Any], draft: int) -> dict[str, Any]:
    """Return the keywords of a schema with OpenAPI 3.0's `nullable: true`: null fits it, too.

    Beside a `type`, that is one more type, and one more value of `enum` or `const`. Without a
    `type`, or beside references and combined schemas, the whole schema becomes one of two in an
    `anyOf`: generators of code mean null by `nullable` there, although OpenAPI 3.0.3 ignores it.
    """
    plain = {word: value for word, value in node.items() if word != "nullable"}
    if plain.get("type") is None or not _COMBINING.isdisjoint(plain):
        named = {word: value for word, value in plain.items() if word in _NAMING}
        unnamed = {word: value for word, value in plain.items() if word not in _NAMING}
        return keywords_of(named, draft) | {"anyOf": [unnamed, {"type": "null"}]}
    words = upgraded(plain, draft)
    words["type"] = [*words["type"], "null"]
    if "enum" in words and None not in words["enum"]:
        words["enum"] = [*words["enum"], None]
    return words


def parts(word: str, value: Any) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield the schemas in the value of a keyword, each with the keys that lead to it."""
    if isinstance(value, list) and (word in _LISTS or word == "items"):
        yield from (((i,), part) for i, part in enumerate(value))
    elif word in _ONE:
        yield (), value
    elif word in MAPS and isinstance(value, dict):
        for key, part in value.items():
            if word != "dependencies" or not isinstance(part, list | str):
                yield (key,), part


def flaw(word: str, value: Any) -> str | None:
    """Return why the keyword `word` may not have `value`; None if it may."""
    if word == "type":
        kinds = value if isinstance(value, list) else [value]
        if unknown := [kind for kind in kinds if kind not in _TYPES]:
            return f"{unknown[0]!r:.40} is no type; the types are {', '.join(_TYPES)}"
    elif word in _LISTS:
        if not isinstance(value, list) or not value:
            return "must be a list of schemas that is not empty"
    elif word in MAPS or word == "dependentRequired":
        if not isinstance(value, dict):
            return f"must be an object, not {value!r:.40}"
        if word == "dependentRequired" and not all(map(_names, value.values())):
            return "its values must be lists of names"
    elif word in _COUNTS:
        if not _number(value) or value < 0 or value != int(value):
            return f"must be a non-negative integer, not {value!r:.40}"
    elif word in ("minimum", "maximum", "multipleOf"):
        if not _number(value) or (word == "multipleOf" and value <= 0):
            return f"must be a {'positive ' * (word == 'multipleOf')}number, not {value!r:.40}"
    elif word in ("exclusiveMinimum", "exclusiveMaximum"):
        if not _number(value) and not isinstance(value, bool):
            return f"must be a number, not {value!r:.40}"
    elif word in _TEXTS:
        if not isinstance(value, str):
            return f"must be a string, not {value!r:.40}"
    elif word == "enum":
        if not isinstance(value, list):
            return f"must be a list, not {value!r:.40}"
    elif word == "required" and not _names(value):
        return f"must be a list of names, not {value!r:.40}"
    return None


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) <= sys.float_info.max
