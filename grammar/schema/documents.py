"""A JSON schema and the documents that it refers to: their syntax, identifiers and references.

`Work` limits the effort that one schema may take, counted in steps of about 10 us.
"""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn
from urllib.parse import unquote, urljoin

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.immutable import immutable
from dlm.grammar.schema.drafts import (
    ANY,
    DATA,
    DRAFTS,
    EXAMINED,
    HOLDING,
    MAPS,
    NAMES,
    flaw,
    has_keyword,
    has_ref_alone,
    keywords_of,
    parts,
    pointer,
    upgraded,
)

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
            if not NAMES.isdisjoint(node):
                base = self._named(node, base, draft)
            words = keywords_of(node, draft)
            if isinstance(words.get("items"), list) and "prefixItems" in words:
                self._refuse(f"{where}/items", "must not be a list beside prefixItems")
            alone = has_ref_alone(node, draft)
            for word, value in words.items():
                if word not in EXAMINED:
                    continue
                if reason := flaw(word, value):
                    if alone and word != "$ref":
                        continue  # the keyword is ignored
                    self._refuse(where + pointer(word), reason)
                if word in HOLDING:
                    for key, part in parts(word, value):
                        waiting.append((part, where + pointer(word, *key), base, draft))
            self._locations.setdefault(id(node), (where, base, draft))

    def _draft(self, uri: Any, where: str) -> int:
        if not isinstance(uri, str):
            self._refuse(f"{where}/$schema", "must be the URI of a draft")
        draft = DRAFTS.get(uri.partition("://")[2].rstrip("#/"), ANY)  # http or https
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
