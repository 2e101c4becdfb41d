"""Places within a grammar, against xgrammar's matcher."""

import codecs
import random

import numpy as np
import pytest
import xgrammar as xgr
from oracle import judge

from dlm.grammar import Grammar, JsonObject, JsonSchema, Regex, Spec, StructuralTag
from dlm.grammar.parse import state as place
from dlm.grammar.parse.network_reader import read_network
from dlm.grammar.parse.state import Places

OPEN, CLOSE, QUOTE = 48, 49, 52


def tag(**format_):
    return StructuralTag({"type": "structural_tag", "format": format_})


def typed(type_, **more):
    return JsonSchema({"type": type_} | more)


NODE = typed("object", properties={"v": {}, "c": {"$ref": "#"}}, required=["v"])
COUNT = {"type": "json_schema", "json_schema": {"type": "integer"}}
SPECS = {  # each with texts that a walk may begin with
    "object": (
        typed("object", properties={"id": {"type": "string"}, "n": {"type": ["number", "null"]}}),
        ["", '{"id": "', '{"n": '],
    ),
    "recursion": (NODE, ["", '{"v": {"a": [1, ', '{"v": 1, "c": {"v": ']),
    "a string with bounds": (typed("string", minLength=3, maxLength=300), ["", '"' + "é" * 297]),
    "a pattern": (typed("string", pattern="^[A-Z]{2}-[0-9]{4,60}$"), ["", '"AB-123']),
    "an enum": (JsonSchema({"enum": ["да", "нет", "名前", "😀é", 7, [1, {"a": 2}]]}), ["", '"']),
    "arrays": (typed("array", items=typed("array", maxItems=3).parsed, minItems=2), ["", "[[1]"]),
    "any of": (JsonSchema({"anyOf": [{"type": "integer"}, {"const": "b"}, {}]}), ["", "[", '"']),
    "any object": (JsonObject(), ["", '{"', '{"a": "b", "c": [']),
    "a regex": (Regex(r"(ab|a)*c?[^a-zж]{2,40}.\u0434?"), ["", "abac"]),
    "left recursion": (Grammar('root ::= root "+" t | t\nt ::= [0-9]+ | "(" root ")"'), ["", "(1"]),
    "through others": (
        Grammar('root ::= a "q"\na ::= b "1" | "s"\nb ::= a "2" | root "3"'),
        ["", "s21q31"],
    ),
    "nothing at all": (
        Grammar('root ::= a b a "x"?\na ::= "" | "y" a\nb ::= a | b "z"'),
        ["", "yz"],
    ),
    "ambiguity": (Grammar('root ::= root root | "a" | "b" root "c"'), ["", "aba"]),
    "right recursion": (Grammar('root ::= [ad] root | "bb"'), ["", "ad" * 50]),
    "repetition": (Grammar('root ::= ("ab"{3,500} | ([ef]{2}){40}) "!"'), ["", "ab" * 497, "ef"]),
    "lark": (
        Grammar('start: w ("," w)*\nw: /[a-z]{2,5}/ | "(" start ")"\n%ignore " "', syntax="lark"),
        ["", "(ab , "],
    ),
    "a tag behind its trigger": (
        tag(
            type="triggered_tags",
            triggers=["<f"],
            tags=[
                {"type": "tag", "begin": "<f>", "content": COUNT, "end": "</f>"},
                {"type": "tag", "begin": "<fn>", "content": {"type": "any_text"}, "end": "</fn>"},
            ],
        ),
        ["", "It is <", "It is <f", "<f>", "<fn>", "<f>12</f> <fn>a</fn"],
    ),
}


def by_name(spec):
    return SPECS[spec][0]


def stretch(mask):
    return np.flatnonzero(np.unpackbits(mask.numpy().view(np.uint8), bitorder="little")).tolist()


def is_text(raw):
    """It may go on to be UTF-8."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(raw)
    except UnicodeDecodeError:
        return False
    return True


def walk(spec, compiled, places, text, seed, length=20):
    """Places along a random text behind `text`, with what was read and a matcher behind it."""
    vocabulary, rng = compiled.vocabulary, random.Random(seed)
    matcher = judge(by_name(spec), vocabulary)
    row = xgr.allocate_token_bitmask(1, len(vocabulary))
    raw = text.encode()
    at = places.after(places.start, 0, raw) if raw else places.start
    assert not raw or matcher.accept_string(raw)
    for _ in range(length):
        assert at is not None
        matcher.fill_next_token_bitmask(row)
        tokens = stretch(row[0])
        yield at, raw, matcher, tokens
        pieces = [(t, vocabulary.pieces[t]) for t in tokens if t not in vocabulary.stops]
        pieces = [(token, piece) for token, piece in pieces if is_text(raw + piece)]
        if not pieces:
            return
        token, piece = rng.choice(pieces)
        at = places.after(at, token, piece)
        assert at is not None, (raw, piece)
        assert matcher.accept_token(token)
        raw += piece


@pytest.mark.parametrize("spec", SPECS)
def test_places_follow_the_matcher_and_know_how_far_the_end_is(compiler, vocabulary, spec):
    compiled = compiler.compile(by_name(spec))
    places, stops = compiled.places, set(vocabulary.stops)
    for seed, text in enumerate(SPECS[spec][1] * 2):
        for at, raw, matcher, tokens in walk(spec, compiled, places, text, seed):
            assert bool(stops & set(tokens)) == (at.cost == 0), raw
            said = b"".join(places.completion(at))
            assert len(said) == at.cost
            fork = matcher.fork()
            assert not said or fork.accept_string(said), (raw, said)
            assert fork.is_completed()


@pytest.mark.parametrize("spec", SPECS)
def test_places_refuse_what_the_matcher_refuses(compiler, vocabulary, spec):
    compiled = compiler.compile(by_name(spec))
    rng = random.Random(spec)
    for seed, text in enumerate(SPECS[spec][1]):
        for at, raw, matcher, _ in walk(spec, compiled, compiled.places, text, seed, 10):
            for token in rng.sample(range(256, len(vocabulary)), 20):
                piece = vocabulary.pieces[token]
                taken = matcher.accept_token(token)
                if taken:
                    matcher.rollback(1)
                if piece and is_text(raw + piece):
                    assert (compiled.places.after(at, token, piece) is not None) == taken


@pytest.mark.parametrize("spec", SPECS)
def test_what_is_forced_is_what_every_sentence_goes_on_with(compiler, vocabulary, spec):
    """As the matcher says, and no less, but for a character that is begun."""
    compiled = compiler.compile(by_name(spec))
    for seed, text in enumerate(SPECS[spec][1] * 2):
        for at, raw, matcher, _ in walk(spec, compiled, compiled.places, text, seed):
            try:
                said = matcher.find_jump_forward_string()
            except UnicodeDecodeError as error:
                said = error.object[: error.start].decode()
            if is_text(raw) and raw == raw.decode(errors="ignore").encode():
                assert compiled.places.forced(at) == said, raw


def test_of_a_long_forced_text_there_is_the_beginning(compiler):
    places = compiler.compile(JsonSchema({"const": "ab" * 2000})).places
    assert places.forced(places.start) == '"' + "ab" * 511 + "a"


@pytest.mark.parametrize("spec", SPECS)
def test_a_completion_does_not_depend_on_what_was_read_before(compiler, vocabulary, spec):
    """Nor on how much is remembered: the second has places for a moment only."""
    compiled = compiler.compile(by_name(spec))
    network = read_network(by_name(spec).grammar(vocabulary))
    for seed, text in enumerate(SPECS[spec][1]):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(place, "_REMEMBERED", 3)
            fresh = Places(network)
            one = walk(spec, compiled, compiled.places, text, seed, 12)
            two = walk(spec, compiled, fresh, text, seed, 12)
            for (known, raw, *_), (new, again, *_) in zip(one, two, strict=True):
                assert raw == again
                assert known.cost == new.cost
                assert compiled.places.completion(known) == fresh.completion(new)


@pytest.mark.parametrize(
    ("spec", "one", "other"),
    [
        (typed("string"), '"a', '"bcdefgh'),
        (typed("string"), '"\\n', '"bcé\\"'),
        (by_name("right recursion"), "ad", "d" * 100 + "ad"),
        (typed("integer"), "-12", "345"),
        (Regex("[a-c]*d"), "abc", "ca"),
        (by_name("left recursion"), "1+2", "31+4+25"),
        (by_name("a tag behind its trigger"), "a", "<f>1</f> b"),
    ],
)
def test_a_text_that_comes_back_to_a_situation_comes_back_to_the_object(compiler, spec, one, other):
    places = compiler.compile(spec).places
    first, second = (places.after(places.start, 0, text.encode()) for text in (one, other))
    assert first is not None
    assert first is second


class Named(Spec):
    """EBNF that may name tokens."""

    kind = "test"

    def __init__(self, rules: str):
        self.rules = rules

    @property
    def source(self):
        return self.rules

    @property
    def key(self):
        return self.kind, self.rules

    @property
    def calls(self):
        return True

    def grammar(self, vocabulary):
        return xgr.Grammar.from_ebnf(self.rules)

    def value(self, text):
        return text


@pytest.mark.parametrize(
    ("rules", "shortest"),
    [
        (f'root ::= Token({OPEN}) "x" Token({CLOSE})', [OPEN, b"x", CLOSE]),
        (f'root ::= Token({QUOTE}, {OPEN}) "ab"* Token({QUOTE})+', [OPEN, QUOTE]),
        (f'root ::= (Token({OPEN}) "ab" Token({CLOSE})){{2,9}} | "ab"{{5}}', [OPEN, b"a"]),
        (f'root ::= Token({QUOTE}) [a-z]* Token({QUOTE}) root | "!"', [b"!"]),
        (f'root ::= (ExcludeToken({CLOSE}, {OPEN}) | "xyz")* Token({CLOSE})', [CLOSE]),
    ],
)
def test_a_token_asked_for_by_its_id_counts_as_one(compiler, vocabulary, rules, shortest):
    compiled = compiler.compile(Named(rules))
    places, start = compiled.places, compiled.places.start
    assert places.completion(start)[: len(shortest)] == shortest
    for seed in range(6):
        rng = random.Random(seed)
        matcher = judge(Named(rules), vocabulary)
        row, at = xgr.allocate_token_bitmask(1, len(vocabulary)), start
        for _ in range(12):
            assert at is not None
            assert at.cost == len(places.completion(at))
            witness = compiled.witness(at)
            assert witness is not None
            assert len(witness) <= at.cost
            fork = matcher.fork()
            assert all(fork.accept_token(token) for token in witness)
            assert fork.is_completed()
            matcher.fill_next_token_bitmask(row)
            named = [OPEN, CLOSE, QUOTE]
            taken = [t for t in stretch(row[0]) if t in named or vocabulary.pieces[t].isascii()]
            taken = [t for t in taken if t not in vocabulary.stops]
            if not taken:
                break
            token = rng.choice([t for t in taken if t in named] * rng.randint(0, 1) or taken)
            at = places.after(at, token, vocabulary.pieces[token])
            assert matcher.accept_token(token)


def test_a_text_may_end_where_a_token_could_have_been_named(compiler, vocabulary):
    """As an answer may, that could have gone on with a call."""
    places = compiler.compile(Named(f'root ::= [a-z]+ | "a"* Token({OPEN}) "b"')).places
    said = places.after(places.start, 433, vocabulary.pieces[433])
    assert vocabulary.pieces[433] == b"a"
    assert (said.cost, places.completion(said)) == (0, [])
    called = places.after(said, OPEN, b"")
    assert (called.cost, places.completion(called)) == (1, [b"b"])


def test_where_the_grammar_never_ends_there_is_no_cost(compiler):
    places = compiler.compile(Grammar('root ::= "a" | "b" x\nx ::= "c" x')).places
    assert places.start.cost == 1
    endless = places.after(places.start, 0, b"bc")
    assert (endless.cost, places.completion(endless)) == (None, [])
