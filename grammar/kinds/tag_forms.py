"""The form of structural tags, as xgrammar documents it: what a format may hold.

Knows nothing of what a format means, nor of what stands in its schemas, regexes and grammars.
"""

from collections.abc import Callable
from typing import Any, NoReturn

from dlm.grammar.calls.elements import STYLES
from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.schema.pointer import pointer

KIND = "structural tag"

_MOST_NESTED = 64  # formats within formats
_BY_TOKEN = ("token", "exclude_token", "any_tokens", "token_triggered_tags", "token_dispatch")
_NESTING = ("cohere_xml", "minimax_m3_xml")  # styles whose values are elements themselves

Path = tuple[str | int, ...]
Check = Callable[[Any, Path], None]


def fail(reason: str, path: Path) -> NoReturn:
    raise InvalidGrammarError(KIND, reason, pointer(*path) or "/")


def check_tag(tag: dict[str, Any]) -> None:
    """Raises `InvalidGrammarError` with a JSON pointer."""
    if tag.get("type") != KIND.replace(" ", "_"):
        fail('its type is "structural_tag"', ("type",))
    _fields(tag, {"type": _text, "format": _format}, (), ())


def _fields(form: Any, known: dict[str, Check], optional: tuple[str, ...], path: Path) -> None:
    if not isinstance(form, dict):
        fail(f"an object has to stand here, not {form!r:.40}", path)
    for name in form:
        if name not in known:
            fail(f"{name!r:.40} is unknown here: it takes {', '.join(known)}", path)
    for name, check in known.items():
        if name in form:
            check(form[name], (*path, name))
        elif name not in optional:
            fail(f"{name} is missing", path)


def _format(form: Any, path: Path, kind: str | None = None) -> None:
    if len(path) > 3 * _MOST_NESTED:
        fail(f"formats are nested more than {_MOST_NESTED} deep", path)
    if not isinstance(form, dict):
        fail(f"a format is an object, not {form!r:.40}", path)
    kind = form.get("type", kind)
    if kind in _BY_TOKEN:
        fail(f"{kind} names token ids: name text", path)
    if not isinstance(kind, str) or kind not in _FORMATS:
        fail(f"{kind!r:.40} is no format: it takes {', '.join(_FORMATS)}", (*path, "type"))
    known, optional = _FORMATS[kind]
    _fields(form, {"type": _text, **known}, ("type", *optional), path)


def _is(what: str, *types: type, least: int | None = None) -> Check:
    def check(value: Any, path: Path) -> None:
        number = isinstance(value, int) and not isinstance(value, bool)
        right = number if int in types else isinstance(value, types)
        if not right or (least is not None and value < least):
            fail(f"it takes {what}, not {value!r:.40}", path)

    return check


def _or_null(check: Check) -> Check:
    return lambda value, path: None if value is None else check(value, path)


def _listed(check: Check, least: int = 0) -> Check:
    def checked(value: Any, path: Path) -> None:
        if not isinstance(value, list) or len(value) < least:
            fail(f"it takes a list{' that is not empty' * least}, not {value!r:.40}", path)
        for i, item in enumerate(value):
            check(item, (*path, i))

    return checked


def _word(value: Any, path: Path) -> None:
    if not isinstance(value, str) or not value:
        fail(f"it takes text that is not empty, not {value!r:.40}", path)


def _border(value: Any, path: Path) -> None:
    """Text; some say which token."""
    if isinstance(value, dict):
        fail("token names token ids: name text", path)
    _text(value, path)


def _ends(value: Any, path: Path) -> None:
    (_listed(_border, 1) if isinstance(value, list) else _border)(value, path)


def _tag(form: Any, path: Path) -> None:
    if isinstance(form, dict) and form.get("type", "tag") != "tag":
        fail("a tag has to stand here", (*path, "type"))
    _format(form, path, "tag")


def _pair(value: Any, path: Path) -> None:
    if not isinstance(value, list) or len(value) != 2:
        fail(f"it takes a word and a format, not {value!r:.40}", path)
    _word(value[0], (*path, 0))
    _format(value[1], (*path, 1))


def _style(value: Any, path: Path) -> None:
    if value in _NESTING:
        fail(f"the style {value} is not supported: its values nest", path)
    if value not in ("json", *STYLES):
        fail(f"{value!r:.40} is no style: it takes json, {', '.join(STYLES)}", path)


def _nothing(what: str, *allowed: Any) -> Check:
    def check(value: Any, path: Path) -> None:
        if not any(value is one or value == one for one in allowed):
            fail(what, path)

    return check


_text, _flag = _is("text", str), _is("true or false", bool)
_count, _schema = _is("a number from 0 on", int, least=0), _is("a schema", dict, bool)
_words, _formats, _tags = _listed(_word), _listed(_format, 1), _listed(_tag, 1)
_inner: dict[str, Check] = {"content": _format}
_often: dict[str, Check] = {"at_least_one": _flag, "stop_after_first": _flag}
_ordered = _nothing("any order is not supported: properties come in the schema's order", False)
_unfiltered = _nothing("what its strings exclude is not supported: use a pattern", [])
_uncounted = _nothing("tokens cannot be counted: use max_chars", None, 0)

_FORMATS: dict[str, tuple[dict[str, Check], tuple[str, ...]]] = {  # and which fields are optional
    "const_string": ({"value": _text}, ()),
    "json_schema": (
        {
            "json_schema": _schema,
            "style": _style,
            "any_order": _ordered,
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
        {"triggers": _listed(_word, 1), "tags": _tags, **_often, "excludes": _words},
        (*_often, "excludes"),
    ),
    "tags_with_separator": ({"tags": _tags, "separator": _text, **_often}, tuple(_often)),
    "optional": (_inner, ()),
    "plus": (_inner, ()),
    "star": (_inner, ()),
    "repeat": ({"min": _count, "max": _is("a number, or -1", int, least=-1), **_inner}, ()),
    "dispatch": (
        {"rules": _listed(_pair, 1), "loop": _flag, "excludes": _words},
        ("loop", "excludes"),
    ),
}
