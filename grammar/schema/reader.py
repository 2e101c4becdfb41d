"""A JSON schema and the documents that it refers to: drafts, checks, identifiers, references.

It does not know what the keywords say about a value.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import unquote, urljoin

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.schema.drafts import ANY, draft_of, known
from dlm.grammar.schema.pointer import pointer
from dlm.grammar.schema.syntax import DATA, flaw, has_ref_alone, parts
from dlm.grammar.schema.work import Work

_BOOLEANS: dict[bool, dict[str, Any]] = {True: {}, False: {"not": {}}}


@dataclass(frozen=True, eq=False, slots=True)
class Source:
    """A subschema, one object for each: where it is, and how its references are read."""

    node: dict[str, Any]
    where: str  # JSON pointer, for errors
    base: str  # URI of the resource that it belongs to
    draft: int
    scope: tuple[str, ...]  # resources with dynamic anchors on the way here, the outermost first

    def knows(self, keyword: str) -> bool:
        """Whether it has that keyword, and its draft does."""
        return keyword in self.node and known(self.draft, keyword)


class Reader:
    """Reads one schema: `root`. Raises `InvalidGrammarError`.

    `registry` has other documents by URI. `strict`: a `$schema` has to be a known one.
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
        self._places: dict[int, tuple[str, str, int]] = {}  # by id: pointer, base, draft
        self._roots: dict[str, Any] = {}
        self._anchors: dict[tuple[str, str], Any] = {}
        self._dynamic: dict[str, set[str]] = {}  # names of dynamic anchors, by base
        self._sources: dict[tuple[int, tuple[str, ...]], Source] = {}
        self._kept: list[Any] = []  # schemas are told apart by identity: these have to live on
        self._where = where
        self._index(schema, where, "", ANY)
        self._roots.setdefault("", schema)
        self.root = self.source(_BOOLEANS[schema] if isinstance(schema, bool) else schema)

    def source(self, node: Any, parent: Source | None = None) -> Source:
        """The source of a schema of a document, or of one that was made up in `parent`."""
        scope = parent.scope if parent else ()
        if id(node) not in self._places:
            self._kept.append(node)
            self._index(node, *((parent.where, parent.base) if parent else (self._where, "")), ANY)
        where, base, draft = self._places[id(node)]
        outer = (self._dynamic[uri] for uri in scope)
        if not self._dynamic.get(base, set()) <= set().union(*outer):
            scope = (*scope, base)
        key = id(node), scope
        if key not in self._sources:
            self._sources[key] = Source(node, where, base, draft, scope)
        return self._sources[key]

    def target(self, source: Source, keyword: str) -> Source:
        """What the reference in `source` leads to."""
        reference = source.node[keyword]
        base, _, fragment = self._absolute(source.base, reference).partition("#")
        fragment = unquote(fragment)
        found = self._found(base, fragment, f"{source.where}/{keyword}", reference)
        name = fragment if keyword == "$dynamicRef" else ""
        if keyword != "$ref" and name in self._dynamic.get(base, ()):
            outer = (uri for uri in source.scope if name in self._dynamic[uri])
            base = next(outer, base)
            found = self._anchors[base, name] if name else self._roots[base]
        if not isinstance(found, dict | bool):
            self._refuse(f"{source.where}/{keyword}", f"{reference!r:.80} leads to no schema")
        return self.source(_BOOLEANS[found] if isinstance(found, bool) else found, source)

    def _found(self, base: str, fragment: str, where: str, reference: str) -> Any:
        roots = [base] if base in self._roots or self._load(base) else []
        if fragment and not fragment.startswith("/"):
            if (base, fragment) in self._anchors:
                return self._anchors[base, fragment]
        else:
            # Identifiers within older schemas are often no more than remarks: the document then.
            for root in dict.fromkeys([*roots, ""]):
                found = self._within(self._roots[root], fragment)
                if found is not None and (roots or reference.startswith("#")):
                    return found
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
            above = node if id(node) in self._places else above
        if isinstance(node, dict) and id(node) not in self._places:
            _, base, draft = self._places.get(id(above), ("", "", ANY))
            self._index(node, self._where + fragment, base, draft)
        return node

    def _load(self, uri: str) -> bool:
        document = self._registry.get(uri, self._registry.get(f"{uri}#"))
        if document is None and "json-schema.org/" in uri:
            from jsonschema_specifications import REGISTRY  # few schemas need it

            document = REGISTRY.contents(uri) if uri in REGISTRY else None
        if document is None:
            return False
        self._roots[uri] = document
        self._index(document, uri, uri, self._places[id(self._roots[""])][2])
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
        """Checks a schema and all within, and notes where they are and what they are called."""
        waiting, read = [(schema, where, base, draft)], 0
        while waiting:
            node, where, base, draft = waiting.pop()
            read += 1
            if read % 2 == 0:  # two of them take one step
                self._work.count(1, where)
            if isinstance(node, bool):
                continue
            if not isinstance(node, dict):
                self._refuse(where, f"a schema is an object, not {node!r:.40}")
            if "$schema" in node:
                draft = self._draft(node["$schema"], where)
            base = self._named(node, base, draft)
            self._places.setdefault(id(node), (where, base, draft))
            listed = isinstance(node.get("items"), list)
            if listed and "prefixItems" in node and draft in (ANY, 2020):
                self._refuse(f"{where}/items", "a list beside prefixItems, which no draft knows")
            alone = has_ref_alone(node, draft)
            for word, value in node.items():
                if known(draft, word):
                    reason = flaw(word, value, draft)
                    if reason and alone and word != "$ref":
                        continue  # nobody reads it
                    if reason:
                        self._refuse(where + pointer(word), reason)
                    for key, part in parts(word, value):
                        waiting.append((part, where + pointer(word, *key), base, draft))

    def _draft(self, uri: Any, where: str) -> int:
        if not isinstance(uri, str):
            self._refuse(f"{where}/$schema", "a draft is named by its URI")
        draft = draft_of(uri)
        if draft == 3 or (draft == ANY and self._strict):
            self._refuse(f"{where}/$schema", f"{uri!r:.80} is no draft from 4 to 2020-12")
        return draft

    def _named(self, node: dict[str, Any], base: str, draft: int) -> str:
        """Its base URI; and notes its names."""
        word = "id" if draft == 4 else "$id"
        name = node.get(word)
        if isinstance(name, str):
            uri, _, fragment = self._absolute(base, name).partition("#")
            if has_ref_alone(node, draft):  # others may know the document by that name all the same
                if not self._roots:
                    self._roots[uri] = node
            else:
                if not name.startswith("#"):
                    base = uri
                    self._roots.setdefault(base, node)
                if fragment:
                    self._anchors.setdefault((base, fragment), node)
        for word in ("$anchor", "$dynamicAnchor"):
            if isinstance(node.get(word), str) and known(draft, word):
                self._anchors.setdefault((base, node[word]), node)
                if word == "$dynamicAnchor":
                    self._dynamic.setdefault(base, set()).add(node[word])
        if node.get("$recursiveAnchor") is True and draft == 2019:
            self._dynamic.setdefault(base, set()).add("")
        return base


def spelled_out(schema: Any) -> Any:
    """A copy in which OpenAPI's `nullable` is the type that it means."""
    if not isinstance(schema, dict):
        return [spelled_out(part) for part in schema] if isinstance(schema, list) else schema
    copy = {
        key: part if key in DATA and not isinstance(part, dict) else spelled_out(part)
        for key, part in schema.items()
    }
    if copy.get("nullable") is True and isinstance(copy.get("type"), str):
        copy["type"] = [copy["type"], "null"]
        if isinstance(copy.get("enum"), list) and None not in copy["enum"]:
            copy["enum"] = [*copy["enum"], None]
    return copy
