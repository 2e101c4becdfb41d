"""The canonical spelling of JSON strings, and of their beginnings."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlm.grammar.json_escapes import Beginning, beginning, missing, unescaped


@given(text=st.text('ab"\\/\n\x01\u00e9\U0001f600'), cut=st.integers(0, 80))
def test_a_beginning_is_that_of_the_canonical_spelling(text: str, cut: int):
    canonical = json.dumps(text, ensure_ascii=False).encode()
    raw = json.dumps(text).encode()
    assert unescaped(raw) == canonical
    begun = beginning(raw[:cut])
    assert canonical.startswith(begun.text)
    assert (raw[:cut] + b" ").removesuffix(begun.escape + b" ") + begun.escape == raw[:cut]
    if not begun.escape:
        assert [*begun.rests(canonical)] == [canonical[len(begun.text) :]]
    else:
        rests = [*begun.rests(canonical)]
        assert rests
        assert {unescaped(raw[:cut] + rest) for rest in rests} == {canonical}


@pytest.mark.parametrize(
    ("raw", "begun"),
    [
        (rb'"a\\', Beginning(rb'"a\\')),
        (rb'"a\\u00', Beginning(rb'"a\\u00')),
        (rb'"\u006', Beginning(b'"', rb"\u006")),
        (rb'"\/\u006D', Beginning(b'"/m')),
        (rb'"\u000A', Beginning(rb'"\n')),
        (rb'"\ud83d', Beginning(b'"', rb"\ud83d")),
        (rb'"\uD83D\uDe0', Beginning(b'"', rb"\uD83D\uDe0")),
    ],
)
def test_an_escape_that_breaks_off_is_apart(raw: bytes, begun: Beginning):
    assert beginning(raw) == begun


def test_a_short_escape_goes_on_as_the_text_does():
    assert [*Beginning(b'"', b"\\").rests(rb'"\nb"')] == [b'nb"', b'u000ab"']
    assert [*Beginning(b'"', b"\\").rests(b'"/b"')] == [b'/b"', b'u002fb"']
    assert [*Beginning(b'"', b"\\").rests(b'"b"')] == [b'u0062"']
    assert [*Beginning(b'"', b"\\").rests(b'""')] == []


def test_an_escape_by_a_number_goes_on_in_lower_case():
    assert [*Beginning(b'"', rb"\u000").rests(rb'"\nb"')] == [b'ab"']
    assert [*Beginning(b'"', rb"\uD83").rests('"\U0001f600"'.encode())] == [rb'd\ude00"']
    assert [*Beginning(b'"', rb"\uD83D\uDe").rests('"\U0001f600"'.encode())] == [b'00"']
    assert [*Beginning(b'"', rb"\u01").rests(rb'"\nb"')] == []
    assert [missing(escape) for escape in (b"\\", rb"\u00", rb"\ud83d", rb"\ud83d\u")] == [
        5,
        2,
        6,
        4,
    ]
