"""Formulas: equal ones compare equal, and hashes are computed once."""

from dlm.grammar.schema.documents import Source
from dlm.grammar.schema.formulas import Conditional, Every, ExactlyOne, Leaf, Some


class CountedSource(Source):
    """A source that counts how often its hash is computed."""

    hashes = 0

    def __hash__(self):
        CountedSource.hashes += 1
        return id(self)


def formulas(source):
    leaf = Leaf(source)
    inner = Every((leaf, Leaf(source, False)))
    return [leaf, inner, Some(inner.parts), ExactlyOne((inner,)), Conditional(leaf, inner, leaf)]


def test_equal_formulas_have_equal_hashes_and_others_differ():
    source = Source({}, "/a", "", 0, ())
    made, again = formulas(source), formulas(source)
    assert made == again
    assert [*map(hash, made)] == [*map(hash, again)]
    assert len({*made, *again}) == len(made)
    assert len({hash(formula) for formula in made}) == len(made)


def test_the_hash_of_a_formula_is_computed_once():
    made = formulas(CountedSource({}, "/a", "", 0, ()))
    for formula in made:
        hash(formula)
    before = CountedSource.hashes
    assert before > 0
    for formula in made:
        hash(formula)
    assert hash(Every(tuple(made))) == hash(Every(tuple(made)))
    assert CountedSource.hashes == before
