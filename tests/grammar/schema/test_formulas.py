"""Formulas: equal ones compare equal, and hashes are computed once."""

from dlm.grammar.schema.documents import Source
from dlm.grammar.schema.formulas import (
    FALSE,
    TRUE,
    Conditional,
    Every,
    ExactlyOne,
    Leaf,
    Some,
    complement,
    every,
    some,
)


class CountedLeaf(Leaf):
    """A leaf that counts how often its hash is computed."""

    hashes = 0

    def __hash__(self):
        CountedLeaf.hashes += 1
        return id(self)


def formulas(leaf):
    inner = Every((leaf, leaf.opposite))
    return [leaf, inner, Some(inner.parts), ExactlyOne((inner,)), Conditional(leaf, inner, leaf)]


def test_equal_formulas_have_equal_hashes_and_others_differ():
    leaf = Leaf(Source({}, "/a", "", 0, ()))
    made, again = formulas(leaf), formulas(leaf)
    assert made == again
    assert [*map(hash, made)] == [*map(hash, again)]
    assert len({*made, *again}) == len(made)
    assert len({hash(formula) for formula in made}) == len(made)


def test_the_hash_of_a_formula_is_computed_once():
    made = formulas(CountedLeaf(Source({}, "/a", "", 0, ())))
    for formula in made:
        hash(formula)
    before = CountedLeaf.hashes
    assert before > 0
    for formula in made[1:]:
        hash(formula)
    assert hash(Every(tuple(made[1:]))) == hash(Every(tuple(made[1:])))
    assert CountedLeaf.hashes == before


def test_a_condition_that_is_opposed_twice_is_the_same_object():
    leaf = Leaf(Source({}, "/a", "", 0, ()))
    assert complement(leaf) == leaf.opposite != leaf
    assert complement(leaf.opposite) is leaf


def test_conditions_without_parts_are_one_object_each():
    assert every() is TRUE is complement(FALSE) is every(TRUE, TRUE) is some(FALSE, TRUE)
    assert some() is FALSE is complement(TRUE) is some(FALSE, FALSE) is every(TRUE, FALSE)
