"""Texts that rules accept, with calls in Gemma 4's own form: a character for each marker."""

import json
import random
from collections.abc import Sequence
from typing import Any

from recogniser import Recogniser

from dlm.grammar import Spec, ToolCall, Tools
from dlm.grammar.regex import (
    Alternation,
    AnyOrder,
    Characters,
    Component,
    Concatenation,
    Literal,
    Node,
    Reference,
    Repetition,
    SpecialToken,
    Spelling,
    Terminal,
)
from dlm.grammar.rules import Rules
from dlm.grammar.vocabulary import GemmaMarkers

MARKERS = GemmaMarkers(open=1, close=2, quote=3)
TOKENS = {1: "\ue001", 2: "\ue002", 3: "\ue003"}


def recogniser(spec: Spec) -> Recogniser:
    return Recogniser(spec.rules(MARKERS), TOKENS)


def accepts(spec: Spec, text: str) -> bool:
    return recogniser(spec).accepts(text)


def spoken(*parts: str | ToolCall) -> str:
    """An answer of texts and calls."""
    return "".join(p if isinstance(p, str) else call_text(p.name, p.arguments) for p in parts)


def call_text(name: str, arguments: dict[str, Any]) -> str:
    return f"{TOKENS[1]}call:{name}{_value(arguments)}{TOKENS[2]}"


def _value(value: Any) -> str:
    if isinstance(value, str):
        return TOKENS[3] + value + TOKENS[3]
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_value, value)) + "]"
    return json.dumps(value)


def sample(rules: Rules, seed: int) -> str:
    """A text that the rules accept, found by chance; what lies deep is kept short."""
    choose = random.Random(seed)
    costs: dict[str, int] = {}
    for _ in range(len(rules.nodes) + 1):  # of the shallowest way through each rule
        costs |= {name: _cost(node, costs) for name, node in rules.nodes.items()}
    budget = [choose.choice([0, 20, 100])]

    def text(node: Node) -> str:
        budget[0] -= 1
        match node:
            case Literal(word):
                return word
            case Characters(ranges):
                return chr(choose.randint(*choose.choice(ranges)))
            case SpecialToken(ids):
                return TOKENS[min(ids)]
            case Reference(name):
                return text(rules.nodes[name])
            case Concatenation(parts):
                return "".join(map(text, parts))
            case Alternation(options):
                least = min(_cost(option, costs) for option in options)
                near = [o for o in options if budget[0] > 0 or _cost(o, costs) == least]
                return text(choose.choice(near))
            case Repetition(part, low, high):
                more = choose.randint(0, 2) if budget[0] > 0 else 0
                count = low + more if high is None else min(high, low + more)
                return "".join(text(part) for _ in range(count))
            case AnyOrder():
                chosen = _chosen(node, choose if budget[0] > 0 else None)
                return text(node.separator).join(text(part.node) for part in chosen)
            case Terminal():
                return _walk(node, choose)
        raise TypeError(node)

    return text(rules.nodes[rules.root])


def _cost(node: Node, costs: dict[str, int]) -> int:
    match node:
        case Reference(name):
            return costs.get(name, 10**6) + 1
        case Concatenation(parts):
            return max((_cost(part, costs) for part in parts), default=0)
        case Alternation(options):
            return min((_cost(option, costs) for option in options), default=10**6)
        case Repetition(part, low):
            return _cost(part, costs) if low else 0
        case AnyOrder(parts):
            required = [_cost(part.node, costs) for part in parts if part.required]
            return max(required or [min(_cost(part.node, costs) for part in parts)])
    return 0


def _chosen(node: AnyOrder, choose: random.Random | None) -> list[Component]:
    """Parts in an order that `node` allows, as few as it allows if `choose` is None."""
    parts = [part for part in node.parts if part.required]
    others = [part for part in node.parts if not part.required]
    least = max(node.low, 1) - len(parts)
    if choose is None:
        parts += others[: max(0, least)]
    else:
        most = len(others) if node.high is None else node.high - len(parts)
        count = choose.randint(max(0, least), max(0, least, min(most, len(others))))
        parts += choose.sample(others, min(count, len(others)))
        choose.shuffle(parts)
    while len(parts) < max(node.low, 1):
        parts.append(next(part for part in others if part.repeats))
    ordered = iter(part for part in node.parts if part.ordered and part in parts)
    parts = [next(ordered) if part.ordered else part for part in parts]
    return sorted(parts, key=lambda part: part.last and any(each.ordered for each in parts))


def _walk(node: Terminal, choose: random.Random) -> str:
    """A word of a terminal, spelled as it says."""
    edges, final = node.automaton.edges, node.automaton.final
    while True:
        word, state = "", 0
        while len(word) < node.low + 40:
            last = not edges[state] or len(word) == node.high
            if state in final and len(word) >= node.low and (last or choose.random() < 0.3):
                if node.spelling is Spelling.QUOTED:
                    return json.dumps(word, ensure_ascii=choose.random() < 0.5)
                return word
            if last:
                break
            low, high, state = choose.choice(edges[state])
            near = chr(choose.choice([low, high, choose.randint(low, min(high, low + 99))]))
            word += chr(high) if near in TOKENS.values() else near


def tools(schema: dict[str, Any], **options: Any) -> Tools:
    """A tool `f` with these arguments, which has to be called."""
    strict = {"strict": True} if options.pop("strict", False) else {}
    function = {"name": "f", "parameters": schema, **strict}
    return Tools([{"type": "function", "function": function}], **{"choice": "required"} | options)


def objects(required: Sequence[str] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def misjudged(schema: dict[str, Any], taken: Sequence[Any], refused: Sequence[Any]) -> list[Any]:
    """Return the arguments of `taken` and `refused` that a tool's rules judge otherwise."""
    reader = recogniser(tools(schema))
    wrong = [value for value in taken if not reader.accepts(call_text("f", value))]
    return wrong + [value for value in refused if reader.accepts(call_text("f", value))]
