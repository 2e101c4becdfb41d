"""Parts in any order: texts, costs, masks and budgets, compared with a list of all their texts."""

import pickle
import random
from itertools import pairwise, product
from typing import Any, NamedTuple

import pytest
from answers import matcher_answer
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st

from dlm.grammar import Compiled, JsonSchema, Matcher
from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.limits import Meter
from dlm.grammar.masks import tokens_in
from dlm.grammar.parse import Network, Parser, Terminals
from dlm.grammar.parse.network import scanner_of
from dlm.grammar.regex import (
    EMPTY,
    NOTHING,
    Alternation,
    AnyOrder,
    Automaton,
    Component,
    Concatenation,
    Literal,
    Node,
    Repetition,
    SpecialToken,
    Terminal,
)
from dlm.grammar.rules import Rules, with_terminals
from dlm.grammar.rules.properties import without_endless

CONTENTS = {  # the texts of a part, with a node of them
    ("a",): Literal("a"),
    ("ab", "b"): Alternation((Literal("ab"), Literal("b"))),
    ("aa", "ba"): Concatenation((Terminal(Automaton.words(["a", "b"])), Literal("a"))),
    ("b", "bbbb"): Concatenation((Literal("b"), Repetition(Literal("bbb"), 0, 1))),
}
SEPARATORS = {
    (",",): Literal(","),
    ("", ","): Repetition(Literal(","), 0, 1),
    ("",): EMPTY,
    (",", ",,"): Concatenation((Literal(","), Repetition(Literal(","), 0, 1))),
}
KINDS = [
    {},
    {"required": True},
    {"required": True, "ordered": True},
    {"ordered": True},
    {"repeats": True},
    {"repeats": True, "last": True},
    {"required": True, "last": True},
]
_MOST = 5  # parts of a text that is listed


class Case(NamedTuple):
    """A group, as the test sees it."""

    contents: list[tuple[str, ...]]
    kinds: list[dict[str, bool]]
    separator: tuple[str, ...]
    low: int
    high: int | None

    def node(self) -> Node:
        parts = (
            Component(CONTENTS[c], **k) for c, k in zip(self.contents, self.kinds, strict=True)
        )
        return AnyOrder(tuple(parts), SEPARATORS[self.separator], self.low, self.high)

    def texts(self) -> dict[str, int]:
        """Map texts of up to `_MOST` parts to their fewest parts."""
        found: dict[str, int] = {}
        for count in range(1, _MOST + 1):
            for chosen in product(range(len(self.contents)), repeat=count):
                if self.fits(chosen):
                    each = [self.contents[chosen[0]]]
                    for i in chosen[1:]:
                        each += [self.separator, self.contents[i]]
                    for way in product(*each):
                        found.setdefault("{" + "".join(way) + "}", count)
        return found

    def fits(self, chosen: tuple[int, ...]) -> bool:
        kinds = [self.kinds[i] for i in chosen]
        once = all(
            k.get("repeats") or chosen.count(i) == 1 for i, k in zip(chosen, kinds, strict=True)
        )
        there = all(i in chosen for i, k in enumerate(self.kinds) if k.get("required"))
        ordered = [i for i, k in zip(chosen, kinds, strict=True) if k.get("ordered")]
        late = any(
            a.get("last") and b.get("ordered") for n, a in enumerate(kinds) for b in kinds[n:]
        )
        counted = self.low <= len(chosen) <= (_MOST if self.high is None else self.high)
        return once and there and counted and not late and all(a < b for a, b in pairwise(ordered))


CASES = st.lists(
    st.tuples(st.sampled_from(sorted(CONTENTS)), st.sampled_from(KINDS)), min_size=1, max_size=3
).flatmap(
    lambda parts: st.builds(
        Case,
        st.just([content for content, _ in parts]),
        st.just([kind for _, kind in parts]),
        st.sampled_from(sorted(SEPARATORS)),
        st.integers(0, 3),
        st.sampled_from([None, 1, 2, 3, 4]),
    )
)


def rules_of(case: Case) -> Rules:
    """Return the rules of a group in braces; without texts, they have no root."""
    rules = Rules()
    node = without_endless(rules, Concatenation((Literal("{"), case.node(), Literal("}"))))
    if node != NOTHING:
        rules.nodes[rules.root] = node
    return rules


def parser_of(rules: Rules) -> Parser:
    return Parser(Network(rules), scanner_of, Meter())


@examples(300)
@given(case=CASES, folded=st.booleans())
def test_a_group_reads_its_texts_and_each_state_knows_the_bytes_to_the_end(
    case: Case, folded: bool
):
    texts, rules = case.texts(), rules_of(case)
    if not texts:
        return
    parser = parser_of(with_terminals(rules) if folded else rules)
    following: dict[str, set[str]] = {}
    least: dict[str, int] = {}
    for text in texts:
        for at in range(len(text) + 1):
            least[text[:at]] = min(least.get(text[:at], 99), len(text) - at)
            following.setdefault(text[:at], set()).update(text[at : at + 1])
    # A text that could have more than `_MOST` parts may go on where no listed text does.
    sure = {text[:at] for text, count in texts.items() if count < _MOST for at in range(len(text))}
    for prefix in sure:
        state = parser.after(parser.start, 0, prefix.encode()) if prefix else parser.start
        assert state is not None
        assert state.cost == least[prefix], prefix
        ways = {c for c in "ab,{}" if parser.after(state, 0, c.encode()) is not None}
        assert ways >= following[prefix]
        assert prefix.count(",") >= _MOST - 2 or len(prefix) > 4 or ways == following[prefix], (
            prefix
        )
        completion = b"".join(p for p in parser.completion(state, 99) if isinstance(p, bytes))
        assert prefix + completion.decode() in texts
        assert len(completion) == state.cost
    for text in texts:
        state = parser.after(parser.start, 0, text.encode())
        assert state is not None
        assert state.cost == 0


@pytest.fixture(scope="module")
def terminals(vocabulary: Any) -> Terminals:
    return Terminals(vocabulary.trie, len(vocabulary))


@examples(40)
@given(case=CASES, seed=st.integers(0, 99), spare=st.integers(0, 6))
def test_masks_are_exact_and_every_budget_is_kept(vocabulary, terminals, case, seed, spare):
    rules = rules_of(case)
    if not case.texts():
        return
    grammar = Compiled(Network(rules), vocabulary, terminals)
    choose = random.Random(seed)
    shortest = Matcher(grammar).shortest_completion()
    assert shortest is not None
    budget = len(shortest) + 1 + spare
    tokens = matcher_answer(Matcher(grammar), budget, choose.choice)
    assert len(tokens) <= budget
    state = grammar.parser.start
    for token in tokens:
        allowed = {*tokens_in(grammar.masks.words(grammar.state_masks.mask(state))).tolist()}
        fitting = {t for t in range(len(vocabulary)) if grammar.steps.after(state, t) is not None}
        stops = {*vocabulary.stops}
        assert {t for t in allowed if t < len(vocabulary)} - stops == fitting - stops
        if token in stops:
            break
        state = grammar.steps.after(state, token)
        assert state is not None


@pytest.mark.parametrize(
    ("parts", "low", "expected"),
    [
        ([Component(NOTHING, required=True), Component(Literal("a"))], 0, None),
        ([Component(NOTHING), Component(Literal("a"))], 0, "a"),
        ([Component(NOTHING), Component(Literal("a"))], 2, None),
        ([Component(NOTHING), Component(Literal("a"), repeats=True)], 2, "a,a"),
        ([Component(NOTHING)], 0, None),
    ],
)
def test_parts_without_a_finite_text_are_left_out(parts: Any, low: int, expected: str | None):
    rules = Rules()
    node = without_endless(rules, AnyOrder(tuple(parts), Literal(","), low))
    if expected is None:
        assert node == NOTHING
        return
    rules.nodes[rules.root] = node
    parser = parser_of(rules)
    assert parser.completion(parser.start, 99) == [
        *[expected[:1].encode()],
        *[b",", b"a"] * (low > 1),
    ]


def test_a_group_may_hold_control_tokens_and_itself():
    """A part that is a group again has its own parts, and a call's texts are quoted by a token."""
    mark = SpecialToken(frozenset({7}))
    inner = Concatenation(
        (Literal("{"), AnyOrder((Component(Literal("x")), Component(mark)), Literal(",")))
    )
    node = AnyOrder(
        (Component(Concatenation((inner, Literal("}")))), Component(Literal("y"))), Literal(",")
    )
    rules = Rules()
    rules.nodes[rules.root] = node
    parser = parser_of(rules)
    state: Any = parser.start
    for symbol in ("y", ",", "{", 7, ",", "x", "}"):
        assert state is not None
        state = (
            parser.after(state, symbol, b"")
            if symbol == 7
            else parser.after(state, 0, symbol.encode())
        )
    assert state.cost == 0
    assert not state.threads
    assert parser.completion(parser.start, 9) == [b"y"]
    copy = pickle.loads(pickle.dumps(parser.network))  # after it was read
    assert Parser(copy, scanner_of, Meter()).completion(parser.start, 9) == [b"y"]


@pytest.mark.parametrize("separator", SEPARATORS)
def test_a_group_beside_a_shorter_alternative_is_measured(separator: tuple[str, ...]):
    pair = (Component(Literal("aa")), Component(Literal("bb")))
    group, rules = AnyOrder(pair, SEPARATORS[separator], 2), Rules()
    rules.nodes[rules.root] = Alternation((Literal("x"), Concatenation((group, Literal("yy")))))
    parser = parser_of(rules)
    assert parser.start.cost == 1
    state = parser.after(parser.start, 0, b"aa")
    assert state is not None
    assert state.cost == min(map(len, separator)) + 4


@pytest.mark.parametrize("required", [0, 2])
def test_a_network_grows_in_proportion_to_the_properties(required: int):
    sizes = []
    for count in (100, 500):
        names = [f"property_{i}" for i in range(count)]
        schema = {
            "type": "object",
            "properties": {name: {"type": "string"} for name in names},
            "required": names[::required] if required else [],
        }
        network = Network(JsonSchema(schema).rules(None))
        sizes.append(len(network.edges))
        parser = Parser(network, scanner_of, Meter())
        for byte in b'{"property_7": "", "property_1':
            parser.start = parser.after_byte(parser.start, byte)
        assert (parser.start.cost is None) == (not parser.start.threads)
    assert sizes[1] <= 5 * sizes[0]


def test_the_cost_of_a_state_counts_the_parts_of_the_largest_group_as_work():
    work = []
    for count in (10, 2000):
        names = [f"{number:x}" for number in range(count)]
        schema = {"properties": dict.fromkeys(names, True), "required": names}
        meter = Meter()
        network = Network(JsonSchema(schema, property_order="any").rules(None))
        parser = Parser(network, scanner_of, meter)
        state = parser.after_text(parser.start, b'{"0":null,"')
        assert state is not None
        before = meter.spent
        assert state.cost is not None
        work.append(meter.spent - before)
    assert work[0] < 10
    assert work[1] > 1000


def test_a_part_that_repeats_can_not_be_required():
    rules = Rules()
    parts = Component(Literal("a")), Component(Literal("b"), required=True, repeats=True)
    rules.nodes[rules.root] = Concatenation((Literal("x"), AnyOrder(parts, Literal(","))))
    message = "grammar at part 1 of a group: it must not be required if it repeats"
    with pytest.raises(InvalidGrammarError, match=message):
        Network(rules)
