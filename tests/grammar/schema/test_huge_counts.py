"""Counts of a billion are refused at once, whatever counts them, and answers of that size too."""

import pytest

from dlm.grammar import BudgetError, Compiler, JsonSchema, Matcher

HUGE = 10**9
SCHEMAS = {
    "items": {"type": "array", "minItems": HUGE},
    "characters": {"type": "string", "minLength": HUGE},
    "free properties": {"type": "object", "minProperties": HUGE},
    "counted items": {"type": "array", "contains": {"const": 1}, "minContains": HUGE},
    "properties beside a name": {
        "type": "object",
        "properties": {"a": {}},
        "additionalProperties": True,
        "minProperties": HUGE,
    },
    "distinct items": {"type": "array", "uniqueItems": True, "minItems": HUGE},
}


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_a_count_of_a_billion_is_refused_before_anything_is_generated(compiler: Compiler, schema):
    grammar = compiler.compile(JsonSchema(schema, unenforced="check"))
    matcher, before = Matcher(grammar), grammar.meter.spent
    with pytest.raises(BudgetError, match=r"takes at least [0-9]{8,} tokens, more than 1000"):
        matcher.check_budget(1000)
    with pytest.raises(BudgetError, match="tokens, too many to write it out") as raised:
        matcher.shortest_completion()
    assert raised.value.needed > HUGE // 64
    assert grammar.meter.spent - before < 1000
