"""Parser of Lark's notation into items with expressions, and the terminals of its `common` library.

Knows the syntax of terminals, `%ignore` and templates, but not their meaning: see `lark.py`.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from dlm.grammar.immutable import immutable
from dlm.grammar.json_problems import json_problem
from dlm.grammar.regex.nodes import Literal, Node, Reference, optional
from dlm.grammar.rules.notation import Notation, NotationParser, NotationText, characters


@immutable()
class LarkRegex(Node):
    """Regex between slashes, with the flags after them."""

    pattern: str
    flags: str
    at: int


@immutable()
class LarkAnd(Node):
    """Texts that all `parts` match."""

    parts: tuple[Node, ...]
    at: int


@immutable()
class LarkNot(Node):
    """Texts that `part` does not match."""

    part: Node
    at: int


@immutable()
class LarkCall(Node):
    """Use of a template with arguments."""

    name: str
    arguments: tuple[Node, ...]
    at: int


@immutable()
class LarkData(Node):
    """Directive `name`, `%json` or `%regex`, with the JSON after it as text."""

    name: str
    text: str
    at: int


@immutable()
class LarkItem:
    """The definition of a rule or a terminal."""

    body: Node
    at: int
    priority: int = 0
    params: tuple[str, ...] = ()
    options: dict[str, Node | None] = field(default_factory=dict)
    names: frozenset[str] = frozenset()  # rules and terminals in its body


@dataclass(slots=True)
class LarkGrammar:
    """Syntax of a whole grammar."""

    items: dict[str, LarkItem] = field(default_factory=dict)
    imported: dict[str, tuple[str, int]] = field(default_factory=dict)  # by new name: name, index
    ignored: list[Node] = field(default_factory=list)
    used: dict[str, int] = field(default_factory=dict)  # index of the first use of each name


START = "start"  # rule where a text begins


def is_terminal(name: str) -> bool:
    return name.lstrip("_")[0].isupper()


_NAME = r"_*[A-Za-z](?:[A-Za-z0-9_]|-(?!>))*"
_STRING = r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"i?'
_REGEX = r"/(?![/*])[^/\\\n]*(?:\\.[^/\\\n]*)*/[a-z]*"
_TOKEN = re.compile(
    rf"""(?P<head>(?P<kept>[?!]*)(?P<new>{_NAME})(?P<params>\{{[^{{}}\n]*\}})?
        (?:\.(?P<priority>-?[0-9]{{1,9}}))?
        (?P<options>\[(?:{_STRING}|{_REGEX}|[^\[\]"/\n])*+\])?(?P<param>::_)?[ \t]*:(?!:))
    |(?P<name>{_NAME})|(?P<string>{_STRING})|(?P<regex>{_REGEX})
    |(?P<directive>%(?:ignore|import|llguidance|grammar_options)(?![a-z_]))
    |(?P<data>%[a-z_]+)|(?P<alias>->[ \t]*{_NAME})
    |(?P<times>~[ \t]*(?P<few>[0-9]{{1,18}})
        (?:[ \t]*(?P<to>\.\.)[ \t]*(?P<most>[0-9]{{1,18}}))?)
    |(?P<braces>\{{[ \t]*(?P<low>[0-9]{{1,18}})?[ \t]*(?P<open>,)?[ \t]*(?P<high>[0-9]{{1,18}})?
        [ \t]*\}})
    |(?P<token><[^<>\s]+>)|(?P<grammar>@[A-Za-z0-9_-]+)
    |(?P<mark>\.\.|::|[()\[\]{{}}|*+?~&,.=:])""",
    re.VERBOSE,
)
_OPTION = re.compile(
    rf"[ \t]*(?P<key>[a-z_]+)[ \t]*(?:=[ \t]*(?P<value>{_STRING}|{_REGEX}|{_NAME}|[0-9.]+))?[ \t]*"
)
_IMPORT = re.compile(
    rf"""[ \t]*common(?:[ \t]*\.[ \t]*(?P<name>{_NAME})(?:[ \t]*->[ \t]*(?P<new>{_NAME}))?
    |[ \t]*\(\s*(?P<names>{_NAME}(?:\s*,\s*{_NAME})*)\s*\))""",
    re.VERBOSE,
)
_LARK = Notation(
    tokens=_TOKEN,
    separators=re.compile(r"(?:[ \t\f\r\n]+|(?://|#)[^\n]*)*"),
    unfinished={
        '"': 'a string needs its closing "',
        "/": "a regex needs its closing /",
        "{": "a repetition is {m}, {m,}, {,n} or {m,n}",
    },
    ends=frozenset(("head", "alias", "directive", "end", "|", "&", ")", "]", "}", ",")),
    repetitions={"braces": ("low", "open", "high"), "times": ("few", "to", "most")},
)
_ELSEWHERE = {
    "%lark": "a grammar within a grammar is not supported",
    "%if": "conditions of parametric rules are not supported",
    "%json": "it stands within a rule",
    "%regex": "it stands within a rule or a terminal",
}


def parse(source: NotationText) -> LarkGrammar:
    """Return the syntax of a grammar. Raises `InvalidGrammarError` with line and column."""
    return _Parser(source).parsed()


class _Parser(NotationParser):
    def __init__(self, source: NotationText):
        super().__init__(_LARK, source)
        self._parsed = LarkGrammar(used=self.used)
        self._names: set[str] = set()

    def parsed(self) -> LarkGrammar:
        while self.kind != "end":
            if self.kind == "head":
                self._item()
            elif self.kind in ("directive", "data"):
                self._directive()
            else:
                self.fail("a rule begins with its name and a colon")
        parsed = self._parsed
        params = [name for item in parsed.items.values() for name in item.params]
        self.check_names({*parsed.items, *parsed.imported, *params}, START)
        return parsed

    def kind_of(self, name: str) -> str:
        return "terminal" if is_terminal(name) else "rule"

    def _item(self) -> None:
        at, token = self.at, self.token
        name = token["new"]
        self.check_head(name, self._parsed.items.keys() | self._parsed.imported.keys())
        if token["param"]:
            self.fail("parametric rules are not supported")
        self._names.clear()
        params = tuple(re.findall(_NAME, token["params"] or ""))
        if is_terminal(name) and (params or token["options"]):
            self.fail("a terminal cannot have parameters or options")
        options = self._options_of(token["options"], token.start("options"))
        self.next()
        body = self.expression()
        priority, names = int(token["priority"] or 0), frozenset(self._names)
        self._parsed.items[name] = LarkItem(body, at, priority, params, options, names)

    def _options_of(self, text: str | None, start: int) -> dict[str, Node | None]:
        options: dict[str, Node | None] = {}
        at = start + 1
        while text is not None and self.source.text[at] != "]":
            option = _OPTION.match(self.source.text, at)
            if not option or self.source.text[option.end()] not in ",]":
                raise self.source.error("options are name=value, with commas between", at)
            key, value = option["key"], option["value"]
            if key not in ("lazy", "suffix", "stop"):
                reason = f"an option must be lazy, suffix or stop, got {key}"
                raise self.source.error(reason, option.start("key"))
            if (value is None) != (key == "lazy") or (value and value[0] in "0123456789."):
                raise self.source.error(f"this is not a value of {key}", option.start("key"))
            options[key] = self._value(value, option.start("value")) if value else None
            at = option.end() + (self.source.text[option.end()] == ",")
        return options

    def _value(self, text: str, at: int) -> Node:
        """Return the node of `text`, a string, a regex or a name."""
        if text[0] == '"':
            literal = self.source.literal(at + 1, at + text.rindex('"'))
            return Literal(literal) if text[-1] == '"' else _in_any_case(literal, at)
        if text[0] == "/":
            end = text.rindex("/")
            return LarkRegex(text[1:end], text[end + 1 :], at)
        return self._use(text, at)

    def _use(self, name: str, at: int) -> Reference:
        self.used.setdefault(name, at)
        self._names.add(name)
        return Reference(name)

    def option(self, depth: int) -> Node:
        at, parts = self.at, [self.sequence(depth)]
        while self.mark == "&":
            self.next()
            parts.append(self.sequence(depth))
        if self.kind == "alias":
            self.next()
        return LarkAnd(tuple(parts), at) if len(parts) > 1 else parts[0]

    def part(self, depth: int) -> Node:
        at, token = self.at, self.token
        match self.kind:
            case "mark" if self.mark == "(":
                return self.group(depth)
            case "mark" if self.mark == "[":
                return optional(self.group(depth, "]"))
            case "mark" if self.mark == "~":
                deeper = self.deeper(depth)
                self.next()
                return LarkNot(self.part(deeper), at)
            case "string":
                self.next()
                return self._range(token, at) if self.mark == ".." else self._value(token[0], at)
            case "regex":
                self.next()
                return self._value(token[0], at)
            case "name":
                return self._named(token[0], at, depth)
            case "data" if token[0] in ("%json", "%regex"):
                return LarkData(token[0], json.dumps(self._json()), at)
            case "data":
                self.fail(_ELSEWHERE.get(token[0], f"{token[0]} is not supported"))
            case "token":
                self.fail(f"{token[0]:.40} names a token: a grammar is of text")
            case "grammar":
                self.fail(f"{token[0]:.40}: other grammars cannot be named")
        return self.fail("expected a name, a string, a regex or a bracket")

    def _range(self, low: re.Match[str], at: int) -> Node:
        self.next()
        high = self.token
        if self.kind != "string":
            self.fail('a range is "a".."z"')
        ends = [
            self.source.literal(string.start() + 1, string.end() - 1)
            for string in (low, high)
            if string[0][-1] == '"'
        ]
        if [*map(len, ends)] != [1, 1] or ends[1] < ends[0]:
            raise self.source.error("a range has a character at each end, the lower first", at)
        self.next()
        return characters([(ord(ends[0]), ord(ends[1]))])

    def _named(self, name: str, at: int, depth: int) -> Node:
        reference = self._use(name, at)
        self.next()
        if self.mark == "::":
            self.fail("parametric rules are not supported")
        if self.mark != "{":
            return reference
        arguments = []
        while self.mark != "}" or not arguments:
            self.next()
            arguments.append(self.expression(self.deeper(depth)))
            if self.mark not in (",", "}"):
                self.fail("the arguments of a template are {a, b}")
        self.next()
        return LarkCall(name, tuple(arguments), at)

    def _json(self) -> Any:
        """Return the JSON data after a directive, and move after it."""
        start = self.after_separators(self.token.end())
        try:
            data, end = json.JSONDecoder().raw_decode(self.source.text, start)
            json.dumps(data, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            self.fail(f"{self.token[0]} must have JSON after it: a lone surrogate is not text")
        except (ValueError, RecursionError) as error:
            self.fail(
                f"{self.token[0]} must have JSON after it: {json_problem(self.source.text, error)}"
            )
        self.move(end)
        return data

    def _directive(self) -> None:
        name, at = self.token[0], self.at
        if name == "%ignore":
            self.next()
            self._parsed.ignored.append(self.expression())
        elif name == "%import":
            self._import()
        elif name in ("%llguidance", "%grammar_options"):
            options = self._json()
            allowed = {"no_forcing", "allow_initial_skip"}
            unknown = sorted(options.keys() - allowed) if isinstance(options, dict) else ["this"]
            if unknown:
                raise self.source.error(f"{name}: {unknown[0]!r:.40} is not supported", at)
        else:
            self.fail(_ELSEWHERE.get(name, f"{name:.40} is not supported"))

    def _import(self) -> None:
        imported = _IMPORT.match(self.source.text, self.token.end())
        if not imported:
            self.fail("only terminals of common can be imported: %import common.NAME")
        for name in (
            [imported["name"]] if imported["name"] else re.findall(_NAME, imported["names"])
        ):
            new = imported["new"] or name
            if new in self._parsed.items or new in self._parsed.imported:
                self.fail(f"{new} is there twice")
            self._parsed.imported[new] = name, self.at
        self.move(imported.end())


def _in_any_case(text: str, at: int) -> Node:
    escaped = re.sub(r"([\\^$.*+?()[\]{}|/])", r"\\\1", text)
    return LarkRegex(escaped, "i", at) if text else Literal("")


_EXPONENT = r"[eE][+-]?\d+"
_DECIMAL = r"(?:\d+\.\d*|\.\d+)"
_FLOAT = rf"(?:{_DECIMAL}(?:{_EXPONENT})?|\d+{_EXPONENT})"
COMMON = {
    "DIGIT": r"\d",
    "HEXDIGIT": "[0-9A-Fa-f]",
    "INT": r"\d+",
    "SIGNED_INT": r"[+-]?\d+",
    "DECIMAL": _DECIMAL,
    "_EXP": _EXPONENT,
    "FLOAT": _FLOAT,
    "SIGNED_FLOAT": rf"[+-]?{_FLOAT}",
    "NUMBER": rf"(?:{_FLOAT}|\d+)",
    "SIGNED_NUMBER": rf"[+-]?(?:{_FLOAT}|\d+)",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\[^\n])*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[A-Za-z_][A-Za-z0-9_]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"\/\/[^\n]*",
    "C_COMMENT": r"\/\*(?:[^*]|\*+[^*\/])*\*+\/",
    "SQL_COMMENT": r"--[^\n]*",
}
