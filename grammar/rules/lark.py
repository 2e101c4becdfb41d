"""Lark's grammar language, with what llguidance adds to it, as rules.

The language is the context-free one: wherever a terminal may stand, any text of it may, as in
llguidance and xgrammar. Lark's lexers instead take the longest match, or the terminal of the
highest priority: priorities that could make a difference are refused. `%ignore` may stand between
what a rule names, in front and behind, and not within terminals. Regexes are ECMAScript's, but that
`.` is all but a line feed; what looks around in them sees the terminal's own text. `stop` and
`suffix` are one: the text ends with the first marker, which stays in it.

Left out, by name: captures, temperatures and counts of tokens (no text differs by them), tokens,
other grammars, parametric rules, `%declare`, `%override`, `%extend`.
"""

import json
import re
from collections.abc import Callable
from functools import reduce
from graphlib import CycleError, TopologicalSorter
from typing import Any

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.regex.automaton import Automaton, TooLargeError, automaton_of
from dlm.grammar.regex.nodes import (
    EMPTY,
    Alternation,
    Concatenation,
    Literal,
    Node,
    Reference,
    Repetition,
    Terminal,
    alternation,
    concatenation,
    optional,
)
from dlm.grammar.rules.lark_syntax import (
    COMMON,
    Both,
    Data,
    LarkItem,
    LarkRegex,
    Not,
    Parsed,
    Use,
    is_terminal,
    parse,
)
from dlm.grammar.rules.rules import NotationText, Rules
from dlm.grammar.rules.terminals import matching

Schemas = Callable[[Any, Rules], Node]  # the values of a JSON schema, their rules added

_START = "start"
_UNLIKE = re.compile(r"\\.|\[(\^?)(\]?)((?:\\.|[^\]\\])*)\]|\.", re.DOTALL)
_MOST_INSTANCES = 1000  # of templates
_MOST_RANKED = 100  # terminals and strings, where there are priorities


def read_lark(text: str, schemas: Schemas, kind: str = "grammar") -> Rules:
    """The rules that `text` says, which begin with `start`; `schemas` reads `%json`.

    Raises `InvalidGrammarError` with line and column.
    """
    source = NotationText(text, kind)
    try:
        return _Meaning(source, parse(source), schemas).rules
    except RecursionError as error:
        raise source.error("nested too deeply", 0) from error


class _Meaning:
    """`rules` has one for each rule and each terminal, by its name."""

    def __init__(self, source: NotationText, parsed: Parsed, schemas: Schemas):
        self._source, self._parsed, self._schemas = source, parsed, schemas
        self._items = parsed.items
        self._automata: dict[str, Automaton] = {}  # of terminals
        self._lexemes: dict[Node, int] = {}  # what rules are made of, and their priorities
        self._instances: dict[tuple[str, tuple[Node, ...]], Reference] = {}  # of templates
        self._arguments: dict[Node, Reference] = {}
        self._waiting: list[
            tuple[Reference, LarkItem, dict[str, Node]]
        ] = []  # instances to be written
        self.rules = Rules(_START)
        self._check_names()
        rules = [name for name, item in parsed.items.items() if not item.params]
        for name in (*rules, *parsed.imported):
            self.rules.nodes[name] = EMPTY  # so that no new rule is called so
        self._ignored = self.rules.add(EMPTY, "ignored") if parsed.ignored else None
        self._define()
        if self._ignored:
            nodes = [self._terminal(node) for node in parsed.ignored]
            self.rules.define(self._ignored, Repetition(alternation(*nodes)))
            begin = concatenation(self._ignored, Reference(_START))
            self.rules.root = self.rules.add(begin, _START).name
        if any(item.priority and is_terminal(name) for name, item in self._items.items()):
            self._check_priorities()

    def _check_names(self) -> None:
        known = {*self._items, *self._parsed.imported}
        known.update(name for item in self._items.values() for name in item.params)
        for name, at in self._parsed.used.items():
            if name not in known:
                what = "terminal" if is_terminal(name) else "rule"
                raise self._source.error(f"there is no {what} {name}", at)
        if _START not in self._items:
            raise self._source.error(f"there is no rule {_START}, where a text begins", 0)
        if self._items[_START].params:
            raise self._source.error("a text cannot begin with a template", 0)

    def _define(self) -> None:
        for new, (name, at) in self._parsed.imported.items():
            if name not in COMMON:
                raise self._source.error(f"common has no terminal {name}", at)
            self.rules.nodes[new] = Terminal(automaton_of(COMMON[name], True))
        uses = {name: item.names for name, item in self._items.items() if is_terminal(name)}
        try:
            order = [*TopologicalSorter(uses).static_order()]
        except CycleError as error:
            name = error.args[1][0]
            reason = f"the terminal {name} is made of itself: only rules may be"
            raise self._source.error(reason, self._items[name].at) from error
        for name in order:
            if name in uses:
                self.rules.nodes[name] = self._terminal(self._items[name].body)
        for name, item in self._items.items():
            if not item.params and not is_terminal(name):
                self.rules.nodes[name] = self._rule(item)
        for rule, item, given in self._waiting:  # it grows meanwhile
            self.rules.define(rule, self._expression(item.body, given))

    def _rule(self, item: LarkItem) -> Node:
        if not item.options:
            return self._expression(item.body, {})
        automaton = self._automaton(item.body, item.at)
        if marker := item.options.get("stop") or item.options.get("suffix"):
            behind = self._automaton(marker, item.at)
            if behind == Automaton.words([""]) or {"stop", "suffix"} <= item.options.keys():
                raise self._source.error("it takes one marker, which is not empty", item.at)
            both = Concatenation((Terminal(automaton), Terminal(behind)))
            automaton = self._made(lambda: Automaton.of(both), item.at)
        return self._lexeme(Terminal(_shortest(automaton)))

    def _expression(self, node: Node, given: dict[str, Node]) -> Node:
        """Of a rule; `given` are the arguments of the template that it stands in."""
        match node:
            case Reference(name) if name in given:
                return given[name]
            case Reference(name) if is_terminal(name):
                return self._lexeme(node, self._items[name].priority if name in self._items else 0)
            case Reference(name):
                if name not in self.rules.nodes:
                    reason = f"{name} is a template, or its parameter"
                    raise self._source.error(reason, self._parsed.used[name])
                return node
            case Concatenation(parts):
                return Concatenation(tuple(self._expression(part, given) for part in parts))
            case Alternation(options):
                return Alternation(tuple(self._expression(option, given) for option in options))
            case Repetition(part, low, high):
                return Repetition(self._expression(part, given), low, high)
            case Use(name, arguments, at):
                return self._instance(name, [self._expression(a, given) for a in arguments], at)
            case Data("%json", text, at):
                try:
                    value = self._schemas(json.loads(text), self.rules)
                except InvalidGrammarError as error:
                    where = f" at {error.where}" if error.where else ""
                    raise self._source.error(f"%json{where}: {error.reason}", at) from error
                return self._lexeme(value, None)
            case Both(_, at):
                raise self._source.error("& is for terminals: name it in upper case", at)
            case Literal(""):
                return node
        return self._lexeme(self._terminal(node))

    def _lexeme(self, node: Node, priority: int | None = 0) -> Node:
        """What `%ignore` may stand behind; with a priority, it is a terminal."""
        if priority is not None:
            self._lexemes[node] = priority
        return Concatenation((node, self._ignored)) if self._ignored else node

    def _instance(self, name: str, arguments: list[Node], at: int) -> Node:
        """A template's rule for these arguments, which are rules, so that they do not grow."""
        for node in arguments:
            if node not in self._arguments:
                is_rule = isinstance(node, Reference)
                self._arguments[node] = node if is_rule else self.rules.add(node, "argument")
        key = name, tuple(self._arguments[node] for node in arguments)
        item = self._items.get(name)
        if item is None or not 0 < len(item.params) == len(arguments):
            reason = f"{name} is no template with {len(arguments)} parameters"
            raise self._source.error(reason, at)
        if key not in self._instances:
            if len(self._instances) == _MOST_INSTANCES:
                raise self._source.error(f"templates make over {_MOST_INSTANCES} rules", at)
            self._instances[key] = rule = self.rules.add(EMPTY, name)
            self._waiting.append((rule, item, dict(zip(item.params, key[1], strict=True))))
        return self._instances[key]

    def _terminal(self, node: Node) -> Node:
        """Of what terminals are made of: the same as in rules, but for `%ignore`."""
        match node:
            case Reference(name) if not is_terminal(name) or name not in self.rules.nodes:
                what = "parameter" if is_terminal(name) else "rule"
                reason = f"a terminal cannot be made of the {what} {name}"
                raise self._source.error(reason, self._parsed.used[name])
            case Concatenation(parts):
                return Concatenation(tuple(map(self._terminal, parts)))
            case Alternation(options):
                return Alternation(tuple(map(self._terminal, options)))
            case Repetition(part, low, high):
                return Repetition(self._terminal(part), low, high)
            case LarkRegex(pattern, flags, at):
                return self._regex(pattern, flags, at)
            case Both(parts, at):
                automata = [self._automaton(part, at) for part in parts]
                return Terminal(self._made(lambda: reduce(Automaton.intersection, automata), at))
            case Not(part, at):
                return Terminal(self._made(self._automaton(part, at).complement, at))
            case Data("%regex", text, at):
                return self._substring(json.loads(text), at)
            case Use(_, _, at) | Data(_, _, at):
                raise self._source.error("this is for rules, not for terminals", at)
        return node

    def _automaton(self, node: Node, at: int) -> Automaton:
        return self._read_off(self._terminal(node), at)

    def _read_off(self, node: Node, at: int) -> Automaton:
        """Of what `_terminal` has made."""
        return self._made(lambda: Automaton.of(self._inlined(node, at)), at)

    def _inlined(self, node: Node, at: int) -> Node:
        match node:
            case Reference(name):
                if name not in self._automata:
                    self._automata[name] = self._read_off(self.rules.nodes[name], at)
                return Terminal(self._automata[name])
            case Concatenation(parts):
                return Concatenation(tuple(self._inlined(part, at) for part in parts))
            case Alternation(options):
                return Alternation(tuple(self._inlined(option, at) for option in options))
            case Repetition(part, low, high):
                return Repetition(self._inlined(part, at), low, high)
        return node

    def _made(self, make: Callable[[], Automaton], at: int) -> Automaton:
        try:
            automaton = make()
        except TooLargeError as error:
            raise self._source.error(f"this terminal is too large: {error}", at) from error
        if automaton.is_empty:
            raise self._source.error("nothing matches this terminal", at)
        return automaton

    def _regex(self, pattern: str, flags: str, at: int) -> Node:
        if unknown := flags.strip("imsu"):
            raise self._source.error(f"the flag {unknown[0]} of a regex is not supported", at)
        groups = "".join(sorted(set(flags) - {"u"}))
        pattern = _UNLIKE.sub(_as_ecmascript, pattern)
        try:
            return matching(f"(?{groups}:{pattern})" if groups else pattern)
        except InvalidGrammarError as error:
            raise self._source.error(f"in this regex, {error.reason}", at) from error

    def _substring(self, data: Any, at: int) -> Node:
        """Any run of some chunks, one behind the other, none of them too."""
        chunks = data.get("substring_chunks") if isinstance(data, dict) else None
        if isinstance(data, dict) and isinstance(data.get("substring_chars"), str):
            chunks = [*data["substring_chars"]]
        if (
            not isinstance(chunks, list)
            or not all(isinstance(chunk, str) for chunk in chunks)
            or len(data) != 1
        ):
            raise self._source.error("%regex takes substring_chunks or substring_chars", at)
        begins: list[Node] = [EMPTY]
        for chunk in reversed(chunks):
            begins.append(self.rules.add(optional(concatenation(chunk, begins[-1])), "chunk"))
        return alternation(*begins)

    def _check_priorities(self) -> None:
        levels = sorted({*self._lexemes.values()})
        for node, priority in self._lexemes.items():
            name = node.name if isinstance(node, Reference) else ""
            at = self._items[name].at if name in self._items else 0
            if len(self._lexemes) > _MOST_RANKED:
                raise self._source.error(f"priorities: over {_MOST_RANKED} terminals", at)
            for other, lower in self._lexemes.items() if priority > levels[0] else ():
                if lower < priority:
                    one, two = self._read_off(node, at), self._read_off(other, at)
                    if (text := one.intersection(two).shortest()) is not None:
                        reason = f"its priority chooses how {text!r:.40} is read, and here both"
                        raise self._source.error(f"{reason} may be: write A & ~B", at)


def _shortest(automaton: Automaton) -> Automaton:
    """The texts of which no beginning is one."""
    ends = automaton.final
    edges = tuple(() if state in ends else e for state, e in enumerate(automaton.edges))
    return Automaton.of(Terminal(Automaton(edges, ends)))


def _as_ecmascript(part: re.Match[str]) -> str:
    """Of a regex: here `.` is all but a line feed, and `[]a]` holds a bracket."""
    if part[0] == ".":
        return r"(?:.|[\r\u2028\u2029])"
    return f"[{part[1]}\\]{part[3]}]" if part[2] else part[0]
