"""Immutable dataclasses: compared by fields or by identity, pickled, without other attributes."""

import pickle
from dataclasses import replace

import pytest

from dlm.grammar.immutable import immutable
from dlm.grammar.regex import Literal


@immutable()
class Pair:
    left: int
    right: int = 2


@immutable(eq=False)
class Place:
    name: str


def test_equal_fields_make_equal_objects_with_equal_hashes():
    assert Pair(1) == Pair(1, 2)
    assert hash(Pair(1)) == hash(Pair(1, 2))
    assert Pair(1) != Pair(2)
    assert Pair(1) != (1, 2)


def test_without_eq_an_object_equals_only_itself():
    place = Place("a")
    assert place != Place("a")
    assert len({place, place, Place("a")}) == 2


def test_an_object_is_copied_with_another_field_and_pickled():
    assert replace(Pair(1), right=3) == Pair(1, 3)
    assert pickle.loads(pickle.dumps(Pair(1))) == Pair(1)


@pytest.mark.parametrize("made", [Pair(1), Literal("a")])
def test_an_object_has_no_attributes_but_its_fields(made):
    with pytest.raises(AttributeError):
        object.__setattr__(made, "other", 3)
