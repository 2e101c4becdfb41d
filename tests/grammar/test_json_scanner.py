"""The scanner of JSON text: its lexemes, wherever the text is divided into pieces."""

import json

import pytest
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st

from dlm.grammar import json_scanner
from dlm.grammar.json_scanner import JsonScanner, Kind

STRINGS = st.text(st.sampled_from('a"\\{}[],: é日\n'), max_size=5)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | STRINGS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(STRINGS, inner, max_size=3),
    max_leaves=8,
)


def lexemes(pieces):
    """Return kinds and texts of the lexemes of a text, with divided ones joined."""
    scanner, found = JsonScanner(), []
    for piece in pieces:
        first = True
        for kind, text, at in scanner.feed(piece):
            assert piece[at : at + len(text)] == text
            may_go_on = first and at == 0 and kind in (Kind.CHARACTERS, Kind.SCALAR)
            if may_go_on and found and found[-1][0] is kind:
                text = found.pop()[1] + text
            first = False
            found.append((kind, text))
    return found, scanner


@pytest.mark.parametrize(
    ("pieces", "string", "escaped"),
    [
        ([b"[", b'"a'], True, False),
        ([b'"', b"\\"], True, True),
        ([b'"\\', b'"'], True, False),
        ([b'"\\', b'\\"'], False, False),
        ([b'"\\u00', b'41"', b" 1"], False, False),
        ([b'{"a\\\\": [1'], False, False),
    ],
)
def test_the_scanner_knows_whether_the_text_is_within_a_string(pieces, string, escaped):
    scanner = JsonScanner()
    for piece in pieces:
        assert scanner.read(piece) is scanner
    assert (scanner.string, scanner.escaped) == (string, escaped)


def test_a_scanner_goes_on_from_a_place_within_a_string():
    (characters, end) = JsonScanner(string=True, escaped=True).feed(b'"x"')
    assert characters == (Kind.CHARACTERS, b'"x', 0)
    assert end == (Kind.STRING_END, b'"', 2)


@pytest.mark.parametrize("piece", [b'"a\\', b'", "a": "\\"', b"x" * 40 + b'": 1, "'])
@pytest.mark.parametrize(("string", "escaped"), [(False, False), (True, False), (True, True)])
def test_the_lexemes_of_a_piece_are_those_that_a_scanner_yields(piece, string, escaped):
    scanner = JsonScanner(string, escaped)
    parts = (*scanner.feed(piece),)
    for _ in range(2):  # the second ones are kept
        kept = json_scanner.lexemes(piece, string, escaped)
        assert kept == (parts, scanner.string, scanner.escaped)


@examples(200)
@given(value=VALUES, indent=st.sampled_from([None, 1]), ascii_=st.booleans(), data=st.data())
def test_lexemes_do_not_depend_on_where_the_text_is_divided(value, indent, ascii_, data):
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_).encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    divided, scanner = lexemes(pieces)
    whole, _ = lexemes([text])
    assert divided == whole
    assert not scanner.string
    compact = json.dumps(value, ensure_ascii=ascii_, separators=(",", ":")).encode()
    assert b"".join(part for _, part in whole) == compact


@examples(100)
@given(value=VALUES)
def test_lexemes_are_the_tokens_of_json(value):
    found, _ = lexemes([json.dumps(value).encode()])
    marks = [text for kind, text in found if kind is Kind.MARK]
    opened = sum(text in (b"{", b"[") for text in marks)
    assert opened == sum(text in (b"}", b"]") for text in marks)
    for kind, text in found:
        if kind is Kind.SCALAR:
            assert not isinstance(json.loads(text), str | list | dict)
        elif kind is Kind.CHARACTERS:
            assert isinstance(json.loads(b'"%s"' % text), str)
    quotes = [kind for kind, _ in found if kind in (Kind.STRING, Kind.STRING_END)]
    assert quotes == [Kind.STRING, Kind.STRING_END] * (len(quotes) // 2)
