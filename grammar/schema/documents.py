"""A JSON schema and the documents that it refers to: drafts, syntax, identifiers, references.

Knows which keywords each draft has, which of them contain schemas, and what values they may have,
but not what a keyword means for a JSON value. `Work` limits the effort that one schema may take,
counted in steps of about 10 us.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn
from urllib.parse import unquote, urljoin

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.immutable import immutable

ANY = 0  # no draft named: the newest, with the keywords of older ones
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
_UNTIL = {"$recursiveRef": 2019, "id": 4}  # other old keywords keep their meaning if still used


def has_keyword(draft: int, word: str) -> bool:
    """Whether `draft` has the keyword `word`."""
    return draft == ANY or _SINCE.get(word, 0) <= draft <= _UNTIL.get(word, 9999)


def pointer(*parts: str | int) -> str:
    """Return the JSON pointer (RFC 6901) made of `parts`."""
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
_EXAMINED = (
    frozenset(("type", "enum", "required", "dependentRequired"))
    | _ONE | _LISTS | MAPS | _COUNTS | _TEXTS | _LIMITS
)  # fmt: skip


def has_ref_alone(node: dict[str, Any], draft: int) -> bool:
    """Whether all keywords beside the `$ref` of a schema are ignored, as in drafts up to 7."""
    return node.get("$ref") is not None and 0 < draft <= 7


def keywords_of(node: dict[str, Any], draft: int) -> dict[str, Any]:
    """Return the keywords of a schema that `draft` has.

    Keywords that are null are left out: Go and Java clients write null for absent.
    """
    if draft == ANY and None not in node.values():
        return dict(node)
    return {
        word: value
        for word, value in node.items()
        if has_keyword(draft, word) and (value is not None or word in _VALUES)
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
    words = keywords_of(node, draft)
    for word in _COUNTS.intersection(words):
        words[word] = int(words[word])
    if isinstance(words.get("type"), str):
        words["type"] = [words["type"]]
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


def flaw(word: str, value: Any, draft: int) -> str | None:
    """Return why the keyword `word` may not have `value`; None if it may."""
    if word in _LISTS:
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
    elif word == "type":
        kinds = value if isinstance(value, list) else [value]
        if unknown := [kind for kind in kinds if kind not in _TYPES]:
            return f"{unknown[0]!r:.40} is no type; the types are {', '.join(_TYPES)}"
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


MOST_WORK = 60_000


class TooMuchWorkError(InvalidGrammarError):
    """A schema that takes more work than allowed."""


class Work:
    """Counter of steps, at most `most`."""

    def __init__(self, most: int = MOST_WORK):
        self.most, self.done = most, 0

    def count(self, steps: int, where: str) -> None:
        """Add `steps`. Raises `TooMuchWorkError` with the pointer `where` beyond the limit."""
        self.done += steps
        if self.done > self.most:
            reason = f"it takes more than {self.most} steps to read"
            raise TooMuchWorkError("JSON schema", reason, where or "/")


_BOOLEANS: dict[bool, dict[str, Any]] = {True: {}, False: {"not": {}}}


@immutable(eq=False)
class Source:
    """A subschema with its location and the context in which its references are resolved."""

    node: dict[str, Any]  # its keywords, in the form of 2020-12
    where: str  # JSON pointer, for errors
    base: str  # URI of the resource that contains it
    draft: int
    scope: tuple[str, ...]  # enclosing resources with dynamic anchors, the outermost first


class DocumentReader:
    """Reader of one schema, `root`, and the documents that it refers to.

    `registry` has other documents by URI. If `strict`, an unknown `$schema` is an error. Every
    method raises `InvalidGrammarError` if a schema is malformed.
    """

    def __init__(
        self,
        schema: Any,
        registry: Mapping[str, Any] | None,
        where: str,
        work: Work,
        *,
        strict: bool = False,
    ):
        self._work = work
        self._registry = registry or {}
        self._strict = strict
        self._locations: dict[int, tuple[str, str, int]] = {}  # by id(): pointer, base, draft
        self._roots: dict[str, Any] = {}
        self._anchors: dict[tuple[str, str], Any] = {}
        self._dynamic: dict[str, set[str]] = {}  # names of dynamic anchors, by base
        self._sources: dict[tuple[int, tuple[str, ...]], Source] = {}
        self._kept: list[Any] = []  # schemas made up here: kept alive, so that id() stays unique
        self._where = where
        self._index(schema, where, "", ANY)
        self._roots.setdefault("", schema)
        self.root = self.source(schema)

    def source(self, node: Any, parent: Source | None = None) -> Source:
        """Return the source of `node`: part of a document, or a schema made up for `parent`."""
        node = _BOOLEANS[node] if isinstance(node, bool) else node
        scope = parent.scope if parent else ()
        if id(node) not in self._locations:
            self._kept.append(node)
            self._index(node, *((parent.where, parent.base) if parent else (self._where, "")), ANY)
        where, base, draft = self._locations[id(node)]
        anchors = self._dynamic.get(base)
        if anchors and not anchors <= set().union(*(self._dynamic[uri] for uri in scope)):
            scope = (*scope, base)
        key = id(node), scope
        if key not in self._sources:
            words = upgraded(node, draft)
            if node.get("nullable") is True:  # the schema without it is in a new `anyOf`
                for part in words.get("anyOf", ()):
                    self._locations.setdefault(id(part), (where, base, draft))
            self._sources[key] = Source(words, where, base, draft, scope)
        return self._sources[key]

    def target(self, source: Source, keyword: str) -> Source:
        """Return the subschema that the reference `keyword` in `source` leads to."""
        reference = source.node[keyword]
        base, _, fragment = self._absolute(source.base, reference).partition("#")
        fragment = unquote(fragment)
        subschema = self._resolved(base, fragment, f"{source.where}/{keyword}", reference)
        name = fragment if keyword == "$dynamicRef" else ""
        if keyword != "$ref" and name in self._dynamic.get(base, ()):
            outer = (uri for uri in source.scope if name in self._dynamic[uri])
            base = next(outer, base)
            subschema = self._anchors[base, name] if name else self._roots[base]
        if not isinstance(subschema, dict | bool):
            self._refuse(f"{source.where}/{keyword}", f"{reference!r:.80} leads to no schema")
        return self.source(subschema, source)

    def _resolved(self, base: str, fragment: str, where: str, reference: str) -> Any:
        roots = [base] if base in self._roots or self._load(base) else []
        if fragment and not fragment.startswith("/"):
            if (base, fragment) in self._anchors:
                return self._anchors[base, fragment]
        else:
            # Identifiers in older schemas are often mere comments: then try the document itself.
            for root in dict.fromkeys([*roots, ""]):
                subschema = self._within(self._roots[root], fragment)
                if subschema is not None and (roots or reference.startswith("#")):
                    return subschema
        reason = f"{reference!r:.80} leads to no schema here, nor in the registry"
        return self._refuse(where, reason)

    def _within(self, node: Any, fragment: str) -> Any:
        above = node
        for key in fragment.split("/")[1:]:
            key = key.replace("~1", "/").replace("~0", "~")
            try:
                node = node[int(key) if isinstance(node, list) else key]
            except (LookupError, TypeError, ValueError):
                return None
            above = node if id(node) in self._locations else above
        if isinstance(node, dict) and id(node) not in self._locations:
            _, base, draft = self._locations.get(id(above), ("", "", ANY))
            self._index(node, self._where + fragment, base, draft)
        return node

    def _load(self, uri: str) -> bool:
        document = self._registry.get(uri, self._registry.get(f"{uri}#"))
        if document is None and "json-schema.org/" in uri:
            from jsonschema_specifications import REGISTRY  # few schemas need it

            document = REGISTRY.contents(uri) if uri in REGISTRY else None
        if document is None:
            return False
        self._index(document, uri, uri, self._locations[id(self._roots[""])][2])
        self._roots[uri] = document
        return True

    def _absolute(self, base: str, reference: str) -> str:
        if reference.startswith("#"):
            return base + reference
        try:
            return urljoin(base, reference)
        except ValueError:
            return reference

    def _refuse(self, where: str, reason: str) -> NoReturn:
        raise InvalidGrammarError("JSON schema", reason, where or "/")

    def _index(self, schema: Any, where: str, base: str, draft: int) -> None:
        """Check a schema and all its subschemas, and record their locations and names.

        A wrong one is not recorded, so that another reference to it is the same error.
        """
        try:
            self._check(schema, where, base, draft)
        except InvalidGrammarError:
            self._locations.pop(id(schema), None)
            raise

    def _check(self, schema: Any, where: str, base: str, draft: int) -> None:
        waiting, read = [(schema, where, base, draft)], 0
        while waiting:
            node, where, base, draft = waiting.pop()
            read += 1
            if read % 2 == 0:  # two subschemas count as one step
                self._work.count(1, where)
            if isinstance(node, bool):
                continue
            if not isinstance(node, dict):
                self._refuse(where, f"a schema must be an object, true or false, got {node!r:.40}")
            if node.get("$schema") is not None:
                draft = self._draft(node["$schema"], where)
            base = self._named(node, base, draft)
            words = keywords_of(node, draft)
            if isinstance(words.get("items"), list) and "prefixItems" in words:
                self._refuse(f"{where}/items", "must not be a list beside prefixItems")
            alone = has_ref_alone(node, draft)
            for word, value in words.items():
                if word not in _EXAMINED:
                    continue
                reason = flaw(word, value, draft)
                if reason and alone and word != "$ref":
                    continue  # the keyword is ignored
                if reason:
                    self._refuse(where + pointer(word), reason)
                for key, part in parts(word, value):
                    waiting.append((part, where + pointer(word, *key), base, draft))
            self._locations.setdefault(id(node), (where, base, draft))

    def _draft(self, uri: Any, where: str) -> int:
        if not isinstance(uri, str):
            self._refuse(f"{where}/$schema", "must be the URI of a draft")
        draft = _DRAFTS.get(uri.partition("://")[2].rstrip("#/"), ANY)  # http or https
        if draft == 3 or (draft == ANY and self._strict):
            self._refuse(f"{where}/$schema", f"{uri!r:.80} is no draft from 4 to 2020-12")
        return draft

    def _named(self, node: dict[str, Any], base: str, draft: int) -> str:
        """Record the identifiers and anchors of `node`, and return its base URI."""
        word = "id" if draft == 4 else "$id"
        name = node.get(word)
        if isinstance(name, str):
            uri, _, fragment = self._absolute(base, name).partition("#")
            if has_ref_alone(node, draft):  # a document's own name counts even beside a `$ref`
                if not self._roots:
                    self._roots[uri] = node
            else:
                if not name.startswith("#"):
                    base = uri
                    self._roots.setdefault(base, node)
                if fragment:
                    self._anchors.setdefault((base, fragment), node)
        for word in ("$anchor", "$dynamicAnchor"):
            if isinstance(node.get(word), str) and has_keyword(draft, word):
                self._anchors.setdefault((base, node[word]), node)
                if word == "$dynamicAnchor":
                    self._dynamic.setdefault(base, set()).add(node[word])
        if node.get("$recursiveAnchor") is True and draft == 2019:
            self._dynamic.setdefault(base, set()).add("")
        return base


def without_nulls(schema: Any) -> Any:
    """Return a copy of `schema` without keywords that are null."""
    return rewritten(schema, lambda node: keywords_of(node, ANY))


def rewritten(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return a copy of `schema` in which all subschemas are replaced by what `change` returns.

    Unknown keywords may contain schemas, too. Raises `RecursionError` if it is nested too deeply.
    """

    def part(word: str, value: Any) -> Any:
        if word in DATA:
            return value
        if isinstance(value, list):
            return [rewritten(item, change) for item in value]
        if word in MAPS and isinstance(value, dict):
            return {key: rewritten(subschema, change) for key, subschema in value.items()}
        return rewritten(value, change)

    if not isinstance(schema, dict):
        return schema
    return change({word: part(word, value) for word, value in schema.items()})
