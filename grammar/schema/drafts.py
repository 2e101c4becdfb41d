"""The drafts of JSON Schema: how a schema names one, and which keywords each of them has."""

ANY = 0  # no draft named: the newest, with what older ones say otherwise
_DRAFTS = {
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
_UNTIL = {"$recursiveRef": 2019, "id": 4}  # those that are still written are still meant


def draft_of(uri: str) -> int:
    """The draft that a `$schema` names, by http or https; `ANY` where it is none that is known."""
    return _DRAFTS.get(uri.partition("://")[2].rstrip("#/"), ANY)


def known(draft: int, word: str) -> bool:
    """Whether that draft has the keyword."""
    return draft == ANY or _SINCE.get(word, 0) <= draft <= _UNTIL.get(word, 9999)
