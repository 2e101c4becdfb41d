"""Schemas with wrong keywords, also where references lead: refused in words, never a traceback."""

from contextlib import suppress
from typing import Any

import pytest
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st

from dlm.grammar import GrammarError, JsonSchema

_VALUES: dict[str, list[Any]] = {
    "type": ["string", "integer", "object", "array", "strin", 5, None, ["string", 3], []],
    "minimum": [0, "x", None],
    "enum": [[1, "a"], 5, []],
    "const": [1],
    "pattern": ["a", "(", 3],
    "maxLength": [3, -1, "x"],
    "required": [["a"], "a"],
    "uniqueItems": [True, "x"],
    "nullable": [True, 3],
    "properties": [{}, 3],
    "prefixItems": [[{}], 3],
    "anyOf": [[], 3],
    "items": [[{}], 3],
    "additionalProperties": [False, 3],
    "not": [3],
    "$anchor": ["n", 3],
    "$id": ["http://r/3", 4],
    "$dynamicRef": ["#n"],
    "$ref": ["#", "#/d/a", "#/d/b", "#/d/a/properties/x", "#/zzz", "http://r/1", "%%%"],
}


def _schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    containers = {
        "properties": st.dictionaries(st.sampled_from("xy"), inner, max_size=2),
        "prefixItems": st.lists(inner, max_size=2),
        "anyOf": st.lists(inner, max_size=3),
        **dict.fromkeys(("items", "additionalProperties", "not", "if", "then"), inner),
    }
    words = containers | {
        word: st.sampled_from(wrong) | containers.get(word, st.nothing())
        for word, wrong in _VALUES.items()
    }
    chosen = st.lists(st.sampled_from(sorted(words)), min_size=1, max_size=3, unique=True)
    return chosen.flatmap(
        lambda names: st.fixed_dictionaries({name: words[name] for name in names})
    )


_SCHEMAS = st.recursive(st.sampled_from([True, False, 3, None, "x", {}]), _schemas, max_leaves=6)
_PARTS = st.fixed_dictionaries({"a": _SCHEMAS, "b": _SCHEMAS})


@examples(4000)
@given(_schemas(_SCHEMAS), st.sampled_from(_VALUES["$ref"]), _PARTS, _SCHEMAS)
def test_a_schema_is_read_or_refused_in_words(schema: Any, to: str, parts: Any, document: Any):
    with suppress(GrammarError):
        refers = {"anyOf": [schema, {"$ref": to}], "d": parts}
        JsonSchema(refers, registry={"http://r/1": document}).rules()


@pytest.mark.parametrize("listed", [{"const": 1}, {"enum": ["a"]}])
def test_no_types_at_all_are_refused_in_words(listed: Any):
    with pytest.raises(GrammarError, match="none is listed"):
        JsonSchema({"type": []} | listed)
