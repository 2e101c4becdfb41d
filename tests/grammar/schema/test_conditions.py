"""Conditions of schemas, as caches measure them."""

from dlm.grammar.limits import size_of
from dlm.grammar.schema.conditions import Clause
from dlm.grammar.schema.formulas import FALSE, TRUE, every


def test_a_clause_has_all_its_memory_when_it_is_made():
    clause = Clause((("a", TRUE), ("b", FALSE), ("a", FALSE)))
    size = size_of(clause)
    assert clause.by_name == {"a": every(TRUE, FALSE), "b": FALSE}
    assert size_of(clause) == size
    assert size > size_of(clause.properties, clause.by_name)
    assert clause == Clause(clause.properties)
    assert hash(clause) == hash(Clause(clause.properties))
