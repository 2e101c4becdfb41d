"""Masks of objects whose keys may run out, compared with each token read alone."""

import json

import pytest
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st
from toys import toy_vocabulary

from dlm.grammar import Compiler, JsonSchema, Matcher
from dlm.grammar.masks import tokens_in

INTEGERS = {"type": "object", "additionalProperties": {"type": "integer"}}
LETTERS = "cdefghijklmnopqrstuvwy"  # too many to be listed as names
FEW = INTEGERS | {"propertyNames": {"pattern": f"^[xb{LETTERS}]$"}}
SCHEMAS = {
    "one character": INTEGERS | {"propertyNames": {"maxLength": 1}},
    "letters": FEW,
    "free and few": {
        "type": "object",
        "patternProperties": {"^.+$": {"type": "integer"}},
        "additionalProperties": {"type": "string"},
    },
    "nested": FEW | {"additionalProperties": {"anyOf": [FEW, {"type": "integer"}]}},
    "in distinct items": {"type": "array", "uniqueItems": True, "items": FEW},
}
PIECES = ['x"', 'b":', 'xb"', '"x', ' "x', ' "', '"x"', '"x":1', '":1,"', '":1,"x', 'x":1,"x"']
PIECES += [',"', ", b", "1,", '1,"x"', '"\\u00', ' "\\u0078', "\\u0062", "\\u00", '62"', '78":']
PIECES += ["\\n", '\\n"', 'b\\u000A"', "},", '},"', '{"x', '":{"x":1,"', '":{"', '"":', '""', 'x"}']
PIECES += ['1},"b"', '":"\\"', '","', '":"","b"', '":"","', '":"",', ' "\\""', '},{"', '},{"x":']
VOCABULARY = toy_vocabulary([*(bytes([byte]) for byte in range(128)), *map(str.encode, PIECES)])
COMPILER = Compiler(VOCABULARY)


@pytest.mark.parametrize("name", SCHEMAS)
@examples(60)
@given(data=st.data())
def test_a_mask_has_the_tokens_that_can_be_read(name, data):
    spec = JsonSchema(SCHEMAS[name], additional_properties="schema", max_whitespace=1)
    compiled = COMPILER.compile(spec)
    assert compiled.steps.may_run_out
    letters = [*LETTERS] if data.draw(st.booleans()) else []
    keys = data.draw(st.lists(st.sampled_from(["x", "b", "xb", "\n", '"']), min_size=1, max_size=4))
    spelled = [data.draw(st.sampled_from(spellings(key))) for key in letters + keys]
    value = data.draw(st.sampled_from(["1", '"a, b"', '{"x":1}', '{"b":1,"\\u0078":2}']))
    text = "{" + ",".join(f'"{key}":{value}' for key in spelled)
    text = f"[{text}}},{text}" if name == "in distinct items" else text
    cut = data.draw(st.integers(0, 12))
    matcher = Matcher(compiled)
    matcher.accept_all(VOCABULARY.encode(text[: len(text) - cut]))
    allowed = {*tokens_in(matcher.allowed()).tolist()}
    for token, piece in enumerate(VOCABULARY.pieces):
        accepted = matcher.accept(token)
        assert accepted == (token in allowed), (text, matcher.position, piece)
        if accepted:
            matcher.rollback(1)


def spellings(key: str) -> list[str]:
    return [json.dumps(key)[1:-1], "".join(f"\\u{ord(char):04X}" for char in key)]
