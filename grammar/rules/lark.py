"""Translation of Lark's grammar language, with llguidance's additions, into rules.

The language is context-free: a terminal matches any of its texts, as in llguidance and xgrammar.
Lark's own lexers take the longest match, or the terminal with the highest priority, so priorities
that could make a difference are an error. `%ignore` may occur before, between and after the parts
of a rule, but not within terminals. Regexes are ECMAScript's, except that `.` matches everything
but a line feed; assertions in them see the terminal's own text only. `stop` and `suffix` are
synonyms: the text ends with the first marker, which is part of it.

Not supported: captures, temperatures and limits of tokens, which change no text; tokens, other
grammars, parametric rules, `%declare`, `%override`, `%extend`.
"""

import json
import re
from collections.abc import Callable
from functools import reduce
from graphlib import CycleError, TopologicalSorter
from typing import Any

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.regex.automaton import Automaton, TooLargeError
from dlm.grammar.regex.build import determinized
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
    mapped,
    optional,
)
from dlm.grammar.regex.patterns import automaton_of
from dlm.grammar.rules.folding import matching
from dlm.grammar.rules.lark_syntax import (
    COMMON,
    START,
    LarkAnd,
    LarkCall,
    LarkData,
    LarkGrammar,
    LarkItem,
    LarkNot,
    LarkRegex,
    is_terminal,
    parse,
)
from dlm.grammar.rules.notation import NotationText
from dlm.grammar.rules.rules import Rules

Schemas = Callable[[Any, Rules], Node]  # adds the rules of a JSON schema, returns their node

_UNLIKE = re.compile(r"\\.|\[(\^?)(\]?)((?:\\.|[^\]\\])*)\]|\.", re.DOTALL)
_MOST_INSTANCES = 1000  # of templates
_MOST_RANKED = 100  # terminals and strings in a grammar with priorities


def read_lark(text: str, schemas: Schemas) -> Rules:
    """Return the rules of `text`, whose root is `start`; `schemas` translates `%json`.

    Raises `InvalidGrammarError` with line and column.
    """
    source = NotationText(text)
    try:
        return _Translator(source, parse(source), schemas).rules
    except RecursionError as error:
        raise source.error("nested too deeply", 0) from error


class _Translator:
    """Translator of one grammar; `rules` has one for each rule and terminal, by its name."""

    def __init__(self, source: NotationText, parsed: LarkGrammar, schemas: Schemas):
        self._source, self._parsed, self._schemas = source, parsed, schemas
        self._items = parsed.items
        self._automata: dict[str, Automaton] = {}  # of terminals
        self._lexemes: dict[Node, int] = {}  # terminals and strings in rules, with priorities
        self._instances: dict[tuple[str, tuple[Node, ...]], Reference] = {}  # of templates
        self._arguments: dict[Node, Reference] = {}
        # Instances of templates that are not translated yet, with their arguments.
        self._waiting: list[tuple[Reference, LarkItem, dict[str, Node]]] = []
        self.rules = Rules(START)
        if self._items[START].params:
            raise self._source.error("a text cannot begin with a template", 0)
        rules = [name for name, item in parsed.items.items() if not item.params]
        for name in (*rules, *parsed.imported):
            self.rules.nodes[name] = EMPTY  # reserves the name
        self._ignored = self.rules.add(EMPTY, "ignored") if parsed.ignored else None
        self._define()
        if self._ignored:
            nodes = [self._terminal(node) for node in parsed.ignored]
            self.rules.define(self._ignored, Repetition(alternation(*nodes)))
            begin = concatenation(self._ignored, Reference(START))
            self.rules.root = self.rules.add(begin, START).name
        if any(item.priority and is_terminal(name) for name, item in self._items.items()):
            self._check_priorities()

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
            reason = f"the terminal {name} is recursive: only rules may be"
            raise self._source.error(reason, self._items[name].at) from error
        for name in order:
            if name in uses:
                self.rules.nodes[name] = self._terminal(self._items[name].body)
        for name, item in self._items.items():
            if not item.params and not is_terminal(name):
                self.rules.nodes[name] = self._rule(item)
        for rule, item, arguments in self._waiting:  # it grows in the loop
            self.rules.define(rule, self._expression(item.body, arguments))

    def _rule(self, item: LarkItem) -> Node:
        if not item.options:
            return self._expression(item.body, {})
        automaton = self._automaton(item.body, item.at)
        if marker := item.options.get("stop") or item.options.get("suffix"):
            end = self._automaton(marker, item.at)
            if end == Automaton.words([""]) or {"stop", "suffix"} <= item.options.keys():
                raise self._source.error(
                    "a rule must have one of suffix and stop, and not an empty one", item.at
                )
            both = Concatenation((Terminal(automaton), Terminal(end)))
            automaton = self._made(lambda: determinized(both), item.at)
        return self._lexeme(Terminal(_shortest(automaton)))

    def _expression(self, node: Node, bound: dict[str, Node]) -> Node:
        """Translate an expression of a rule; `bound` has the arguments of a template."""
        match node:
            case Reference(name) if name in bound:
                return bound[name]
            case Reference(name) if is_terminal(name):
                return self._lexeme(node, self._items[name].priority if name in self._items else 0)
            case Reference(name):
                if name not in self.rules.nodes:
                    reason = f"{name} is a template, or its parameter"
                    raise self._source.error(reason, self._parsed.used[name])
                return node
            case Concatenation() | Alternation() | Repetition():
                return mapped(node, lambda part: self._expression(part, bound))
            case LarkCall(name, arguments, at):
                return self._instance(name, [self._expression(a, bound) for a in arguments], at)
            case LarkData("%json", text, at):
                try:
                    value = self._schemas(json.loads(text), self.rules)
                except InvalidGrammarError as error:
                    where = f" at {error.where}" if error.where else ""
                    raise self._source.error(f"%json{where}: {error.reason}", at) from error
                return self._lexeme(value, None)
            case LarkAnd(_, at):
                raise self._source.error("& is for terminals: name it in upper case", at)
            case Literal(""):
                return node
        return self._lexeme(self._terminal(node))

    def _lexeme(self, node: Node, priority: int | None = 0) -> Node:
        """Return `node`, followed by `%ignore`. With a priority it is recorded as a terminal."""
        if priority is not None:
            self._lexemes[node] = priority
        return Concatenation((node, self._ignored)) if self._ignored else node

    def _instance(self, name: str, arguments: list[Node], at: int) -> Node:
        """Return a template's rule for `arguments`, each of which becomes a rule itself."""
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
        """Translate an expression of a terminal, without `%ignore` between its parts."""
        match node:
            case Reference(name) if not is_terminal(name) or name not in self.rules.nodes:
                kind = "parameter" if is_terminal(name) else "rule"
                reason = f"a terminal cannot contain the {kind} {name}"
                raise self._source.error(reason, self._parsed.used[name])
            case LarkRegex(pattern, flags, at):
                return self._regex(pattern, flags, at)
            case LarkAnd(parts, at):
                automata = [self._automaton(part, at) for part in parts]
                return Terminal(self._made(lambda: reduce(Automaton.intersection, automata), at))
            case LarkNot(part, at):
                return Terminal(self._made(self._automaton(part, at).complement, at))
            case LarkData("%regex", text, at):
                return self._substring(json.loads(text), at)
            case LarkCall(_, _, at) | LarkData(_, _, at):
                raise self._source.error("this is for rules, not for terminals", at)
        return mapped(node, self._terminal)

    def _automaton(self, node: Node, at: int) -> Automaton:
        return self._automaton_of(self._terminal(node), at)

    def _automaton_of(self, node: Node, at: int) -> Automaton:
        """Return the automaton of a node that `_terminal` returned."""
        return self._made(lambda: determinized(self._inlined(node, at)), at)

    def _inlined(self, node: Node, at: int) -> Node:
        if isinstance(node, Reference):
            if node.name not in self._automata:
                rule = self.rules.nodes[node.name]
                self._automata[node.name] = self._automaton_of(rule, at)
            return Terminal(self._automata[node.name])
        return mapped(node, lambda part: self._inlined(part, at))

    def _made(self, make: Callable[[], Automaton], at: int) -> Automaton:
        """Return `make()`. Raises an error at `at` if it is too large or matches nothing."""
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
        """Return any run of consecutive chunks, or the empty text."""
        chunks = data.get("substring_chunks") if isinstance(data, dict) else None
        if isinstance(data, dict) and isinstance(data.get("substring_chars"), str):
            chunks = [*data["substring_chars"]]
        if (
            not isinstance(chunks, list)
            or not all(isinstance(chunk, str) for chunk in chunks)
            or len(data) != 1
        ):
            raise self._source.error(
                "%regex must be an object of substring_chunks or substring_chars", at
            )
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
                    texts, other_texts = self._automaton_of(node, at), self._automaton_of(other, at)
                    if (text := texts.intersection(other_texts).shortest()) is not None:
                        reason = f"its priority decides how {text!r:.40} is read, but here both"
                        raise self._source.error(f"{reason} are possible: write A & ~B", at)


def _shortest(automaton: Automaton) -> Automaton:
    """Return the automaton of the texts of which no shorter beginning is accepted."""
    ends = automaton.final
    edges = tuple(() if state in ends else e for state, e in enumerate(automaton.edges))
    return determinized(Terminal(Automaton(edges, ends)))


def _as_ecmascript(part: re.Match[str]) -> str:
    """Translate a part of a regex: `.` is all but a line feed, and `[]a]` contains a bracket."""
    if part[0] == ".":
        return r"(?:.|[\r\u2028\u2029])"
    return f"[{part[1]}\\]{part[3]}]" if part[2] else part[0]
