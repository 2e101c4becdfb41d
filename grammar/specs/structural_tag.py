"""Constraints to free text and tags, in xgrammar's structural tag form.

First the form of a tag is checked, field by field, as xgrammar documents it. Then its formats
become rules.
"""

import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NoReturn

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.regex.automaton import TooLargeError
from dlm.grammar.regex.nodes import (
    Literal,
    Node,
    Repetition,
    Terminal,
    alternation,
    concatenation,
    optional,
)
from dlm.grammar.regex.patterns import dispatch, free_of
from dlm.grammar.rules.folding import matching, with_terminals
from dlm.grammar.rules.notation import read_ebnf
from dlm.grammar.rules.properties import check_rules
from dlm.grammar.rules.rules import Rules
from dlm.grammar.schema.dialects import Dialect
from dlm.grammar.schema.drafts import pointer
from dlm.grammar.schema.elements import FORMS
from dlm.grammar.schema.evaluate import plain
from dlm.grammar.schema.objects import PROPERTY_ORDERS, PropertyOrder
from dlm.grammar.schema.writer import write
from dlm.grammar.specs.spec import Spec
from dlm.grammar.vocabulary.pieces import CallMarkers

KIND = "structural tag"

_MOST_NESTED = 64  # depth of formats within formats
_BY_TOKEN = ("token", "exclude_token", "any_tokens", "token_triggered_tags", "token_dispatch")

Path = tuple[str | int, ...]
FieldCheck = Callable[[Any, Path], None]


def fail(reason: str, path: Path) -> NoReturn:
    raise InvalidGrammarError(KIND, reason, pointer(*path) or "/")


def _fields(
    form: Any, checks: dict[str, FieldCheck], optional: tuple[str, ...], path: Path
) -> None:
    if not isinstance(form, dict):
        fail(f"must be an object, got {form!r:.40}", path)
    for name in form:
        if name not in checks:
            fail(f"{name!r:.40} is unknown here; the fields are {', '.join(checks)}", path)
    for name, check_field in checks.items():
        if name in form:
            check_field(form[name], (*path, name))
        elif name not in optional:
            fail(f"{name} is missing", path)


def _format(form: Any, path: Path, kind: str | None = None) -> None:
    if len(path) > 3 * _MOST_NESTED:
        fail(f"formats are nested more than {_MOST_NESTED} deep", path)
    if not isinstance(form, dict):
        fail(f"a format must be an object, got {form!r:.40}", path)
    kind = form.get("type", kind)
    if kind in _BY_TOKEN:
        fail(f"{kind} names token ids: name text", path)
    if not isinstance(kind, str) or kind not in _FORMATS:
        fail(f"type must be one of {', '.join(_FORMATS)}, got {kind!r:.40}", (*path, "type"))
    checks, optional = _FORMATS[kind]
    _fields(form, {"type": _text, **checks}, ("type", *optional), path)


def _is(description: str, *types: type, least: int | None = None) -> FieldCheck:
    def check(value: Any, path: Path) -> None:
        number = isinstance(value, int) and not isinstance(value, bool)
        right = number if int in types else isinstance(value, types)
        if not right or (least is not None and value < least):
            fail(f"must be {description}, got {value!r:.40}", path)

    return check


def _or_null(check: FieldCheck) -> FieldCheck:
    return lambda value, path: None if value is None else check(value, path)


def _list_of(check: FieldCheck, least: int = 0) -> FieldCheck:
    def checked(value: Any, path: Path) -> None:
        if not isinstance(value, list) or len(value) < least:
            fail(f"must be a list{' that is not empty' * least}, got {value!r:.40}", path)
        for i, item in enumerate(value):
            check(item, (*path, i))

    return checked


def _word(value: Any, path: Path) -> None:
    if not isinstance(value, str) or not value:
        fail(f"must be text that is not empty, got {value!r:.40}", path)


def _border(value: Any, path: Path) -> None:
    """Check the begin or an end of a tag: text, not token ids."""
    if isinstance(value, dict):
        fail("token names token ids: name text", path)
    _text(value, path)


def _ends(value: Any, path: Path) -> None:
    (_list_of(_border, 1) if isinstance(value, list) else _border)(value, path)


def _tag(form: Any, path: Path) -> None:
    if isinstance(form, dict) and form.get("type", "tag") != "tag":
        fail("must be a tag", (*path, "type"))
    _format(form, path, "tag")


def _pair(value: Any, path: Path) -> None:
    if not isinstance(value, list) or len(value) != 2:
        fail(f"must be a list of a word and a format, got {value!r:.40}", path)
    _word(value[0], (*path, 0))
    _format(value[1], (*path, 1))


def _style(value: Any, path: Path) -> None:
    if value not in ("json", *FORMS):
        fail(f"must be one of json, {', '.join(FORMS)}, got {value!r:.40}", path)


def _only(reason: str, *allowed: Any) -> FieldCheck:
    def check(value: Any, path: Path) -> None:
        if not any(value is allowed_value or value == allowed_value for allowed_value in allowed):
            fail(reason, path)

    return check


_text, _flag = _is("text", str), _is("true or false", bool)
_count, _schema = _is("a number from 0 on", int, least=0), _is("a schema", dict, bool)
_words, _formats, _tags = _list_of(_word), _list_of(_format, 1), _list_of(_tag, 1)
_inner: dict[str, FieldCheck] = {"content": _format}
_often: dict[str, FieldCheck] = {"at_least_one": _flag, "stop_after_first": _flag}
_unfiltered = _only("what its strings exclude is not supported: use a pattern", [])
_uncounted = _only("tokens cannot be counted: use max_chars", None, 0)

# The fields of each format, and the names of those that are optional.
_FORMATS: dict[str, tuple[dict[str, FieldCheck], tuple[str, ...]]] = {
    "const_string": ({"value": _text}, ()),
    "json_schema": (
        {
            "json_schema": _schema,
            "style": _style,
            "any_order": _flag,
            "max_whitespace_cnt": _or_null(_count),
            "excludes": _unfiltered,
        },
        ("style", "any_order", "max_whitespace_cnt", "excludes"),
    ),
    "qwen_xml_parameter": ({"json_schema": _schema}, ()),
    "any_text": (
        {"excludes": _words, "max_tokens": _uncounted, "max_chars": _or_null(_count)},
        ("excludes", "max_tokens", "max_chars"),
    ),
    "grammar": ({"grammar": _text}, ()),
    "regex": ({"pattern": _text}, ()),
    "sequence": ({"elements": _formats}, ()),
    "or": ({"elements": _formats}, ()),
    "tag": ({"begin": _border, **_inner, "end": _ends}, ()),
    "triggered_tags": (
        {"triggers": _list_of(_word, 1), "tags": _tags, **_often, "excludes": _words},
        (*_often, "excludes"),
    ),
    "tags_with_separator": ({"tags": _tags, "separator": _text, **_often}, tuple(_often)),
    "optional": (_inner, ()),
    "plus": (_inner, ()),
    "star": (_inner, ()),
    "repeat": ({"min": _count, "max": _is("a number, or -1", int, least=-1), **_inner}, ()),
    "dispatch": (
        {"rules": _list_of(_pair, 1), "loop": _flag, "excludes": _words},
        ("loop", "excludes"),
    ),
}


_WHITESPACE = 8  # blanks between JSON tokens, as in `JsonSchema`


@dataclass(frozen=True)
class StructuralTag(Spec):
    """A text that a structural tag describes.

    `tag` is `{"type": "structural_tag", "format": ...}`, the older form with `structures` and
    `triggers`, or the JSON text of either. Its JSON schemas are enforced to the letter in every
    style, or refused. Their white space is limited to 8 blanks, unless `max_whitespace_cnt` is
    given. Where a schema leaves the keys of an object free, a key may come twice. Fields about
    tokens are refused, since grammars match text.

    `property_order` is that of all objects, as in `JsonSchema`. A format with `any_order` has
    properties in any order.

    Raises `InvalidGrammarError` for a wrong form; for schemas, regexes and grammars, in `rules`.
    """

    tag: Mapping[str, Any] | str
    property_order: PropertyOrder = "required"

    kind = KIND

    def __post_init__(self) -> None:
        if self.property_order not in PROPERTY_ORDERS:
            right = ", ".join(PROPERTY_ORDERS)
            fail(f"property_order must be one of {right}, got {self.property_order!r:.40}", ())
        if self._plain.get("type") != "structural_tag":
            fail('type must be "structural_tag"', ("type",))
        _fields(self._plain, {"type": _text, "format": _format}, (), ())

    @property
    def source(self) -> Any:
        return self.tag

    @property
    def key(self) -> Hashable:
        return self.kind, json.dumps(self._plain), self.property_order

    def rules(self, markers: CallMarkers | None) -> Rules:
        reader = _TagReader(self.property_order)
        root = reader.format(self._plain["format"], ("format",), [])
        reader.rules.nodes[reader.rules.root] = root
        check_rules(reader.rules, self.kind)
        return with_terminals(reader.rules)

    @cached_property
    def _plain(self) -> dict[str, Any]:
        """The tag as JSON data, in the current form."""
        tag = plain(self.kind, self.tag)
        if not isinstance(tag, dict):
            raise InvalidGrammarError(self.kind, f"a tag must be an object, got {tag!r:.40}")
        return _modern(tag) if "structures" in tag else tag


def _modern(tag: dict[str, Any]) -> dict[str, Any]:
    """Return a tag of the older form in the current form."""
    if unknown := sorted(set(tag) - {"type", "structures", "triggers"}):
        fail(f"{unknown[0]!r:.40} is unknown beside structures", ())
    structures = tag["structures"]
    if not isinstance(structures, list) or not structures:
        fail(f"must be a list of tags that is not empty, got {structures!r:.40}", ("structures",))
    tags = []
    for i, structure in enumerate(structures):
        if not isinstance(structure, dict) or structure.keys() != {"begin", "schema", "end"}:
            fail("must be an object of begin, schema and end", ("structures", i))
        schema = plain(KIND, structure["schema"], pointer("structures", i, "schema"))
        content = {"type": "json_schema", "json_schema": schema}
        tags.append({"begin": structure["begin"], "content": content, "end": structure["end"]})
    form = {"type": "triggered_tags", "triggers": tag.get("triggers"), "tags": tags}
    return {"type": tag.get("type"), "format": form}


class _TagReader:
    """A converter of formats to nodes.

    `ends` are the ends of the enclosing tag, which free text within it may not hold.
    """

    def __init__(self, order: PropertyOrder) -> None:
        self.rules = Rules()
        self._order: PropertyOrder = order

    def format(self, form: dict[str, Any], path: Path, ends: list[str]) -> Node:
        try:
            return self._format(form, path, ends)
        except TooLargeError as error:
            fail(f"too large: {error}", path)

    def _format(self, form: dict[str, Any], path: Path, ends: list[str]) -> Node:
        match form.get("type", "tag"):
            case "const_string":
                return Literal(form["value"])
            case "json_schema" | "qwen_xml_parameter":
                return self._schema(form, path)
            case "any_text":
                free = free_of([*form.get("excludes", ()), *ends])
                counted = 0 if form.get("max_tokens") == 0 else form.get("max_chars")
                return Terminal(free, 0, counted)
            case "grammar":
                return self._grammar(form["grammar"], path)
            case "regex":
                try:
                    return matching(form["pattern"])
                except InvalidGrammarError as error:
                    where = f"{error.where}: " if error.where else ""
                    fail(f"{where}{error.reason}", (*path, "pattern"))
            case "sequence":
                return concatenation(*self._formats(form, path, ends))
            case "or":
                return alternation(*self._formats(form, path, ends))
            case "optional":
                return optional(self.format(form["content"], (*path, "content"), ends))
            case "star" | "plus" as kind:
                content = self.format(form["content"], (*path, "content"), ends)
                return Repetition(content, int(kind == "plus"))
            case "repeat":
                low, high = form["min"], None if form["max"] == -1 else form["max"]
                if high is not None and high < low:
                    fail(f"{low} to {high} times is no range", path)
                return Repetition(self.format(form["content"], (*path, "content"), ends), low, high)
            case "triggered_tags":
                return self._triggered(form, path, ends)
            case "tags_with_separator":
                return self._separated(form, path)
            case "dispatch":
                branches = [
                    (word, self.format(inner, (*path, "rules", i, 1), ends))
                    for i, (word, inner) in enumerate(form["rules"])
                ]
                return dispatch(branches, form.get("excludes", ()), form.get("loop", True))
        return concatenation(form["begin"], self._inner(form, path))

    def _formats(self, form: dict[str, Any], path: Path, ends: list[str]) -> list[Node]:
        return [
            self.format(element, (*path, "elements", i), ends)
            for i, element in enumerate(form["elements"])
        ]

    def _inner(self, tag: dict[str, Any], path: Path) -> Node:
        """Return the node of a tag's content and its end."""
        ends = tag["end"] if isinstance(tag["end"], list) else [tag["end"]]
        content = self.format(tag["content"], (*path, "content"), ends)
        return concatenation(content, alternation(*map(Literal, ends)))

    def _schema(self, form: dict[str, Any], path: Path) -> Node:
        style = form.get("style", "json" if form["type"] == "json_schema" else "qwen_xml")
        most = form.get("max_whitespace_cnt")
        most = _WHITESPACE if most is None else most
        elements = replace(FORMS[style], max_whitespace=most) if style != "json" else None
        try:
            return write(
                form["json_schema"],
                dialect=Dialect(most),
                rules=self.rules,
                where=pointer(*path, "json_schema"),
                form=elements and elements.form,
                property_order="any" if form.get("any_order") else self._order,
            ).node
        except InvalidGrammarError as error:
            raise InvalidGrammarError(KIND, error.reason, error.where) from error

    def _grammar(self, text: str, path: Path) -> Node:
        try:
            return self.rules.include(read_ebnf(text))
        except InvalidGrammarError as error:
            fail(f"{error.where}: {error.reason}", (*path, "grammar"))

    def _triggered(self, form: dict[str, Any], path: Path, ends: list[str]) -> Node:
        triggers, branches, whole = form["triggers"], [], []
        for i, tag in enumerate(form["tags"]):
            place = *path, "tags", i
            fitting = [trigger for trigger in triggers if tag["begin"].startswith(trigger)]
            if len(fitting) != 1:
                fail(
                    f"must begin with one of the triggers, begins with {len(fitting)} of them",
                    place,
                )
            inner = self.rules.add(self._inner(tag, place), "tag")
            branches.append((fitting[0], concatenation(tag["begin"][len(fitting[0]) :], inner)))
            whole.append(concatenation(tag["begin"], inner))
        required, once = form.get("at_least_one", False), form.get("stop_after_first", False)
        used = {trigger for trigger, _ in branches}
        unused = [trigger for trigger in triggers if trigger not in used]
        if required and once:
            return alternation(*whole)
        excludes = [*form.get("excludes", ()), *ends, *unused]
        tagged = dispatch(branches, excludes, not once)
        return concatenation(alternation(*whole), tagged) if required else tagged

    def _separated(self, form: dict[str, Any], path: Path) -> Node:
        tags = [self.format(tag, (*path, "tags", i), []) for i, tag in enumerate(form["tags"])]
        tag = alternation(*tags) if len(tags) == 1 else self.rules.add(alternation(*tags), "tags")
        if not form.get("stop_after_first", False):
            tag = concatenation(tag, Repetition(concatenation(form["separator"], tag)))
        return tag if form.get("at_least_one", False) else optional(tag)
