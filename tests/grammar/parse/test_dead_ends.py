"""Dead ends: any choice of allowed tokens leads to the end of an answer."""

import random

import pytest
import torch
from exhaustive import by_default
from hostile_schemas import hostile_schema, walk
from maskbench import of_bytes
from scores import scores_of

from dlm.grammar import (
    Compiler,
    Fixed,
    Frontier,
    InvalidGrammarError,
    JsonSchema,
    LeftToRight,
    Matcher,
    Regex,
)
from dlm.grammar.masks import tokens_in

SCHEMAS = 150  # random ones, in groups
GROUPS = 10
FOUND = [505, 1572, 1781, 1927, 1967]  # seeds at which some version had a dead end
IMPOSSIBLE = "no finite value fits"
BYTES = of_bytes()
COMPILER = Compiler(BYTES)


@pytest.mark.parametrize("group", by_default(range(GROUPS), 3))
def test_an_answer_of_a_model_that_prefers_escapes_ends(group):
    """Each text is valid, fits its budget, and can be completed at any position."""
    walked, refused = 0, 0
    for seed in [*range(group, SCHEMAS, GROUPS), *(FOUND if group == 0 else ())]:
        dice = random.Random(seed)
        try:
            spec = JsonSchema(hostile_schema(seed), max_whitespace=1)
            matcher = Matcher(COMPILER.compile(spec))
        except InvalidGrammarError as error:
            if IMPOSSIBLE not in str(error):
                raise
            refused += 1
            continue
        shortest = matcher.shortest_completion()
        if shortest is None:  # more distinct items than there are
            refused += 1
            continue
        budget = len(shortest) + 1 + dice.randint(0, 20)
        tokens = walk(matcher, BYTES.pieces, budget, dice)
        spec.value(BYTES.text(tokens))
        walked += 1
    assert walked > refused


@pytest.mark.parametrize(
    ("pattern", "shortest"),
    [("[\\x00-\\x09]", "\\b"), ("[\\x00-\\x07\\x0b-\\x0c]", "\\f"), ("[\\x01-\\x07]", "\\u0001")],
)
def test_control_characters_take_their_shortest_escapes(compiler, vocabulary, pattern, shortest):
    grammar = compiler.compile(JsonSchema({"type": "string", "pattern": f"^{pattern}$"}))
    assert vocabulary.text(Matcher(grammar).shortest_completion()) == f'"{shortest}"'
    assert grammar.parser.start.cost == len(shortest) + 2


@pytest.mark.parametrize("pattern", ["^", "$", "(?:)", "a{0}"])
def test_a_pattern_that_matches_only_the_empty_text_allows_only_stops(
    compiler, vocabulary, pattern
):
    grammar = compiler.compile(Regex(pattern))
    stops = sorted(vocabulary.stops)
    for budget in (1, 2, 9):
        matcher = Matcher(grammar)
        assert tokens_in(matcher.allowed(budget)).tolist() == stops
        assert matcher.shortest_completion() == []
        row = LeftToRight(grammar, budget).look(exact=True).rows[0]
        assert tokens_in(row).tolist() == stops
        frontier = Frontier(grammar, budget)
        logits = torch.zeros(4, len(vocabulary))
        guidance = frontier.guide(scores_of(logits, [300] * 4), Fixed(last=True))
        assert guidance.stop == 0
        assert guidance.guess[0] in stops


NAMES = {
    "a quote": {"pattern": '^"$'},
    "a backslash": {"pattern": r"^\\+$"},
    "line breaks": {"pattern": r"^\n{1,2}$"},
    "control characters": {"pattern": r"^[\x00-\x03]$"},
    "beyond the basic plane": {"pattern": "^[😀😁]{1,2}$"},
}


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("least", [1, 2])
def test_an_object_of_few_escaped_keys_has_no_dead_end(names, least):
    schema = {"type": "object", "propertyNames": names, "additionalProperties": {"const": 0}}
    try:
        spec = JsonSchema(schema | {"minProperties": least}, max_whitespace=1)
        grammar = COMPILER.compile(spec)
    except InvalidGrammarError as error:
        if (least, names) != (2, NAMES["a quote"]) or IMPOSSIBLE not in str(error):
            raise
        return
    shortest = Matcher(grammar).shortest_completion()
    assert shortest is not None
    for seed in range(4):
        dice = random.Random(seed)
        tokens = walk(Matcher(grammar), BYTES.pieces, len(shortest) + 1 + 5 * seed, dice)
        assert len(spec.value(BYTES.text(tokens))) >= least


@pytest.mark.parametrize("escape", [r"\uD83D\uDE00", r"\ud83d\ude01", r"\ud83d\ude02"])
def test_a_surrogate_pair_can_be_completed_after_each_of_its_characters(escape):
    grammar = COMPILER.compile(JsonSchema({"type": "string", "pattern": "^[😀-😂]+$"}))
    matcher = Matcher(grammar)
    for byte in b'"' + escape.encode():
        assert matcher.accept(byte)
        rest = matcher.shortest_completion()
        assert rest is not None
        assert rest[0] in tokens_in(matcher.allowed(len(rest) + 1))
        assert matcher.accept_all(rest) == len(rest)
        matcher.rollback(len(rest))
