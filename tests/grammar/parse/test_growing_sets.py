"""Sets that grow by an element at a time: their versions share what they hold."""

import gc
import json
import random
import tracemalloc
from itertools import pairwise, permutations

import pytest

from dlm.grammar import Compiler, JsonObject, JsonSchema, Matcher
from dlm.grammar.parse.growing_sets import SMALL, holds_all, unshared, with_element, with_part


def versions_of(elements) -> list:
    """Return the empty set, and the set after each of `elements`."""
    versions = [frozenset()]
    for element in elements:
        versions.append(with_element(versions[-1], element))
    return versions


@pytest.mark.parametrize("count", [0, 1, SMALL, SMALL + 1, 2 * SMALL + 1, 10 * SMALL + 7])
def test_a_set_has_what_was_added(count):
    elements = random.Random(count).sample(range(-5000, 5000), count)
    grown = versions_of(elements)[-1]
    assert len(grown) == count
    assert set(grown) == set(elements)
    assert all(element in grown for element in elements)
    assert 5001 not in grown
    assert bool(grown) == bool(count)


def test_equal_sets_are_one_key_in_whatever_order_they_grew():
    last = 3 * SMALL + 5
    orders = [range(last), range(last - 1, -1, -1), random.Random(0).sample(range(last), last)]
    sets = [versions_of(order)[-1] for order in orders]
    assert len({*sets}) == 1
    for one, other in permutations(sets, 2):
        assert one == other
        assert holds_all(one, other)
    other = versions_of([*range(last - 1), -1])[-1]
    assert other not in sets


@pytest.mark.parametrize("sizes", [(10, 20), (20, 100), (64, 65), (70, 300)])
def test_a_set_holds_all_of_its_earlier_versions(sizes):
    few, many = sizes
    versions = versions_of(range(many))
    assert holds_all(versions[many], versions[few])
    assert not holds_all(versions[few], versions[many])
    assert not holds_all(versions[many], versions_of([*range(few - 1), -1])[few])


def held_by(versions) -> int:
    """Return how many elements all versions hold in memory, each part once."""
    parts = {id(part): part for version in versions for part in getattr(version, "parts", ())}
    return sum(map(len, parts.values()))


def test_versions_hold_n_log_n_elements():
    small, large = 64 * SMALL, 512 * SMALL
    versions = versions_of(range(large))
    counts = [held_by(versions[: size + 1]) for size in (small, large)]
    for size, count in zip((small, large), counts, strict=True):
        assert count < size * (SMALL // 2 + 1 + (size // SMALL).bit_length())
    assert counts[1] < 1.3 * (large / small) * counts[0]


def test_what_a_version_adds_is_counted_once():
    versions = versions_of(range(64 * SMALL))
    added = sum(unshared(after, before) for before, after in pairwise(versions))
    assert added == held_by(versions) + SMALL * (SMALL + 1) // 2 - SMALL


def test_parts_of_sorted_texts_stay_sorted():
    texts, parts = random.Random(1).sample(range(10_000), 20 * SMALL), ()
    for text in texts:
        parts = with_part(parts, text, lambda part: tuple(sorted(part)))
    assert all(list(part) == sorted(part) for part in parts)
    assert sorted(text for part in parts for text in part) == sorted(texts)
    assert len(parts) < 8


@pytest.mark.parametrize(
    ("spec", "first"),
    [
        (JsonSchema({"type": "array", "items": {"type": "string"}, "uniqueItems": True}), "["),
        (JsonObject(), "{"),
    ],
    ids=["items", "keys"],
)
def test_a_long_text_of_distinct_items_or_keys_takes_little_memory(
    compiler: Compiler, vocabulary, spec, first
):
    names = [f"{number:x}" for number in range(2000)]
    value = names if first == "[" else dict.fromkeys(names, 0)
    tokens = vocabulary.encode(json.dumps(value, separators=(",", ":")))
    matcher = Matcher(compiler.compile(spec))
    tracemalloc.start()
    try:
        assert matcher.accept_all(tokens) == len(tokens)
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 12 << 20  # copies of all sets take 90 MB
