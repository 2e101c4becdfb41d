"""The grammar of one call in Gemma 4's own form: `call:NAME{key:value,...}` between its markers.

Keys are bare, and the token `<|"|>` quotes strings; nothing is escaped, nothing is spaced. It
enforces a JSON schema exactly, or refuses it. Knows neither choices between tools nor text.
"""

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.markers import CallMarkers
from dlm.grammar.regex import pattern
from dlm.grammar.rules.ast import Either, Node, Ref, Repeat, Row, Rules, Term, listed, text
from dlm.grammar.schema import numbers as number
from dlm.grammar.schema.formats import FORMATS, integer_bounds
from dlm.grammar.schema.parameters import Parameters
from dlm.grammar.schema.pointer import pointer
from dlm.grammar.schema.strings import Strings

_BARE = re.compile(r"[\w.$-]+")
_CHARACTER = pattern.charset(pattern.CHARACTERS)

_REFUSED = frozenset(
    """not if then else dependencies dependentRequired dependentSchemas patternProperties
    propertyNames minProperties maxProperties unevaluatedProperties unevaluatedItems multipleOf
    uniqueItems contains minContains maxContains $dynamicRef $recursiveRef""".split()
)
_KEYWORDS = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "prefixItems", "additionalItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "pattern"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
}
_LOW, _HIGH = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_UNIONS = ("anyOf", "oneOf", "allOf")
_ASSERTING = _REFUSED.union(
    *_KEYWORDS.values(), _UNIONS, {"type", "enum", "const", "format", "$ref"}
)


_COMMA = text(",")


class Calls:
    """Collects the rules of calls; `str` is all of them, but for a root."""

    def __init__(self, markers: CallMarkers):
        self._markers, self._rules = markers, Rules()
        self._places: dict[str, str] = {}  # of rules that the user named, by their name here
        self._strings: dict[Strings, Term] = {}  # the rules of some strings
        self._rules.write("value", _any_value(markers.quote))

    def __str__(self) -> str:
        return str(self._rules)

    def add(self, name: str, parameters: Parameters) -> Ref:
        """The rule of the calls of a tool. Raises `InvalidGrammarError`."""
        arguments = _Schema(
            self._rules, self._places, self._strings, self._markers.quote, parameters
        ).node()
        for flawed, reason in (
            (self._rules.circular(), "a value that begins with itself"),
            (self._rules.endless(), "no finite value fits"),
        ):
            if places := [place for rule, place in self._places.items() if rule in flawed]:
                raise parameters.error(reason, places[0])
        opened, closed = Term(f"Token({self._markers.open})"), Term(f"Token({self._markers.close})")
        return self._rules.add(Row((opened, text(f"call:{name}"), arguments, closed)))


def _any_value(quote: int) -> str:
    return rf"""value ::= string | number | boolean | "null" | array | object
string ::= Token({quote}) {_CHARACTER}* Token({quote})
boolean ::= "true" | "false"
number ::= {number.NUMBER}
object ::= "{{" (key ":" value ("," key ":" value)*)? "}}"
array ::= "[" (value ("," value)*)? "]"
key ::= [A-Za-z_] [A-Za-z0-9_]*"""


def _kinds(schema: dict[str, Any]) -> list[str]:
    """The types to write: without any, those that the keywords are about."""
    kinds = schema.get("type", [k for k, words in _KEYWORDS.items() if words & schema.keys()])
    if isinstance(kinds, str):
        return [kinds]
    if not kinds and "format" in schema:
        return ["string"]
    return [kind for kind in kinds if kind != "integer" or "number" not in kinds]


class _Schema:
    """Translates one schema. `where` is everywhere the JSON pointer of what comes before it."""

    def __init__(
        self,
        rules: Rules,
        places: dict[str, str],
        strings: dict[Strings, Term],
        quote: int,
        parameters: Parameters,
    ):
        self._rules, self._places, self._strings = rules, places, strings
        self._parameters = parameters
        self._quote = Term(f"Token({quote})")
        self._refs: dict[str, Ref] = {}

    def node(self) -> Node:
        return self._value(self._parameters.schema, self._parameters.where)

    def _value(self, schema: Any, where: str) -> Node:
        if not isinstance(schema, dict):
            return Term("value") if schema else self._refuse("nothing fits", where)
        if "$ref" in schema:
            return self._reference(schema, where)
        if (values := self._parameters.values(schema)) is not None:
            if not values:
                self._refuse("the schema accepts none of its own values", where)
            return Either(tuple(self._literal(value, where) for value in values))
        for word in sorted(_REFUSED & schema.keys()):
            if (word, schema[word]) not in (("uniqueItems", False), ("minProperties", 0)):
                self._refuse(f"{word} cannot be enforced", f"{where}/{word}")
        for word in _UNIONS:
            if word in schema:
                return self._union(word, schema, where)
        if not (kinds := _kinds(schema)):
            return Term("value")
        readers: dict[str, Callable[[dict[str, Any], str], Node]] = {
            "object": self._object,
            "array": self._array,
            "string": self._string,
            "number": self._number,
            "integer": self._number,
            "boolean": lambda schema, where: Term("boolean"),
            "null": lambda schema, where: Term('"null"'),
        }
        return Either(tuple(readers[kind](schema, where) for kind in kinds))

    def _refuse(self, reason: str, where: str) -> NoReturn:
        raise self._parameters.error(reason, where)

    def _alone(self, word: str, schema: dict[str, Any], where: str) -> None:
        for other in sorted((_ASSERTING & schema.keys()) - {word}):
            self._refuse(f"{other} cannot be enforced beside {word}", f"{where}/{other}")

    def _reference(self, schema: dict[str, Any], where: str) -> Node:
        self._alone("$ref", schema, where)
        ref = schema["$ref"]
        if ref not in self._refs:
            target = self._parameters.resolve(ref, f"{where}/$ref")
            self._refs[ref] = rule = self._rules.new()
            self._places[rule.name] = f"{where}/$ref"
            self._rules.define(rule, self._value(target, self._parameters.where + ref[1:]))
        return self._refs[ref]

    def _union(self, word: str, schema: dict[str, Any], where: str) -> Node:
        self._alone(word, schema, where)
        branches = [
            (branch, f"{where}/{word}/{i}")
            for i, branch in enumerate(schema[word])
            if branch is not False or word == "allOf"
        ]
        if word == "allOf" and len(branches) > 1:
            self._refuse("several schemas at once cannot be enforced", f"{where}/{word}")
        if not branches:
            self._refuse("nothing fits", f"{where}/{word}")
        for i, (branch, place) in enumerate(branches):
            for earlier, _ in branches[:i] if word == "oneOf" else ():
                if not self._parameters.apart(branch, earlier):
                    self._refuse("a value may fit an earlier option of oneOf too", place)
        return Either(tuple(self._value(branch, place) for branch, place in branches))

    def _literal(self, value: Any, where: str) -> Node:
        if isinstance(value, str):
            if "\0" in value or any("\ud800" <= c <= "\udfff" for c in value):
                self._refuse(f"{value!r:.40} is no text", where)
            return Row((self._quote, text(value), self._quote))
        if isinstance(value, list):
            items = [(self._literal(item, where), True) for item in value]
            return Row((text("["), listed(self._rules, items), text("]")))
        if isinstance(value, dict):
            members = [
                (self._member(key, self._literal(item, where), where), True)
                for key, item in value.items()
            ]
            return Row((text("{"), listed(self._rules, members), text("}")))
        return text(json.dumps(value))

    def _string(self, schema: dict[str, Any], where: str) -> Node:
        low, high = int(schema.get("minLength", 0)), schema.get("maxLength")
        high = None if high is None else int(high)
        if high is not None and high < low:
            self._refuse("maxLength is less than minLength", f"{where}/maxLength")
        if "pattern" in schema:
            if "format" in schema:
                self._refuse("format cannot be enforced beside pattern", f"{where}/format")
            content = self._matching(Strings((schema["pattern"],), low, high), f"{where}/pattern")
        elif (named := schema.get("format")) is not None:
            if named not in FORMATS:
                self._refuse(f"this format is none of {', '.join(FORMATS)}", f"{where}/format")
            content = self._matching(Strings((FORMATS[named],), low, high), f"{where}/format")
        elif low or high is not None:
            content = Repeat(Term(_CHARACTER), low, high)
        else:
            return Term("string")
        return Row((self._quote, content, self._quote))

    def _matching(self, strings: Strings, where: str) -> Node:
        if strings.problem:
            self._refuse(strings.problem, where)
        if often := strings.repeated():
            return often
        if strings not in self._strings:
            name = self._rules.new().name
            try:
                rules = strings.automaton().ebnf(name)
            except InvalidGrammarError as error:
                self._refuse(error.reason, where)
            self._strings[strings] = self._rules.write(name, rules)
        return self._strings[strings]

    def _number(self, schema: dict[str, Any], where: str) -> Node:
        whole = "integer" in schema.get("type", ()) and "number" not in schema["type"]
        lows = [(schema[w], w == "minimum") for w in _LOW if w in schema]
        highs = [(schema[w], w == "maximum") for w in _HIGH if w in schema]
        if whole and (bounds := integer_bounds(schema.get("format", ""))):
            lows, highs = [*lows, (bounds[0], True)], [*highs, (bounds[1], True)]
        if not lows and not highs:
            return Term(number.INTEGER if whole else "number")
        low = max(lows, key=lambda bound: (bound[0], not bound[1]), default=None)
        high = min(highs, default=None)
        rule = self._rules.new()
        try:
            rules = (number.integers if whole else number.numbers)(low, high, rule.name)
        except InvalidGrammarError as error:
            raise self._parameters.error(error.reason, where) from error
        return self._rules.write(rule.name, rules)

    def _array(self, schema: dict[str, Any], where: str) -> Node:
        word, rest_word = "prefixItems", "items"
        if isinstance(schema.get("items"), list):  # in drafts before 2020-12
            word, rest_word = "items", "additionalItems"
        elif word in schema and not self._parameters.newest:
            self._refuse("unknown to the draft that $schema names", f"{where}/{word}")
        first, rest = schema.get(word, []), schema.get(rest_word, True)
        low, high = int(schema.get("minItems", 0)), schema.get("maxItems")
        if rest is False:
            high = min(len(first), len(first) if high is None else int(high))
        if high is not None and high < low:
            self._refuse("no array is that long", f"{where}/minItems")
        nodes = [
            self._value(part, f"{where}/{word}/{i}")
            for i, part in enumerate(first[: None if high is None else int(high)])
        ]
        items: Node = Row(())
        if high is None or high > len(nodes):
            rest_node = self._rules.add(self._value(rest, f"{where}/{rest_word}"))
            nodes = nodes or [rest_node]
            behind = None if high is None else int(high) - len(nodes)
            items = Repeat(Row((_COMMA, rest_node)), max(0, low - len(nodes)), behind)
        for i in reversed(range(len(nodes))):
            items = Row((*[_COMMA][:i], nodes[i], items))
            items = items if i < low else Repeat(items, 0, 1)
        return Row((text("["), items, text("]")))

    def _object(self, schema: dict[str, Any], where: str) -> Node:
        """Its properties in the schema's order; any keys only where it names no property."""
        properties, required = schema.get("properties", {}), schema.get("required", [])
        more = schema.get("additionalProperties", "properties" not in schema or bool(properties))
        if missing := [key for key in required if key not in properties]:
            if more is False:
                place = f"{where}/required/{required.index(missing[0])}"
                self._refuse(f"there is no property {missing[0]!r:.80}", place)
            properties = {**properties, **dict.fromkeys(missing, more)}
        members: list[tuple[Node, bool]] = []
        for key, part in properties.items():
            if part is not False or key in required:
                word = "additionalProperties" if key in missing else pointer("properties", key)[1:]
                value = self._value(part, f"{where}/{word}")
                members.append((self._member(key, value, f"{where}/{word}"), key in required))
        others = None
        if more is not False and len(missing) == len(properties):
            value = self._value(more, f"{where}/additionalProperties")
            others = self._rules.add(Row((Term("key"), text(":"), value)))
        return Row((text("{"), listed(self._rules, members, others), text("}")))

    def _member(self, key: str, value: Node, where: str) -> Node:
        if not _BARE.fullmatch(key):
            self._refuse(f"{key!r:.80} cannot be written without quotes", where)
        return self._rules.add(Row((text(f"{key}:"), value)))
