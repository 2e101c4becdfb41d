"""What a user may ask a text to be: free text and tags, in xgrammar's structural tag form.

Knows the form, not what stands in it: grammars within are checked when it is compiled.
"""

import json
import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import xgrammar as xgr
from pydantic import BaseModel, ValidationError
from xgrammar import structural_tag as forms

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.kinds.json_schema import JsonSchema, tightened
from dlm.grammar.kinds.spec import Spec
from dlm.grammar.vocabulary import Vocabulary

_BY_TOKEN = (
    forms.TokenFormat,
    forms.ExcludeTokenFormat,
    forms.AnyTokensFormat,
    forms.TokenTriggeredTagsFormat,
    forms.TokenDispatchFormat,
)
_WHITESPACE = 8  # characters between the JSON's own tokens, as in JsonSchema
# In xgrammar's own spelling of a grammar: a literal, a character class, or a macro over token ids.
_MACRO = re.compile(
    r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|\b(?P<macro>Token|ExcludeToken|TokenTagDispatch)\('
)

_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")  # as JSON escapes it


@dataclass(frozen=True)
class StructuralTag(Spec):
    """A text that a structural tag describes.

    `tag` is `{"type": "structural_tag", "format": ...}`, or the older form with `structures` and
    `triggers`, or the JSON text of either. A JSON schema in it is enforced to the letter or
    refused, and bounds its whitespace unless it says how. Raises `InvalidGrammarError` for what is
    no such tag, and for one that names tokens: the alphabet of a grammar is text, and a token's id
    may be a control token's.
    """

    tag: Mapping[str, Any] | str

    kind = "structural tag"

    def __post_init__(self) -> None:
        self._parsed  # noqa: B018  # it checks the tag

    @property
    def source(self) -> Any:
        return self.tag

    @property
    def key(self) -> Hashable:
        return self.kind, self._parsed.model_dump_json()

    def grammar(self, vocabulary: Vocabulary) -> xgr.Grammar:
        try:
            grammar = xgr.Grammar.from_structural_tag(self._parsed)
        except UnicodeDecodeError as error:  # xgrammar's complaint quotes half a character
            raise RuntimeError(error.object.decode(errors="replace")) from error
        if macro := token_macro(grammar):
            raise InvalidGrammarError(self.kind, f"{macro}(...) names token ids: name text")
        return tightened(grammar, vocabulary.far)

    def value(self, text: str) -> str:
        return text

    @cached_property
    def _parsed(self) -> forms.StructuralTag:
        tag = self._plain()
        if "structures" in tag:
            tag = self._modern(tag)
        try:
            parsed = forms.StructuralTag.model_validate(tag)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise self._invalid(f"{first['msg']:.300}", *first["loc"]) from error
        for path, found, written in _parts(parsed, tag):
            if isinstance(found, _BY_TOKEN):
                raise self._invalid(f"{found.type} names token ids: name text", *path)
            if unknown := sorted(set(written) - set(type(found).model_fields)):
                raise self._invalid(f"{unknown[0]!r:.40} is unknown here", *path)
            if isinstance(found, forms.JSONSchemaFormat):
                self._bind(found, *path)
        return parsed

    def _bind(self, content: forms.JSONSchemaFormat, *path: str | int) -> None:
        """Have xgrammar enforce the schema of some JSON to the letter."""
        if content.max_whitespace_cnt is None:
            content.max_whitespace_cnt = _WHITESPACE
        if content.style != "json":
            return
        try:
            content.json_schema = JsonSchema(content.json_schema).enforced
        except InvalidGrammarError as error:
            raise self._invalid(error.reason, *path, "json_schema" + error.where) from error

    def _plain(self) -> dict[str, Any]:
        """The tag as JSON data."""
        try:
            text = self.tag if isinstance(self.tag, str) else json.dumps(self.tag)
            plain = json.loads(text)
            json.dumps(plain, ensure_ascii=False, allow_nan=False).encode()
        except json.JSONDecodeError as error:
            where = f"line {error.lineno} column {error.colno}"
            raise InvalidGrammarError(self.kind, f"not JSON: {error.msg}", where) from error
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidGrammarError(self.kind, f"not JSON data: {error}") from error
        if not isinstance(plain, dict):
            raise InvalidGrammarError(self.kind, f"a tag is an object, not {plain!r:.40}")
        if _NUL.search(json.dumps(plain)):  # xgrammar would end the text there
            raise InvalidGrammarError(self.kind, "NUL characters cannot be asked for")
        return plain

    def _modern(self, tag: dict[str, Any]) -> dict[str, Any]:
        """The older form as the current one."""
        if unknown := sorted(set(tag) - {"type", "structures", "triggers"}):
            raise self._invalid(f"{unknown[0]!r:.40} is unknown beside structures")
        structures = tag["structures"]
        if not isinstance(structures, list) or not structures:
            raise self._invalid(f"a list of tags, not {structures!r:.40}", "structures")
        tags = []
        for i, structure in enumerate(structures):
            if not isinstance(structure, dict) or structure.keys() != {"begin", "schema", "end"}:
                raise self._invalid("a tag is an object of begin, schema and end", "structures", i)
            schema = structure["schema"]
            if isinstance(schema, str):
                try:
                    schema = json.loads(schema)
                except (ValueError, RecursionError) as error:
                    reason = f"not JSON: {error}"
                    raise self._invalid(reason, "structures", i, "schema") from error
            content = {"type": "json_schema", "json_schema": schema}
            tags.append({"begin": structure["begin"], "content": content, "end": structure["end"]})
        triggers = tag.get("triggers")
        return {
            "type": tag.get("type"),
            "format": {"type": "triggered_tags", "triggers": triggers, "tags": tags},
        }

    def _invalid(self, reason: str, *path: str | int) -> InvalidGrammarError:
        return InvalidGrammarError(self.kind, reason, "/" + "/".join(map(str, path)))


def token_macro(grammar: xgr.Grammar) -> str | None:
    """The first of a grammar's macros over token ids, by name; None if it is one over text."""
    found = (match["macro"] for match in _MACRO.finditer(str(grammar)))
    return next(filter(None, found), None)


def _parts(parsed: Any, written: Any, *path: str | int) -> Iterator[tuple]:
    """Every format within `parsed`, with its path and with what the user wrote there."""
    if isinstance(parsed, BaseModel):
        yield path, parsed, written
        for name in written.keys() & type(parsed).model_fields.keys():
            yield from _parts(getattr(parsed, name), written[name], *path, name)
    elif isinstance(parsed, list | tuple):
        for i, (part, source) in enumerate(zip(parsed, written, strict=True)):
            yield from _parts(part, source, *path, i)
