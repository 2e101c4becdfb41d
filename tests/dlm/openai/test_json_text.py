"""JSON of clients: a text with too many values is refused before it is parsed."""

import json
import random
import re

import pytest

from dlm import RequestError
from dlm.openai import body
from dlm.openai.body import MOST_PARTS, compact_json, json_in_pieces, parse_json

SIZE = 4 << 20
LONG = {
    "lists": "[" + "[]," * (SIZE // 3 - 2) + "0]",
    "objects": "[" + '{"":{}},' * (SIZE // 8 - 2) + "0]",
    "numbers": "[" + "1," * (SIZE // 2 - 2) + "0]",
    "keys": "{" + ",".join(f'"{i:x}":0' for i in range(SIZE // 12)) + "}",
    "depth": "[" * SIZE,
}


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("kind", [str, str.encode])
def test_a_text_with_too_many_values_is_refused_before_it_is_parsed(name, kind, monkeypatch):
    monkeypatch.setattr(body.json, "loads", None)
    with pytest.raises(RequestError, match=r"the body has too many values: .* at most 262144"):
        parse_json("the body", kind(LONG[name]))


def test_long_texts_and_the_most_values_allowed_are_parsed():
    prose = json.dumps({"content": "A sentence, as people write it, and no more. " * 80_000})
    assert len(prose) > 3_500_000
    most = [0] * MOST_PARTS  # a bracket, and a comma less than values
    for text in (prose, json.dumps(most)):
        for kind in (str, str.encode):
            assert parse_json("it", kind(text)) == json.loads(text)
    assert parse_json("it", '["\ud800", "\U0001f600"]') == ["\ud800", "\U0001f600"]
    with pytest.raises(RequestError, match="got 262145"):
        parse_json("it", json.dumps([0, *most]))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1 column 1: a value is missing"),
        ("{", "line 1 column 2: the name of a property in double quotes is missing"),
        ('{"a":1,}', ""),
        ('{"a" 1}', "line 1 column 6: a colon is missing"),
        ("[1\n2]", "line 2 column 1: a comma or a closing bracket is missing"),
        ("[1] 2", "line 1 column 5: the value has ended, and more follows"),
        ('["a', "line 1 column 2: a string that begins here does not end"),
        ('["a\n"]', "line 1 column 4: a string has a control character"),
        (r'["\x"]', "line 1 column 3: a string has a backslash that begins no escape"),
        (r'["\u12"]', "a string has an escape without four hexadecimal digits"),
        (b"\xff", "byte 0 is no UTF-8"),
        (b'{"a": "\xc3("}', "byte 7 is no UTF-8"),
        ("\ufeff1", "the text begins with a byte order mark"),
        ("NaN", "NaN is not a value of JSON"),
        ("[-Infinity]", "-Infinity is not a value of JSON"),
        ("[" * 100_000, "its lists and objects are nested too deep"),
        ('{"a":' * 50_000, "its lists and objects are nested too deep"),
        ("[1,\n " + "9" * 5000 + "]", "line 2 column 2: a number has over 4300 digits"),
        (b"-" + b"1" * 4301, "line 1 column 2: a number has over 4300 digits"),
    ],
)
def test_invalid_json_is_refused_in_words_for_its_author(text, problem):
    with pytest.raises(RequestError, match=r"^it is not JSON: ") as raised:
        parse_json("it", text)
    message = str(raised.value)
    assert problem in message
    python = r"Expecting|char \d|codec|recursion|set_int_max_str|Exceeds|surrogates|is no value$"
    assert not re.search(python, message)


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 100])
def test_an_answer_is_written_as_json_in_pieces_that_are_short(count):
    numbers = [random.Random(count).randrange(9999) for _ in range(count)]
    entries = [{"token": f'"{n}é', "bytes": []} for n in numbers]
    nested = {"a": [[{"b": [[[[[[[numbers]]]]]]]}]], "c": {}}
    parts = [{"content": [{"text": "é\n", "logprobs": entries}]}, {"content": []}, 0.5, True]
    answer = {"tokens": numbers, "none": None, "output": parts, "tools": [nested], "strs": [""]}
    pieces = [*json_in_pieces(answer)]
    assert "".join(pieces) == compact_json(answer)
    assert json.loads("".join(pieces)) == answer
    assert max(piece.count("token") for piece in pieces) <= 32
