"""Exploration: masks of terminals that are computed before a text needs them."""

from contextlib import suppress
from sys import maxsize

import pytest

from dlm.grammar import Compiler, Grammar, JsonSchema, Matcher, Regex, Unfinished
from dlm.grammar.masks import WalkTable
from dlm.grammar.parse.unbounded_sets import UnboundedSets

ADDRESS = {"type": "string", "format": "uri"}
CASES = {
    "a format": (JsonSchema(ADDRESS), '"https://a.example:80/b?c=d#e"'),
    "a format within bounds": (JsonSchema(ADDRESS | {"maxLength": 40}), '"https://a.example/b"'),
    "at least some characters": (Regex(r"(ab|[c-f]x?){3,}-\d*"), "abcxdxe-12"),
}


def explored(vocabulary, spec, work=maxsize):
    """Return a grammar whose terminals were explored in calls of at most `work` units."""
    compiled = Compiler(vocabulary).compile(spec)
    exploration = compiled.exploration()
    while exploration:
        with suppress(Unfinished), compiled.meter.limited(work):
            exploration.advance()
    return compiled


@pytest.mark.parametrize("work", [maxsize, 1], ids=["at once", "cut short"])
@pytest.mark.parametrize(("spec", "text"), CASES.values(), ids=CASES)
def test_no_mask_walks_the_vocabulary_once_terminals_are_explored(
    vocabulary, spec, text, work, monkeypatch
):
    compiled, walks = explored(vocabulary, spec, work), []
    walk, token_set = WalkTable.walk, UnboundedSets.token_set
    monkeypatch.setattr(WalkTable, "walk", lambda *args: walks.append(args) or walk(*args))
    monkeypatch.setattr(
        UnboundedSets, "token_set", lambda *args: walks.append(args) or token_set(*args)
    )

    def masks(compiled):
        matcher, found = Matcher(compiled), []
        for token in vocabulary.encode(text):
            found.append(matcher.allowed().tolist())
            assert matcher.accept(token)
        return found

    found = masks(compiled)
    assert not walks
    assert found == masks(Compiler(vocabulary).compile(spec))
    assert walks  # without exploration


def test_an_exploration_that_stops_early_has_begun_several_terminals(vocabulary):
    schema = {"properties": {"a": ADDRESS, "b": ADDRESS | {"maxLength": 9}, "c": {"const": "d"}}}
    compiled = Compiler(vocabulary).compile(JsonSchema(schema))
    exploration, terminals = compiled.exploration(), set()
    for _ in range(8):
        before = {**compiled.parser.scanners}
        exploration.advance()
        terminals |= compiled.parser.scanners.keys() - before.keys()
    assert len(terminals) > 1


def test_literals_have_nothing_to_explore(vocabulary):
    assert not Compiler(vocabulary).compile(Grammar('root ::= "a" root "b" | "c"')).exploration()
