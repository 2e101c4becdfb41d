"""JSON of clients: a text with too many values is refused before it is parsed."""

import json

import pytest

from dlm import RequestError
from dlm.openai import body
from dlm.openai.body import MOST_PARTS, parse_json

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
    with pytest.raises(RequestError, match=r"the body has too many values: .* it takes 262144"):
        parse_json("the body", kind(LONG[name]))


def test_long_texts_and_the_most_values_allowed_are_parsed():
    prose = json.dumps({"content": "A sentence, as people write it, and no more. " * 80_000})
    assert len(prose) > 3_500_000
    most = [0] * MOST_PARTS  # a bracket, and a comma less than values
    for text in (prose, json.dumps(most)):
        for kind in (str, str.encode):
            assert parse_json("it", kind(text)) == json.loads(text)
    with pytest.raises(RequestError, match="are 262145, and"):
        parse_json("it", json.dumps([0, *most]))


@pytest.mark.parametrize("text", ["", "{", b"\xff", "NaN", "[Infinity]", "[" * 100_000])
def test_invalid_json_is_refused(text):
    with pytest.raises(RequestError, match=r"^it is not JSON: "):
        parse_json("it", text)
