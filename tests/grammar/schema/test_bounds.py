"""Long strings with a bound: xgrammar is not told of it, and the masks keep to it all the same."""

import random

import pytest
import xgrammar as xgr
from masked import tokens_in
from oracle import judge

from dlm.grammar import Grammar, JsonSchema, StructuralTag
from dlm.grammar.parse.matcher import Reader
from dlm.grammar.parse.network_reader import loosened


def string(**bounds):
    return JsonSchema({"type": "string"} | bounds)


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2, "maxLength": 40},
        "note": {"type": "string", "maxLength": 50},
    },
    "required": ["name", "note"],
    "additionalProperties": False,
}
SPECS = {
    "one string": string(maxLength=40),
    "at least some": string(minLength=20, maxLength=45),
    "two strings": JsonSchema(PERSON),
    "a list": JsonSchema(
        {"type": "array", "items": {"type": "string", "maxLength": 36}, "maxItems": 2}
    ),
    "either": JsonSchema({"anyOf": [{"type": "string", "maxLength": 44}, {"type": "null"}]}),
    "a pattern": string(pattern="^[a-zé_-]{1,70}$"),
    "a pattern of anything": string(pattern="^.{1,40}$"),
    "keys": JsonSchema(
        {"patternProperties": {"^[x-z]{2,40}$": {"const": 1}}, "additionalProperties": False}
    ),
    "digits": Grammar('root ::= "<" [0-9é]{1,40} ">" (";" [^;]{0,38} ";")?'),
    "escapes": Grammar(r'root ::= "<" ("\\" [nt]){1,40} ">" ("\\n"){0,36} ";"'),
    "a tag": StructuralTag(
        {
            "type": "structural_tag",
            "format": {
                "type": "tag",
                "begin": "<a>",
                "end": "</a>",
                "content": {"type": "regex", "pattern": "[a-z]{2,50}"},
            },
        }
    ),
}


@pytest.mark.parametrize("name", SPECS)
def test_every_mask_is_what_xgrammar_allows_that_knows_the_bound(compiler, vocabulary, name):
    """All along texts that are as long as they may be, whatever they are made of."""
    spec = SPECS[name]
    row = xgr.allocate_token_bitmask(1, len(vocabulary))
    for seed in range(6):
        rng, reader, matcher = (
            random.Random(seed),
            Reader(compiler.compile(spec)),
            judge(spec, vocabulary),
        )
        masks = compiler.compile(spec).masks
        while not reader.ended:
            matcher.fill_next_token_bitmask(row)
            allowed = tokens_in(masks.words(reader.mask()), len(vocabulary))
            assert allowed == tokens_in(row[0], len(vocabulary))
            plain = [t for t in allowed if vocabulary.pieces[t].isalnum()]
            escapes = [t for t in allowed if b"\\" in vocabulary.pieces[t]]
            wanted = escapes if rng.random() < 0.3 else plain
            token = rng.choice(sorted(wanted or plain or allowed))
            assert reader.read(token)
            assert matcher.accept_token(token)


def test_a_long_repetition_of_one_character_is_no_automaton(vocabulary):
    """It would have a state, and xgrammar a mask, for each round."""
    for pattern in ("^[a-z\\d_-]{1,255}$", "^.{0,255}$"):
        assert len(str(string(pattern=pattern).grammar(vocabulary))) < 2500
    assert len(str(string(pattern="^([a-z]{1,255}|B)$").grammar(vocabulary))) > 5000


def test_no_character_is_one_too_many(compiler, vocabulary):
    reader = Reader(compiler.compile(string(maxLength=40)))
    letter = vocabulary.encode("é")
    assert reader.read_all([*vocabulary.encode('"'), *letter * 40]) == 1 + 40 * len(letter)
    assert not reader.read(letter[0])
    assert reader.read_all([*vocabulary.encode('"'), 106]) == 2


@pytest.mark.parametrize("bounds", [{"maxLength": 40}, {"pattern": "^.{1,40}$"}])
def test_an_escape_is_one_character(compiler, vocabulary, bounds):
    """Also where it is the last that there is room for, and begun by a token of its own."""
    matcher = judge(string(**bounds), vocabulary)
    row = xgr.allocate_token_bitmask(1, len(vocabulary))
    reader = Reader(compiler.compile(string(**bounds)))
    masks = compiler.compile(string(**bounds)).masks
    backslash, quote = vocabulary.pieces.index(b"\\"), vocabulary.pieces.index(b'"')
    for token in [quote, *[backslash, quote] * 40, quote]:
        matcher.fill_next_token_bitmask(row)
        allowed = tokens_in(masks.words(reader.mask()), len(vocabulary))
        assert allowed == tokens_in(row[0], len(vocabulary))
        assert matcher.accept_token(token)
        assert reader.read(token)


def test_a_bound_takes_no_time_to_compile(vocabulary):
    """xgrammar alone takes a mask for each of its rounds: what it is given has no rounds."""
    grammar = string(maxLength=100_000).grammar(vocabulary)
    assert "100000" in str(grammar)
    assert "100000" not in str(loosened(grammar, 32))
    assert str(loosened(string(maxLength=30).grammar(vocabulary), 32)) == str(
        string(maxLength=30).grammar(vocabulary)
    )
