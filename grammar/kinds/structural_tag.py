"""What a user may ask a text to be: free text and tags, in xgrammar's structural tag form."""

import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dlm.grammar.calls.elements import STYLES
from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.kinds.spec import Spec
from dlm.grammar.kinds.tag_forms import KIND, Path, check_tag, fail
from dlm.grammar.plain import plain
from dlm.grammar.regex.automaton import TooLargeError
from dlm.grammar.rules.analysis import check
from dlm.grammar.rules.dispatch import dispatch, free_of
from dlm.grammar.rules.ebnf import read_ebnf
from dlm.grammar.rules.nodes import (
    Literal,
    Node,
    Repetition,
    Terminal,
    alternation,
    concatenation,
    optional,
)
from dlm.grammar.rules.rules import Rules
from dlm.grammar.rules.terminals import matching, with_terminals
from dlm.grammar.schema.dialect import Dialect
from dlm.grammar.schema.pointer import pointer
from dlm.grammar.schema.writer import write

if TYPE_CHECKING:
    from dlm.grammar.markers import CallMarkers

_WHITESPACE = 8  # characters between the JSON's own tokens, as in JsonSchema


@dataclass(frozen=True)
class StructuralTag(Spec):
    """A text that a structural tag describes.

    `tag` is `{"type": "structural_tag", "format": ...}`, or the older form with `structures` and
    `triggers`, or the JSON text of either. A JSON schema in it is enforced to the letter, in every
    style, or refused, and bounds its whitespace unless it says how; but where it leaves the keys of
    an object free, one may come twice. Refused by name is what speaks of tokens, since the alphabet
    is text, and `any_order`.

    Raises `InvalidGrammarError` for what is no such tag; for what stands in it, in `rules`.
    """

    tag: Mapping[str, Any] | str

    kind = KIND

    def __post_init__(self) -> None:
        check_tag(self._plain)

    @property
    def source(self) -> Any:
        return self.tag

    @property
    def key(self) -> Hashable:
        return self.kind, json.dumps(self._plain)

    def rules(self, markers: "CallMarkers | None") -> Rules:
        reader = _Reader()
        root = reader.format(self._plain["format"], ("format",), [])
        reader.rules.nodes[reader.rules.root] = root
        check(reader.rules, self.kind)
        return with_terminals(reader.rules)

    def value(self, text: str) -> str:
        return text

    @cached_property
    def _plain(self) -> dict[str, Any]:
        """The tag as JSON data, in the current form."""
        tag = plain(self.kind, self.tag)
        if not isinstance(tag, dict):
            raise InvalidGrammarError(self.kind, f"a tag is an object, not {tag!r:.40}")
        return _modern(tag) if "structures" in tag else tag


def _modern(tag: dict[str, Any]) -> dict[str, Any]:
    """The older form as the current one."""
    if unknown := sorted(set(tag) - {"type", "structures", "triggers"}):
        fail(f"{unknown[0]!r:.40} is unknown beside structures", ())
    structures = tag["structures"]
    if not isinstance(structures, list) or not structures:
        fail(f"a list of tags, not {structures!r:.40}", ("structures",))
    tags = []
    for i, structure in enumerate(structures):
        if not isinstance(structure, dict) or structure.keys() != {"begin", "schema", "end"}:
            fail("a tag is an object of begin, schema and end", ("structures", i))
        schema = plain(KIND, structure["schema"], pointer("structures", i, "schema"))
        content = {"type": "json_schema", "json_schema": schema}
        tags.append({"begin": structure["begin"], "content": content, "end": structure["end"]})
    form = {"type": "triggered_tags", "triggers": tag.get("triggers"), "tags": tags}
    return {"type": tag.get("type"), "format": form}


class _Reader:
    """Formats as nodes; `ends` are those of the tag around, which free text in it may not hold."""

    def __init__(self) -> None:
        self.rules = Rules()

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
        """A tag's content and its end."""
        ends = tag["end"] if isinstance(tag["end"], list) else [tag["end"]]
        content = self.format(tag["content"], (*path, "content"), ends)
        return concatenation(content, alternation(*map(Literal, ends)))

    def _schema(self, form: dict[str, Any], path: Path) -> Node:
        style = form.get("style", "json" if form["type"] == "json_schema" else "qwen_xml")
        most = form.get("max_whitespace_cnt")
        most = _WHITESPACE if most is None else most
        elements = replace(STYLES[style], max_whitespace=most) if style != "json" else None
        try:
            return write(
                form["json_schema"],
                dialect=Dialect(most),
                rules=self.rules,
                where=pointer(*path, "json_schema"),
                form=elements and elements.form,
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
                fail(f"it begins with {len(fitting)} of the triggers, not with 1", place)
            inner = self.rules.add(self._inner(tag, place), "tag")
            branches.append((fitting[0], concatenation(tag["begin"][len(fitting[0]) :], inner)))
            whole.append(concatenation(tag["begin"], inner))
        first, once = form.get("at_least_one", False), form.get("stop_after_first", False)
        used = {trigger for trigger, _ in branches}
        unused = [trigger for trigger in triggers if trigger not in used]
        if first and once:
            return alternation(*whole)
        excludes = [*form.get("excludes", ()), *ends, *unused]
        rest = dispatch(branches, excludes, not once)
        return concatenation(alternation(*whole), rest) if first else rest

    def _separated(self, form: dict[str, Any], path: Path) -> Node:
        tags = [self.format(tag, (*path, "tags", i), []) for i, tag in enumerate(form["tags"])]
        tag = alternation(*tags) if len(tags) == 1 else self.rules.add(alternation(*tags), "tags")
        if not form.get("stop_after_first", False):
            tag = concatenation(tag, Repetition(concatenation(form["separator"], tag)))
        return tag if form.get("at_least_one", False) else optional(tag)
