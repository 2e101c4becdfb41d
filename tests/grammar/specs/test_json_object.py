"""Any JSON object, and nothing else."""

import json

import pytest
from spoken import recogniser

from dlm.grammar import InvalidGrammarError, InvalidValueError, JsonObject


def test_a_json_object_is_any_object_and_nothing_else():
    spec = JsonObject()
    reader = recogniser(spec)
    for text in ("{}", '{"a": [1, {"b": null}]}'):
        assert reader.accepts(text)
        assert spec.value(text) == json.loads(text)
    for text in ("[]", "1", '"{}"', "{" + " " * 9 + "}"):
        assert not reader.accepts(text)
    with pytest.raises(InvalidValueError, match="does not fit"):
        spec.value("[]")
    with pytest.raises(InvalidGrammarError, match="max_whitespace is 0"):
        JsonObject(max_whitespace=0)
